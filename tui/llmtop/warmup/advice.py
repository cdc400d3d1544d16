"""What to set next time: after a good start from the margins it left, after a failed one from the error's numbers.

All sizes are GiB. Nothing here promises that the next start succeeds: an error shows the first obstacle, not the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from llmtop.warmup.evidence import Evidence, default_reserve, has_kv_bytes_flag, parse_version
from llmtop.warmup.failure import StartFailure

Confidence = Literal["high", "medium", "low"]

_DROP_CACHES = "sync; echo 3 > /proc/sys/vm/drop_caches"
_LENGTH_STEP = 256
_GB10_GIB = (115.0, 125.0)  # no card of its own has this size, so a log alone tells a GB10


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


def round_down(value: float, step: float = 0.01) -> float:
    """Round a utilization down to two digits, so that rounding never asks for more memory."""
    return round(math.floor(value / step + 1e-9) * step, 2)


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


# ----------------------------------------------------------------------------------------- after a failure


@dataclass(frozen=True, slots=True)
class _Case:
    failure: StartFailure
    e: Evidence
    reserve: float


def advise_failure(failure: StartFailure, e: Evidence, reserve_gib: float | None = None) -> Advice:
    """The change after this failure, with its arithmetic."""
    reserve = default_reserve(e.unified) if reserve_gib is None else reserve_gib
    rule = _RULES.get(failure.kind)
    named = failure.numbers.keys()
    if not any(needed <= named for needed in _NEEDS.get(failure.kind, (frozenset(),))):
        return _UNKNOWN  # a number of the error's text is none
    return rule(_Case(failure, e, reserve)) if rule is not None else _FIXED.get(failure.kind, _UNKNOWN)


def _fits(total: float, free: float) -> float:
    return round_down(free / total) if total > 0 else 0.0


def _free_too_low(case: _Case) -> Advice:
    n = case.failure.numbers
    free, total, wanted = n["free_gib"], n["total_gib"], n["requested_gib"]
    short = wanted - free
    best = _fits(total, free)
    lines = [
        f"{n['utilization']:g} x {total:.2f} = {wanted:.2f} GiB requested, {free:.2f} free: {short:.2f} GiB short",
        f"{free:.2f} / {total:.2f} -> {best:g} is the highest that passes this check now",
    ]
    changes = [f"--gpu-memory-utilization {best:g}", f"or free {short:.1f} GiB held by other processes"]
    if case.e.unified or _GB10_GIB[0] <= total <= _GB10_GIB[1]:
        changes.append(f"or give page cache back first: {_DROP_CACHES}")
        lines.append("on unified memory the page cache counts as used where the version asks CUDA for free memory")
    text = f"{short:.1f} GiB short: lower --gpu-memory-utilization to {best:g} or free memory first"
    why = "the check compares exactly these two numbers; whether the model fits in the smaller budget is not known"
    return Advice(text, tuple(lines), "high", why, utilization=best, changes=tuple(changes))


def _no_kv(case: _Case) -> Advice:
    have = case.failure.numbers.get("kv_cache_gib", case.e.kv_gib)
    lines = [] if have is None else [f"left for the KV cache: {have:.2f} GiB"]
    changes = [
        "lower --max-num-batched-tokens or --max-num-seqs (smaller activation peak)",
        "a smaller or quantised model",
    ]
    target = None
    if have is not None and case.e.total_gib and case.e.utilization:
        # One GiB of KV cache is the least worth starting with.
        target = _round_up(case.e.utilization + (1.0 - have) / case.e.total_gib)
        lines.append(
            f"{case.e.utilization:g} + (1 - {have:.2f}) / {case.e.total_gib:.2f} -> {target:g} "
            "leaves 1 GiB for the KV cache"
        )
        target, line = _if_free(target, case)
        lines.append(line)
    if target is not None:
        changes.insert(0, f"--gpu-memory-utilization {target:g}")
    short = "" if have is None or have >= 0 else f"{-have:.2f} GiB short before the first KV block: "
    text = f"{short}{'raise --gpu-memory-utilization to ' + format(target, 'g') if target else changes[0]}"
    return Advice(
        text,
        tuple(lines),
        "medium" if target else "low",
        "weights and activation peak fill the budget",
        utilization=target,
        changes=tuple(changes),
    )


def _len_too_long(case: _Case) -> Advice:
    n = case.failure.numbers
    if "kv_tokens" in n:
        return _too_many_tokens(int(n["max_model_len"]), int(n["kv_tokens"]))
    need, have, length = n["needed_gib"], n["available_gib"], n["max_model_len"]
    estimated = n.get("estimated_max_len")
    proportion = min(1.0, have / need) if need > 0 else 1.0  # both are rounded, and may be 0.0
    fits = int(estimated) if estimated is not None else int(length * proportion) // _LENGTH_STEP * _LENGTH_STEP
    lines = [f"{length:,.0f} tokens need {need:g} GiB, {have:g} available: {need - have:.2f} GiB short"]
    lines.append(
        f"vLLM estimates that {fits:,} tokens fit"
        if estimated is not None
        else f"{length:,.0f} x {have:g} / {need:g} -> {fits:,} tokens (proportional; windowed layers need less)"
    )
    changes = [f"--max-model-len {fits}", "--kv-cache-dtype fp8 (half the bytes of a 16-bit cache)"]
    target = None
    if need > have and case.e.total_gib and case.e.utilization:
        target = _round_up(case.e.utilization + (need - have) / case.e.total_gib)
        lines.append(
            f"{case.e.utilization:g} + {need - have:.2f} / {case.e.total_gib:.2f} -> {target:g} for the full length"
        )
        target, line = _if_free(target, case)
        lines.append(line)
        if target is not None:
            changes.append(f"or --gpu-memory-utilization {target:g}")
    sure: Confidence = "high" if estimated is not None else "medium"
    return Advice(
        f"set --max-model-len {fits}",
        tuple(lines),
        sure,
        "the error's own numbers",
        utilization=target,
        changes=tuple(changes),
    )


def _too_many_tokens(length: int, fits: int) -> Advice:
    """The V0 engine says tokens, not GiB."""
    line = f"{length:,} tokens do not fit into {fits:,} tokens of KV cache"
    why = "the error names the capacity"
    return Advice(f"set --max-model-len {fits}", (line,), "high", why, changes=(f"--max-model-len {fits}",))


def _if_free(target: float, case: _Case) -> tuple[float | None, str]:
    """A higher utilization is advised only where the free memory at the start is known to hold it and the reserve."""
    if case.e.free_at_start_gib is None or case.e.total_gib is None:
        return None, "not advised: how much was free at the start is not known"
    left = case.e.free_at_start_gib - target * case.e.total_gib
    if left < case.reserve:
        return (
            None,
            f"not advised: of {case.e.free_at_start_gib:.2f} GiB free at the start {left:.2f} would be left, "
            f"less than the reserve {case.reserve:.2f}",
        )
    return target, f"{case.e.free_at_start_gib:.2f} GiB were free at the start: {left:.2f} GiB stay free"


def _profile_assert(case: _Case) -> Advice:
    n = case.failure.numbers
    lines: tuple[str, ...] = ()
    if "current_gib" in n and "initial_gib" in n:
        grown = n["current_gib"] - n["initial_gib"]
        lines = (
            f"free memory rose by {grown:.2f} GiB ({n['initial_gib']:g} to {n['current_gib']:g}) while vLLM measured",
        )
    text = (
        "another process gave memory back during the profile run: start again when nothing else is starting or ending"
    )
    return Advice(
        text,
        lines,
        "high",
        "the assertion compares free memory before and after profiling",
        changes=("start engines one after the other", "wait until a stopped one has released its memory"),
    )


def _warmup_oom(case: _Case) -> Advice:
    seqs = int(case.failure.numbers.get("dummy_requests", 0))
    half = max(1, seqs // 2)
    line = f"the sampler needs logits for {seqs} requests at once (requests x vocabulary x 4 bytes)"
    changes = (f"--max-num-seqs {half}", "or lower --gpu-memory-utilization by the reserve")
    return Advice(
        f"set --max-num-seqs {half} (was {seqs})",
        (line,),
        "medium",
        "the buffer grows with max_num_seqs",
        changes=changes,
    )


def _out_of_memory(case: _Case) -> Advice:
    n = case.failure.numbers
    lines: list[str] = []
    short = None
    if "tried_gib" in n and "free_gib" in n:
        short = max(0.0, n["tried_gib"] - n["free_gib"])
        lines.append(f"{n['tried_gib']:.3f} GiB wanted, {n['free_gib']:.3f} free: {short:.3f} GiB short")
    if case.failure.phase in ("weights", "start"):
        text = "the weights alone do not fit: use a quantised model, --tensor-parallel-size or --cpu-offload-gb"
        return Advice(
            text,
            tuple(lines),
            "medium",
            "utilization does not bound what loading the weights takes",
            changes=("a quantised model", "--tensor-parallel-size", "--cpu-offload-gb"),
        )
    changes = _LESS.get(case.failure.phase or "", ("--max-num-batched-tokens", "--max-num-seqs"))
    total = case.e.total_gib or n.get("total_gib")
    target = None
    if short is not None and total and case.e.utilization and case.failure.phase not in ("profile", "compile"):
        target = round_down(case.e.utilization - (short + case.reserve) / total)
        lines.append(f"{case.e.utilization:g} - ({short:.2f} + reserve {case.reserve:.2f}) / {total:.2f} -> {target:g}")
        changes = (f"--gpu-memory-utilization {target:g}", *changes)
    where = "" if case.failure.phase is None else f" in {case.failure.phase}"
    text = f"out of memory{where}: " + (
        changes[0] if target is None else f"lower --gpu-memory-utilization to {target:g}"
    )
    why = "the error shows one failed allocation; those that would have followed are covered by the reserve alone"
    return Advice(text, tuple(lines), "low" if target is None else "medium", why, utilization=target, changes=changes)


_LESS: Mapping[str, tuple[str, ...]] = {
    "profile": ("lower --max-num-batched-tokens (the activation peak grows with it)", "lower --max-num-seqs"),
    "compile": ("lower --max-num-batched-tokens", "--enforce-eager"),
    "kv": ("lower --max-num-seqs",),
    "graphs": ("fewer graph sizes (--cuda-graph-sizes / --max-cudagraph-capture-size)", "--enforce-eager"),
    "warmup": ("lower --max-num-seqs",),
    "ready": ("lower --max-num-seqs",),
}


def _ray_oom(case: _Case) -> Advice:
    n = case.failure.numbers
    line = 0.95 * n["total_gb"]
    over = n["used_gb"] - line
    lines = [f"Ray kills at 0.95 x {n['total_gb']:g} = {line:.2f} GB; {n['used_gb']:g} GB were in use ({over:+.2f})"]
    target = None
    if case.e.utilization:
        target = round_down(case.e.utilization - (max(0.0, over) + case.reserve) / n["total_gb"])
        lines.append(
            f"{case.e.utilization:g} - ({max(0.0, over):.2f} + reserve {case.reserve:.2f}) / {n['total_gb']:g} "
            f"-> {target:g}"
        )
    changes = ("RAY_memory_usage_threshold=0.98", "RAY_memory_monitor_refresh_ms=0 (no such kill at all)")
    text = "Ray's memory monitor killed the worker: " + (
        f"lower --gpu-memory-utilization to {target:g}" if target else "lower the utilization or move its threshold"
    )
    return Advice(
        text, tuple(lines), "medium", "Ray counts all memory of the node", utilization=target, changes=changes
    )


def _killed(case: _Case) -> Advice:
    """Without a word of the kernel nobody knows who killed it: how much was left is all there is to say."""
    margin, kernel = case.failure.margin_bytes, case.failure.kind == "oom_killed"
    lines = () if margin is None else (f"{margin / 2**30:.2f} GiB were left when it died",)
    lower = "lower --gpu-memory-utilization"
    look = "look for the kill in the kernel log: dmesg | grep -i 'killed process'"
    limit = "a container's --memory limit does not bound GPU allocations; leave the reserve free instead"
    changes = (lower if kernel else look, *((limit,) if case.e.unified and kernel else ()))
    if kernel:
        return Advice("the host's memory ran out: leave more of it free", lines, "high", "it was told", changes=changes)
    return Advice("who killed it is not known", lines, "low", "a signal carries no reason", changes=changes)


def _round_up(value: float, step: float = 0.01) -> float:
    return round(math.ceil(value / step - 1e-9) * step, 2)


_RULES: dict[str, Callable[[_Case], Advice]] = {
    "free_too_low": _free_too_low,
    "no_kv": _no_kv,
    "len_too_long": _len_too_long,
    "profile_assert": _profile_assert,
    "warmup_oom": _warmup_oom,
    "out_of_memory": _out_of_memory,
    "ray_oom": _ray_oom,
    "killed": _killed,
    "oom_killed": _killed,
}

# The numbers without which there is nothing to compute.
_NEEDS: Mapping[str, tuple[frozenset[str], ...]] = {
    "free_too_low": (frozenset({"free_gib", "total_gib", "utilization", "requested_gib"}),),
    "len_too_long": (
        frozenset({"needed_gib", "available_gib", "max_model_len"}),
        frozenset({"max_model_len", "kv_tokens"}),
    ),
    "ray_oom": (frozenset({"used_gb", "total_gb"}),),
}

_FIXED: dict[str, Advice] = {
    "host_memory": Advice(
        "host memory ran out: free memory, add swap, or load with fewer parallel workers",
        confidence="medium",
        why="the allocation was one of the host's",
        changes=("--max-parallel-loading-workers 1",),
    ),
    "deep_gemm": Advice(
        "switch DeepGEMM off with both variables: VLLM_USE_DEEP_GEMM=0 and VLLM_MOE_USE_DEEP_GEMM=0",
        confidence="high",
        why="this DeepGEMM has no scale layout for the GPU (GB10 and its kin); one of the switches is not enough",
        changes=("VLLM_USE_DEEP_GEMM=0", "VLLM_MOE_USE_DEEP_GEMM=0"),
    ),
    "stopped": Advice(
        "stopped from outside: nothing to change", confidence="high", why="a signal asked the server to end"
    ),
}
_UNKNOWN = Advice(
    "not a known memory failure: the cause's own text says what to change", why="the text is none of those known"
)
