"""The app on a recording: the same pages; the keys that steer polling steer the playing."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import deque
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar, cast

from textual import on

from llmtop.contract.settings import Settings
from llmtop.contract.snapshot import Snapshot
from llmtop.contract.units import duration
from llmtop.load import recorded
from llmtop.load.counters import ServerCounters
from llmtop.load.events import Event as LoadEvent
from llmtop.load.plan import Plan
from llmtop.recording.play import Jump, Player, TapePlace
from llmtop.recording.read import Entry, Recording
from llmtop.session.history import History
from llmtop.session.notices import Notices
from llmtop.session.poller import Sink
from llmtop.ui.app import LlmtopApp
from llmtop.ui.keys import LOAD_KEYS, REPLAY_ACTIONS
from llmtop.ui.load_state import LoadState
from llmtop.ui.panels.view import Scales, View
from llmtop.ui.screens.base import ViewScreen
from llmtop.ui.screens.load import LoadScreen
from llmtop.ui.screens.warmup import WarmupScreen
from llmtop.ui.source import ToldStartups
from llmtop.warmup import recorded as startups
from llmtop.warmup.recorded import StartupView
from llmtop_widgets.statusbar import KeyBar, KeyHint
from llmtop_widgets.text import Line, Span, line

LIVE_ACTIONS = frozenset(("mark", "record"))  # what cannot be done to the past
LOAD_ACTIONS = frozenset(row.name for row in LOAD_KEYS)
NARROW = 72


class PastLoadScreen(LoadScreen):
    """A load test of the past: its pictures, without what plans, starts or stops one."""

    def hints(self) -> list[KeyHint]:
        """The keys of a replay."""
        return ViewScreen.hints(self)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing is planned and nothing is sent."""
        return action not in LOAD_ACTIONS and super().check_action(action, parameters)

    def _phase(self) -> None:
        self._planning = False
        super()._phase()

    def _page(self, view: View, cells: int, rows: int) -> list[Line]:
        if self.control.state is None:
            return [line(Span("no load test at this moment", "dim"))]
        return super()._page(view, cells, rows)

    @on(KeyBar.Pressed)
    def _leave_it_to_the_app(self, event: KeyBar.Pressed) -> None:
        event.prevent_default()


class PastWarmupScreen(WarmupScreen):
    """A start-up of the past."""

    def page(self, view: View, cells: int, rows: int) -> list[Line]:
        """What was seen of it at this moment."""
        if cast("ReplayApp", self.app).startup is None:
            return [line(Span("no start-up at this moment", "dim"))]
        return super().page(view, cells, rows)


class Tape:
    """A recording as a source of snapshots, with the start-up and the load test of the moment that is shown."""

    def __init__(self, recording: Recording, at: int, speed: float) -> None:
        self.recording = recording
        self.run: LoadState | None = None
        self._at, self._speed = at, speed
        self._jumps: deque[Jump] = deque()
        self._run_events = [event for event in recording.events if event.kind == recorded.KIND]
        self._run_place = 0  # of the next one
        self._startups = [event for event in recording.events if event.kind == startups.KIND]
        self._startup_times = list(accumulate((event.time for event in self._startups), max))
        self._startup: tuple[Entry | None, StartupView | None] = (None, None)

    def open(self, sink: Sink) -> tuple[Player, ToldStartups]:
        """The player, and the start-ups as they were seen."""

        def jumped(jump: Jump) -> None:
            self._jumps.append(jump)
            sink(jump.snapshot)

        self.player = Player(self.recording, sink, jumped, at=self._at, speed=self._speed)
        return self.player, ToldStartups(lambda: self._startup[1])

    @property
    def without(self) -> frozenset[str]:
        """The pages that this recording has nothing for."""
        empty = (("load", self._run_events), ("warmup", self._startups))
        return frozenset(page for page, events in empty if not events)

    def jump_to(self, snapshot: Snapshot) -> Jump | None:
        """The jump that led to a snapshot; None when it came in its turn."""
        return self._jumps.popleft() if self._jumps and self._jumps[0].snapshot is snapshot else None

    def rewind(self) -> None:
        """Forget the load test: the next moment may be before it."""
        self.run, self._run_place = None, 0

    def wind(self, when: float) -> None:
        """Let the load test and the start-up be as they were seen last before `when`, at the end as they ended."""
        when = math.inf if when >= self.recording.end else when
        while self._run_place < len(self._run_events) and self._run_events[self._run_place].time <= when:
            self._take(recorded.from_values(self._run_events[self._run_place].values))
            self._run_place += 1
        place = bisect_right(self._startup_times, when)
        event = self._startups[place - 1] if place else None
        if event is not self._startup[0]:
            self._startup = (event, startups.from_values(event.values) if event is not None else None)

    def _take(self, item: Plan | ServerCounters | LoadEvent | None) -> None:
        if isinstance(item, Plan):
            self.run = LoadState(item)
        elif item is None or self.run is None:
            return
        elif isinstance(item, ServerCounters):
            self.run.before = item
        else:
            self.run.take(item)


