"""The app on a recording: the same pages; the keys that steer polling steer the playing."""

from __future__ import annotations

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
from llmtop.load.plan import Plan
from llmtop.machine.source import MachineSource
from llmtop.recording.play import Jump, Place, Player
from llmtop.recording.read import Entry, Recording
from llmtop.session.history import History
from llmtop.session.notices import Notices
from llmtop.ui.fed import FedApp, NoMachine
from llmtop.ui.keys import LOAD_KEYS, REPLAY_ACTIONS
from llmtop.ui.load_state import LoadState
from llmtop.ui.panels.view import Scales, View
from llmtop.ui.screens.base import ViewScreen
from llmtop.ui.screens.load import LoadScreen
from llmtop.ui.screens.warmup import WarmupScreen
from llmtop.warmup import recorded as startups
from llmtop.warmup.recorded import StartupView
from llmtop_widgets.statusbar import KeyBar, KeyHint
from llmtop_widgets.text import Line, Span, line

LIVE_ACTIONS = frozenset(("mark", "record"))  # what cannot be done to the past
LOAD_ACTIONS = frozenset(row.name for row in LOAD_KEYS)
NARROW = 72
UNREADABLE = (LookupError, TypeError, ValueError, ArithmeticError, OSError)  # OSError: no such time
OTHERS = [line(Span("results as another version of llmtop wrote them", "dim"))]


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
        try:
            return super()._page(view, cells, rows)
        except UNREADABLE:
            return OTHERS

    @on(KeyBar.Pressed)
    def _leave_it_to_the_app(self, event: KeyBar.Pressed) -> None:
        event.prevent_default()


class PastWarmupScreen(WarmupScreen):
    """A start-up of the past."""

    def page(self, view: View, cells: int, rows: int) -> list[Line]:
        """What was seen of it at this moment."""
        if cast("ReplayApp", self.app).startup is None:
            return [line(Span("no start-up at this moment", "dim"))]
        try:
            return super().page(view, cells, rows)
        except UNREADABLE:
            return OTHERS


class ReplayApp(FedApp):
    """A recording on the screen."""

    SCREENS: ClassVar = {**FedApp.SCREENS, "load": PastLoadScreen, "warmup": PastWarmupScreen}

    def __init__(
        self, settings: Settings, recording: Recording, *, at: int = 0, speed: float = 1.0, ansi: bool = False
    ) -> None:
        self.past = recording
        self.player = Player(recording, self._arrived, self._jumped, at=at, speed=speed)
        self._jumps: deque[Jump] = deque()
        self._load_events = [event for event in recording.events if event.kind == recorded.KIND]
        self._load_place = 0  # of the next one
        self._startups = [event for event in recording.events if event.kind == startups.KIND]
        self._startup_times = list(accumulate((event.time for event in self._startups), max))
        self._startup: tuple[Entry | None, StartupView | None] = (None, None)
        super().__init__(settings, NoMachine(), ansi=ansi)

    def open_feed(self, machine: MachineSource) -> Player:
        """Snapshots come from the recording."""
        del machine
        return self.player

    def on_mount(self) -> None:
        """Say what could not be read."""
        if self.past.notes:
            self.call_after_refresh(self.note, "; ".join(self.past.notes))

    # data

    def _jumped(self, jump: Jump) -> None:
        """In the player's thread."""
        self._jumps.append(jump)
        self._arrived(jump.snapshot)

    def _take(self, snapshot: Snapshot) -> None:
        if self._jumps and self._jumps[0].snapshot is snapshot:
            jump = self._jumps.popleft()
            if jump.afresh:
                self.history, self.scales, self.notices = History(), Scales(), Notices()
                self.load.state, self._load_place = None, 0
            for earlier in jump.past:
                self.history.push(earlier)
        self._take_load_until(snapshot.time)
        self._take_startup_of(snapshot.time)
        super()._take(snapshot)

    def _take_load_until(self, when: float) -> None:
        """Let the load test be where it was."""
        while self._load_place < len(self._load_events) and self._load_events[self._load_place].time <= when:
            item = recorded.from_values(self._load_events[self._load_place].values)
            self._load_place += 1
            state = self.load.state
            if isinstance(item, Plan):
                self.load.state = LoadState(item)
            elif isinstance(item, ServerCounters) and state is not None:
                state.before = item
            elif item is not None and not isinstance(item, ServerCounters) and state is not None:
                state.take(item)

    def _take_startup_of(self, when: float) -> None:
        """Let the start-up be as it was seen last."""
        place = bisect_right(self._startup_times, when)
        event = self._startups[place - 1] if place else None
        if event is not self._startup[0]:
            self._startup = (event, startups.from_values(event.values) if event is not None else None)

    @property
    def startup(self) -> StartupView | None:
        """The start-up as it was seen at this moment."""
        return self._startup[1]

    def _view(self) -> View:
        place = self.player.place
        return replace(super()._view(), recording=self._place_text(place), paused=not place.playing)

    def _place_text(self, place: Place) -> str:
        """`REPLAY 12:03:41 3m12s/10m00s 2x`, on a narrow screen without the lengths."""
        parts = ["REPLAY", time.strftime("%H:%M:%S", time.localtime(place.time))]
        if self.size.width >= NARROW:
            parts.append(f"{duration(place.time - place.start)}/{duration(place.end - place.start)}")
        return " ".join([*parts, f"{place.speed:g}x", *(["loop"] if place.loop else [])])

    # keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What steers the playing is there, what acts on a server or a machine is not."""
        if (action == "load" and not self._load_events) or (action == "warmup" and not self._startups):
            return False
        return action in REPLAY_ACTIONS or (action not in LIVE_ACTIONS and super().check_action(action, parameters))

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
