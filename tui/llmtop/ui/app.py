"""The app: takes snapshots from the poller's inbox, keeps the history, hands views to the screen in front."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from llmtop.collect import Feed, Poller
from llmtop.config import MAX_INTERVAL_S, MIN_INTERVAL_S, Settings
from llmtop.model.history import STEPS_S, History
from llmtop.model.notices import Notices, sweet_spot
from llmtop.model.snapshot import ServerView, Snapshot, State
from llmtop.sources.base import MachineSource
from llmtop.sources.tee import MachineTee
from llmtop.ui.driver import RepaintingApp
from llmtop.ui.keys import ALL_KEYS, REPLAY_ACTIONS, bindings
from llmtop.ui.messages import LoadNews, SnapshotReady
from llmtop.ui.panels.view import Scales, View
from llmtop.ui.screens.base import ViewScreen
from llmtop.ui.screens.dashboard import DashboardScreen
from llmtop.ui.screens.engines import EnginesScreen
from llmtop.ui.screens.gpus import GpusScreen
from llmtop.ui.warmup_state import WarmupControl
from llmtop_widgets.linetable import LineTable
from llmtop_widgets.statusbar import KeyBar

if TYPE_CHECKING:
    from llmtop.sources.startup_log import LineSource
    from llmtop.ui.load_state import LoadControl

THEMES = ("textual-dark", "textual-light", "tokyo-night", "solarized-light", "ansi-dark", "ansi-light")
INTERVALS_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
NOTE_S = 4.0
MOMENT_S = 8.0
SETTLED_S = 5.0


def _page(module: str, name: str) -> Callable[[], Screen[None]]:
    """A page whose module is imported when it is first opened: the first frame does not wait for it."""

    def build() -> Screen[None]:
        page: Screen[None] = getattr(import_module(f"llmtop.ui.screens.{module}"), name)()
        return page

    return build


class LlmtopApp(RepaintingApp[None]):
    """What htop is for processes, for LLM serving."""

    TITLE = "llmtop"
    CSS_PATH = "llmtop.tcss"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings())
    SCREENS: ClassVar = {
        "engines": EnginesScreen,
        "gpus": GpusScreen,
        "help": _page("help", "HelpScreen"),
        "load": _page("load", "LoadScreen"),
        "stage": _page("stage", "StageScreen"),
        "warmup": _page("warmup", "WarmupScreen"),
    }

    def __init__(
        self,
        settings: Settings,
        machine: MachineSource,
        *,
        ansi: bool = False,
        startup: LineSource | None = None,
        startup_url: str | None = None,
    ) -> None:
        super().__init__(ansi_color=ansi)
        self.animation_level = "none"
        self.settings = settings
        self.inbox: deque[Snapshot] = deque()
        tee = MachineTee(machine)
        self.poller = self.open_feed(tee.branch())
        self.warmup = WarmupControl(tee, startup, startup_url)
        self._load_control: LoadControl | None = None
        self.history = History()
        self.scales = Scales()
        self.latest: Snapshot | None = None
        self.selected: str | None = None
        self.paused = False
        self.interval_s = settings.interval_s
        self.step_s = STEPS_S[1]
        self._note: tuple[str, float] = ("", 0.0)
        self.notices = Notices()
        self.moment: str | None = None  # what the stage announces
        self._starting = False

    def open_feed(self, machine: MachineSource) -> Feed:
        """What the snapshots come from."""
        return Poller(self.settings, machine, self._arrived)

    # the terminal

    def _fatal_error(self) -> None:
        """Leave; the traceback is printed by the caller once the terminal is restored, without locals."""
        self._close_messages_no_wait()

    def get_default_screen(self) -> Screen[None]:
        """The dashboard is always there, below every other page."""
        return DashboardScreen()

    def on_mount(self) -> None:
        """First frame at once, then the data."""
        if self.settings.theme:
            self.theme = self.settings.theme
        self.call_after_refresh(self._show)
        self._catch_signals()
        self.call_after_refresh(self.poller.start)
        self.set_interval(1.0, self._watch_poller)
        # these two run only while there is something for them to do: every wake-up costs CPU
        self._load_pace = self.set_interval(0.5, self._show_load, pause=True)
        self._warmup_pace = self.set_interval(0.2, self._step_warmup, pause=True)
        self.set_timer(SETTLED_S, self._settle)
        if self.warmup.wanted:
            self._begin_warmup(None)
            self.call_after_refresh(self.action_warmup)

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

    def _watch_poller(self) -> None:
        if self.poller.error is not None:
            raise self.poller.error
        if self._note[0] and time.monotonic() > self._note[1]:
            self._note, self.moment = ("", 0.0), None
            self._show()

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
        self.post_message(SnapshotReady())

    @on(SnapshotReady)
    def _drain(self) -> None:
        while self.inbox:
            self._take(self.inbox.popleft())
        if not self.screen_stack:  # on the way out
            return
        self._notice_startup()
        if not self.paused and not (self.page == "load" and self.load.running):
            self._show()

    def _take(self, snapshot: Snapshot) -> None:
        """Remember a snapshot."""
        self.latest = snapshot
        self.history.push(snapshot)
        for text in self.notices.push(snapshot):
            self.announce(text)

    @on(LoadNews)
    def _take_load_news(self) -> None:
        state = self.load.state
        had_result = state is not None and state.result is not None
        for mark in self.load.drain():
            self.poller.note(mark)
        if state is not None and state.result is not None and not had_result:
            self.announce(sweet_spot(state.result))
            self._show()

    def _notice_startup(self) -> None:
        """A server that starts up opens the warm-up page by itself, once."""
        server = self.server
        starting = server is not None and server.state is State.STARTING
        if starting and server is not None and not self._starting and not self.warmup.active:
            self._begin_warmup(server.url)
            if isinstance(self.screen, DashboardScreen):
                self.call_later(self.action_warmup)
        self._starting = starting

    def _begin_warmup(self, url: str | None) -> None:
        self.warmup.begin(url)
        self._warmup_pace.resume()

    def _step_warmup(self) -> None:
        if not self.warmup.active:
            self._warmup_pace.pause()
            return
        ended = self.warmup.step()
        if self.warmup.url is not None:
            self.poller.starting(self.warmup.url, self.warmup.words)
        if ended and self.warmup.report is not None:
            self.note(self.warmup.report.verdict)

    def _show_load(self) -> None:
        """The load page has a pace of its own, twice a second, so that a sweep costs no more than that."""
        if self.page != "load":
            self._load_pace.pause()
        elif self.load.state is not None:
            self._take_load_news()
            self._show()

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

    def _view(self) -> View:
        return View(
            self.latest,
            self.server,
            self.history,
            max(self.step_s, next(step for step in STEPS_S if step >= self.interval_s)),
            self.scales,
            self.interval_s,
            self.paused,
            recording=self._recording(),
            note=self._note[0] or None,
        )

    def _recording(self) -> str | None:
        if self.poller.recording is None:
            return None
        failed = self.latest is not None and any(source.name == "recording" for source in self.latest.sources)
        return "NOT RECORDED" if failed else "REC"

    def _show(self) -> None:
        if self.screen_stack and isinstance(self.screen, ViewScreen):
            self.screen.show(self._view())

    def note(self, text: str) -> None:
        """Say something for a few seconds."""
        self._note, self.moment = (text, time.monotonic() + NOTE_S), None
        self._show()

    def announce(self, text: str | None) -> None:
        """Have the next frame say that a moment worth showing has come; on the stage it is a banner."""
        if text and not self.paused:
            self._note, self.moment = (text, time.monotonic() + MOMENT_S), text

    # keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action is there: those of a replay are not."""
        return action not in REPLAY_ACTIONS and super().check_action(action, parameters)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette, from the table of keys."""
        del screen  # the same on every page
        for row in ALL_KEYS:
            if row.action not in ("command_palette", "back") and self.check_action(row.name, ()):
                yield SystemCommand(row.label, row.text, lambda action=row.action: self.run_action(action))

    @on(KeyBar.Pressed)
    async def _key_clicked(self, event: KeyBar.Pressed) -> None:
        for row in ALL_KEYS:
            if event.key in (row.shown, row.keys[0]):
                await self.run_action(row.action)
                return

    @on(LineTable.RowSelected)
    async def _row_chosen(self, event: LineTable.RowSelected) -> None:
        if isinstance(self.screen, EnginesScreen) and type(event) is LineTable.RowSelected:
            self.selected = event.key.partition(" ")[0]
            await self.action_dashboard()

    async def _go(self, name: str) -> None:
        """Show a page over the dashboard."""
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        if name != "dashboard":
            await self.push_screen(name)
        if name == "load":
            self._load_pace.resume()
        self._show()

    async def action_dashboard(self) -> None:
        """Back to the dashboard."""
        await self._go("dashboard")

    async def action_engines(self) -> None:
        """All servers and engines."""
        await self._go("engines")

    async def action_load(self) -> None:
        """The plan of a load test, or the run that goes on."""
        if self.page != "load":
            await self._go("load")

    async def action_warmup(self) -> None:
        """The start-up that is watched, or was."""
        if self.page != "warmup":
            await self._go("warmup")

    async def action_stage(self) -> None:
        """Large figures for an audience, or back from them."""
        await self._go("dashboard" if self.page == "stage" else "stage")

    async def action_gpus(self) -> None:
        """All devices."""
        await self._go("gpus")

    async def action_help(self) -> None:
        """The help, or back from it."""
        await self._go("dashboard" if self.page == "help" else "help")

    async def action_back(self) -> None:
        """Leave the filter, else the page."""
        if isinstance(self.screen, ViewScreen) and not self.screen.leave():
            return
        await self._go("dashboard")

    def action_sort(self) -> None:
        """Sort by the next column."""
        if isinstance(self.screen, EnginesScreen):
            self.screen.cycle_sort()

    def action_filter(self) -> None:
        """Filter the rows."""
        if isinstance(self.screen, EnginesScreen):
            self.screen.open_filter()

    def action_pause(self) -> None:
        """Freeze or thaw the view."""
        self.paused = not self.paused
        self._show()

    def action_mark(self) -> None:
        """A new epoch for low-water marks and peaks."""
        self.poller.mark("mark")
        self.note("mark set: low-water and peak start anew")

    def action_record(self) -> None:
        """Start recording to a file in the current folder, or stop it."""
        before = self.poller.recording
        path = None if before else Path(time.strftime("llmtop-%Y%m%d-%H%M%S.jsonl"))
        self.poller.record(path)
        self.note(f"recording to {path}" if path else f"recorded to {before}")

    def action_next_server(self) -> None:
        """Select the next server."""
        self._select(1)

    def action_previous_server(self) -> None:
        """Select the previous server."""
        self._select(-1)

    def _select(self, step: int) -> None:
        urls = [server.url for server in self.latest.servers] if self.latest else []
        if len(urls) < 2 or self.server is None:
            return
        self.selected = urls[(urls.index(self.server.url) + step) % len(urls)]
        self._show()

    def action_zoom(self, step: int) -> None:
        """Another width in time for the columns of the charts."""
        place = STEPS_S.index(self.step_s) + step
        self.step_s = STEPS_S[min(max(place, 0), len(STEPS_S) - 1)]
        self.note(f"charts: {self.step_s:g} s per column")

    def action_faster(self) -> None:
        """Poll more often."""
        self._pace([interval for interval in reversed(INTERVALS_S) if interval < self.interval_s])

    def action_slower(self) -> None:
        """Poll less often."""
        self._pace([interval for interval in INTERVALS_S if interval > self.interval_s])

    def _pace(self, choices: list[float]) -> None:
        if choices and MIN_INTERVAL_S <= choices[0] <= MAX_INTERVAL_S:
            self.interval_s = choices[0]
            self.poller.set_interval(self.interval_s)
        self.note(f"polling every {self.interval_s:g} s")

    def action_theme(self) -> None:
        """The next theme."""
        place = THEMES.index(self.theme) + 1 if self.theme in THEMES else 0
        self.theme = THEMES[place % len(THEMES)]
        self.note(f"theme {self.theme}")

    def action_save_screen(self) -> None:
        """Save the screen as SVG in the current folder."""
        from llmtop.ui.picture import picture

        name = time.strftime("llmtop-%Y%m%d-%H%M%S.svg")
        try:
            Path(name).write_text(picture(self, "llmtop"), "utf-8")
        except OSError as error:
            self.note(f"cannot save {name}: {error.strerror}")
        else:
            self.note(f"saved {name}")

    def action_leave(self) -> None:
        """Quit."""
        self.exit(return_code=0)
