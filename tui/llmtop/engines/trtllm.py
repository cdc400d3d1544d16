"""TensorRT-LLM: its /metrics is a JSON list of iterations, its Prometheus page lies at /prometheus/metrics.

Reading the list drains it for everybody, so it is only read as long as the Prometheus page has no gauges.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from llmtop.engines.dialects import TRTLLM
from llmtop.engines.numbers import plain_number
from llmtop.engines.page_record import Page, RowSample

PROMETHEUS = "/prometheus/metrics"


def read_iterations(body: bytes) -> dict[str, float] | None:
    """The gauges of the newest iteration, none of an empty list; None when the body is no list of iterations."""
    if not body.lstrip().startswith(b"["):
        return None
    try:
        listed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if any(not isinstance(item, dict) or "iter" not in item for item in listed):
        return None
    return _gauges(listed[-1]) if listed else {}


def as_page(page: Page | None, gauges: dict[str, float], t: float) -> Page:
    """The Prometheus page, if there is one, with the gauges of the list where it has none of its own."""
    if page is None or not page.rows:
        # an empty list is all that an idle engine says
        return Page(t, TRTLLM.name, (RowSample(("", "0"), gauges or {"running": 0.0, "waiting": 0.0}),))
    first, *others = page.rows
    return replace(page, rows=(replace(first, gauges={**gauges, **first.gauges}), *others))


def has_gauges(page: Page | None) -> bool:
    """Whether the Prometheus page says all that the list would."""
    return page is not None and any({"running", "kv_usage"} <= set(row.gauges) for row in page.rows)


def _gauges(newest: dict[str, Any]) -> dict[str, float]:
    cache = newest.get("kvCacheStats")
    cache = cache if isinstance(cache, dict) else {}
    used, blocks = plain_number(cache.get("usedNumBlocks")), plain_number(cache.get("maxNumBlocks"))
    size = plain_number(cache.get("tokensPerBlock"))
    found = {
        "running": plain_number(newest.get("numActiveRequests")),
        "waiting": plain_number(newest.get("numQueuedRequests")),
        "kv_usage": used / blocks if used is not None and blocks else None,
        "kv_capacity": blocks * size if blocks and size else None,
        "pulse": plain_number(newest.get("iter")),
    }
    return {name: value for name, value in found.items() if value is not None}
