"""Behind the screen: takes snapshots from the inbox, keeps the history, hands views to the page in front."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from textual import on
from textual.screen import Screen
from textual.timer import Timer

from llmtop.contract.settings import Settings
from llmtop.contract.snapshot import Node, ServerView, Snapshot
from llmtop.session.history import STEPS_S, History
from llmtop.session.notices import Notices
from llmtop.ui.messages import LoadNews, SnapshotReady
from llmtop.ui.panels.view import Scales, View
from llmtop.ui.screens.base import ViewScreen
from llmtop.ui.screens.dashboard import DashboardScreen
from llmtop.ui.source import Source
from llmtop.ui.terminal.driver import RepaintingApp
from llmtop.ui.themes import OWN, THEMES

if TYPE_CHECKING:
    from llmtop.ui.load_state import LoadControl
    from llmtop.warmup.recorded import StartupView

NOTE_S = 4.0
MOMENT_S = 8.0
SETTLED_S = 5.0
REMEMBERED = 64  # servers of a fleet that have charts: of more only those that were opened


def asking(settings: Settings) -> str:
    """What goes on before the first snapshot; addresses have no login in them."""
    if settings.fleet is not None:
        return f"asking Prometheus at {_short(settings.fleet.target.url)}"
    names = [_short(target.url) for target in settings.targets if not settings.found]
    names += [f"{node.name} by ssh" for node in settings.nodes]
    if not names:
        return "looking for model servers on this host"
    return f"asking {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _short(url: str) -> str:
    return url.removeprefix("http://")


class Session(RepaintingApp[None]):
    """The app without its keys: what has come in, what is selected, and the view of it."""

    def __init__(
        self,
        settings: Settings,
        source: Source,
        *,
        ansi: bool = False,
        off: frozenset[str] = frozenset(),
    ) -> None:
        """`off`: actions that are not for whoever sits here."""
        super().__init__(ansi_color=ansi or None)  # None: as the theme has it
        for theme in OWN:
            self.register_theme(theme)
        self.theme = settings.theme if settings.theme in self.available_themes else THEMES[0]
        self.animation_level = "none"
        self.settings = settings
        self.inbox: deque[Snapshot] = deque()
        self.off = off
        self.poller, self.warmup = source.open(self._arrived)
        self.poller.on_error = self._knock
        if settings.fleet is not None:
            self.poller.look_at(())
        self._load_control: LoadControl | None = None
        self.history = History()
        self.scales = Scales()
        self.latest: Snapshot | None = None
        self.selected: str | None = None
        self.looked_at: str | None = None  # a machine in place of a server
        self._opened: set[str] = set()
        self.paused = False
        self.interval_s = settings.interval_s
        self.step_s = STEPS_S[1]
        self._note = ""
        self._note_timer: Timer | None = None
        self.notices = Notices()
        self.moment: str | None = None  # what the stage announces

    # the terminal

    def _fatal_error(self) -> None:
        """Leave; the traceback is printed by the caller once the terminal is restored, without locals."""
        self._close_messages_no_wait()

    def get_default_screen(self) -> Screen[None]:
        """The dashboard is always there, below every other page."""
        return DashboardScreen()

    def on_mount(self) -> None:
        """First frame at once, then the data."""
        self.call_after_refresh(self.show_view)
        self._catch_signals()
        # the frame goes out first: what the poller imports and reads would hold it up
        self.call_after_refresh(self.call_after_refresh, self.poller.start)
        # timers run only while there is something for them to do: every wake-up costs CPU
        self.load_pace = self.set_interval(0.5, self._show_load, pause=True)
        self._warmup_pace = self.set_interval(0.2, self._step_warmup, pause=True)
        self.set_timer(SETTLED_S, self._settle)
        if self.settings.fleet is not None:
            self.call_after_refresh(self.run_action, "engines")
        if self.warmup.wanted:
            self.warmup.begin()
            self._warmup_pace.resume()
            self.call_after_refresh(self.run_action, "warmup")

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                loop.add_signal_handler(number, self._end, 128 + number)
            except (NotImplementedError, RuntimeError, ValueError):
                continue  # not in the main thread: tests

    def _settle(self) -> None:
        """What is there by now stays there: the collector need not go through it again and again."""
        gc.collect()
        gc.freeze()

    def _end(self, code: int) -> None:
        self.exit(return_code=code)

    def on_unmount(self) -> None:
        """Stop polling; nothing waits for a request or a driver that hangs."""
        if self._load_control is not None:
            self._load_control.leave(timeout_s=1.0)
        self.warmup.end()
        self.poller.stop(timeout_s=0.2)

    # data

    def _arrived(self, snapshot: Snapshot) -> None:
        """In the poller's thread: put it into the inbox and knock."""
        self.inbox.append(snapshot)
        self._knock()

    def _knock(self) -> None:
        self.post_message(SnapshotReady())

    @on(SnapshotReady)
    def _drain(self) -> None:
        if self.poller.error is not None:
            raise self.poller.error
        while self.inbox:
            self._take(self.inbox.popleft())
        if not self.screen_stack:  # on the way out
            return
        self._notice_startup()
        if not self.paused and not (self.page == "load" and self.load.running):
            self.show_view()

    def know(self, past: Iterable[Snapshot]) -> None:
        """Remember snapshots from before the screen was there: known, and no news."""
        for snapshot in past:
            self.latest = snapshot
            self.history.push(self._remembered(snapshot))
            self.notices.push(snapshot)

    def _take(self, snapshot: Snapshot) -> None:
        """Remember a snapshot."""
        self.latest = snapshot
        self.history.push(self._remembered(snapshot))
        for event in self.notices.push(snapshot):
            self.announce(event.text)

    def _remembered(self, snapshot: Snapshot) -> Snapshot:
        """What the charts are made of."""
        if snapshot.fleet is None or len(snapshot.servers) <= REMEMBERED:
            return snapshot
        return replace(snapshot, servers=tuple(server for server in snapshot.servers if server.url in self._opened))

    @on(LoadNews)
    def _take_load_news(self) -> None:
        state = self.load.state
        had_result = state is not None and state.result is not None
        for mark in self.load.drain():
            self.poller.note(mark)
        if state is not None and state.result is not None and not had_result:
            from llmtop.load.verdict import announcement  # no part of a start

            self.announce(announcement(state.result))
            self.show_view()

    def _notice_startup(self) -> None:
        """A start-up opens the warm-up page by itself, once, unless another page is being read."""
        if not self.warmup.notice(self.server):
            return
        self._warmup_pace.resume()
        if isinstance(self.screen, DashboardScreen):
            self.call_later(self.run_action, "warmup")

    def _step_warmup(self) -> None:
        if not self.warmup.active:
            self._warmup_pace.pause()
            return
        ended = self.warmup.step()
        if ended and self.warmup.seen is not None:
            self.note(self.warmup.seen.report.verdict)

    @property
    def startup(self) -> StartupView | None:
        """What there is to see of a start-up, on the warm-up page."""
        return self.warmup.seen

    def _show_load(self) -> None:
        """The load page has a pace of its own, twice a second, so that a sweep costs no more than that."""
        if self.page != "load":
            self.load_pace.pause()
        elif self.load.state is not None:
            self._take_load_news()
            self.show_view()

    @property
    def load(self) -> LoadControl:
        """The load test; what it needs is imported with the first use of it."""
        if self._load_control is None:
            from llmtop.ui.load_state import LoadControl, recording_to

            self._load_control = LoadControl(lambda: self.post_message(LoadNews()), recording_to(self.poller))
        return self._load_control

    @property
    def page(self) -> str:
        """The name of the page in front, as in the table of keys; empty for a dialog."""
        return self.screen.name_in_keys if self.screen_stack and isinstance(self.screen, ViewScreen) else ""

    @property
    def server(self) -> ServerView | None:
        """The selected server, or the first."""
        servers = self.latest.servers if self.latest else ()
        return next((server for server in servers if server.url == self.selected), servers[0] if servers else None)

    @property
    def node(self) -> Node | None:
        """The machine that is looked at in place of a server."""
        nodes = self.latest.nodes if self.latest and self.looked_at is not None else ()
        return next((node for node in nodes if node.name == self.looked_at), None)

    def look_at_node(self, name: str) -> None:
        """Show a server that runs on a machine, or the machine alone where none does."""
        there = [server.url for server in self.latest.servers if server.node == name] if self.latest else []
        self.looked_at = None if there else name
        if there and self.selected not in there:
            self.selected = there[0]

    def _view(self) -> View:
        node = self.node
        server = self.server if node is None else None
        return View(
            self.latest and (self.latest.at(node.name) if node is not None else self.latest.beside(server)),
            server,
            self.history,
            max(self.step_s, next(step for step in STEPS_S if step >= self.interval_s)),
            self.scales,
            self.interval_s,
            self.paused,
            recording=self._recording(),
            note=self._note or None,
            load=self._load_control.state if self._load_control is not None and self._load_control.running else None,
            whole=self.latest,
            node=node,
            asking=asking(self.settings),
        )

    def _recording(self) -> str | None:
        if self.poller.recording is None:
            return None
        failed = self.latest is not None and any(source.name == "recording" for source in self.latest.sources)
        return "NOT RECORDED" if failed else "REC"

    def show_view(self) -> None:
        """Hand the page in front a view of what is known now."""
        if self.screen_stack and isinstance(self.screen, ViewScreen):
            self.screen.show(self._view())
        if self.latest is not None and self.latest.fleet is not None and self.server and self.page != "engines":
            self._opened.add(self.server.url)
            self.poller.look_at([self.server.url])

    def note(self, text: str) -> None:
        """Say something for a few seconds."""
        self._say(text, NOTE_S)
        self.show_view()

    def announce(self, text: str | None) -> None:
        """Have the next frame say that a moment worth showing has come; on the stage it is a banner."""
        if text and not self.paused:
            self._say(text, MOMENT_S)
            self.moment = text

    def _say(self, text: str, seconds: float) -> None:
        if self._note_timer is not None:
            self._note_timer.stop()
        self._note, self.moment = text, None
        self._note_timer = self.set_timer(seconds, self._fall_silent)

    def _fall_silent(self) -> None:
        self._note, self.moment = "", None
        self.show_view()
