"""llama.cpp's /slots: the tokens of running requests, which its counters hold back until a request ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmtop.engines.numbers import plain_number
from llmtop.engines.page_record import Page


class Slots:
    """Turns finished tokens plus those of running slots into one counter that never runs back."""

    def __init__(self) -> None:
        self._finished = self._live = 0.0

    def fill(self, page: Page, answer: Any) -> Page:
        """The page with a live generation counter, KV usage and capacity; unchanged when /slots said nothing."""
        slots = [slot for slot in answer if isinstance(slot, dict)] if isinstance(answer, list) else []
        if not slots or len(page.rows) != 1:
            return page
        row = page.rows[0]
        counters = {name: value for name, value in row.counters.items() if name != "generation_busy_s"}
        counters["generation"] = self._counter(counters.get("generation", 0.0), sum(map(_decoded, slots)))
        gauges = {**row.gauges, **_cache(slots)}
        return replace(page, rows=(replace(row, counters=counters, gauges=gauges),))

    def _counter(self, finished: float, running: float) -> float:
        if finished < self._finished:  # the server restarted
            self._live = 0.0
        self._finished = finished
        # a request may end between the two answers: its tokens are then missing for a moment
        self._live = max(self._live, finished + running)
        return self._live


def _decoded(slot: dict[str, Any]) -> float:
    if not slot.get("is_processing"):
        return 0.0
    following = slot.get("next_token")
    first = following[0] if isinstance(following, list) and following else following
    return _number(first.get("n_decoded")) if isinstance(first, dict) else 0.0


def _cache(slots: list[dict[str, Any]]) -> dict[str, float]:
    capacity = sum(_number(slot.get("n_ctx")) for slot in slots)
    if capacity <= 0:
        return {}
    if not any("n_prompt_tokens" in slot for slot in slots):
        return {"kv_capacity": capacity}
    used = sum(_number(slot.get("n_prompt_tokens")) for slot in slots if slot.get("is_processing"))
    return {"kv_usage": min(1.0, used / capacity), "kv_capacity": capacity}


def _number(value: Any) -> float:
    return plain_number(value) or 0.0
