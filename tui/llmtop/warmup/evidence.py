"""What is known about one start, from its log and from the machine's memory: what ledger and advice are made of.

All sizes of `Evidence` are GiB (2^30 bytes). `gpu_memory_utilization` is a share of the device's *total* memory for
this instance; what the budget holds depends on the version: CUDA graphs were outside of it before 0.21.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from llmtop.warmup.phrases import PhaseName
from llmtop.warmup.startup import Phase, Startup

GIB = 2**30
DISCRETE_RESERVE_GIB = 3.0
# On unified memory the operating system and every other program live in the same pool; machines in steady
# production keep 3.5 to 7 GiB available, freezes began below that.
UNIFIED_RESERVE_GIB = 8.0

Version = tuple[int, int, int]
_KV_PHASES: tuple[PhaseName, ...] = ("kv", "warmup", "graphs", "ready")


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


def default_reserve(unified: bool) -> float:
    """What must stay free, GiB: 3 on a card of its own, the operating system's share on unified memory."""
    return UNIFIED_RESERVE_GIB if unified else DISCRETE_RESERVE_GIB


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """The pool the engine lives in, in bytes: now, and free when the start began; None where it was not read."""

    name: str | None = None
    source: str = "driver"
    unified: bool = False
    total_bytes: int | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    engine_bytes: int | None = None
    others_bytes: int | None = None
    free_at_start_bytes: int | None = None

    def at_failure(self, margin_bytes: int | None) -> MachineMemory:
        """As it was when the start failed with so much left: what is read after the engine's death is not about it."""
        known = None if self.total_bytes is None or margin_bytes is None else self.total_bytes - margin_bytes
        used = None if known is None else known - (self.reserved_bytes or 0)
        return replace(self, used_bytes=used, engine_bytes=None)


def evidence(startup: Startup, machine: MachineMemory | None = None) -> Evidence:
    """Put together what is known; a figure of the log wins over one of the machine, because vLLM computed with it."""
    m = machine or MachineMemory()
    origins: dict[str, str] = {}
    figure = startup.figure
    version = parse_version(startup.version)

    def pick(name: str, log: float | None, other: float | None = None, source: str = "") -> float | None:
        if log is not None:
            origins[name] = "log"
        elif other is not None:
            origins[name] = source or m.source
        return log if log is not None else other

    total = pick("total_gib", _some(_error(startup, "total_gib", figure("total_gib"))), _some(_gib(m.total_bytes)))
    default = None if version is None else default_utilization(version)
    share = _some(_error(startup, "utilization", figure("utilization")))
    util = pick("utilization", share, default, "default of the version")
    weights = pick("weights_gib", startup.weights_gib)
    consumed, non_torch = figure("consumed_gib"), figure("non_torch_gib")
    derived = consumed - weights if consumed is not None and weights is not None else None
    tight = _tightest(startup.phases)
    return Evidence(
        unified=m.unified,
        version=startup.version,
        total_gib=total,
        utilization=util,
        requested_gib=pick("requested_gib", _error(startup, "requested_gib", figure("requested_gib"))),
        weights_gib=weights,
        consumed_gib=pick("consumed_gib", consumed),
        activation_gib=pick("activation_gib", figure("activation_gib")),
        non_torch_gib=pick("non_torch_gib", non_torch, derived, "log: consumed - weights"),
        graph_gib=pick("graph_gib", startup.graph_gib),
        graph_budget_gib=pick("graph_budget_gib", graph_budget(startup)),
        kv_gib=pick("kv_gib", startup.kv_cache_gib),
        kv_fixed=figure("kv_fixed") is not None or figure("kv_cache_memory_bytes") is not None,
        kv_tokens=startup.kv_cache_tokens,
        max_concurrency=startup.max_concurrency,
        model_len=_int(figure("concurrency_tokens") or figure("max_model_len")),
        free_at_start_gib=pick("free_at_start_gib", figure("free_gib"), _gib(m.free_at_start_bytes)),
        used_gib=pick("used_gib", None, _gib(m.used_bytes)),
        reserved_gib=pick("reserved_gib", None, _gib(m.reserved_bytes)),
        engine_gib=pick("engine_gib", None, _gib(m.engine_bytes), "process sum"),
        others_gib=pick("others_gib", None, _gib(m.others_bytes), "process sum"),
        min_headroom_gib=None if tight is None else _gib(tight.min_headroom_bytes),
        min_phase=None if tight is None else tight.name,
        measured=_measured(startup.phases),
        origins=origins,
    )


def graph_budget(startup: Startup) -> float | None:
    """What the budget set aside for CUDA graphs: 0 where this start kept them outside, None where it does not say."""
    figure = startup.figure
    if figure("graph_in_budget_gib") is not None:
        return figure("graph_in_budget_gib")
    estimate = figure("graph_estimate_gib")
    if figure("utilization_without_graphs") is not None:  # "profiling is enabled"
        return estimate
    if figure("utilization_with_graphs") is not None:  # "will be enabled in a later version"
        return 0.0
    version = parse_version(startup.version)
    if version is not None and version < (0, 21, 0):
        return 0.0
    return estimate


def _tightest(phases: tuple[Phase, ...]) -> Phase | None:
    late = [p for p in phases if p.name in _KV_PHASES and p.min_headroom_bytes is not None]
    return min(late, key=lambda p: p.min_headroom_bytes or 0, default=None)


def _measured(phases: tuple[Phase, ...]) -> Literal["all", "part", "none"]:
    late = [p.min_headroom_bytes is not None for p in phases if p.name in _KV_PHASES and p.seconds]
    return "all" if late and all(late) else "part" if any(late) else "none"


def _error(startup: Startup, name: str, otherwise: float | None) -> float | None:
    """A failed start check prints total, utilization and request; other errors' numbers are not these."""
    failure = startup.failure
    if failure is not None and failure.kind == "free_too_low":
        return failure.numbers.get(name, otherwise)
    return otherwise


def _gib(value: int | None) -> float | None:
    return None if value is None else value / GIB


def _some(value: float | None) -> float | None:
    """A total or a share of nothing is not known: it would be divided by."""
    return value if value is not None and value > 0 else None


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)
