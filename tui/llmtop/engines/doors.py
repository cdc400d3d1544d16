"""What an engine's own side door says of it, for what /v1/models and /version leave open."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from llmtop.contract.units import LABEL_LIMIT, clean
from llmtop.engines.numbers import is_limit
from llmtop.engines.registry.entry import Door, Keys
from llmtop.engines.tracker import Identity

VERSION_CHARS = 40


def complete(identity: Identity, door: Door, answer: Any) -> Identity:
    """An identity with what the answer of a door adds to it; nothing that was known is changed."""
    return replace(
        identity,
        model=identity.model or _text(answer, door.model) or _file_name(answer, door.model_file),
        version=identity.version or _text(answer, door.version, VERSION_CHARS),
        max_model_len=identity.max_model_len or _whole(answer, door.max_model_len),
        max_num_seqs=identity.max_num_seqs or _whole(answer, door.max_num_seqs),
    )


def _at(answer: Any, keys: Keys) -> Any:
    for key in keys:
        answer = answer.get(key) if isinstance(answer, dict) else None
    return answer


def _file_name(answer: Any, keys: Keys) -> str | None:
    """The name of a file without its folders, which are the server's own affair."""
    path = _at(answer, keys) if keys else None
    return clean(re.split(r"[/\\]", path)[-1]) or None if isinstance(path, str) else None


def _text(answer: Any, places: tuple[Keys, ...], limit: int = LABEL_LIMIT) -> str | None:
    found = (_at(answer, keys) for keys in places)
    return next((clean(value, limit) for value in found if isinstance(value, str) and value), None)


def _whole(answer: Any, places: tuple[Keys, ...]) -> int | None:
    found = (_at(answer, keys) for keys in places)
    return next((value for value in found if is_limit(value)), None)
