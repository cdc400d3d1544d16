"""KV cache figures of a page: the fullest engine is the headline, engines are never added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmtop.engines.page_record import MOST_TOKENS, RowKey, RowSample
from llmtop.engines.rates import RowWindow

FILLS_FROM = 0.5  # below, a rise is most often a batch that is coming in


@dataclass(frozen=True, slots=True)
class KvSummary:
    """The fullest engine: usage 0..1, tokens, and how many more requests of full length fit."""

    engine: str | None = None
    usage: float | None = None
    capacity_tokens: int | None = None
    approx: bool = False
    used_tokens: int | None = None
    room_requests: int | None = None
    growth_tok_s: float | None = None
    full_in_s: float | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None


def not_stepped(row: RowSample) -> bool:
    """An engine that is there but has no gauges yet: data-parallel vLLM exports them after the first step."""
    present = row.late_gauges and (bool(row.counters) or row.config is not None)
    return present and not any(name in row.gauges or name in row.unread for name in ("running", "waiting", "kv_usage"))


def usage(row: RowSample) -> float | None:
    """The used fraction of an engine's KV cache; None for a value that is no fraction."""
    value = row.gauges.get("kv_usage")
    if value is None:
        return 0.0 if not_stepped(row) else None
    return min(value, 1.0) if 0.0 <= value <= 1.01 else None


def capacities(rows: Sequence[RowSample]) -> dict[RowKey, tuple[int | None, bool]]:
    """Tokens each engine's cache holds, and whether that is approximate.

    `kv_cache_size_tokens` is exact and per engine (vLLM 0.24+); before, blocks x block size, where
    `num_gpu_blocks` is the sum over the data-parallel engines, repeated in every row.
    """
    result: dict[RowKey, tuple[int | None, bool]] = {}
    for row in rows:
        config, gauge = row.config, row.gauges.get("kv_capacity")
        if gauge and 0 < gauge < MOST_TOKENS:
            result[row.key] = (int(gauge), False)
        elif config is None:
            result[row.key] = (None, False)
        elif config.size_tokens:
            result[row.key] = (config.size_tokens, False)
        elif config.num_gpu_blocks and config.block_size:
            result[row.key] = (config.num_gpu_blocks * config.block_size // config.sharers, True)
        else:
            result[row.key] = (None, False)
    return result


def unique_names(keys: Sequence[RowKey]) -> dict[RowKey, str]:
    """A name per row: the engine label, with the model where two models share one."""
    shared = Counter(engine for _, engine in keys)
    return {(model, engine): engine if shared[engine] == 1 else f"{model}/{engine}" for model, engine in keys}


def summary(rows: Sequence[RowSample], windows: Mapping[RowKey, RowWindow], max_model_len: int | None) -> KvSummary:
    """The headline of the KV panel."""
    sizes, names = capacities(rows), unique_names([row.key for row in rows])
    length = max_model_len or _model_len(rows)
    utilization = next((row.config.gpu_memory_utilization for row in rows if row.config), None)
    known = [(value, row) for row in rows if (value := usage(row)) is not None]
    if not known:
        total, approx = next((size for size in sizes.values() if size[0]), (None, False))
        return KvSummary(None, None, total, approx, max_model_len=length, gpu_memory_utilization=utilization)
    share, row = max(known, key=lambda item: item[0])
    capacity, approx = sizes[row.key]
    usable = None if capacity is None else _usable(row, capacity)
    used = None if usable is None else _used(row, share, usable)
    growth = _growth(windows[row.key], capacity)
    free = None if capacity is None or used is None else capacity - used
    return KvSummary(
        names[row.key],
        share,
        capacity,
        approx,
        used,
        free // length if free is not None and length else None,
        growth,
        free / growth if free and growth and growth > 0 and _fills(row, share, windows[row.key]) else None,
        length,
        utilization,
    )


def _usable(row: RowSample, capacity: int) -> int:
    """The tokens that a cache can really hold: vLLM never uses its first block."""
    config = row.config
    if config is None or not config.null_block or not config.num_gpu_blocks:
        return capacity
    blocks = config.num_gpu_blocks // config.sharers
    return round(capacity * (blocks - 1) / blocks) if blocks > 1 else capacity


def _used(row: RowSample, share: float, usable: int) -> int | None:
    """The tokens in use: as said, else of the share; None where the share is of a pool that is not counted in them."""
    said = row.gauges.get("kv_used_tokens")
    if said is not None and abs(said - share * usable) <= 0.02 * usable:
        return round(said)
    if row.gauges.get("pool:swa", 0.0) > row.gauges.get("pool:full", 1.0):
        return None
    return round(share * usable)


def _fills(row: RowSample, share: float, window: RowWindow) -> bool:
    """Whether the cache fills up, as opposed to the rising half of a coming and going."""
    return bool(row.gauges.get("running")) and share >= FILLS_FROM and window.rises("kv_usage")


def _growth(window: RowWindow, capacity: int | None) -> float | None:
    slope = window.gauge_slope("kv_usage")
    return None if slope is None or capacity is None else slope * capacity


def _model_len(rows: Sequence[RowSample]) -> int | None:
    """The context length: as exported, or size / concurrency, which vLLM computes from it."""
    for row in rows:
        exported = row.gauges.get("max_model_len")
        if exported is not None and 1 <= exported < MOST_TOKENS:
            return int(exported)
        config = row.config
        if config and config.size_tokens and config.max_concurrency:
            length = config.size_tokens / config.max_concurrency
            if 1 <= length < 1e12:
                return round(length)
    return None
