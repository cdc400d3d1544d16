"""Folds the resolved series of a page into one `Page`: a row per engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmtop.engines.exposition import Parsed
from llmtop.engines.page_record import MOST_REQUESTS, NO_ENGINE, CacheConfig, Histogram, Page, RowKey, RowSample
from llmtop.engines.registry import BY_NAME, PROCESS
from llmtop.engines.registry.entry import AT_END, EngineEntry, Kind
from llmtop.engines.series import Labels, Rank, SampleSlot

UNTOLD_S = 10.0  # until an engine tells its speed for the first time
POOLS_APART = 0.05  # the fullest pool is none of those that are told
_SIZES = ("num_gpu_blocks", "block_size", "size_tokens", "max_concurrency", "gpu_memory_utilization")
_SLEEP_LEVELS = {"weights_offloaded": 1, "discard_all": 2}


@dataclass(slots=True)
class _Row:
    """A row being filled; every signal keeps the rank of the source that filled it."""

    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    ranks: dict[str, Rank] = field(default_factory=dict)
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)  # beside the one of the scheduler
    sleep: dict[str, float] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    config: CacheConfig | None = None
    role: str | None = None


def read_page(parsed: Parsed, t: float) -> Page | None:
    """The page as rows per engine; None when no known engine speaks on it."""
    folder = _Folder(parsed.places)
    for slot, value in parsed.values.items():
        for key in parsed.rows.get(slot, ()):
            folder.add(slot, key, value)
    dialect = folder.dialect
    if not dialect:
        return None
    if dialect == "vllm" and parsed.openmetrics:
        dialect = "vllm-rust"  # the Python front end never ends a page with "# EOF"
    return Page(
        t,
        dialect,
        folder.rows(),
        min(folder.starts) if len(folder.starts) == 1 else None,  # of several processes none is that of the page
        folder.adapters(),
        parsed.partial,
        parsed.bad_lines,
        BY_NAME[dialect].digits,
    )


class _Folder:
    def __init__(self, places: Mapping[RowKey, Labels]) -> None:
        self._places = places
        self.dialect = ""
        self.starts: set[float] = set()
        self._rows: dict[RowKey, _Row] = {}
        self._lora: tuple[float, str] = (-1.0, "")

    def add(self, slot: SampleSlot, key: RowKey, value: float) -> None:
        kind, signal = slot.source.kind, slot.signal
        if slot.role is not None:
            self._row(key).role = slot.role
        if slot.engine is not PROCESS:
            self.dialect = slot.engine.name
        if kind is Kind.BUCKET:
            row = self._row(key)
            if self._outranked(row, signal, slot.rank) or not math.isfinite(value):
                return
            bounds = row.buckets.setdefault(signal, {})
            bounds[slot.bound] = bounds.get(slot.bound, 0.0) + value
        elif kind is Kind.SUM:  # may be NaN: then the mean is unknown, the quantiles are not
            row = self._row(key)
            if not self._outranked(row, signal, slot.rank):
                row.sums[signal] = row.sums.get(signal, 0.0) + value * slot.source.scale
        elif math.isfinite(value):
            self._add_finite(slot, key, signal, value)
        elif kind in (Kind.GAUGE, Kind.COUNTER):
            row = self._row(key)
            if not self._outranked(row, signal, slot.rank):
                row.unread.add(signal)

    def _add_finite(self, slot: SampleSlot, key: RowKey, signal: str, value: float) -> None:
        kind = slot.source.kind
        if signal == "start_time":
            self.starts.add(value)
            return
        if kind is Kind.LORA:  # the value is a clock: the newest label set is the one that holds
            self._lora = max(self._lora, (value, slot.text))
            return
        row = self._row(key)
        if kind is Kind.CONFIG:
            row.config = slot.config if row.config is None else _agreed(row.config, slot.config)
        elif kind is Kind.REASON:
            reasons = row.queues if signal.startswith("queue:") else row.reasons
            if 0 <= value < MOST_REQUESTS:
                reasons[slot.text] = reasons.get(slot.text, 0) + int(value)
        elif kind is Kind.SLEEP:
            row.sleep[slot.text] = value
        elif not self._outranked(row, signal, slot.rank):
            if kind is Kind.COUNT:
                row.counts[signal] = row.counts.get(signal, 0.0) + value
            elif kind is Kind.COUNTER:
                row.counters[signal] = row.counters.get(signal, 0.0) + value
            elif slot.source.fold == "max":
                row.gauges[signal] = max(row.gauges.get(signal, value), value)
            elif slot.source.fold == "min":
                row.gauges[signal] = min(row.gauges.get(signal, value), value)
            else:
                row.gauges[signal] = row.gauges.get(signal, 0.0) + value

    def _row(self, key: RowKey) -> _Row:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row()
        return row

    @staticmethod
    def _outranked(row: _Row, signal: str, rank: Rank) -> bool:
        """Whether a better source already filled the signal; a worse one's values are dropped."""
        held = row.ranks.get(signal)
        if held is None or rank < held:
            row.ranks[signal] = rank
            for values in (row.gauges, row.counters, row.buckets, row.sums, row.counts):
                values.pop(signal, None)
            row.unread.discard(signal)
            return False
        return rank > held

    def adapters(self) -> tuple[str, ...]:
        return tuple(sorted({name.strip() for name in self._lora[1].split(",") if name.strip()}))

    def rows(self) -> tuple[RowSample, ...]:
        """The rows, in order; what is of no engine comes last."""
        configured = Counter(self._places.get(key) for key, row in self._rows.items() if row.config is not None)
        for key, row in self._rows.items():
            if row.config is not None and row.config.summed:
                row.config = replace(row.config, sharers=configured[self._places.get(key)])
        self._settle_page()
        engine = BY_NAME[self.dialect]
        return tuple(_sample(key, row, engine) for key, row in sorted(self._rows.items(), key=_engine_order))

    def _settle_page(self) -> None:
        """What is of no single engine: not what the engines say better themselves, and it runs what they run."""
        for (model, engine), row in self._rows.items():
            if engine != NO_ENGINE:
                continue
            own = [other for (name, rank), other in self._rows.items() if rank != NO_ENGINE and model in ("", name)]
            for signal in [name for name in row.counters if any(_better(other, row, name) for other in own)]:
                del row.counters[signal]
            at_end = any(row.ranks[name][0] >= AT_END for name in row.counters)
            running = [other.gauges["running"] for other in own if "running" in other.gauges]
            if running and at_end and "running" not in row.gauges:  # without them such a counter has no window
                row.gauges["running"] = sum(running)
            for silent in [other for other in own if not other.counters]:  # what moves of all is life of each
                silent.gauges.setdefault("pulse", sum(row.counters.values()) + row.counts.get("ttft", 0.0))


