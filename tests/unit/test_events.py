"""Events: what happened between two snapshots, and what is no news."""

from __future__ import annotations

from dataclasses import replace

from fakes.snapshots import BUSY_SERVER, busy
from llmtop.contract.snapshot import Event, Finding, Mark, ServerView, Snapshot, State
from llmtop.session.events import EventLog

FIRST = replace(busy(), findings=(), marks=())
URL = BUSY_SERVER.url


def after(t: float, server: ServerView, **more: object) -> Snapshot:
    return replace(FIRST, time=FIRST.time + t, servers=(server,), **more)  # type: ignore[arg-type]


def told(*snapshots: Snapshot) -> list[Event]:
    log = EventLog()
    return [event for snapshot in (FIRST, *snapshots) for event in log.update(snapshot)]


def test_the_first_snapshot_has_no_news() -> None:
    assert told() == []


def test_a_server_that_goes_and_comes_back() -> None:
    gone = replace(BUSY_SERVER, state=State.DOWN, reason="connection refused")
    down, up = told(after(1, gone), after(2, gone), after(3, BUSY_SERVER))
    assert (down.kind, down.server, down.time) == ("state", URL, FIRST.time + 1)
    assert "SERVING → DOWN: connection refused" in down.text
    assert "DOWN → SERVING" in up.text


def test_work_that_comes_and_goes_is_no_news() -> None:
    idle = replace(BUSY_SERVER, state=State.IDLE)
    assert told(after(1, idle), after(2, BUSY_SERVER)) == []


def test_preemptions_are_told_once_a_burst() -> None:
    base = BUSY_SERVER.preemptions_total or 0
    counts = [(1, 1), (2, 5), (3, 5), (9, 7), (30, 8)]
    events = told(*(after(t, replace(BUSY_SERVER, preemptions_total=base + n)) for t, n in counts))
    assert [(event.kind, event.time - FIRST.time) for event in events] == [("preemptions", 1), ("preemptions", 30)]


def test_a_restart_does_not_preempt() -> None:
    anew = replace(BUSY_SERVER, restarts=BUSY_SERVER.restarts + 1, preemptions_total=10_000)
    assert told(after(1, anew)) == []


def test_findings_are_raised_and_cleared() -> None:
    finding = Finding("x", "warning", "the cache is full")
    shown = {1, 2, 5, 6}  # away for a moment in between
    raised, cleared = told(*(after(t, BUSY_SERVER, findings=(finding,) if t in shown else ()) for t in range(1, 30)))
    assert (raised.time, cleared.time) == (FIRST.time + 1, FIRST.time + 16)
    assert (raised.kind, raised.text) == ("finding", "the cache is full")
    assert (cleared.kind, cleared.text) == ("cleared", "over: the cache is full")


def test_marks_and_load_levels_are_events() -> None:
    marks = (Mark("level", "8 users", FIRST.time + 1), Mark("restart", "restart m", FIRST.time + 1))
    events = told(after(1, BUSY_SERVER, marks=marks))
    assert [(event.kind, event.text) for event in events] == [("level", "8 users"), ("restart", "restart m")]
