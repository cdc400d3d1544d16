"""From the times and marks in a log to a timeline of phases that follow one another without gaps.

Most lines say that something has ended ("took 456 s"), few that it begins. So a phase begins where the one before it
ended, or at its first mark less the time that mark reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date

from llmtop.warmup.phrases import PHASES, Edge, PhaseName
from llmtop.warmup.stamp import Stamp

_HALF_YEAR_S = 180 * 86_400.0

# Silence of this length between the marks of two phases is a phase that wrote no line; log times are whole seconds.
SILENT_S = 3.0

# What runs between two phases when the log is silent: vLLM profiles before it sizes the KV cache and warms kernels up
# before it captures graphs.
_SILENT: dict[tuple[PhaseName, PhaseName], PhaseName] = {
    ("weights", "kv"): "profile",
    ("compile", "kv"): "profile",
    ("kv", "graphs"): "warmup",
    ("kv", "ready"): "warmup",
}

Process = tuple[str | None, int | None]


class Clock:
    """Turns log times into seconds since the first one; a new year does not go backwards.

    The engine's own times count. Those of whoever forwarded the lines (another time zone, another precision) date
    lines without one of their own, by what the two differed when a line had both.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._fraction = False  # whether the first time had one
        self._years = 0
        self._own = False  # the engine's own times were seen
        self._offset: float | None = None  # own less outer
        self._arrival: float | None = None
        self.now: float | None = None
        self.first_stamp: Stamp | None = None
        self.first_arrival: float | None = None

    def tick(self, stamp: Stamp | None, arrival: float | None, outer: Stamp | None = None) -> float | None:
        """The time of a line in seconds; a line without one has the last time plus what has passed since it came."""
        own, beside = self._seconds(stamp), self._seconds(outer)
        if self.now is None:
            self.first_stamp, self.first_arrival = stamp or outer, arrival
        if own is not None:
            if self.now is not None and not self._own:  # until now the forwarder's times had to do
                self._first = own - self.now
            self._own = True
            self._offset = None if beside is None else own - beside
            self._take(own, arrival, stamp)
        elif beside is not None and (self._offset is not None or not self._own):
            self._take(beside + (self._offset or 0.0), arrival, outer)
        elif self.now is not None:
            self.now, self._arrival = self.at(arrival), arrival if arrival is not None else self._arrival
        elif arrival is not None and self._arrival is None:
            self._arrival = arrival
        return self.now

    def at(self, arrival: float | None) -> float | None:
        """The time that it is, in seconds, at the Unix time `arrival`."""
        if self.now is None or arrival is None or self._arrival is None:
            return self.now
        return self.now + max(0.0, arrival - self._arrival)

    def _take(self, seconds: float, arrival: float | None, stamp: Stamp | None) -> None:
        whole = stamp is None or stamp.whole
        if self._first is None:
            self._first, self._fraction = seconds, not whole
        elif self._fraction and whole:  # most times are whole seconds; one first line must not shift them all
            self._first, self._fraction = math.floor(self._first), False
        since = seconds - self._first
        if since < (self.now or 0.0) - _HALF_YEAR_S:
            self._years += 1
            since += 365 * 86_400.0
        self.now, self._arrival = max(0.0, since), arrival

    def _seconds(self, stamp: Stamp | None) -> float | None:
        # 2024 stands for the unknown year because it has a 29 February.
        if stamp is None:
            return None
        try:
            day = date(2024, stamp.month, stamp.day)
        except ValueError:
            return None
        return day.timetuple().tm_yday * 86_400.0 + stamp.second + self._years * 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A phase on one time axis, in seconds; `inferred` where the log has no line of its own for it."""

    name: PhaseName
    start: float | None
    seconds: float | None
    inferred: bool = False


@dataclass(slots=True)
class _Marks:
    begins: dict[Process, float] = field(default_factory=dict)  # a line said that it begins
    first: float | None = None  # the earliest mark, less what it took
    last: float | None = None
    ends: dict[Process, float] = field(default_factory=dict)
    hinted: float | None = None  # a line that often, not always, opens the phase

    def end(self) -> float | None:
        return max(self.ends.values()) if self.ends else None


class Spans:
    """The marks of every phase on one time axis."""

    def __init__(self) -> None:
        self._marks: dict[PhaseName, _Marks] = {}
        self.old_engine = False  # the V0 engine has no kernel warm-up: its silence is the allocation of the KV cache
        self.outspoken = False  # an engine that says when each phase begins: its silence is no phase

    def mark(
        self,
        phase: PhaseName,
        edge: Edge,
        process: Process | None,
        time: float | None,
        took: float | None,
        hint: bool = False,
    ) -> None:
        """Note that a line of `phase` came at `time` and, if it says so, that what it reports `took` so long."""
        marks = self._marks.setdefault(phase, _Marks())
        if time is None:
            return
        key = process or (None, None)
        if edge == "begin" and not hint:
            marks.begins.setdefault(key, time)
        begin = time - (took or 0.0)
        if hint:
            marks.hinted = begin if marks.hinted is None else min(marks.hinted, begin)
        else:
            marks.first = begin if marks.first is None else min(marks.first, begin)
        marks.last = time if marks.last is None else max(marks.last, time)
        if edge == "end":
            # A draft model is compiled after the main one was profiled: only the first compilation counts.
            marks.ends[key] = marks.ends.get(key, time) if phase == "compile" else time

    @property
    def empty(self) -> bool:
        """Whether no mark has a time yet."""
        return all(marks.last is None for marks in self._marks.values())

    def ended(self, phase: PhaseName) -> bool:
        """Whether a line has said that the phase is over."""
        return phase in self._marks and bool(self._marks[phase].ends)

    def begun(self, phase: PhaseName) -> float | None:
        """When a phase that is running began."""
        return next((i.start for i in self.intervals(None) if i.name == phase), None)

    def intervals(self, end: float | None, inferred: set[PhaseName] | None = None) -> tuple[Interval, ...]:
        """The phases in order; `end` closes the last one, `inferred` replaces the search for silent phases."""
        starts: list[tuple[PhaseName, float | None, bool]] = []
        for name in (name for name in PHASES if name in self._marks):
            starts.extend(self._begin(name, starts, inferred))
        if not starts:
            return ()
        nexts = [start for _, start, _ in starts[1:]]
        last = self._marks["ready"].last if self.ended("ready") else end
        return tuple(
            Interval(name, None if start is None else round(start, 3), _length(start, after), silent)
            for (name, start, silent), after in zip(starts, [*nexts, last], strict=True)
        )

    def _begin(
        self,
        name: PhaseName,
        before: list[tuple[PhaseName, float | None, bool]],
        inferred: set[PhaseName] | None,
    ) -> list[tuple[PhaseName, float | None, bool]]:
        own = self._own(name)
        if not before:
            return [(name, own, False)]
        previous, floor, _ = before[-1]
        said = self._marks[previous].end()
        if said is None:
            own = self._marks[previous].last if own is None else own
            return [(name, _later(floor, own), False)]
        mute = self.outspoken or (self.old_engine and previous == "kv")
        silent = None if mute else _SILENT.get((previous, name))
        gap = own is not None and own - said >= SILENT_S if inferred is None else silent in inferred
        if silent is not None and gap:
            return [(silent, _later(floor, said), True), (name, _later(said, own), False)]
        begun = self._begun(name)
        return [(name, _later(floor, said if begun is None else begun), False)]

    def _begun(self, name: PhaseName) -> float | None:
        """A phase begins with the first process, but the server is not started before the last engine is up."""
        begins = self._marks[name].begins.values()
        return (max if name == "ready" else min)(begins, default=None)

    def _own(self, name: PhaseName) -> float | None:
        marks = self._marks[name]
        begun = self._begun(name)
        if begun is not None or marks.first is not None:
            return marks.first if begun is None else begun
        # The encoder line comes before the compilation, most of the profile run after it.
        return None if "compile" in self._marks else marks.hinted


def _later(a: float | None, b: float | None) -> float | None:
    return a if b is None else b if a is None else max(a, b)


def _length(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(0.0, end - start), 3)