def _better(engine: _Row, page: _Row, signal: str) -> bool:
    """Whether an engine tells a counter of the page, as it moves, which the page tells only when requests end."""
    if page.ranks[signal][0] < AT_END:
        return False
    live = signal == "generation" and "generation_rate" in engine.gauges
    return live or engine.ranks.get(signal, (AT_END,))[0] < AT_END


def _engine_order(item: tuple[RowKey, _Row]) -> tuple[bool, int, str, str]:
    """Ranks in numeric order, then whatever else names an engine."""
    model, engine = item[0]
    return engine == NO_ENGINE, int(engine) if engine.isdecimal() and len(engine) < 10 else 1 << 40, engine, model


def _sample(key: RowKey, row: _Row, engine: EngineEntry) -> RowSample:
    gauges = {name: value for name, value in row.gauges.items() if math.isfinite(value)}
    counters = {name: value for name, value in row.counters.items() if name not in row.unread and math.isfinite(value)}
    reasons = _waiting(gauges, row)
    _cache_usage(gauges)
    _derive(gauges, "kv_usage", "kv_used", lambda used: _share(used, gauges.get("kv_total")))
    _derive(gauges, "kv_capacity", "kv_blocks", lambda blocks: blocks * gauges.get("kv_block_tokens", 0.0) or None)
    _derive(gauges, "offload_usage", "offload_used", lambda used: _share(used, gauges.get("offload_total")))
    if engine.steps_told > 1:
        _derive(gauges, "told_s", "generation_rate", lambda rate: _told_s(gauges, engine.steps_told, rate))
    if row.ranks.get("generation", (AT_END,))[0] < AT_END:
        gauges.pop("generation_rate", None)  # a counter that moves while tokens come is better
    histograms = {name: _histogram(row, name) for name in row.buckets.keys() | (row.sums.keys() & row.counts.keys())}
    sleep, unread = _sleep_level(row.sleep), frozenset(row.unread)
    at_end = frozenset(name for name in counters if row.ranks[name][0] >= AT_END)
    late = engine.late_gauges
    return RowSample(key, gauges, counters, histograms, reasons, row.config, sleep, row.role, unread, late, at_end)


