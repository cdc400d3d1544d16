"""Servers that count nothing: which models they hold, and how much memory those take, is all that they tell."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from llmtop.contract.units import clean
from llmtop.engines.command_line import process
from llmtop.engines.numbers import plain_number
from llmtop.engines.page_record import Page, RowSample
from llmtop.engines.registry.entry import Door, EngineEntry, Instead

_ONLY_MODELS = "its models and their memory only: it counts no tokens and no queue"


def _row(name: str, figures: Mapping[str, Any]) -> RowSample:
    known = {signal: number for signal, value in figures.items() if (number := plain_number(value)) is not None}
    return RowSample((clean(name), clean(name)), known)


def _expiry(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except (ValueError, OverflowError, OSError):
        return None


def _ollama(answer: Any, t: float) -> Page | None:
    models = answer.get("models") if isinstance(answer, dict) else None
    if not isinstance(models, list):
        return None
    rows = tuple(
        _row(
            name,
            {
                "memory_bytes": model.get("size"),
                "gpu_memory_bytes": model.get("size_vram"),
                "max_model_len": model.get("context_length"),
                "expires": _expiry(model.get("expires_at")),
            },
        )
        for model in models
        if isinstance(model, dict) and isinstance(name := model.get("name"), str)
    )
    return Page(t, OLLAMA.name, rows, words=_ONLY_MODELS if rows else "no model is loaded")


def _lm_studio(answer: Any, t: float) -> Page | None:
    models = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(models, list) or not any(isinstance(model, dict) and "state" in model for model in models):
        return None
    rows = tuple(
        _row(name, {"max_model_len": model.get("loaded_context_length")})
        for model in models
        if isinstance(model, dict) and model.get("state") == "loaded" and isinstance(name := model.get("id"), str)
    )
    return Page(t, LM_STUDIO.name, rows, words="its models only: it counts nothing" if rows else "no model is loaded")


def _llama_swap(answer: Any, t: float) -> Page | None:
    models = answer.get("running") if isinstance(answer, dict) else None
    if not isinstance(models, list):
        return None
    names = [model["model"] for model in models if isinstance(model, dict) and isinstance(model.get("model"), str)]
    words = "which models run only: ask their own servers for more" if names else "no model is loaded"
    return Page(t, LLAMA_SWAP.name, tuple(_row(name, {}) for name in names), words=words)


OLLAMA = EngineEntry(
    "ollama",
    "Ollama",
    door=Door("/api/version", version=(("version",),)),
    instead=Instead("/api/ps", _ollama),
    processes=(process(r"(^|/)ollama$", "serve"), process(r"(^|/)ollama$", "start")),
    port=11434,
    port_elsewhere=True,
    has_children=True,
    silent_on="tok/s, running, waiting, KV cache: it counts nothing",
)
LM_STUDIO = EngineEntry(
    "lm-studio",
    "LM Studio",
    instead=Instead("/api/v0/models", _lm_studio),
    processes=(process(r"(?i)(^|/)(lm[ -]?studio|llmster)$"),),
    port=1234,
    only_listening=True,
    has_children=True,
    silent_on="tok/s, running, waiting, KV cache: it counts nothing",
)
LLAMA_SWAP = EngineEntry(
    "llama-swap",
    "llama-swap",
    instead=Instead("/running", _llama_swap),
    processes=(process(r"(^|/)llama-swap$"),),
    port=8080,
    port_options=("--listen", "-listen"),
    silent_on="everything but which models run: those have servers of their own",
)
