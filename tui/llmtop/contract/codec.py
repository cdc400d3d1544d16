"""The one codec of all that is written and read as JSON: records to plain values, plain values to records, the schema.

Reading is tolerant by one rule: a value that is missing, or is not what its field holds, counts as not given. The field
then has its default; a record that cannot do without it is not given either. Unknown keys are ignored.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from llmtop.contract.snapshot import Snapshot

Decoder = Callable[[Any], Any]
_LATEST = 1e11  # Unix time of the year 5138: what lies beyond is no time
_MOST = 2.0**63  # of any number
_UNSAYABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_MOMENTS = re.compile(r"time|began|ended|\w+_(?:time|at)")
_KINDS = {"mark": "mark", "restart": "restart", "load": "level"}


class NotGiven(ValueError):
    """A value that its field cannot hold."""


# to JSON


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def plain(value: object) -> Any:
    """A record as dicts, lists and scalars; NaN and Inf become None."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        return {name: plain(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def to_json(value: object) -> str:
    """A record, or anything that holds records, as one compact line without the newline."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# from JSON


def parse(line: str | bytes) -> Any:
    """The values of a line; raises NotGiven with the reason where it is no JSON."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise NotGiven(f"no JSON from character {error.pos + 1} on") from None
    except UnicodeDecodeError:
        raise NotGiven("no UTF-8") from None
    except RecursionError:
        raise NotGiven("nested too deep") from None
    except ValueError:  # the limit of the language on digits
        raise NotGiven("a number of too many digits") from None


def from_json(values: object) -> Snapshot:
    """The snapshot of one object of `--json`; raises NotGiven when it has no time or is no object."""
    if type(values) is not dict:
        raise NotGiven("no object")
    if moment(values.get("time")) is None:
        raise NotGiven("no time")
    snapshot: Snapshot = rebuild(Snapshot, _today(values))
    return snapshot


def _today(values: dict[str, Any]) -> dict[str, Any]:
    """What earlier versions wrote in another shape: marks were words alone, and their first word was the kind."""
    marks = values.get("marks")
    if type(marks) is not list or not marks:
        return values
    now = [
        {"kind": _KINDS.get(mark.split(" ", 1)[0], "note"), "text": mark, "time": values["time"]}
        if isinstance(mark, str)
        else mark
        for mark in marks
    ]
    return values | {"marks": now}


def rebuild(kind: type, values: object) -> Any:
    """A record of this kind; raises NotGiven when the values do not make one."""
    return _decoder(kind)(values)


@cache
def _decoder(kind: Any) -> Decoder:
    if kind is Any:
        return lambda value: value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _record(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _one_of(args)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in args if arg is not type(None))
        return _optional(_decoder(inner))
    if origin is tuple:
        return _items(_decoder(args[0])) if args[-1] is Ellipsis else _row([_decoder(arg) for arg in args])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_decoder(args[1]))
    return _SCALARS[kind]


def _record(kind: type) -> Decoder:
    hints = get_type_hints(kind)
    parts = [(name, _timed(name, _decoder(hints[name]))) for name in _names(kind)]

    def decode(values: Any) -> Any:
        if type(values) is not dict:
            raise NotGiven
        given = {}
        for name, part in parts:
            if name in values:
                try:
                    given[name] = part(values[name])
                except NotGiven:
                    continue
        try:
            return kind(**given)
        except TypeError:  # a field without a default is missing
            raise NotGiven from None

    return decode


def _timed(name: str, part: Decoder) -> Decoder:
    """Of a field that is a time, only what a clock can show."""
    if _MOMENTS.fullmatch(name) is None:
        return part

    def decode(value: Any) -> Any:
        given = part(value)
        if given is not None and moment(given) is None:
            raise NotGiven
        return given

    return decode


def moment(value: Any) -> float | None:
    """A time that a clock can show, Unix or monotonic, in seconds; None for what is none."""
    return float(value) if type(value) in (float, int) and 0 <= value < _LATEST else None


def _member(kind: type[Enum]) -> Decoder:
    members = {member.value: member for member in kind}

    def decode(value: Any) -> Any:
        member = members.get(value) if isinstance(value, str) else None
        if member is None:
            raise NotGiven
        return member

    return decode


def _one_of(choices: tuple[Any, ...]) -> Decoder:
    def decode(value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise NotGiven
        return value

    return decode


def _optional(inner: Decoder) -> Decoder:
    return lambda value: None if value is None else inner(value)


def _items(inner: Decoder) -> Decoder:
    def decode(values: Any) -> Any:
        if type(values) is not list:
            raise NotGiven
        return tuple(inner(value) for value in values)

    return decode


def _row(inner: list[Decoder]) -> Decoder:
    def decode(values: Any) -> Any:
        if type(values) is not list or len(values) != len(inner):
            raise NotGiven
        return tuple(part(value) for part, value in zip(inner, values, strict=True))

    return decode


def _mapping(inner: Decoder) -> Decoder:
    def decode(values: Any) -> Any:
        if type(values) is not dict:
            raise NotGiven
        return {_text(key): inner(value) for key, value in values.items()}

    return decode


def _number(value: Any) -> Any:
    """A number as it stands: 1 does not become 1.0, so that it prints as it came."""
    if type(value) not in (float, int) or not -_MOST < value < _MOST:
        raise NotGiven
    return value


def _whole(value: Any) -> Any:
    if not _number(value) % 1 == 0:
        raise NotGiven
    return int(value)


def _truth(value: Any) -> Any:
    if type(value) is not bool:
        raise NotGiven
    return value


def _text(value: Any) -> Any:
    """Text; a recording from elsewhere must not be able to send commands to the terminal."""
    if type(value) is not str:
        raise NotGiven
    return value if value.isprintable() else _UNSAYABLE.sub("", value)


_SCALARS: Mapping[Any, Decoder] = {int: _whole, float: _number, bool: _truth, str: _text}


# the schema


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of one line of `--json`."""
    definitions: dict[str, Any] = {}
    root = _schema(Snapshot, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llmtop snapshot",
        **root,
        "$defs": definitions,
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _record_schema(kind, definitions)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [member.value for member in kind]}
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(arg, definitions) for arg in args]}
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)}
    return {"type": {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}[kind]}


def _record_schema(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # a place-holder against recursion
        hints = get_type_hints(kind)
        definitions[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").strip().splitlines()[0],
            "properties": {name: _schema(hints[name], definitions) for name in _names(kind)},
            "required": list(_names(kind)),
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}
