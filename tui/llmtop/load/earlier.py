"""Finds the run to compare a run with: the latest one before it of the same scenario."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from llmtop.load.compare import compare
from llmtop.load.files import NoRun, read_run
from llmtop.load.results import RunResult

_LOOKED_AT = 50


@dataclass(frozen=True, slots=True)
class Earlier:
    """A finished run on disk."""

    path: Path
    result: RunResult


def earlier_run(root: Path, result: RunResult) -> Earlier | None:
    """The latest run under `root` of the same scenario with a level in common, `result`'s own left out.

    Directories begin with their date, so that their names are in order.
    """
    own = result.directory
    names = sorted(path.name for path in _runs(root) if str(path) != own)
    if own:
        names = [name for name in names if name < Path(own).name]
    for name in names[: -_LOOKED_AT - 1 : -1]:
        with contextlib.suppress(NoRun):
            found = read_run(root / name)
            if found.scenario == result.scenario and compare(found, result).figures:
                return Earlier(root / name, found)
    return None


def _runs(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []
