"""vLLM's memory arithmetic: where the memory went, and which utilization the measured margins allow.

All sizes are GiB (2^30 bytes). `gpu_memory_utilization` is a share of the device's *total* memory for this instance;
what the budget holds depends on the version: CUDA graphs were outside of it before 0.21.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

GIB = 2**30
DISCRETE_RESERVE_GIB = 3.0
# On unified memory the operating system and every other program live in the same pool; machines in steady
# production keep 3.5 to 7 GiB available, freezes began below that.
UNIFIED_RESERVE_GIB = 8.0
_NOT_HELD = "less: budget not held"

Version = tuple[int, int, int]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about one start; `origins` says where a figure came from, by field name."""

    unified: bool = False
    version: str | None = None
    total_gib: float | None = None
    utilization: float | None = None
    requested_gib: float | None = None
    weights_gib: float | None = None
    consumed_gib: float | None = None  # weights and non-torch in one figure, where the log has no other
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graph_gib: float | None = None
    graph_budget_gib: float | None = None  # what the budget set aside for graphs; 0 where they are outside of it
    kv_gib: float | None = None
    kv_fixed: bool = False  # its size was given, so that utilization has no say in it
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    model_len: int | None = None
    free_at_start_gib: float | None = None
    used_gib: float | None = None
    reserved_gib: float | None = None
    engine_gib: float | None = None
    others_gib: float | None = None
    # The least headroom from the KV allocation on: more utilization takes it from there, not from the profile run.
    min_headroom_gib: float | None = None
    min_phase: str | None = None
    measured: Literal["all", "part", "none"] = "none"  # how many of those phases were watched
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def budget_gib(self) -> float | None:
        """The requested budget: as the log says, else utilization x total (vLLM rounds up to a byte)."""
        if self.requested_gib is not None:
            return self.requested_gib
        if self.total_gib is None or self.utilization is None:
            return None
        return self.total_gib * self.utilization


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line of the ledger; the lines of "budget" add up to the budget, those of "outside" to total - budget."""

    key: str
    label: str
    gib: float | None
    origin: str | None
    group: Literal["total", "budget", "outside"]


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set next time, the arithmetic behind it, how sure that is and why; None where it cannot be said."""

    text: str
    arithmetic: tuple[str, ...] = ()
    confidence: Confidence = "low"
    why: str = ""
    utilization: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    kv_cache_memory_bytes: int | None = None
    changes: tuple[str, ...] = ()


def parse_version(text: str | None) -> Version | None:
    """Read "0.20.1.dev0+g1015"; None for nothing and for builds without a release number ("0.1.dev1")."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    if match is None:
        return None
    version = (int(match[1]), int(match[2]), int(match[3] or 0))
    return None if version < (0, 2, 0) else version


def default_utilization(version: Version | None) -> float | None:
    """vLLM's default `gpu_memory_utilization`: 0.9 up to 0.19, 0.92 from 0.24 on; in between it was not established."""
    if version is not None and version < (0, 20, 0):
        return 0.9
    if version is None or version >= (0, 24, 0):
        return 0.92
    return None


def has_kv_bytes_flag(version: Version | None) -> bool:
    """Whether `--kv-cache-memory-bytes` exists: from 0.11 on, and assumed for unknown (newest) versions."""
    return version is None or version >= (0, 11, 0)


def round_down(value: float, step: float = 0.01) -> float:
    """Round a utilization down to two digits, so that rounding never asks for more memory."""
    return round(math.floor(value / step + 1e-9) * step, 2)


# ---------------------------------------------------------------------------------------------------- ledger


def ledger(e: Evidence) -> tuple[LedgerLine, ...]:
    """total = budget + outside, each with its parts and the rest that nothing explains."""
    budget = e.budget_gib
    lines = [LedgerLine("total", "total memory", e.total_gib, e.origins.get("total_gib"), "total")]
    origin = e.origins.get("requested_gib", "utilization x total") if budget is not None else None
    share = "" if e.utilization is None else f" ({e.utilization:g} x total)"
    lines.append(LedgerLine("budget", f"requested budget{share}", budget, origin, "total"))
    outside = None if e.total_gib is None or budget is None else e.total_gib - budget
    lines.append(LedgerLine("outside", "outside the budget", outside, _computed(outside), "total"))
    return (*lines, *_inside(e, budget), *_outside(e, budget, outside))


def _inside(e: Evidence, budget: float | None) -> list[LedgerLine]:
    whole = e.weights_gib is None and e.consumed_gib is not None
    parts = [
        ("weights", "weights and non-torch", "consumed_gib", e.consumed_gib)
        if whole
        else ("weights", "weights", "weights_gib", e.weights_gib),
        ("activation", "activation peak", "activation_gib", e.activation_gib),
        ("non_torch", "non-torch (context, NCCL)", "non_torch_gib", 0.0 if whole else e.non_torch_gib),
        ("graphs_budget", "set aside for CUDA graphs", "graph_budget_gib", e.graph_budget_gib),
        ("kv", "KV cache", "kv_gib", e.kv_gib),
    ]
    lines = [
        LedgerLine(key, label, gib, e.origins.get(name), "budget")
        for key, label, name, gib in parts
        if not (whole and key == "non_torch")
    ]
    rest = None
    if budget is not None and parts[0][3] is not None and e.kv_gib is not None:
        rest = budget - sum(gib for *_, gib in parts if gib is not None)
    missing = [label for _, label, _, gib in parts if gib is None]
    label = "unexplained rest in budget" + (f" (with {', '.join(missing)})" if missing and rest is not None else "")
    return [*lines, LedgerLine("budget_rest", label, rest, _computed(rest), "budget")]


