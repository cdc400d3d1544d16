"""The app: the table of keys put to work on a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.events import Resize
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Input

from llmtop.contract.settings import MAX_INTERVAL_S, MIN_INTERVAL_S
from llmtop.session.history import STEPS_S
from llmtop.ui.keys import ALL_KEYS, REPLAY_ACTIONS, bindings
from llmtop.ui.screens.base import MOST_TYPED, ViewScreen
from llmtop.ui.screens.engines import EnginesScreen
from llmtop.ui.screens.gpus import GpusScreen
from llmtop.ui.screens.table import TableScreen
from llmtop.ui.session import Session
from llmtop.ui.themes import THEMES
from llmtop_widgets.linetable import LineTable
from llmtop_widgets.statusbar import KeyBar

LEAST_LIST = (20, 8)
SURE_S = 5.0  # in which the second key of leaving a load test must come
INTERVALS_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def _page(module: str, name: str) -> Callable[[], Screen[None]]:
    """A page whose module is imported when it is first opened: the first frame does not wait for it."""

    def build() -> Screen[None]:
        page: Screen[None] = getattr(import_module(f"llmtop.ui.screens.{module}"), name)()
        return page

    return build


def _has_room(size: Size) -> bool:
    """Whether a list of commands fits; Textual's fails on keys where not one of its lines does."""
    return size.width >= LEAST_LIST[0] and size.height >= LEAST_LIST[1]


class Commands(CommandPalette):
    """Textual's list of commands, with an end to what may be typed."""

    def on_mount(self) -> None:
        """Bound its field."""
        for field in self.query(Input):
            field.max_length = MOST_TYPED


class LlmtopApp(Session):
    """What htop is for processes, for LLM serving."""

    TITLE = "llmtop"
    _asked_to_leave = float("-inf")
    CSS_PATH = "llmtop.tcss"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings())
    SCREENS: ClassVar = {
        "engines": EnginesScreen,
        "gpus": GpusScreen,
        "help": _page("help", "HelpScreen"),
        "load": _page("load", "LoadScreen"),
        "nodes": _page("nodes", "NodesScreen"),
        "stage": _page("stage", "StageScreen"),
        "warmup": _page("warmup", "WarmupScreen"),
    }

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action is there: those of a replay are not."""
        return action not in self.off | REPLAY_ACTIONS and super().check_action(action, parameters)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette, from the table of keys."""
        del screen  # the same on every page
        for row in ALL_KEYS:
            if row.action not in ("command_palette", "back") and self.check_action(row.name, ()):
                yield SystemCommand(row.label, row.text, lambda action=row.call: self.run_action(action))

    @on(KeyBar.Pressed)
    async def _key_clicked(self, event: KeyBar.Pressed) -> None:
        for row in ALL_KEYS:
            if event.key in (row.shown, row.keys[0]):
                await self.run_action(row.call)
                return

    @on(LineTable.RowSelected)
    async def _row_chosen(self, event: LineTable.RowSelected) -> None:
        if type(event) is not LineTable.RowSelected:
            return
        if self.page == "engines":
            self.selected = event.key.partition(" ")[0]
            await self.action_dashboard()
        elif self.page == "nodes":
            self.look_at_node(event.key)
            await self._go("dashboard")

    async def _go(self, name: str) -> None:
        """Show a page over the dashboard."""
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        if name != "dashboard":
            await self.push_screen(name)
        if name == "load":
            self.load_pace.resume()
        self.show_view()

    async def action_dashboard(self) -> None:
        """Back to the dashboard, and from a machine to the server."""
        self.looked_at = None
        await self._go("dashboard")

    async def action_engines(self) -> None:
        """All servers and engines."""
        await self._go("engines")

    async def action_nodes(self) -> None:
        """All machines."""
        await self._go("nodes")

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

    def action_panel(self, key: str) -> None:
        """One panel on the whole screen, or its words in the help."""
        if isinstance(self.screen, ViewScreen):
            self.screen.open_panel(key)

    async def action_help(self) -> None:
        """The help, or back from it."""
        await self._go("dashboard" if self.page == "help" else "help")

    def action_command_palette(self) -> None:
        """All commands by name, where there is room to list them."""
        if _has_room(self.size):
            if not isinstance(self.screen, CommandPalette):
                self.push_screen(Commands())
        else:
            self.note("no room for the commands")

    @on(Resize)
    async def _make_room(self, event: Resize) -> None:
        """Close the list of commands where it does not fit any more."""
        if not _has_room(event.size) and isinstance(self.screen, CommandPalette):
            await self.pop_screen()

    async def action_back(self) -> None:
        """Leave the filter, else the page."""
        if isinstance(self.screen, ViewScreen) and not self.screen.leave():
            return
        if self.page == "dashboard" and self.node is not None:
            self.looked_at = None
            await self._go("nodes")
        else:
            await self.action_dashboard()

    def action_sort(self) -> None:
        """Sort by the next column."""
        if isinstance(self.screen, TableScreen):
            self.screen.cycle_sort()

    def action_filter(self) -> None:
        """Filter the rows."""
        if isinstance(self.screen, TableScreen):
            self.screen.open_filter()

    def action_pause(self) -> None:
        """Freeze or thaw the view."""
        self.paused = not self.paused
        self.show_view()

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
        if self.server is None or (len(urls) < 2 and self.looked_at is None):
            return
        if self.looked_at is None:  # else from a machine to the server that was shown before
            self.selected = urls[(urls.index(self.server.url) + step) % len(urls)]
        self.looked_at = None
        self.show_view()

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
        """Quit; a load test that runs is not ended by one key."""
        now = time.monotonic()
        if self._load_control is not None and self._load_control.running and now - self._asked_to_leave > SURE_S:
            self._asked_to_leave = now
            self.note("a load test runs: once more stops it and quits")
        else:
            self.exit(return_code=0)