def _told_s(gauges: Mapping[str, float], steps: int, rate: float) -> float | None:
    """How many seconds an engine that generates `rate` tokens/s takes for so many steps, each one token a request."""
    tokens = steps * gauges.get("running", 0.0) * max(1.0, gauges.get("spec_length", 1.0))
    return tokens / rate if rate > 0 else UNTOLD_S if tokens else None


def _waiting(gauges: dict[str, float], row: _Row) -> dict[str, int]:
    """Complete the number that waits, in any queue; returns it by reason."""
    if row.reasons:  # some versions count those of one reason alone
        gauges["waiting"] = max(gauges.get("waiting", 0.0), float(sum(row.reasons.values())))
    if not any(row.queues.values()):
        return row.reasons
    main = gauges.get("waiting", 0.0)
    gauges["waiting"] = main + sum(row.queues.values())
    named = {"queue": int(main), **row.queues} if not row.reasons else {**row.reasons, **row.queues}
    return {reason: number for reason, number in named.items() if number}


def _cache_usage(gauges: dict[str, float]) -> None:
    """SGLang's KV usage: of the pools that hold KV, or of the tokens in use; never the fullest of all pools."""
    pools = [gauges[name] for name in ("pool:full", "pool:swa") if name in gauges]
    used, capacity = gauges.get("kv_used_tokens"), gauges.get("kv_capacity")
    fullest = gauges.pop("any_pool", None)
    if fullest is not None and used is not None and capacity:
        told = [used / capacity, *(value for name, value in gauges.items() if name.startswith("pool:"))]
        if fullest > max(told) + POOLS_APART:
            gauges["pool:other"] = fullest
    if "kv_usage" in gauges:
        return
    if pools:
        gauges["kv_usage"] = max(pools)
    elif used is not None and capacity:
        gauges["kv_usage"] = used / capacity
    elif fullest is not None and not gauges.get("pool:mamba", -1.0) >= fullest:
        gauges["kv_usage"] = fullest


def _derive(gauges: dict[str, float], name: str, source: str, of: Callable[[float], float | None]) -> None:
    """A gauge that the page does not give, from another that it gives."""
    value = of(gauges[source]) if name not in gauges and source in gauges else None
    if value is not None and 0 <= value < math.inf:
        gauges[name] = value


def _share(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def _histogram(row: _Row, name: str) -> Histogram:
    """Its buckets; one without any still has its mean."""
    bounds = row.buckets.get(name, {})
    ordered = sorted(bounds)
    counts = tuple(bounds[bound] for bound in ordered)
    total = row.counts.get(name, counts[-1] if counts else 0.0)
    if not ordered or ordered[-1] != math.inf:
        ordered.append(math.inf)
        counts = (*counts, total)
    return Histogram(tuple(ordered), counts, row.sums.get(name), total)


def _agreed(one: CacheConfig, other: CacheConfig | None) -> CacheConfig:
    """What two configurations that fit one engine both say; where one is silent, what the other says."""
    if other is None or one == other:
        return one
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in _SIZES}
    both: dict[str, Any] = {name: a if b in (a, None) else b if a is None else None for name, (a, b) in pairs.items()}
    return replace(one, **both)


def _sleep_level(sleep: dict[str, float]) -> int | None:
    if not sleep:
        return None
    if sleep.get("awake", 1.0) >= 1.0:
        return 0
    levels = [level for name, level in _SLEEP_LEVELS.items() if sleep.get(name, 0.0) >= 1.0]
    return max(levels, default=1)
