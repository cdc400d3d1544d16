"""A start-up in a recording, and on its way to a browser's tab: as plain values, and back again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmtop.contract.codec import NotGiven, plain, rebuild
from llmtop.warmup.report import Report

KIND = "startup"  # of the recording's event
MOST_READINGS = 150
Readings = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class StartupView:
    """What there is to see of a start-up; readings are Unix time and headroom of the main pool (bytes), oldest first.

    `active`: it is still being watched. `pool`: the `pool_key` of the main pool, None where that is not told.
    """

    report: Report
    readings: tuple[tuple[float, int], ...] = ()
    active: bool = False
    pool: str | None = None


def to_values(view: StartupView, *, log: bool = False) -> dict[str, Any]:
    """A start-up as plain values; without `log`, of its log only the words of a failure."""
    report = view.report
    if not log:
        report = replace(report, startup=replace(report.startup, lines=(), notices=()))
    thinned = [(round(at, 2), value) for at, value in least_of_each(view.readings, MOST_READINGS)]
    values: dict[str, Any] = plain(replace(view, report=report, readings=tuple(thinned)))
    return values


def from_values(values: Mapping[str, Any]) -> StartupView | None:
    """The start-up that was recorded; None when another version wrote it so that it cannot be read."""
    try:
        view: StartupView = rebuild(StartupView, dict(values))
    except NotGiven:
        return None
    return view


def least_of_each(readings: Readings, most: int) -> list[tuple[float, int]]:
    """At most `most` readings: of equal stretches of time the lowest, so that no dip is lost."""
    if len(readings) <= most:
        return list(readings)
    first, last = readings[0][0], readings[-1][0]
    step = max(last - first, 1e-9) / most
    kept: dict[int, tuple[float, int]] = {}
    for reading in readings:
        place = min(most - 1, int((reading[0] - first) / step))
        if place not in kept or reading[1] < kept[place][1]:
            kept[place] = reading
    return [kept[place] for place in sorted(kept)]
