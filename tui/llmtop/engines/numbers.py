"""Numbers in the JSON of others, which knows Infinity, NaN and integers of any length."""

from __future__ import annotations

from typing import Any, TypeGuard

from llmtop.engines.page_record import MOST_TOKENS


def is_limit(value: Any) -> TypeGuard[int]:
    """Whether a value can be a length or a number of requests."""
    return type(value) is int and 0 < value < MOST_TOKENS


def plain_number(value: Any) -> float | None:
    """A value that can be a number of tokens, blocks or requests; None for anything else."""
    return float(value) if type(value) in (int, float) and 0 <= value < MOST_TOKENS else None
