"""What a start-up that is under way comes to: the headroom after its phase and when it is ready, and how long it takes.

Everything follows from what was measured or said: a step of which a part is done takes as much again for the rest, and
the budget is what the engine fills. Where neither is known nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.warmup.evidence import GIB, Evidence
from llmtop.warmup.phrases import PHASES
from llmtop.warmup.startup import Phase, Startup

_LEAST_PERCENT, _SURE_PERCENT = 5.0, 20.0  # of a step: less says nothing, or little, of the rest
_BEFORE_KV = PHASES[: PHASES.index("kv") + 1]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Headroom in bytes and seconds from now on; negative headroom: it will not fit. None where nothing tells."""

    after_phase_bytes: float | None = None
    when_ready_bytes: float | None = None
    phase_ends_in_s: float | None = None


def forecast(startup: Startup, e: Evidence, readings: Sequence[tuple[float, int]], now_bytes: int | None) -> Forecast:
    """What is to come; `readings` are Unix time and headroom in bytes, oldest first, `now_bytes` is the headroom."""
    phase = next((p for p in startup.phases if p.name == startup.phase), None)
    if startup.state != "starting" or phase is None:
        return Forecast()
    return Forecast(
        _after(startup, e, phase, readings, now_bytes),
        _when_ready(startup, e, readings, now_bytes),
        _seconds(startup, phase),
    )


def _seconds(s: Startup, phase: Phase) -> float | None:
    """The rest of a step as long as its part that is done, less what has passed since that was said."""
    step = s.progress
    if step is None or step.phase != phase.name or step.took_s is None or step.percent < _LEAST_PERCENT:
        return None
    passed = 0.0 if phase.seconds is None else max(0.0, phase.seconds - step.took_s)
    return max(0.0, step.took_s * (100 - step.percent) / step.percent - passed)


def _after(
    s: Startup, e: Evidence, phase: Phase, readings: Sequence[tuple[float, int]], now: int | None
) -> float | None:
    if now is None:
        return None
    if phase.name == "kv":
        return _when_ready(s, e, readings, now)
    done = s.progress.percent / 100 if s.progress is not None and s.progress.phase == phase.name else 0.0
    if phase.name == "graphs" and (whole := s.figure("graph_estimate_gib")) is not None:
        return now - whole * GIB * (1 - done)
    if phase.name != "weights":
        return None
    before, whole = before_weights(s, readings), _weights_gib(s, phase, readings)
    return None if before is None or whole is None else before - whole * GIB


def _weights_gib(s: Startup, phase: Phase, readings: Sequence[tuple[float, int]]) -> float | None:
    """What all weights take: what the part took that was read when that was said; before that, their size on disk."""
    step, size = s.progress, s.figure("checkpoint_gib")
    alone = size is not None and (s.figure("tensor_parallel_size") or 1) <= 1
    if step is None or step.phase != "weights" or step.took_s is None or phase.began is None:
        return size if alone else None
    if step.percent < (_SURE_PERCENT if alone else _LEAST_PERCENT):
        return size if alone else None
    said_at = phase.began + step.took_s
    before = before_weights(s, readings)
    then = next((value for at, value in reversed(readings) if phase.began <= at <= said_at), None)
    if before is None or then is None or then >= before:
        return size if alone else None
    return (before - then) / GIB * 100 / step.percent


def before_weights(s: Startup, readings: Sequence[tuple[float, int]]) -> int | None:
    """The headroom when the weights began to be read: until then the engine has hardly any memory."""
    began = next((p.began for p in s.phases if p.name == "weights"), None)
    return next((value for at, value in readings if began is not None and at >= began), None)


def _when_ready(s: Startup, e: Evidence, readings: Sequence[tuple[float, int]], now: int | None) -> float | None:
    """Before the KV cache: what was free less the budget, which it fills; once it is there only graphs are missing."""
    if s.phase in _BEFORE_KV:
        budget, free, beyond = e.budget_gib, e.free_at_start_gib, s.figure("graph_estimate_gib")
        before = before_weights(s, readings)
        free = before / GIB if free is None and before is not None else free
        if budget is None or free is None:
            return None
        return (free - budget - max(0.0, (beyond or 0.0) - (e.graph_budget_gib or 0.0))) * GIB
    if now is None or s.phase != "warmup":
        return None
    whole = s.figure("graph_estimate_gib")
    return None if whole is None else now - whole * GIB
