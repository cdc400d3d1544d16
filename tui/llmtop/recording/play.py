"""Plays a recording: a thread that hands snapshots to the screen in their own time, scaled, and jumps when asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmtop.contract.settings import Target
from llmtop.contract.snapshot import Snapshot
from llmtop.recording.read import Recording
from llmtop.session.history import COLUMNS, STEPS_S
from llmtop.session.poller import Sink

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
DEPTH = int(COLUMNS * STEPS_S[-1])  # snapshots that can be in a chart, at one a second
NEAR = 600  # snapshots that are read in a moment
LONGEST_GAP_S = 10.0  # of recorded time; where nothing was recorded for longer, playing does not wait longer
BURST_S = 0.1  # at high speed, snapshots come together at most this often
LAG_S = 1.0  # how far playing may fall behind before it gives up catching up


@dataclass(frozen=True, slots=True)
class Jump:
    """A snapshot out of turn, and what charts need of those before it: all the past, or only what was skipped."""

    snapshot: Snapshot
    past: Sequence[Snapshot]
    afresh: bool


@dataclass(frozen=True, slots=True)
class TapePlace:
    """Where a player is: Unix times, and how it plays."""

    time: float
    start: float
    end: float
    speed: float
    playing: bool
    loop: bool


class Player:
    """Feeds a recording to a screen, with the methods of a poller. Methods may be called from any thread."""

    def __init__(
        self, recording: Recording, sink: Sink, jump: Callable[[Jump], None], *, at: int = 0, speed: float = 1.0
    ) -> None:
        self.error: BaseException | None = None
        self.on_error: Callable[[], object] = lambda: None
        self._recording = recording
        self._sink = sink
        self._jump = jump
        self._index = at
        self._target: int | None = at
        self._afresh = True
        self._speed = speed
        self._playing = True
        self._loop = False
        self._due = 0.0
        self._news = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="llmtop-player", daemon=True)

    # as a poller

    settled = True
    recording: Path | None = None

    def start(self) -> None:
        """Begin playing."""
        self._thread.start()

    def stop(self, timeout_s: float = 0.5) -> None:
        """End playing."""
        with self._news:
            self._stopping = True
            self._news.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def mark(self, text: str) -> None:
        """Nothing: the past has the marks it has."""

    def note(self, text: str) -> None:
        """Nothing, as for marks."""

    def look_at(self, urls: Collection[str]) -> None:
        """Whoever reads the servers reads them all alike."""

    def starting(self, url: str, words: str | None) -> None:
        """Nothing: what was known is in the snapshots."""

    def target(self, url: str) -> Target:
        """A server that nobody asks anything."""
        return Target(url)

    def set_interval(self, seconds: float) -> None:
        """Nothing: snapshots come as they were recorded."""

    def record(self, path: Path | None) -> None:
        """Nothing: it is recorded already."""

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        """Nothing, as for recording."""

    # as a player

    @property
    def place(self) -> TapePlace:
        """Where it is now."""
        with self._news:
            recording, here = self._recording, self._here
            playing = self._playing and (self._loop or here + 1 < len(recording))
            return TapePlace(recording.times[here], recording.start, recording.end, self._speed, playing, self._loop)

    def toggle(self) -> None:
        """Pause or play; at the end, play from the beginning."""
        with self._news:
            self._playing = not self._moves
            if self._playing and self._here == len(self._recording) - 1:
                self._aim(0)
            self._reschedule()

    def change_speed(self, step: int) -> None:
        """The next speed up (1) or down (-1)."""
        with self._news:
            if step > 0:
                self._speed = min((speed for speed in SPEEDS if speed > self._speed), default=SPEEDS[-1])
            else:
                self._speed = max((speed for speed in SPEEDS if speed < self._speed), default=SPEEDS[0])
            self._reschedule()

    def toggle_loop(self) -> None:
        """Begin anew at the end, or not."""
        with self._news:
            self._loop = not self._loop
            self._reschedule()

    def seek(self, seconds: float) -> None:
        """Go forth or back by recorded time, by one snapshot at least."""
        with self._news:
            here = self._here
            index = self._recording.index_at(self._recording.times[here] + seconds)
            if index == here:
                index += 1 if seconds > 0 else -1
            self._aim(index)

    def seek_mark(self, step: int) -> bool:
        """Go to the next (1) or previous (-1) mark; False when there is none."""
        with self._news:
            here, times = self._here, self._recording.times
            places = [index for index, _ in self._recording.marks]
            if step > 0:
                found = min((index for index in places if index > here), default=None)
            else:
                # while playing, a second press must get past the mark that the first one went to
                slack = 2.0 * self._speed if self._playing else 0.0
                found = max((i for i in places if i < here and times[i] < times[here] - slack), default=None)
            if found is not None:
                self._aim(found)
            return found is not None

    def step(self) -> None:
        """Pause, and show the next snapshot."""
        with self._news:
            self._playing = False
            self._aim(self._here + 1)

    @property
    def _here(self) -> int:
        return self._index if self._target is None else self._target

    def _aim(self, index: int) -> None:
        self._target = min(max(index, 0), len(self._recording) - 1)
        self._news.notify()

    def _reschedule(self) -> None:
        """Wait anew for the next snapshot, at the speed that holds now."""
        self._due = time.monotonic() + self._gap_s(self._index)
        self._news.notify()

    def _gap_s(self, index: int) -> float:
        """Seconds from a snapshot to the next one; from the last to the first when looping."""
        times = self._recording.times
        recorded = times[index + 1] - times[index] if index + 1 < len(times) else self._recording.pace_s
        return min(recorded, LONGEST_GAP_S) / self._speed

    # the thread

    def _run(self) -> None:
        try:
            while self._wait():
                target = self._target
                if target is not None:
                    self._go(target)
                else:
                    self._play()
        except BaseException as error:  # handed to whoever owns the player
            self.error = error
            self.on_error()

    def _wait(self) -> bool:
        """Wait until there is something to show; False at the end of all."""
        with self._news:
            while not self._stopping and self._target is None:
                wait_s = self._due - time.monotonic() if self._moves else None
                if wait_s is not None and wait_s <= 0:
                    break
                self._news.wait(wait_s)
            return not self._stopping

    @property
    def _moves(self) -> bool:
        return self._playing and (self._loop or self._index + 1 < len(self._recording))

    def _go(self, target: int) -> None:
        """Show a snapshot out of turn, with the past that was on screen with it: soon the near one, then all."""
        here = self._index
        afresh = self._afresh or not here < target <= here + NEAR
        snapshot = self._recording.snapshot(target)
        wanted: int | None = target
        for depth in (NEAR, DEPTH):
            first = max(target - depth, 0 if afresh else here + 1)
            past = self._past(first, target, wanted)
            with self._news:
                if past is None or self._target != wanted:  # somebody wants to be elsewhere
                    self._afresh = True
                    return
                self._index, self._target, self._afresh = target, None, False
                self._reschedule()
            self._jump(Jump(snapshot, past, afresh))
            if first == 0 or not afresh:
                return
            wanted = None

    def _past(self, first: int, target: int, wanted: int | None) -> list[Snapshot] | None:
        """What charts need of some snapshots; None when another place is wanted meanwhile."""
        past = []
        for index in range(first, target):
            if self._target != wanted or self._stopping:
                return None
            past.append(self._recording.figures(index))
        return past

    def _play(self) -> None:
        """Show what is due now."""
        started = time.monotonic()
        while self._moves and self._target is None and not self._stopping and self._due <= started:
            index = self._index + 1
            if index == len(self._recording):
                with self._news:
                    self._aim(0)
                return
            snapshot = self._recording.snapshot(index)
            with self._news:
                self._index = index
                self._due += self._gap_s(index)
            self._sink(snapshot)
        with self._news:
            now = time.monotonic()
            if self._due < now - LAG_S:
                self._due = now
            if self._due < started + BURST_S and self._target is None:
                self._news.wait(max(0.0, started + BURST_S - now))
