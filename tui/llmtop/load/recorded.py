"""A load test in a recording: its plan and its events as plain values, and back again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmtop.contract.codec import NotGiven, plain, rebuild
from llmtop.load.counters import ServerCounters
from llmtop.load.events import (
    Draining,
    Event,
    Finished,
    LevelDone,
    LevelPreparing,
    LevelStarted,
    Preflighted,
    Progress,
    RequestDone,
    Warned,
)
from llmtop.load.plan import Plan

KIND = "load"  # of the recording's event
MOST_LANES = 64  # a picture of more slots is not kept
PER_REQUEST = frozenset(("latencies", "queue_times"))
Item = Plan | ServerCounters | Event
_KINDS: Mapping[str, type] = {
    "plan": Plan,
    "counters": ServerCounters,
    "preparing": LevelPreparing,
    "level": LevelStarted,
    "progress": Progress,
    "done": LevelDone,
    "draining": Draining,
    "warning": Warned,
    "finished": Finished,
}
_WORDS = {kind: word for word, kind in _KINDS.items()}
# the words of earlier versions
_OLD = {"Plan": "plan", "ServerCounters": "counters", "LevelPreparing": "preparing", "LevelStarted": "level"} | {
    "Progress": "progress",
    "LevelDone": "done",
    "Draining": "draining",
    "Warned": "warning",
    "Finished": "finished",
}


def to_values(item: Item) -> dict[str, Any] | None:
    """What to record of a plan or an event; None for what is not recorded: single requests, and prompts."""
    match item:
        case RequestDone() | Preflighted(counters=None):
            return None
        case Preflighted(counters=ServerCounters() as counters):
            item = counters
        case Plan():
            item = replace(item, metadata={}, extra_body={})
        case Progress(lanes=lanes) if len(lanes) > MOST_LANES:
            item = replace(item, lanes=())
    return {"what": _WORDS[type(item)], "values": _without_requests(plain(item))}


def from_values(values: Mapping[str, Any]) -> Item | None:
    """The plan, the counters before the load or the event that was recorded; None when it is not known."""
    word = str(values.get("what"))
    kind = _KINDS.get(_OLD.get(word, word))
    try:
        item: Item | None = rebuild(kind, values.get("values")) if kind is not None else None
    except NotGiven:
        return None
    return item


def _without_requests(value: Any) -> Any:
    """Results without their lists of one figure per request."""
    if isinstance(value, dict):
        return {name: _without_requests(item) for name, item in value.items() if name not in PER_REQUEST}
    return [_without_requests(item) for item in value] if isinstance(value, list) else value