def _outside(e: Evidence, budget: float | None, outside: float | None) -> list[LedgerLine]:
    graphs = None if e.graph_gib is None else max(0.0, e.graph_gib - (e.graph_budget_gib or 0.0))
    lines = [LedgerLine("graphs", "graphs beyond the budget", graphs, e.origins.get("graph_gib"), "outside")]
    over = None if e.engine_gib is None or budget is None else e.engine_gib - budget
    if over is not None:
        beyond = over - min(graphs or 0.0, max(over, 0.0))
        lines[0] = LedgerLine("graphs", lines[0].label, over - beyond if graphs is not None else None, "log", "outside")
        label = "engine beyond its budget" if beyond >= 0 else _NOT_HELD
        lines.append(LedgerLine("engine", label, beyond, "process sum", "outside"))
    lines.append(LedgerLine("others", "other processes", e.others_gib, e.origins.get("others_gib"), "outside"))
    lines.append(_unowned(e, budget, graphs))
    lines.append(
        LedgerLine("reserved", "reserved by the driver", e.reserved_gib, e.origins.get("reserved_gib"), "outside")
    )
    free = None
    if e.total_gib is not None and e.used_gib is not None:
        free = e.total_gib - e.used_gib - (e.reserved_gib or 0.0)
    lines.append(LedgerLine("free", "free", free, _computed(free), "outside"))
    rest = None
    if outside is not None and free is not None:
        rest = outside - sum(line.gib for line in lines if line.gib is not None)
    return [*lines, LedgerLine("outside_rest", "unexplained rest outside", rest, _computed(rest), "outside")]


def _unowned(e: Evidence, budget: float | None, graphs: float | None) -> LedgerLine:
    """Memory in use that no process owns; without a process list, all that is in use beyond budget and graphs."""
    if e.used_gib is None:
        return LedgerLine("unowned", "in use without an owner", None, None, "outside")
    if e.engine_gib is not None:
        gib = e.used_gib - e.engine_gib - (e.others_gib or 0.0)
        what = (
            "operating system, page cache, programs off the GPU"
            if e.unified
            else "page cache in HBM, contexts, hidden processes"
        )
        label = f"in use without an owner ({what})"
        return LedgerLine("unowned", label, gib, "used - process sum", "outside")
    if budget is None:
        return LedgerLine("unowned", "in use without an owner", None, None, "outside")
    gib = e.used_gib - budget - (graphs or 0.0) - (e.others_gib or 0.0)
    label = "in use beyond the budget, owner unknown (no process list)" if gib >= 0 else _NOT_HELD
    return LedgerLine("unowned", label, gib, "used - budget", "outside")


def _computed(value: float | None) -> str | None:
    return None if value is None else "computed"


# ---------------------------------------------------------------------------------------------------- advice


def default_reserve(unified: bool) -> float:
    """What must stay free, GiB: 3 on a card of its own, the operating system's share on unified memory."""
    return UNIFIED_RESERVE_GIB if unified else DISCRETE_RESERVE_GIB


def advise(e: Evidence, reserve_gib: float | None = None) -> Advice:
    """The highest utilization the margins of a successful start allow; never more than was measured."""
    reserve = default_reserve(e.unified) if reserve_gib is None else reserve_gib
    if e.total_gib is None or e.utilization is None:
        missing = "the total memory" if e.total_gib is None else "the utilization"
        return Advice(f"no advice: {missing} is not known", why="the log does not say it and the machine was not read")
    if e.min_headroom_gib is None:
        return _unmeasured(e, e.total_gib, e.utilization, reserve)
    if e.kv_fixed and e.kv_gib is not None:
        return _fixed(e, e.kv_gib, e.min_headroom_gib, reserve)
    return _measured(e, e.total_gib, e.utilization, e.min_headroom_gib, reserve)


def _measured(e: Evidence, total: float, utilization: float, margin: float, reserve: float) -> Advice:
    spare = margin - reserve
    target = utilization + spare / total
    lines = [
        f"least headroom from KV allocation on: {margin:.2f} GiB" + (f" ({e.min_phase})" if e.min_phase else ""),
        f"{margin:.2f} - reserve {reserve:.2f} = {spare:+.2f} GiB to give",
        f"{utilization:g} {'+' if spare >= 0 else '-'} {abs(spare):.2f} / {total:.2f} = {target:.4f}",
    ]
    if e.free_at_start_gib is not None and target * total > e.free_at_start_gib:
        target = e.free_at_start_gib / total
        lines.append(f"the start check needs it to fit {e.free_at_start_gib:.2f} GiB free at start: {target:.4f}")
    best = round_down(min(target, 1.0))
    if spare >= 0:
        best = max(best, utilization)  # rounding down must not take away what has just been shown to fit
    return _with_kv(e, total, best, tuple(lines), *_certainty(e))


