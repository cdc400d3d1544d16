"""The cell-diff writer against a terminal in memory: same screen as stock output, far fewer bytes."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from llmtop.ui.terminal.celldiff import CellDiff
from llmtop_widgets import Column, LinePanel, LineTable, Row, Span, beside, chart_lines, gauge_line, line
from pyte_terminal import Terminal


@pytest.fixture(autouse=True)
def _truecolor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)


class TerminalDriver(HeadlessDriver):
    """Shows the application on two terminals: one through the diff, one as Textual writes it."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self.diff = CellDiff()
        self.size = self._get_terminal_size()
        self.tell_unknown = True
        self.connect()

    @property
    def is_headless(self) -> bool:
        return False

    def connect(self) -> None:
        """Take two new terminals of the present size."""
        self.shown, self.stock = Terminal(*self.size), Terminal(*self.size, rubbish=".")

    def resize(self, width: int, height: int) -> None:
        self._size = self.size = (width, height)
        self.connect()
        if self.tell_unknown:
            self.diff.mark_unknown()

    def write(self, data: str) -> None:
        self.stock.feed(data)
        self.shown.feed(self.diff.feed(data, self.size))


class Dialog(ModalScreen[None]):
    def compose(self) -> ComposeResult:
        yield Static("一個對話 dialog\n[link='https://example.org']a link[/] e\u0301 🚀 [u]under  lined[/u]")


