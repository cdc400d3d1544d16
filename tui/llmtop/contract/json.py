"""The JSON contract: records to plain values, and the JSON Schema that `llmtop schema` prints."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from llmtop.contract.snapshot import Snapshot


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


def to_json(snapshot: Snapshot) -> str:
    """One compact line of the contract, without the newline."""
    return json.dumps(plain(snapshot), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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
