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
    Measuring,
    Preflighted,
    Progress,
    RequestDone,
    Warned,
)
from llmtop.load.plan import Plan
from llmtop.load.results import LevelResult, level_from, run_from, values_of

KIND = "load"  # of the recording's event
MOST_LANES = 64  # a picture of more slots is not kept
Item = Plan | ServerCounters | Event
_KINDS: Mapping[str, type] = {
    "plan": Plan,
    "counters": ServerCounters,
    "measuring": Measuring,
    "preparing": LevelPreparing,
    "level": LevelStarted,
    "progress": Progress,
    "done": LevelDone,
    "draining": Draining,
    "warning": Warned,
    "finished": Finished,
}
_WORDS = {kind: word for word, kind in _KINDS.items()}
_OLD = {kind.__name__: kind for kind in _WORDS}  # the words of earlier versions


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
    return {"what": _WORDS[type(item)], "values": _values(item)}


def _values(item: Item) -> dict[str, Any]:
    """The item as plain values; results without their lists of one figure per request."""
    if isinstance(item, LevelDone):
        return {"index": item.index, "result": values_of(_short(item.result))}
    if isinstance(item, Finished):
        return {"result": values_of(replace(item.result, levels=tuple(map(_short, item.result.levels))))}
    values: dict[str, Any] = plain(item)
    return values


def _short(level: LevelResult) -> LevelResult:
    return replace(level, latencies=(), queue_times=())


def from_values(values: Mapping[str, Any]) -> Item | None:
    """The plan, the counters before the load or the event that was recorded; None when it is not known."""
    what, given = values.get("what"), values.get("values")
    kind = _KINDS.get(str(what)) or _OLD.get(str(what))
    try:
        if kind is Finished and isinstance(given, dict):
            return Finished(run_from(given.get("result")))
        if kind is LevelDone and isinstance(given, dict):
            return LevelDone(rebuild(int, given.get("index")), level_from(given.get("result")))
        item: Item | None = rebuild(kind, given) if kind is not None else None
    except NotGiven:
        return None
    return item
