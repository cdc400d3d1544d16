"""What an engine's own side door says of it, for what /v1/models and /version leave open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmtop.contract.units import LABEL_LIMIT, clean
from llmtop.engines.numbers import is_limit
from llmtop.engines.tracker import Identity

VERSION_CHARS = 40
Keys = tuple[str, ...]  # one inside the other


@dataclass(frozen=True, slots=True)
class Door:
    """A path with a JSON object, and where in it the names and limits are; of several places the first that has one."""

    path: str
    model: tuple[Keys, ...] = ()
    model_file: Keys = ()
    version: tuple[Keys, ...] = ()
    max_model_len: tuple[Keys, ...] = ()
    max_num_seqs: tuple[Keys, ...] = ()


DOORS: Mapping[str, Door] = {
    "llamacpp": Door(
        "/props",
        model=(("model_alias",),),
        model_file=("model_path",),
        version=(("build_info",),),
        max_model_len=(("default_generation_settings", "n_ctx"),),
        max_num_seqs=(("total_slots",),),
    ),
    "tgi": Door("/info", model=(("model_id",),), version=(("version",),), max_model_len=(("max_total_tokens",),)),
    "sglang": Door(
        "/server_info",
        version=(("version",),),
        max_model_len=(("context_length",),),
        max_num_seqs=(("max_running_requests",),),
    ),
}


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
