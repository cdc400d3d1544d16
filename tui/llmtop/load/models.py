"""Which of a server's models is loaded: never one that makes no text, nor one that would first have to be loaded."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.engines.models import ListedModel


class NoModel(RuntimeError):
    """No model can be taken without asking; the message says what to name."""


def candidates(models: Sequence[ListedModel], wanted: str | None) -> list[ListedModel]:
    """The models to try, the best first; raises `NoModel` when one must be named."""
    if wanted is not None:
        return [next((model for model in models if model.name == wanted), ListedModel(wanted))]
    able = [model for model in models if model.generates]
    if models and not able:
        raise NoModel(f"none of the models makes text: {names(models)}; --model takes one all the same")
    ready = [model for model in able if model.loaded is not False]
    if able and not ready:
        raise NoModel(f"no model is loaded: name one with --model ({names(able)})")
    return sorted(ready, key=lambda model: model.loaded is not True)


def names(models: Sequence[ListedModel], most: int = 5) -> str:
    """Names of models, some of many."""
    more = f" and {len(models) - most} more" if len(models) > most else ""
    return ", ".join(model.name for model in models[:most]) + more


def unlisted(models: Sequence[ListedModel], wanted: str | None) -> str | None:
    """What speaks against a model that was named, in words; None where nothing does."""
    if wanted is None or not models or any(model.name == wanted for model in models):
        return None
    return f"{wanted} is none of the {len(models)} models listed here ({names(models)})"


def choice(models: Sequence[ListedModel], taken: str | None) -> str | None:
    """Which of several models is taken, in words; None where there is no choice."""
    others = [model for model in models if model.name != taken]
    if taken is None or not others:
        return None
    return f"{taken} is taken of {len(models)} models here (others: {names(others)}; --model names one)"
