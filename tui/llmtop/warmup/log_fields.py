"""Lines that are fields: JSON of any logger, and `level=info msg="…"`.

Which field holds the message is told by what is in it, not by its name: names differ from logger to logger.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TypeAlias

from llmtop.warmup.stamp import Stamp, stamp_in

_DEPTH = 8
_MOST_FIELDS = 200
_LONGEST_TIME = 40
_MOST_LINES = 400  # of a traceback
_MESSAGES = ("message", "msg", "log", "text", "event", "body", "line", "textpayload", "short_message", "content")
_TRACES = ("exc_info", "exc_text", "exception", "stack", "stack_trace", "stacktrace", "traceback", "full_message")
_TIMES = ("time", "ts", "timestamp", "asctime", "date", "created", "at", "realtime")
_TRACEBACK = "Traceback (most recent call last)"
_PAIR = re.compile(r'(?<!\S)(?P<name>[\w.@-]{1,64}+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<bare>[^\s"]++))')
_LEVEL = re.compile(r"(?:^|\s)(?:level|lvl|severity)=")

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"


@dataclass(frozen=True, slots=True)
class Fields:
    """What a line of fields says: a traceback first, then the message; `key` names the field of the message."""

    lines: tuple[str, ...]
    key: str | None
    process: str | None = None
    pid: int | None = None
    stamp: Stamp | None = None


def fields_in(text: str, key: str | None, begins: Callable[[str], bool]) -> Fields | None:
    """Read a line of fields; None when it is none. `key`: where earlier messages were; `begins` knows a message."""
    data = _json(text)
    flat = _pairs(text) if data is None else list(islice(_flat(data), _MOST_FIELDS))
    texts = [(name, value) for name, value in flat if isinstance(value, str) and value.strip()]
    found = _message(texts, key, begins)
    if found is None:
        return None
    name, message = found
    traces = [value for other, value in texts if other != name and _is_trace(other, value)] or _structured(data or {})
    inner = fields_in(message, key, begins) if message.lstrip().startswith("{") else None
    if inner is not None:
        return replace(inner, stamp=inner.stamp or _time(flat))
    lines = tuple(line for whole in (*traces, message) for line in whole.splitlines()[:_MOST_LINES])
    process = next((value for other, value in texts if "process" in other.lower() and len(value) < 64), None)
    return Fields(lines or ("",), name, process, _pid(flat), _time(flat))


def _json(text: str) -> dict[str, Value] | None:
    """The object a line is, or ends with."""
    start = text.find("{")
    if start < 0 or not text.rstrip().endswith("}") or text[start + 1 : start + 2].strip() not in ('"', ""):
        return None
    try:
        data = json.loads(text[start:])
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and len(data) > 0 else None


def _flat(data: dict[str, Value]) -> Iterator[tuple[str, Value]]:
    """Field names and values, those of the outermost object first; what is deeper than eight objects is left out."""
    level: list[dict[str, Value]] = [data]
    for _ in range(_DEPTH):
        deeper: list[dict[str, Value]] = []
        for fields in level[:_MOST_FIELDS]:
            for name, value in fields.items():
                inner = value if isinstance(value, list) else [value]
                objects = [item for item in inner if isinstance(item, dict)]
                deeper += objects
                if not objects:
                    yield name, _bytes(value)
        level = deeper


def _pairs(text: str) -> list[tuple[str, Value]]:
    """The fields of `level=info msg="…"`, when a line is one."""
    if _LEVEL.search(text) is None:
        return []
    pairs = islice(_PAIR.finditer(text), _MOST_FIELDS)
    return [(pair["name"], pair["bare"] or _unquoted(pair["quoted"] or "")) for pair in pairs]


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _bytes(value: Value) -> Value:
    """The journal gives a message with escapes in it as a list of bytes."""
    if not isinstance(value, list) or not value or not all(isinstance(b, int) and 0 <= b < 256 for b in value):
        return value
    return bytes(b for b in value if isinstance(b, int)).decode("utf-8", "replace")


def _message(texts: list[tuple[str, str]], key: str | None, begins: Callable[[str], bool]) -> tuple[str, str] | None:
    told = [(name, value) for name, value in texts if not _is_trace(name, value)] or texts
    known = next(((name, value) for name, value in told if begins(value)), None)
    same = next(((name, value) for name, value in told if name == key), None)
    if known is not None or same is not None:
        return known or same
    for wanted in _MESSAGES:
        for name, value in told:
            if name.lower().lstrip("@_") == wanted:
                return name, value
    spoken = [(name, value) for name, value in told if " " in value and stamp_in(value) is None]
    return max(spoken, key=lambda pair: len(pair[1]), default=None)


def _is_trace(name: str, value: str) -> bool:
    return (_TRACEBACK in value and "\n" in value.strip()) or name.lower() in _TRACES


def _structured(data: dict[str, Value]) -> list[str]:
    """A traceback as a list of objects: type, value and frames."""
    for value in data.values():
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict) and "exc_type" in item:
                frames = item.get("frames")
                names = [f.get("name") for f in frames if isinstance(f, dict)] if isinstance(frames, list) else []
                head = [_TRACEBACK + ":", *(f'  File "?", line 1, in {name}' for name in names)]
                return ["\n".join([*head, f"{item['exc_type']}: {item.get('exc_value')}"])]
    return []


def _pid(flat: list[tuple[str, Value]]) -> int | None:
    for name, value in flat:
        if name.lower().strip("_") in ("process", "pid", "process_id", "processid"):
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
                return value
            if isinstance(value, str) and value.isdecimal() and len(value) < 10:
                return int(value)
    return None


def _time(flat: list[tuple[str, Value]]) -> Stamp | None:
    """The time of a line: a field that is a date and nothing else, or one that is named like a time."""
    for _, value in flat:
        stamp = stamp_in(value) if isinstance(value, str) and len(value) <= _LONGEST_TIME else None
        if stamp is not None:
            return stamp
    named = (value for name, value in flat if any(word in name.lower() for word in _TIMES))
    return next((stamp for value in named if (stamp := _epoch(value)) is not None), None)


def _epoch(value: Value) -> Stamp | None:
    """Seconds, milli-, micro- or nanoseconds since 1970, as a number or in digits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not re.fullmatch(r"\d{9,20}(?:\.\d{1,9})?", value):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    while math.isfinite(seconds) and seconds > 1e11:
        seconds /= 1000
    if not 5e8 < seconds < 1e10:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    second = moment.hour * 3600 + moment.minute * 60 + moment.second + moment.microsecond / 1e6
    return Stamp(moment.month, moment.day, second, moment.year, whole=False)
