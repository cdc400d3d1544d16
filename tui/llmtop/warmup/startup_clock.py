"""Seconds since the first line of a log whose times have no year and whose lines do not all have a time."""

from __future__ import annotations

import math
from datetime import date

from llmtop.warmup.startup_lines import Stamp

_HALF_YEAR_S = 180 * 86_400.0


class Clock:
    """Turns log times into seconds since the first one; a new year does not go backwards."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._years = 0
        self.now: float | None = None
        self._arrival: float | None = None

    def tick(self, stamp: Stamp | None, arrival: float | None) -> float | None:
        """The time of a line in seconds; a line without one has the last time plus what has passed since it came."""
        seconds = _seconds(stamp, self._years) if stamp is not None else None
        if seconds is not None:
            seconds = self._since_first(seconds, stamp is not None and stamp.year is None)
            self.now, self._arrival = seconds, arrival
        elif arrival is not None and self._arrival is not None and self.now is not None:
            self.now, self._arrival = self.now + max(0.0, arrival - self._arrival), arrival
        elif arrival is not None and self._arrival is None:
            self._arrival = arrival
        return self.now

    def _since_first(self, seconds: float, yearless: bool) -> float:
        if self._first is None:
            self._first = math.floor(seconds)  # most times are whole seconds; one first line must not shift them all
        since = seconds - self._first
        if yearless and since < (self.now or 0.0) - _HALF_YEAR_S:
            self._years += 1
            since += 365 * 86_400.0
        return max(0.0, since)


def _seconds(stamp: Stamp, years: int) -> float | None:
    # 2024 stands for the unknown year because it has a 29 February.
    try:
        day = date(2024, stamp.month, stamp.day)
    except ValueError:
        return None
    return day.timetuple().tm_yday * 86_400.0 + stamp.second + years * 366 * 86_400.0
