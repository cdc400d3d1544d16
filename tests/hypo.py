"""How long a fuzzer runs: short and always the same in the gate, long and random with `LLMTOP_FUZZ=5000`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")
strategies = pytest.importorskip("hypothesis.strategies")

LONG = os.environ.get("LLMTOP_FUZZ")


def fuzz(check: Callable[..., None], *values: Any, examples: int = 60) -> None:
    """Call `check` with values of these strategies, so many times."""
    held = hypothesis.settings(
        max_examples=int(LONG or examples),
        deadline=None,
        derandomize=not LONG,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    held(hypothesis.given(*values)(check))()