class BusyApp(App[None]):
    """Charts, a table, wide characters and an input, all driven by one random generator."""

    CSS = "Static { width: auto; background: $panel; border: round $accent; } Input { dock: bottom; }"

    def __init__(self, seed: int) -> None:
        super().__init__(driver_class=TerminalDriver)
        self.random = random.Random(seed)
        self.history = [50.0 + 40 * math.sin(i / 4) for i in range(200)]

    @property
    def terminal(self) -> TerminalDriver:
        assert isinstance(self._driver, TerminalDriver)
        return self._driver

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield LinePanel("Panel", id="panel")
            yield LineTable([Column("name", "Name", 12, flex=1), Column("n", "N", 8, align="right")])
        yield Input("text", id="input")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def tick(self) -> None:
        """Change about everything, as a second of a busy server does."""
        pick = self.random
        self.history.append(max(0.0, min(100.0, self.history[-1] + pick.gauss(0, 25))))
        panel = self.query_one(LinePanel)
        half = max(1, panel.size.width // 2 - 1)
        charts = [chart_lines(self.history, width=half, height=3, hi=100, style=s) for s in ("bar", "series3")]
        value = pick.random()
        panel.set_lines(
            [
                gauge_line(value, half, thresholds=((0.8, "critical"),)),
                line(Span("值 "), Span(f"{value:8.3f}", pick.choice(["ok", "low", "critical", ""])), " 🚀 end"),
                *beside([(charts[0], half), (charts[1], half)]),
                line("model e\u0301 ", Span(pick.choice(["x", "漢字", "…"]), "accent bold"), f" {pick.random()}"),
            ]
        )
        names = ["alpha", "beta", "漢字漢字", "delta"]
        pick.shuffle(names)
        rows = [Row(name, (Span(name, "value"), Span(str(pick.randrange(10**6)), "ok"))) for name in names]
        self.query_one(LineTable).set_rows(rows)


async def _resize(pilot: Pilot[None], app: BusyApp) -> None:
    width, height = app.random.choice([(40, 12), (80, 24), (100, 30), (61, 17)])
    app.terminal.resize(width, height)
    await pilot.resize_terminal(width, height)
    app.screen.refresh()


async def _tick(pilot: Pilot[None], app: BusyApp) -> None:
    app.screen_stack[0].call_later(app.tick)


async def _dialog(pilot: Pilot[None], app: BusyApp) -> None:
    if len(app.screen_stack) > 1:
        app.pop_screen()
    else:
        app.push_screen(Dialog())


async def _theme(pilot: Pilot[None], app: BusyApp) -> None:
    app.theme = app.random.choice(["textual-dark", "textual-light", "ansi-dark", "nord"])


async def _hide(pilot: Pilot[None], app: BusyApp) -> None:
    panel = app.screen_stack[0].query_one(LinePanel)
    panel.display = not panel.display


async def _type(pilot: Pilot[None], app: BusyApp) -> None:
    await pilot.press(app.random.choice(["a", "b", "left", "backspace", "tab"]))


Action = Callable[[Pilot[None], BusyApp], Awaitable[None]]
ACTIONS: list[Action] = [_tick, _tick, _tick, _tick, _tick, _dialog, _theme, _hide, _type, _resize]


def _wrong(app: BusyApp) -> list[str]:
    """Return the rows that differ between the two terminals."""
    shown, stock = app.terminal.shown.cells(), app.terminal.stock.cells()
    return [f"row {y}: {a} != {b}" for y, (a, b) in enumerate(zip(shown, stock, strict=True)) if a != b]


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_updates_show_what_stock_output_shows(seed: int) -> None:
    app = BusyApp(seed)
    async with app.run_test(headless=False) as pilot:
        await pilot.pause()
        for step in range(60):
            action = app.random.choice(ACTIONS)
            await action(pilot, app)
            await pilot.pause()
            assert not _wrong(app), f"after step {step}, {action.__name__}"
        before = app.terminal.shown.sent
        app.screen.refresh()
        await pilot.pause()
        assert app.terminal.shown.sent == before, "a full repaint of the same screen must cost nothing"


async def test_the_comparison_notices_a_resize_that_nobody_reported() -> None:
    app = BusyApp(3)
    async with app.run_test(headless=False) as pilot:
        app.tick()
        await pilot.pause()
        app.terminal.tell_unknown = False
        app.terminal.resize(*app.terminal.size)
        app.screen.refresh()
        await pilot.pause()
        assert _wrong(app)


async def test_the_input_cursor_is_left_where_textual_puts_it() -> None:
    app = BusyApp(4)
    async with app.run_test(headless=False) as pilot:
        app.query_one(Input).focus()
        for key in "abc", "left", "漢":
            await pilot.press(*key if key != "left" else [key])
            app.tick()
            await pilot.pause()
            shown, stock = app.terminal.shown.screen.cursor, app.terminal.stock.screen.cursor
            assert (shown.x, shown.y) == (stock.x, stock.y) != (0, 0)


async def test_a_repaint_covers_what_lies_under_a_dialog() -> None:
    app = BusyApp(6)
    async with app.run_test(headless=False) as pilot:
        app.tick()
        app.push_screen(Dialog())
        await pilot.pause()
        before = app.terminal.shown.text()
        app.terminal.resize(*app.terminal.size)
        app.screen.refresh()
        await pilot.pause()
        assert app.terminal.shown.text() == before


class Wall(App[None]):
    """A synthetic busy screen of 200x50: values that all change, gauges, six scrolling charts."""

    CSS = "LinePanel { height: 50; }"

    def __init__(self) -> None:
        super().__init__(driver_class=TerminalDriver)
        self.random = random.Random(5)
        self.walks = [[self.random.uniform(0, 100) for _ in range(70)] for _ in range(6)]
        self.values = [500.0 + 10 * i for i in range(50)]

    def compose(self) -> ComposeResult:
        yield LinePanel("Wall")

    def tick(self) -> None:
        pick = self.random
        self.values = [abs(value + pick.gauss(0, 20)) for value in self.values]
        styles = ["ok", "low", ""]
        values = [Span(f"name{i:<3} {value:9.1f}  ", styles[i % 3]) for i, value in enumerate(self.values)]
        rows = [tuple(values[i : i + 10]) for i in range(0, 50, 10)]
        gauges = beside([([gauge_line(pick.random(), 45)], 46)] * 4)
        for walk in self.walks:
            walk.append(max(0.0, min(100.0, walk[-1] + pick.gauss(0, 12))))
        charts = [
            (chart_lines(walk, width=65, height=4, hi=100, style=f"series{i + 1}"), 65)
            for i, walk in enumerate(self.walks)
        ]
        self.query_one(LinePanel).set_lines([*rows, *gauges, *beside(charts[:3]), *beside(charts[3:])])


async def test_a_busy_screen_stays_within_its_byte_budget() -> None:
    app = Wall()
    async with app.run_test(headless=False, size=(200, 50)) as pilot:
        terminal = app._driver
        assert isinstance(terminal, TerminalDriver)
        app.tick()
        await pilot.pause()
        before, stock_before = terminal.shown.sent, terminal.stock.sent
        for _ in range(30):
            app.tick()
            await pilot.pause()
        per_frame = (terminal.shown.sent - before) / 30
        assert terminal.shown.cells() == terminal.stock.cells()
        assert per_frame <= 1400
        # a panel already leaves out the rows that did not change, for the stock driver too
        assert (terminal.stock.sent - stock_before) / 30 > 6 * per_frame
