"""What /v1/models lists: of several models the one that serves now, and never one that would have to be loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmtop.engines.numbers import is_limit

# models that answer no prompt, where only their names tell
_NO_CHAT = re.compile(
    r"(?i)(^|[^a-z])(embed(ding|dings)?|nomic|bge|gte|e5|minilm|rerank(er)?|colbert|whisper|tts)([^a-z]|$)"
)
_LOADED = frozenset({"loaded", "ready", "running", "sleeping"})


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One model of the list; `loaded` is None where the server does not say, as those of one model do not."""

    name: str
    max_model_len: int | None = None
    loaded: bool | None = None
    generates: bool = True
    owner: str | None = None


def listed(answer: Any) -> tuple[ListedModel, ...]:
    """The models of an answer of /v1/models, in its order."""
    models = answer.get("data") if isinstance(answer, dict) else None
    found = (_model(entry) for entry in models if isinstance(entry, dict)) if isinstance(models, list) else ()
    return tuple(model for model in found if model is not None)


def serving(models: Sequence[ListedModel]) -> ListedModel | None:
    """The model to look at where none was named; None where a router has none loaded."""
    if any(model.loaded is not None for model in models):
        models = [model for model in models if model.loaded]
    return next((model for model in models if model.generates), models[0] if models else None)


def is_router(models: Sequence[ListedModel]) -> bool:
    """Whether models come and go: a question that names one would load it."""
    return any(model.loaded is not None for model in models)


def _model(entry: Mapping[str, Any]) -> ListedModel | None:
    name, length, meta = entry.get("id"), entry.get("max_model_len"), entry.get("meta")
    if not isinstance(name, str) or not name:
        return None
    if length is None and isinstance(meta, dict):
        length = meta.get("n_ctx")  # llama.cpp
    owner = entry.get("owned_by")
    kind = entry.get("type")
    return ListedModel(
        name,
        length if is_limit(length) else None,
        _loaded(entry),
        not _NO_CHAT.search(name) and kind not in ("embedding", "embeddings"),
        owner if isinstance(owner, str) else None,
    )


def _loaded(entry: Mapping[str, Any]) -> bool | None:
    """Whether it is in memory: llama.cpp's router has a status, LM Studio a state."""
    status = entry.get("status")
    value = status.get("value") if isinstance(status, dict) else status
    value = entry.get("state") if value is None else value
    return value in _LOADED if isinstance(value, str) else None
