"""A start-up in a recording: what comes back, and what is never written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmtop.warmup import recorded
from llmtop.warmup.evidence import MachineMemory, evidence
from llmtop.warmup.recorded import StartupView, least_of_each
from llmtop.warmup.report import Report, make_report
from llmtop.warmup.tracker import read_log

LOGS = sorted((Path(__file__).parents[1] / "fixtures" / "startup").glob("*.log"))
GIB = 2**30


def report(log: Path) -> Report:
    startup = read_log(log.read_text(encoding="utf-8").splitlines())
    phases = tuple(
        replace(p, min_headroom_bytes=5 * GIB, began=p.start_s, pools={"unified": 5}) for p in startup.phases
    )
    startup = replace(startup, phases=phases)
    return make_report(startup, evidence(startup, MachineMemory(total_bytes=96 * GIB, used_bytes=50 * GIB)))


def there_and_back(view: StartupView, **options: bool) -> StartupView | None:
    return recorded.from_values(json.loads(json.dumps(recorded.to_values(view, **options))))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_everything_but_the_log_comes_back(log: Path) -> None:
    view = StartupView(report(log), ((1.5, 7 * GIB), (2.5, 6 * GIB)), active=True)
    assert view.report.startup.lines
    silent = replace(view.report, startup=replace(view.report.startup, lines=(), notices=()))
    assert there_and_back(view) == replace(view, report=silent)
    assert there_and_back(view, log=True) == view


def test_of_many_readings_the_lowest_stay() -> None:
    readings = [(float(at), 100) for at in range(10_000)]
    readings[7003] = (7003.0, 3)
    readings[7004] = (7004.0, 2)
    kept = least_of_each(readings, 150)
    assert len(kept) == 150
    assert kept == sorted(kept)
    assert (7004.0, 2) in kept
    assert (7003.0, 3) not in kept
    assert least_of_each(readings[:3], 150) == readings[:3]
    assert len(least_of_each([(1.0, 1)] * 1000, 150)) == 1


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"report": None},
        {"report": {}},
        {"report": {"startup": {}, "evidence": {}, "ledger": [], "advice": {}, "verdict": "well"}},
        {"report": 7, "readings": []},
    ],
    ids=str,
)
def test_what_cannot_be_read_is_nothing(values: dict[str, Any]) -> None:
    assert recorded.from_values(values) is None


def test_a_reading_is_a_pair() -> None:
    values = recorded.to_values(StartupView(report(LOGS[0]))) | {"readings": [[1.0, 2, 3]]}
    view = recorded.from_values(values)
    assert view is not None
    assert view.readings == ()
