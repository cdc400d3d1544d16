"""What a run leaves on disk: one vLLM-named JSON per level, a summary, a report, requests and server series.

All files are readable by their owner alone. `summary.json` is what `vllm bench sweep plot` reads.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from llmtop.contract.codec import NotGiven, plain
from llmtop.contract.units import clean
from llmtop.load.counters import ServerCounters
from llmtop.load.plan import Plan
from llmtop.load.records import RequestRecord
from llmtop.load.results import LevelResult, RunResult, bench_keys, run_from, values_of
from llmtop.load.scenarios import bench_commands
from llmtop.load.summary import ARRAYS
from llmtop.load.table import facts, markdown

_SERIES = ("time_s", "running", "waiting", "kv_usage", "generation", "prompt", "requests", "preemptions")


class NoRun(ValueError):
    """A path that holds no finished run."""


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/llmtop`, by default `~/.local/state/llmtop`."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base and base.startswith("/") else Path.home() / ".local" / "state") / "llmtop"


def new_directory(root: Path, scenario: str, started: datetime) -> Path:
    """Makes `<root>/<date>-<scenario>`, or the same with a number when it exists; mode 0700."""
    name = f"{started:%Y%m%d-%H%M%S}-{scenario}"
    root.mkdir(parents=True, exist_ok=True)
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        try:
            (root / (name + suffix)).mkdir(mode=0o700)
        except FileExistsError:
            continue
        return root / (name + suffix)
    raise FileExistsError(f"{root / name} and 98 more of its name exist")


class RunFiles:
    """Writes a run as it goes, so that what was measured survives whatever ends it.

    Raises OSError when it cannot begin; a disk that fills later is trouble to be told, and the run goes on. A file that
    is there is whole, but for the two series.
    """

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory = directory
        self._trouble: str | None = None
        self._told = False
        self._plan = plan
        self._levels: list[dict[str, Any]] = []  # as vLLM writes them
        self._requests = self._open("requests.jsonl")
        self._series = self._open("server.csv")
        self._csv = csv.writer(self._series)
        self._csv.writerow(("level", *_SERIES))
        self._write_plan()

    def replan(self, plan: Plan) -> None:
        """The plan as the run has changed it."""
        self._plan = plan
        with self._trying():
            self._write_plan()

    def _write_plan(self) -> None:
        self._write("plan.json", json.dumps(plain(self._plan), indent=1))

    def request(self, level: str, record: RequestRecord) -> None:
        """One line of `requests.jsonl`; gaps between chunks are in the level's file."""
        data = asdict(record)
        del data["itls_s"]
        with self._trying():
            self._requests.write(json.dumps({"level": level, **data, "chunks": record.chunks}) + "\n")

    def server(self, level: str, counters: ServerCounters) -> None:
        """One line of `server.csv`."""
        with self._trying():
            self._csv.writerow((level, *(getattr(counters, name) for name in _SERIES)))

    def level(self, result: LevelResult, arrays: Mapping[str, list[Any]]) -> None:
        """The JSON of a level that has ended, and the summary so far."""
        flat = bench_keys(result)
        self._levels.append(flat)
        with self._trying():
            self._write(self._level_name(result), json.dumps(flat | {key: arrays[key] for key in ARRAYS}))
        with self._trying():
            self._write("summary.json", json.dumps(self._levels, indent=1))
        with self._trying():
            self._requests.flush()
            self._series.flush()

    def finish(self, result: RunResult) -> None:
        """The result as a whole and the report for people."""
        for name, text in (
            ("run.json", json.dumps(values_of(result), indent=1)),
            ("report.md", report(result, self._plan)),
        ):
            with self._trying():
                self._write(name, text)
        self.close()

    def close(self) -> None:
        """Closes the series."""
        for file in (self._requests, self._series):
            with self._trying():
                file.close()

    def take_trouble(self) -> str | None:
        """Why the results are not all on disk, once."""
        trouble = None if self._told else self._trouble
        self._told = self._told or trouble is not None
        return trouble

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._trouble = self._trouble or f"not all results are on disk: {self.directory}: {error.strerror}"

    def _level_name(self, result: LevelResult) -> str:
        model = str(result.model or "model").rstrip("/").split("/")[-1]
        rate = "inf" if result.request_rate is None else result.request_rate
        stem = f"{result.backend}-{rate}qps-concurrency{result.concurrency}-{model}-{result.date}".replace("/", "_")
        names = (f"{stem}{suffix}.json" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
        return next(name for name in names if not (self.directory / name).exists())

    def _open(self, name: str) -> IO[str]:
        return open(self.directory / name, "w", encoding="utf-8", newline="", opener=_private)

    def _write(self, name: str, text: str) -> None:
        """A file as a whole or not at all."""
        part = self.directory / f".{name}.part"
        try:
            with self._open(part.name) as file:
                file.write(text + "\n")
            part.replace(self.directory / name)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def report(result: RunResult, plan: Plan) -> str:
    """The run in Markdown: the answer, the table, the doubts, and the same runs by `vllm bench serve`."""
    doubts = [f"- {level.level}: **{flag.name}**: {flag.reason}" for level in result.levels for flag in level.flags]
    commands = bench_commands(plan, result.model)
    return "\n".join(
        [
            f"# {result.scenario}: {clean(result.model or plan.url)}",
            "",
            result.words + (" (interrupted)" if result.interrupted else ""),
            "",
            markdown(result.levels),
            "",
            *(f"- {fact}" for fact in facts(result)),
            "",
            "## Doubts",
            "",
            *(doubts or ["None."]),
            "",
            "## The same with vLLM's own tool",
            "",
            "```sh",
            *commands,
            "```",
        ]
    )


def read_run(path: Path) -> RunResult:
    """The result of a finished run, from its directory or its `run.json`; raises `NoRun`."""
    file = path / "run.json" if path.is_dir() else path
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NoRun(f"{path}: no finished run ({error})") from None
    try:
        return run_from(values)
    except NotGiven:
        raise NoRun(f"{path}: not the result of a run") from None
