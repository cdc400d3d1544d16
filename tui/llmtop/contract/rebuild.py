"""Plain values to frozen records: the way back from the JSON contract, for any record with typed fields.

Tolerant by one rule: a value that is missing, or is not what its field holds, counts as not given. The field then has
its default; a record that cannot do without it is not given either. Unknown keys are ignored.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from llmtop.contract.snapshot import Snapshot

Decoder = Callable[[Any], Any]
_KINDS = {"mark": "mark", "restart": "restart", "load": "level"}
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class NotGiven(ValueError):
    """A value that its field cannot hold."""


def from_json(values: object) -> Snapshot:
    """The snapshot of one object of `--json`; raises NotGiven when it has no time or is no object."""
    snapshot: Snapshot = rebuild(Snapshot, _today(values))
    return snapshot


def _today(values: object) -> object:
    """What earlier versions wrote in another shape: marks were words alone, and their first word was the kind."""
    if type(values) is not dict or type(values.get("marks")) is not list or not values["marks"]:
        return values
    marks = [
        {"kind": _KINDS.get(mark.split(" ", 1)[0], "note"), "text": mark, "time": values.get("time")}
        if isinstance(mark, str)
        else mark
        for mark in values["marks"]
    ]
    return values | {"marks": marks}


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
        return _items(_decoder(args[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_decoder(args[1]))
    return _SCALARS[kind]


def _record(kind: type) -> Decoder:
    hints = get_type_hints(kind)
    parts = [(name.name, _decoder(hints[name.name])) for name in dataclasses.fields(kind)]

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


def _mapping(inner: Decoder) -> Decoder:
    def decode(values: Any) -> Any:
        if type(values) is not dict:
            raise NotGiven
        return {_text(key): inner(value) for key, value in values.items()}

    return decode


def _number(value: Any) -> Any:
    """A number as it stands: 1 does not become 1.0, so that it prints as it came."""
    if type(value) is not float and type(value) is not int:
        raise NotGiven
    return value


def _truth(value: Any) -> Any:
    if type(value) is not bool:
        raise NotGiven
    return value


def _text(value: Any) -> Any:
    """Text; a recording from elsewhere must not be able to send commands to the terminal."""
    if type(value) is not str:
        raise NotGiven
    return value if value.isprintable() else _CONTROL.sub("", value)


_SCALARS: Mapping[Any, Decoder] = {int: _number, float: _number, bool: _truth, str: _text}
