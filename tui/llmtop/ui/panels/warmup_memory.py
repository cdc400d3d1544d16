"""The memory of a start-up as one bar that fills while it starts."""

from __future__ import annotations

from llmtop.contract.snapshot import Pool
from llmtop.warmup.evidence import GIB
from llmtop.warmup.forecast import before_weights
from llmtop.warmup.phrases import PHASES
from llmtop.warmup.recorded import Readings
from llmtop.warmup.report import Report
from llmtop.warmup.startup import Startup
from llmtop_widgets import glyphs
from llmtop_widgets.stackedbar import shade, stacked_line
from llmtop_widgets.text import Line, Span, flow, line

Part = tuple[str, float, str]


def memory_lines(report: Report, pool: Pool | None, readings: Readings, cells: int, *, legend: bool) -> list[Line]:
    """Weights, KV cache, graphs, other and free of the pool that the engine fills; without a pool those of the log."""
    e = report.evidence
    total = e.total_gib if pool is None else _gib(pool.total_bytes)
    parts = memory_parts(report, pool, readings)
    if total is None or not parts:
        return []
    rest = total - sum(size for _, size, _ in parts)
    bar = stacked_line([(size, style) for _, size, style in parts], total, cells)
    if not legend:
        return [bar]
    words = [_entry(shade(place), *part) for place, part in enumerate(parts) if part[1] > 0]
    words.append(_entry(glyphs.current().shade_free, "free" if pool is not None else "not known", rest, "track"))
    return [bar, flow(words, cells)]


def memory_parts(report: Report, pool: Pool | None, readings: Readings) -> list[Part]:
    """(label, GiB, style) of what is used, adding up to what the pool has in use; the rest of the total is free."""
    startup, e = report.startup, report.evidence
    used = _used(startup, pool)
    weights, kv = e.weights_gib or e.consumed_gib, e.kv_gib if _has(startup, "kv") else None
    if weights is None and used is not None:
        weights = _loaded(startup, pool, readings)
    known = [("weights", weights, "series1"), ("KV cache", kv, "series4"), ("graphs", e.graph_gib, "series3")]
    parts = [(label, size or 0.0, style) for label, size, style in known]  # each keeps its fill
    if used is None or pool is None:
        return parts if pool is None and any(size for _, size, _ in parts) else []
    left, fitting = used / GIB, []
    for label, size, style in parts:
        fitting.append((label, min(size, left), style))
        left -= fitting[-1][1]
    return [*fitting, ("other", max(0.0, left), "axis")]


def _used(startup: Startup, pool: Pool | None) -> int | None:
    """What is not free; of a start-up that has failed, when it did."""
    if pool is None or pool.total_bytes is None:
        return None
    left = pool.headroom_bytes if startup.failure is None else startup.failure.margin_bytes
    return None if left is None else pool.total_bytes - left


def _has(startup: Startup, name: str) -> bool:
    """Whether the start-up is beyond a phase."""
    phase = startup.phase
    return phase is not None and phase in PHASES and PHASES.index(phase) > PHASES.index(name)


def _loaded(startup: Startup, pool: Pool | None, readings: Readings) -> float | None:
    """What was taken since the weights began to be read."""
    before = before_weights(startup, readings)
    if before is None or pool is None or pool.headroom_bytes is None:
        return None
    return max(0.0, (before - pool.headroom_bytes) / GIB)


def _entry(fill: str, label: str, size: float, style: str) -> Line:
    return line(Span(f"{fill} ", style), Span(f"{label} ", "label"), Span(f"{size:.1f}", "value"))


def _gib(value: int | None) -> float | None:
    return None if value is None else value / GIB
