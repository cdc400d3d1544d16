"""The recent past of every figure that has a chart: columns of fixed width in time, with gaps and marks.

Samples are folded as they come into columns of several widths, so that drawing a chart costs its width and not its
past. A column without a sample is a gap (None), never a zero.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llmtop.contract.snapshot import Device, Event, Mark, Pool, ServerView, Snapshot, State

STEPS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
COLUMNS = 260
LONGEST_S = COLUMNS * STEPS_S[-1]
SWEEP_S = 600.0
MARKS = 64
EVENTS = 200
Fold = Callable[[float, float], float]


class _Columns:
    """One resolution of a series: a ring of folded values, NaN where there is a gap."""

    def __init__(self, step: float) -> None:
        self.step = step
        self._ring = array("d", (math.nan,)) * COLUMNS  # whole from the start: it does not grow for hours
        self._newest: int | None = None  # column
        self._last_t = 0.0

    def push(self, t: float, value: float | None, fold: Fold) -> None:
        column = int(t // self.step)
        sample = math.nan if value is None else float(value)
        last = column if self._newest is None else self._newest
        if column == self._newest:
            held = self._ring[column % COLUMNS]
            if value is not None:
                self._ring[column % COLUMNS] = value if math.isnan(held) else fold(held, value)
        else:
            # a sample a moment late jumps a column: that is no gap
            jumped = column == last + 2 and t - self._last_t < 1.8 * self.step
            for between in range(max(last + 1, column - COLUMNS), column):
                self._ring[between % COLUMNS] = sample if jumped else math.nan
            self._ring[column % COLUMNS] = sample
            self._newest = column
        self._last_t = t

    def tail(self, newest: int, width: int) -> list[float | None]:
        """The last `width` columns up to column `newest`."""
        result: list[float | None] = [None] * width
        if self._newest is None:
            return result
        first = newest - width + 1
        for column in range(max(first, self._newest - COLUMNS + 1), min(newest, self._newest) + 1):
            value = self._ring[column % COLUMNS]
            if not math.isnan(value):
                result[column - first] = value
        return result


class Series:
    """One figure over time."""

    def __init__(self, fold: Fold) -> None:
        self.last = 0.0  # when a sample came last
        self._fold = fold
        self._resolutions = {step: _Columns(step) for step in STEPS_S}

    def push(self, t: float, value: float | None) -> None:
        """Add a sample; None is a gap."""
        self.last = t
        for columns in self._resolutions.values():
            columns.push(t, value, self._fold)

    def columns(self, step: float, t: float, width: int) -> list[float | None]:
        """`width` columns of `step` seconds, the newest holding `t`."""
        return self._resolutions[step].tail(int(t // step), width)


def newest(_: float, value: float) -> float:
    """Fold: keep the last sample, which for a rate over a longer window already is a mean."""
    return value


_SERVER: Mapping[str, tuple[Fold, Callable[[ServerView], float | None]]] = {
    "kv": (max, lambda s: s.kv_usage),
    "running": (max, lambda s: s.running),
    "waiting": (max, lambda s: s.waiting),
    "generation": (newest, lambda s: s.rates.generation_tok_s),
    "prompt": (newest, lambda s: s.rates.prompt_tok_s),
    "ttft": (newest, lambda s: s.latency.ttft.mean_s),
    "ttft_p50": (newest, lambda s: s.latency.ttft.p50.value_s if s.latency.ttft.p50 else None),
    "ttft_p95": (newest, lambda s: s.latency.ttft.p95.value_s if s.latency.ttft.p95 else None),
}


_PEAKS = ("generation", "running", "kv")
GAP_S = 60.0  # a longer time without a sample counts no tokens


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest value since the last mark, and when (Unix time)."""

    value: float
    time: float


