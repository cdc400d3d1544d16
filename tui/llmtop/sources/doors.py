"""What an engine's own side door says of it, for what /v1/models and /version leave open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmtop.model.tracker import Identity
from llmtop.model.units import LABEL_LIMIT, clean

VERSION_CHARS = 40
Keys = tuple[str, ...]  # one inside the other


@dataclass(frozen=True, slots=True)
class Door:
    """A path with a JSON object, and where in it the names and limits are; of several places the first that has one."""

    path: str
    model: tuple[Keys, ...] = ()
    version: tuple[Keys, ...] = ()
    max_model_len: tuple[Keys, ...] = ()
    max_num_seqs: tuple[Keys, ...] = ()


DOORS: Mapping[str, Door] = {
    "llamacpp": Door(
        "/props",
        model=(("model_alias",), ("model_path",)),
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
    model = _text(answer, door.model)
    return replace(
        identity,
        model=identity.model or (model.rpartition("/")[2] if model and model.startswith("/") else model),
        version=identity.version or _text(answer, door.version, VERSION_CHARS),
        max_model_len=identity.max_model_len or _whole(answer, door.max_model_len),
        max_num_seqs=identity.max_num_seqs or _whole(answer, door.max_num_seqs),
    )


def _at(answer: Any, keys: Keys) -> Any:
    for key in keys:
        answer = answer.get(key) if isinstance(answer, dict) else None
    return answer


def _text(answer: Any, places: tuple[Keys, ...], limit: int = LABEL_LIMIT) -> str | None:
    found = (_at(answer, keys) for keys in places)
    return next((clean(value, limit) for value in found if isinstance(value, str) and value), None)


def _whole(answer: Any, places: tuple[Keys, ...]) -> int | None:
    found = (_at(answer, keys) for keys in places)
    return next((value for value in found if type(value) is int and value > 0), None)
