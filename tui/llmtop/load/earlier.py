"""Finds the run to compare a run with: the latest one before it of the same scenario."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from llmtop.load.files import NoRun, read_run
from llmtop.load.results import RunResult
from llmtop.load.table import Comparison, compare

_LOOKED_AT = 50


@dataclass(frozen=True, slots=True)
class Earlier:
    """A finished run on disk."""

    path: Path
    result: RunResult


def comparison(then: RunResult, now: RunResult) -> list[Comparison]:
    """Two results figure by figure, for the levels that ran to their end in both with a request that succeeded."""
    return compare(*([level for level in run.levels if level.whole] for run in (then, now)))


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
            if found.scenario == result.scenario and comparison(found, result):
                return Earlier(root / name, found)
    return None


def _runs(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []
