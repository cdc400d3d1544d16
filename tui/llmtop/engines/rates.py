"""The recent pages of one engine row: counter deltas, bucket deltas, resets.

A rate is a counter delta over the window divided by the time between the first body bytes of the two pages.
A restart (a new process start time or any counter that fell) empties the window, so that no delta spans it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from llmtop.engines.page_record import Histogram, RowSample
from llmtop.engines.quantiles import delta

RATE_WINDOW_S = 10.0
LATENCY_WINDOW_S = 60.0
STALL_AFTER_S = 5.0
STALL_AFTER_POLLS = 3
STEPS_NEEDED = 20  # fewer are off by more than 5 %
STEPS_AT_LEAST = 3
OPEN_SHARE = 0.2  # of the requests that ended, at most, may the tokens be of another window
RISE_S, RISE_POLLS, RISE_SURE = 15.0, 6, 0.95
# any of these moving means that the engine works; a long prefill moves only the iteration count
# what moves while an engine works and is no counter
_PULSES = ("generation_rate", "pulse")
_PROGRESS = ("generation", "prompt", "iterations", "preemptions", "requests", "diffusion_steps")
_STEPS = ("generation", "iterations", "diffusion_steps")  # what moves before a request ends, where it is so counted
# of the time that an engine takes to tell its figures anew: after so much it is late; a rate is over so many
MISSED_TELLS = 1.5
TELLS_SPANNED = 4


@dataclass(frozen=True, slots=True)
class WindowSpans:
    """Over how many seconds rates and latencies are taken; pages that come seldom need longer ones."""

    rate_s: float = RATE_WINDOW_S
    latency_s: float = LATENCY_WINDOW_S


LIVE = WindowSpans()


@dataclass(frozen=True, slots=True)
class _Point:
    t: float
    row: RowSample
    known: RowSample  # the row with the last values of what this page lacked


def _carried(old: RowSample, new: RowSample) -> RowSample:
    """A row with the last known value of every counter and histogram: none vanishes while its process lives."""
    born = {"created": old.gauges["created"]} if "created" in old.gauges else {}
    return replace(
        new,
        gauges={**born, **new.gauges},
        counters={**old.counters, **new.counters},
        histograms={**old.histograms, **new.histograms},
    )


def _tells_steps(row: RowSample) -> bool:
    """Whether anything moves before a request ends."""
    counted = any(name in row.counters and name not in row.at_end for name in _STEPS)
    return counted or any(name in row.gauges for name in _PULSES)


class RowWindow:
    """The pages of one row since its last restart, at most `spans.latency_s` back; no window given: that of rates."""

    def __init__(self, digits: int | None = None, spans: WindowSpans = LIVE) -> None:
        self.spans = spans
        self._digits = digits  # that the engine prints of a counter; None = all
        self._points: deque[_Point] = deque()
        self._progress: tuple[float, ...] = ()
        self._still_since = 0.0
        self._still_polls = 0

    def push(self, t: float, row: RowSample, restarted: bool = False) -> bool:
        """Add a page; True when the row restarted. The page after a restart is the base of the new window."""
        reset = bool(self._points) and (restarted or _fell(self._points[-1].known, row))
        if reset:
            self._points.clear()
        known = _carried(self._points[-1].known, row) if self._points else row
        self._points.append(_Point(t, row, known))
        while len(self._points) > 2 and self._points[1].t <= t - self.spans.latency_s:
            self._points.popleft()
        self._watch_progress(t, known, reset)
        return reset

    def _watch_progress(self, t: float, row: RowSample, reset: bool) -> None:
        ttft = row.histograms.get("ttft")
        progress = (
            *(row.counters.get(name, -1.0) for name in _PROGRESS),
            *(row.gauges.get(name, -1.0) for name in _PULSES),
            ttft.count if ttft else -1.0,
        )
        busy = row.gauges.get("running") or row.gauges.get("waiting")
        if reset or progress != self._progress or not busy:
            self._progress, self._still_since, self._still_polls = progress, t, 0
        self._still_polls += 1

    @property
    def still_s(self) -> float:
        """How long requests have been there without any counter moving."""
        return self._points[-1].t - self._still_since if self._points else 0.0

    @property
    def stalled(self) -> bool:
        """Requests run or wait, and nothing of what could move has moved for long enough to say so."""
        could = any(value >= 0 for value in self._progress)
        return could and self._still_polls >= STALL_AFTER_POLLS and self.still_s >= self._patience_s()

    def _patience_s(self) -> float:
        """For how long an engine that works may show nothing of it: few digits, figures told seldom or only at ends."""
        row = self._points[-1].row
        told_s = MISSED_TELLS * row.gauges.get("told_s", 0.0)
        coarse = any(self._step(value) > 1.0 for value in self._progress)
        silent = bool(row.gauges.get("running")) and not _tells_steps(row)
        longest = self.spans.latency_s
        return longest if coarse or silent else min(max(STALL_AFTER_S, told_s), longest)

    def _base(self, window_s: float | None = None) -> _Point | None:
        """The page about `window_s` before the newest one, or the oldest there is."""
        window_s = self.spans.rate_s if window_s is None else window_s
        if len(self._points) < 2:
            return None
        newest = self._points[-1].t
        base = self._points[0]
        for point in self._points:
            # half a poll of slack, so that a page a moment too young does not stretch the window by a whole one
            if newest - point.t < window_s - 0.05 * window_s:
                break
            base = point
        return base

    def span(self, window_s: float | None = None) -> float | None:
        """The real length of the window in seconds."""
        base = self._base(window_s)
        return None if base is None else self._points[-1].t - base.t

    def delta(self, signal: str, window_s: float | None = None) -> float | None:
        """How much a counter rose over the window; a counter that appeared in it rose from 0."""
        change = self._change(signal, window_s)
        return None if change is None else change[0]

    def _change(self, signal: str, window_s: float | None = None) -> tuple[float, float] | None:
        """How much a counter rose and over how many seconds."""
        base, newest = self._base(window_s), self._points[-1] if self._points else None
        if base is None or newest is None or signal not in newest.row.counters:
            return None
        value = newest.row.counters[signal]
        if signal not in base.known.counters and signal not in base.row.unread:
            return value, newest.t - base.t
        for point in self._since(base):  # the base itself, unless it had no readable value
            if signal in point.row.counters and point.t < newest.t:
                return value - point.row.counters[signal], newest.t - point.t
        return None

    def moved(self, signal: str) -> bool:
        """Whether a counter rose with the newest page."""
        if len(self._points) < 2:
            return False
        before, now = self._points[-2].row.counters, self._points[-1].row.counters
        return now.get(signal, 0.0) > before.get(signal, 0.0)

    def counter_names(self) -> Iterable[str]:
        """The counters of the newest page."""
        return self._points[-1].row.counters.keys() if self._points else ()

    def has(self, signal: str) -> bool:
        """Whether the newest page has a counter."""
        return signal in self.counter_names()

    def gauge(self, signal: str) -> float | None:
        """A gauge of the newest page."""
        return self._points[-1].row.gauges.get(signal) if self._points else None

    def span_for(self, signal: str) -> float:
        """The window for a counter; a longer one where work has moved it by only a few steps of its last digit."""
        change = self._change(signal) if self._digits and self.gauge("running") else None
        if change is None:
            return self.spans.rate_s
        step = self._step(self._points[-1].row.counters[signal])
        return self.spans.latency_s if step > 1.0 and change[0] < STEPS_NEEDED * step else self.spans.rate_s

    def _step(self, value: float) -> float:
        """By how much a counter moves at least, as it is printed."""
        if self._digits is None or value <= 0:
            return 0.0
        return 10.0 ** (math.floor(math.log10(value)) + 1 - self._digits)

    def too_coarse(self, signal: str, change: float | None, *, worked: bool = False) -> bool:
        """Whether a counter rose by so few of its steps that this says nothing of its speed; `worked`: it must have."""
        value = self._points[-1].row.counters.get(signal, 0.0) if self._points else 0.0
        return change is not None and (worked or change > 0) and self._few_steps(value, change)

    def _few_steps(self, value: float, change: float) -> bool:
        step = self._step(value)
        return step > 1.0 and change < STEPS_AT_LEAST * step

    def rate(self, signal: str) -> float | None:
        """A counter per second over the rate window; None where its digits, or requests that run, say nothing of it."""
        if self.waits_for_ends(signal):
            return self._rate_of_ended(signal)
        told_s = self.gauge("told_s") if signal == "generation" else None
        if told_s and (known := self._between_tells(signal, told_s)) is not None:
            return known
        change = self._change(signal, self.span_for(signal))
        if change is None or change[1] <= 0 or self.too_coarse(signal, change[0]):
            return None
        return change[0] / change[1]

    def _between_tells(self, signal: str, told_s: float) -> float | None:
        """A counter that jumps every `told_s`: over whole jumps, since a window has one more or less by chance."""
        newest = self._points[-1]
        window_s = min(max(self.spans.rate_s, TELLS_SPANNED * told_s), self.spans.latency_s)
        known = [(p.t, p.row.counters[signal]) for p in self._points if signal in p.row.counters]
        jumps = [after for before, after in pairwise(known) if after[1] > before[1] and after[0] >= newest.t - window_s]
        if len(jumps) < 2 or newest.t - jumps[-1][0] > MISSED_TELLS * told_s:
            return None
        return (jumps[-1][1] - jumps[0][1]) / (jumps[-1][0] - jumps[0][0])

    def waits_for_ends(self, signal: str) -> bool:
        """Whether a counter moves only when a request ends."""
        return bool(self._points) and signal in self._points[-1].row.at_end

    def _rate_of_ended(self, signal: str) -> float | None:
        """A counter that moves when a request ends, over the shortest window in which most of them began too."""
        for window_s in (self.spans.rate_s, self.spans.latency_s):
            base, change = self._base(window_s), self._change(signal, window_s)
            if base is None or change is None or change[1] <= 0:
                return None
            # a sum that is no engine's has no such gauge, and nothing then speaks against its window
            at_its_ends = max(point.row.gauges.get("running", 0.0) for point in (base, self._points[-1]))
            if at_its_ends <= OPEN_SHARE * self._ended(window_s):
                return change[0] / change[1]
        return None

    def _ended(self, window_s: float) -> float:
        """How many requests ended in the window, as far as anything tells."""
        whole = self.histogram("e2e", window_s)
        return max(self.delta("requests", window_s) or 0.0, whole.count if whole is not None else 0.0)

    def gauge_slope(self, signal: str) -> float | None:
        """How fast a gauge moved over the rate window, per second."""
        base, span = self._base(), self.span()
        if base is None or not span:
            return None
        new, old = self._points[-1].row.gauges.get(signal), base.row.gauges.get(signal)
        return None if new is None or old is None else (new - old) / span

    def rises(self, signal: str) -> bool:
        """Whether a gauge rises for sure: for a while, near a straight line, its lows too, to where it was not yet."""
        points = [(p.t, v) for p in self._points if (v := p.row.gauges.get(signal)) is not None]
        first = points[-1][0] - RISE_S if points else 0.0
        recent = [point for point in points if point[0] >= first]
        recent = points[-RISE_POLLS:] if len(recent) < RISE_POLLS else recent
        if len(recent) < RISE_POLLS or recent[-1][0] - recent[0][0] < RISE_S * 0.8:
            return False
        third = len(recent) // 3
        lows = [min(value for _, value in part) for part in (recent[:third], recent[third:-third], recent[-third:])]
        new_high = recent[-1][1] > max((value for _, value in points[: -len(recent)]), default=0.0)
        return new_high and lows[0] < lows[1] < lows[2] and _correlation(recent) >= RISE_SURE

    def histogram(self, signal: str, window_s: float | None = None) -> Histogram | None:
        """The bucket deltas of a histogram over the latencies' window; other bounds than before begin a new one."""
        base = self._base(self.spans.latency_s if window_s is None else window_s)
        new = self._points[-1].row.histograms.get(signal) if self._points else None
        if base is None or new is None:
            return None
        for point in self._since(base):
            old = point.row.histograms.get(signal)
            lost = old is None and signal in point.known.histograms
            change = None if lost else delta(new, old)
            if change is not None:
                return None if self._few_steps(new.count, change.count) else change
        return None

    def _since(self, base: _Point) -> Iterator[_Point]:
        return (point for point in self._points if point.t >= base.t)


def _correlation(points: Sequence[tuple[float, float]]) -> float:
    """Pearson's r of the points; 0 where nothing varies."""
    count = len(points)
    mean_t, mean_v = sum(t for t, _ in points) / count, sum(value for _, value in points) / count
    around = [(t - mean_t, value - mean_v) for t, value in points]
    spread = math.sqrt(sum(t * t for t, _ in around) * sum(value * value for _, value in around))
    return sum(t * value for t, value in around) / spread if spread else 0.0


def _fell(old: RowSample, new: RowSample) -> bool:
    """Whether any counter of a row is lower than before, which only a restart can do."""
    for signal, before in old.counters.items():
        if new.counters.get(signal, before) < before:
            return True
    for signal, histogram in old.histograms.items():
        after = new.histograms.get(signal)
        if after is not None and after.count < histogram.count:
            return True
    born, now_born = old.gauges.get("created"), new.gauges.get("created")
    return born is not None and now_born is not None and now_born > born
