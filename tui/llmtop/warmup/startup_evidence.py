"""From the log's figures and the machine's memory to the evidence that the ledger and the advice are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from llmtop.warmup.budget import GIB, Evidence, default_utilization, parse_version
from llmtop.warmup.startup import Phase, Startup
from llmtop.warmup.startup_lines import PhaseName

_KV_PHASES: tuple[PhaseName, ...] = ("kv", "warmup", "graphs", "ready")


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

    total = pick("total_gib", _error(startup, "total_gib", figure("total_gib")), _gib(m.total_bytes))
    default = None if version is None else default_utilization(version)
    util = pick("utilization", _error(startup, "utilization", figure("utilization")), default, "default of the version")
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


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)
