"""Phases of a start-up without a log, from the memory it takes and the port it opens; every one is marked inferred."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.warmup.startup import Phase, Startup
from llmtop.warmup.startup_lines import PhaseName

Reading = tuple[float, int]  # Unix time, headroom in bytes

_NOISE = 512 * 2**20
_PEAK = 2**30  # an activation peak is at least this deep
_PEAK_S = 1.0  # and over within this time
_STEP_SHARE = 0.02  # the KV cache is one step of at least this share of the total


def infer(readings: Sequence[Reading], total: int | None, began: float, ready_at: float | None, now: float) -> Startup:
    """The start-up as far as memory and /health show it."""
    starts: list[tuple[PhaseName, float]] = [("start", began)]
    weights = _first_fall(readings)
    if weights is not None:
        starts.append(("weights", readings[weights][0]))
        peak = _last_peak(readings, weights)
        if peak is not None:
            starts.append(("profile", readings[peak][0]))
            step = _step(readings, peak, total)
            if step is not None:
                starts.append(("kv", readings[step][0]))
    if ready_at is not None:
        starts.append(("ready", ready_at))
    end = ready_at if ready_at is not None else now
    phases = tuple(
        Phase(name, round(at - began, 3), round(after - at, 3), inferred=True, began=at, ended=after)
        for (name, at), after in zip(starts, [*(at for _, at in starts[1:]), end], strict=True)
    )
    ready = None if ready_at is None else round(ready_at - began, 3)
    return Startup(
        state="starting" if ready_at is None else "ready",
        phase=starts[-1][0],
        phases=phases,
        ready_seconds=ready,
        ready_at=ready_at,
    )


def _first_fall(readings: Sequence[Reading]) -> int | None:
    if not readings:
        return None
    top = readings[0][1]
    for index, (_, headroom) in enumerate(readings):
        top = max(top, headroom)
        if headroom < top - _NOISE:
            return index
    return None


def _last_peak(readings: Sequence[Reading], start: int) -> int | None:
    """The last dip that was given back at once: the forward pass with the largest batch."""
    found = None
    for index in range(max(start, 1), len(readings)):
        time, headroom = readings[index]
        before = readings[index - 1][1]
        if before - headroom < _PEAK:
            continue
        after = (h for t, h in readings[index + 1 :] if t - time <= _PEAK_S)
        if any(h >= before - _NOISE for h in after):
            found = index
    return found


def _step(readings: Sequence[Reading], start: int, total: int | None) -> int | None:
    """The first fall after the profile run that stays: the KV cache."""
    need = _NOISE * 2 if total is None else max(_NOISE * 2, int(total * _STEP_SHARE))
    base = None
    for index in range(start + 1, len(readings)):
        time, headroom = readings[index]
        if base is None or headroom > base:
            base = headroom
        if base - headroom >= need and all(base - h >= need for t, h in readings[index:] if t - time <= _PEAK_S):
            return index
    return None