class ReplayApp(LlmtopApp):
    """The past, paused, faster, slower, and anew."""

    SCREENS: ClassVar = {**LlmtopApp.SCREENS, "load": PastLoadScreen, "warmup": PastWarmupScreen}

    def __init__(
        self, settings: Settings, recording: Recording, *, at: int = 0, speed: float = 1.0, ansi: bool = False
    ) -> None:
        tape = Tape(recording, at, speed)
        super().__init__(settings, tape, ansi=ansi, off=LIVE_ACTIONS | tape.without)
        self.tape, self.player = tape, tape.player

    def on_mount(self) -> None:
        """Say what could not be read."""
        if self.tape.recording.notes:
            self.call_after_refresh(self.note, "; ".join(self.tape.recording.notes))

    def _take(self, snapshot: Snapshot) -> None:
        jump = self.tape.jump_to(snapshot)
        if jump is not None:
            if jump.afresh:
                self.history, self.scales, self.notices = History(), Scales(), Notices()
                self.tape.rewind()
            for earlier in jump.past:
                self.history.push(earlier)
        self.tape.wind(snapshot.time)
        self.load.state = self.tape.run
        super()._take(snapshot)

    def _view(self) -> View:
        place = self.player.place
        return replace(super()._view(), recording=self._place_text(place), paused=not place.playing)

    def _place_text(self, place: TapePlace) -> str:
        """`REPLAY 12:03:41 3m12s/10m00s 2x`, on a narrow screen without the lengths."""
        parts = ["REPLAY", time.strftime("%H:%M:%S", time.localtime(place.time))]
        if self.size.width >= NARROW:
            parts.append(f"{duration(place.time - place.start)}/{duration(place.end - place.start)}")
        return " ".join([*parts, f"{place.speed:g}x", *(["loop"] if place.loop else [])])

    # keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What steers the playing is there too."""
        return action in REPLAY_ACTIONS or super().check_action(action, parameters)

    def action_pause(self) -> None:
        """Stop playing, or go on."""
        self.player.toggle()
        self.show_view()

    def action_faster(self) -> None:
        """Play faster."""
        self._change_speed(1)

    def action_slower(self) -> None:
        """Play slower."""
        self._change_speed(-1)

    def _change_speed(self, step: int) -> None:
        self.player.change_speed(step)
        self.note(f"playing {self.player.place.speed:g} times as fast")

    def action_seek(self, seconds: float) -> None:
        """Go forth or back in time."""
        self.player.seek(seconds)

    def action_seek_mark(self, step: int) -> None:
        """Go to the next or the previous mark."""
        if not self.player.seek_mark(step):
            self.note("no mark after this" if step > 0 else "no mark before this")

    def action_step(self) -> None:
        """Stop, and show the next snapshot."""
        self.player.step()

    def action_loop(self) -> None:
        """Begin anew at the end, or not."""
        self.player.toggle_loop()
        self.note("begins anew at the end" if self.player.place.loop else "stops at the end")