class History:
    """All series of a session, by server and by memory pool."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}
        self.marks: deque[tuple[float, Mark]] = deque(maxlen=MARKS)
        self.events: deque[Event] = deque(maxlen=EVENTS)
        self.peaks: dict[tuple[str, str], Peak] = {}  # by server and figure
        self.served: dict[str, float] = {}  # by server: tokens since the last mark, as its rates add up
        self.now = 0.0
        self._shift = self._swept = 0.0

    def push(self, snapshot: Snapshot) -> None:
        """Take a snapshot; a clock that jumps back is shifted on, so that time only grows."""
        t = snapshot.time + self._shift
        if t <= self.now:
            self._shift += self.now - t + 1e-3
            t = self.now + 1e-3
        before, self.now = self.now, t
        self.events.extend(snapshot.events)
        self.marks.extend((t, mark) for mark in snapshot.marks)
        if any(mark.kind == "mark" for mark in snapshot.marks):
            self.peaks.clear()
            self.served.clear()
        for server in snapshot.servers:
            self._push_server(server, t, snapshot.time, t - before)
        for pool in snapshot.pools:
            known = snapshot.current(pool.node)
            self._of(pool_series(pool), "headroom", min).push(t, pool.headroom_bytes if known else None)
        for device in snapshot.devices:
            owner, known = device_series(device), snapshot.current(device.node)
            self._of(owner, "util", max).push(t, device.util if known else None)
            self._of(owner, "power", newest).push(t, device.power_w if known else None)
        if t - self._swept >= SWEEP_S:
            self._sweep()

    def _sweep(self) -> None:
        """Forget what has not been listed for so long that it is all gaps: replicas come and go."""
        self._swept = self.now
        self._series = {key: series for key, series in self._series.items() if self.now - series.last < LONGEST_S}
        owners = {owner for owner, _ in self._series}
        self.peaks = {key: peak for key, peak in self.peaks.items() if key[0] in owners}
        self.served = {owner: tokens for owner, tokens in self.served.items() if owner in owners}

    def _push_server(self, server: ServerView, t: float, now: float, passed: float) -> None:
        # what a stale server last said is not what it does now
        known = server.state.live
        for name, (fold, read) in _SERVER.items():
            self._of(server.url, name, fold).push(t, read(server) if known else None)
        if server.state is State.STALE:
            return
        for name in _PEAKS:
            value, peak = _SERVER[name][1](server), self.peaks.get((server.url, name))
            if value is not None and (peak is None or value > peak.value):
                self.peaks[server.url, name] = Peak(value, now)
        if server.rates.generation_tok_s is not None:
            tokens = server.rates.generation_tok_s * passed if passed <= GAP_S else 0.0
            self.served[server.url] = self.served.get(server.url, 0.0) + tokens

    def peak(self, url: str, name: str = "generation") -> float | None:
        """The highest value of a figure since the last mark."""
        peak = self.peaks.get((url, name))
        return peak.value if peak is not None else None

    def _of(self, owner: str, name: str, fold: Fold) -> Series:
        series = self._series.get((owner, name))
        if series is None:
            series = self._series[owner, name] = Series(fold)
        return series

    def columns(self, owner: str, name: str, step: float, width: int, at: float | None = None) -> list[float | None]:
        """A series for a chart, the newest column holding `at` (or now); all gaps when it was never seen."""
        series = self._series.get((owner, name))
        return [None] * width if series is None else series.columns(step, self.now if at is None else at, width)

    def marks_in(self, step: float, width: int, at: float | None = None) -> tuple[list[int], list[str]]:
        """The columns of the same chart in which marks fall, and the text of the last mark of each."""
        first = int((self.now if at is None else at) // step) - width + 1
        texts = {int(t // step) - first: mark.text for t, mark in self.marks}
        places = sorted(place for place in texts if 0 <= place < width)
        return places, [texts[place] for place in places]


def device_series(device: Device) -> str:
    """The owner of a device's series; without a UUID, its index on its machine."""
    return device.uuid or ":".join(filter(None, (device.node, str(device.index))))


def pool_series(pool: Pool) -> str:
    """The owner of a pool's series."""
    return f"pool:{pool.node}:{pool.kind}:{pool.device or pool.name}"