def _with_kv(e: Evidence, total: float, best: float, lines: tuple[str, ...], sure: Confidence, why: str) -> Advice:
    utilization = e.utilization or 0.0
    change = (best - utilization) * total
    kv = None if e.kv_gib is None else e.kv_gib + change
    if best <= 0 or (kv is not None and kv <= 0):
        text = "no utilization leaves this reserve: the model itself needs the memory; use a smaller or quantised one"
        return Advice(text, lines, sure, why)
    verb = "keep" if best == utilization else "raise to" if best > utilization else "lower to"
    tokens, seats = _scaled(e, kv)
    words = [f"{verb} --gpu-memory-utilization {best:g}"]
    if kv is not None:
        lines = (*lines, f"KV cache {e.kv_gib:.2f} {change:+.2f} = {kv:.2f} GiB")
        words.append(f"KV cache {kv:.1f} GiB" + ("" if tokens is None else f", {tokens:,} tokens"))
    if seats is not None:
        length = "" if e.model_len is None else f" x {e.model_len:,}"
        words.append(f"{seats:.2f}{length} at once")
    flag = int(kv * 1024) * 2**20 if kv is not None and has_kv_bytes_flag(parse_version(e.version)) else None
    changes = [f"--gpu-memory-utilization {best:g}"]
    if flag is not None:
        changes.append(f"--kv-cache-memory-bytes {flag}")
    text = words[0] + (f": {', '.join(words[1:])}" if words[1:] else "")
    return Advice(text, lines, sure, why, best, kv, tokens, seats, flag, tuple(changes))


def _fixed(e: Evidence, kv: float, margin: float, reserve: float) -> Advice:
    """The KV cache has a given size: the margin goes into that size, the utilization stays."""
    size = max(0.0, kv + margin - reserve)
    lines = (
        f"KV cache {kv:.2f} GiB given; least headroom {margin:.2f} - reserve {reserve:.2f} = {margin - reserve:+.2f}",
        f"{kv:.2f} {margin - reserve:+.2f} = {size:.2f} GiB",
    )
    tokens, seats = _scaled(e, size)
    amount = int(size * 1024) * 2**20
    text = f"the KV cache may have {size:.1f} GiB: --kv-cache-memory-bytes {amount} (CPU: VLLM_CPU_KVCACHE_SPACE)"
    changes = (f"--kv-cache-memory-bytes {amount}",)
    sure, why = _certainty(e)
    return Advice(text, lines, sure, why, None, size, tokens, seats, amount, changes)


def _scaled(e: Evidence, kv: float | None) -> tuple[int | None, float | None]:
    if kv is None or not e.kv_gib:
        return None, None
    ratio = kv / e.kv_gib
    tokens = None if e.kv_tokens is None else int(e.kv_tokens * ratio + 1e-9)
    seats = None if e.max_concurrency is None else math.floor(e.max_concurrency * ratio * 100 + 1e-6) / 100
    return tokens, seats


def _certainty(e: Evidence) -> tuple[Confidence, str]:
    idle = "no requests ran meanwhile"
    if e.measured != "all":
        return "low", f"only a part of the phases after the KV allocation was watched; {idle}"
    if e.unified:
        return "medium", f"measured in every phase, but other programs and the page cache share this memory; {idle}"
    return "high", f"measured in every phase from KV allocation to ready; {idle}"


def _unmeasured(e: Evidence, total: float, utilization: float, reserve: float) -> Advice:
    """From the log alone: only ever lower, because nobody saw the margin."""
    budget = e.budget_gib
    free = e.free_at_start_gib
    if free is None or budget is None:
        return Advice(
            f"keep --gpu-memory-utilization {utilization:g}: the headroom was not measured",
            why="a log says what the engine asked for, not what was left; watch a start to get margins",
            utilization=utilization,
        )
    graphs = max(0.0, (e.graph_gib or 0.0) - (e.graph_budget_gib or 0.0))
    left = free - budget - graphs
    line = (
        f"by the log: free at start {free:.2f} - budget {budget:.2f} - graphs beyond it {graphs:.2f} = {left:.2f} GiB"
    )
    why = "computed from the log's own figures; the headroom was not measured"
    if left >= reserve:
        text = f"keep --gpu-memory-utilization {utilization:g}: the log's figures leave {left:.1f} GiB"
        return Advice(text, (line,), "low", why, utilization)
    best = round_down(utilization - (reserve - left) / total)
    lines = (line, f"{utilization:g} - ({reserve:.2f} - {left:.2f}) / {total:.2f} -> {best:g}")
    return _with_kv(e, total, best, lines, "low", why)
