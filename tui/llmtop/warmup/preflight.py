"""Will the start check pass? vLLM's own rule, by version, against what is free now.

The check (0.10 and newer) refuses to start when free < ceil(total x utilization). What counts as free is what
cudaMemGetInfo says, on unified memory MemFree (page cache counts as used). For GPUs that share the host's memory it is
MemAvailable, by a list of compute capabilities in 0.11.2 to 0.19.1 and by the driver's attribute from 0.20 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmtop.warmup.evidence import Version, default_reserve, default_utilization, parse_version

_RAY_SHARE = 0.95  # Ray kills workers when this share of the node's memory is in use
_LARGE_CACHE_GIB = 1.0
_FREE_FROM: Version = (0, 10, 0)
_AVAILABLE_FROM: Version = (0, 11, 2)

Outcome = Literal["start", "refused", "risky"]
EXIT_CODES: dict[Outcome, int] = {"start": 0, "refused": 1, "risky": 3}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What would be started, and the pool it would start in (GiB); None where it is not known."""

    unified: bool = False
    host_ram: bool = False  # no GPU is seen: the memory is the host's
    version: str | None = None
    utilization: float | None = None
    kv_cache_memory_gib: float | None = None
    ray: bool = False
    total_gib: float | None = None
    free_gib: float | None = None  # the driver's free; on unified memory MemFree
    available_gib: float | None = None  # MemAvailable, for unified memory
    cache_gib: float | None = None  # page cache that counts as used in this pool
    others_gib: float | None = None
    swap_used_gib: float | None = None
    zram: bool = False
    cgroup_limit_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Preflight:
    """The outcome in words, its arithmetic, and what else may go wrong."""

    outcome: Outcome
    text: str
    arithmetic: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    utilization: float | None = None

    @property
    def exit_code(self) -> int:
        """0 will start, 1 will be refused, 3 risky."""
        return EXIT_CODES[self.outcome]


def preflight(plan: MemoryPlan, reserve_gib: float | None = None) -> Preflight:
    """Judge a plan by the rule of its version; an unknown version is judged as the newest."""
    version = parse_version(plan.version)
    reserve = default_reserve(plan.unified) if reserve_gib is None else reserve_gib
    utilization = plan.utilization if plan.utilization is not None else default_utilization(version)
    free, what = _counted(plan, version)
    warnings = _warnings(plan, version, utilization)
    if plan.total_gib is None or free is None or utilization is None:
        missing = "the utilization" if utilization is None else "the memory of the GPU"
        return Preflight("risky", f"risky: {missing} is not known, so nothing can be computed", (), warnings)
    wanted = plan.total_gib * utilization
    left = free - wanted
    lines = (
        f"{utilization:g} x {plan.total_gib:.2f} = {wanted:.2f} GiB requested",
        f"{free:.2f} GiB {what}: {left:+.2f} GiB",
    )
    if left < 0 and (version is None or version >= _FREE_FROM):
        text = f"will be refused: {wanted:.1f} GiB requested, {free:.1f} GiB {what}"
        return Preflight("refused", text, lines, warnings, utilization)
    risks = [*_risks(plan, wanted, left, reserve)]
    if risks:
        return Preflight("risky", f"risky: {risks[0]}", (*lines, *risks[1:]), warnings, utilization)
    return Preflight("start", f"will start: {left:.1f} GiB stay free", lines, warnings, utilization)


def _counted(plan: MemoryPlan, version: Version | None) -> tuple[float | None, str]:
    if plan.unified and (version is None or version >= _AVAILABLE_FROM):
        return plan.available_gib, "available (MemAvailable)"
    if plan.host_ram:
        return plan.free_gib, "free in host memory, as no GPU is seen here"
    return plan.free_gib, "free (cudaMemGetInfo, = MemFree here)" if plan.unified else "free (cudaMemGetInfo)"


def _risks(plan: MemoryPlan, wanted: float, left: float, reserve: float) -> list[str]:
    risks: list[str] = []
    if left < 0:
        risks.append(f"this version does not check, and {-left:.1f} GiB are missing: it will run out of memory")
    elif left < reserve:
        risks.append(f"only {left:.1f} GiB would stay free, less than the reserve of {reserve:.1f}")
    if plan.ray and plan.unified and plan.total_gib is not None and plan.available_gib is not None:
        used = plan.total_gib - plan.available_gib + wanted
        line = _RAY_SHARE * plan.total_gib
        if used > line:
            risks.append(f"Ray kills workers at {line:.1f} GiB in use; this start leads to {used:.1f}")
    return risks


def _warnings(plan: MemoryPlan, version: Version | None, utilization: float | None) -> tuple[str, ...]:
    out: list[str] = []
    if version is None:
        out.append("the version is not known: judged by the rule of the newest")
    if plan.utilization is None and utilization is not None:
        out.append(f"no --gpu-memory-utilization given: the default {utilization:g} was assumed")
    if (plan.cache_gib or 0.0) >= _LARGE_CACHE_GIB:
        counted = not plan.unified or (version is not None and version < _AVAILABLE_FROM)
        how = "counts as used in this check" if counted else "does not count in this check, but CUDA sees it as used"
        out.append(
            f"{plan.cache_gib:.1f} GiB of page cache {how}: sync; echo 3 > /proc/sys/vm/drop_caches gives it back"
        )
    if (plan.others_gib or 0.0) >= 0.1:
        out.append(f"other processes hold {plan.others_gib:.1f} GiB of GPU memory")
    if plan.swap_used_gib is not None and plan.swap_used_gib >= 0.1:
        kind = "zram" if plan.zram else "swap"
        extra = ", which lives in the same memory" if plan.zram and plan.unified else ""
        out.append(f"{plan.swap_used_gib:.1f} GiB are in {kind} already{extra}")
    if plan.cgroup_limit_gib is not None:
        out.append(f"the cgroup limit of {plan.cgroup_limit_gib:.1f} GiB does not bound GPU allocations")
    if plan.kv_cache_memory_gib is not None:
        out.append(
            f"--kv-cache-memory-bytes sets {plan.kv_cache_memory_gib:.1f} GiB of KV cache without profiling: "
            "no later check protects the rest; this start check still applies"
        )
    return tuple(out)
