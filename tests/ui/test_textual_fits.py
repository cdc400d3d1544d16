"""Whether this Textual still keeps what `llmtop.ui.terminal` counts on; the list is in that package's docstring."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from textual.app import App, ComposeResult
from textual.drivers._writer_thread import WriterThread
from textual.drivers.headless_driver import HeadlessDriver
from textual.drivers.linux_driver import LinuxDriver
from textual.widgets import Input

from llmtop.ui.terminal.celldiff import CellDiff
from llmtop_widgets import LinePanel, Span, line
from pyte_terminal import Terminal

SIZE = (50, 8)


class Unread(CellDiff):
    """A writer of differences that remembers what it could not read."""

    def __init__(self) -> None:
        super().__init__()
        self.unread: list[str] = []

    def _pass_on(self, data: str) -> str:
        self.unread.append(data)
        return super()._pass_on(data)


class Captured(HeadlessDriver):
    """Keeps what Textual would send to a terminal."""

    written: list[str]

    @property
    def is_headless(self) -> bool:
        """Frames are only drawn for a terminal."""
        return False

    def write(self, data: str) -> None:
        """Keep it."""
        self.__dict__.setdefault("written", []).append(data)


class Small(App[None]):
    """Styles, a wide character, an input field with its cursor."""

    def compose(self) -> ComposeResult:
        """A panel over a field."""
        yield LinePanel("模型")
        yield Input("typed", compact=True)

    def count(self, number: int) -> None:
        """Change a few cells."""
        self.query_one(LinePanel).set_lines([line("plain ", Span(f"{number}", "bold ok"), Span(" alarm", "critical"))])


def test_frames_are_read_and_the_screen_is_right() -> None:
    async def frames() -> tuple[list[str], list[str]]:
        app = Small(driver_class=Captured)
        async with app.run_test(size=SIZE, headless=False) as pilot:
            await pilot.pause()
            for number in range(3):
                app.count(number)
                await pilot.pause()
            rows = [strip.text for strip in app.screen._compositor.render_strips(app.size)]
            driver: Any = app._driver
            return list(driver.written), rows

    written, rows = asyncio.run(frames())
    diff, terminal = Unread(), Terminal(*SIZE)
    for data in written:
        terminal.feed(diff.feed(data, SIZE))
    assert diff.unread == []
    shown = [text.rstrip() for text in terminal.text()]
    assert shown == [text.rstrip() for text in rows]
    assert any("plain 2 alarm" in text for text in shown)


async def test_the_names_that_are_used_are_there() -> None:
    reading = ("_run_input_thread", "_sigcont_application", "_query_in_band_window_resize", "suspend_application_mode")
    for name in ("write", "close", "start_application_mode", "process_message", "_get_terminal_size", *reading):
        assert callable(getattr(LinuxDriver, name)), name
    assert {"_key_thread", "_run_input_thread"} <= set(LinuxDriver.start_application_mode.__code__.co_names)
    assert {"exit_event", "fileno", "_auto_restart", "_loop"} <= vars(LinuxDriver(App(), size=(3, 4))).keys()
    assert LinuxDriver(App(), size=(3, 4))._size == (3, 4)
    assert "_writer_thread" in LinuxDriver.start_application_mode.__code__.co_names
    assert "_queue" in WriterThread.__init__.__code__.co_names
    assert list(inspect.signature(WriterThread.stop).parameters) == ["self"]
    assert hasattr(App(), "app_resume_signal")
    assert callable(App.get_driver_class)
