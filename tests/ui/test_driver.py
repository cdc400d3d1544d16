"""The cell-diff driver in a real pseudo-terminal, with pyte as the terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pyte
import pytest
from textual.app import App
from textual.driver import Driver
from textual.drivers._writer_thread import WriterThread
from textual.drivers.headless_driver import HeadlessDriver
from textual.drivers.linux_driver import LinuxDriver

from llmtop.ui.terminal.driver import CellDiffDriver, driver_class_for
from llmtop.ui.terminal.sturdy import SturdyDriver

WIDTH, HEIGHT = 60, 10
PATIENCE_S = 20.0

PROGRAM = """
from llmtop.ui.terminal.driver import RepaintingApp
from llmtop_widgets import LinePanel, Span, line

class Counter(RepaintingApp[None]):
    CSS = "LinePanel { background: $panel; }"
    BINDINGS = [("n", "next"), ("q", "quit"), ("ctrl+l", "repaint")]
    count = 0
    def compose(self):
        yield LinePanel("Counter")
    def on_mount(self):
        self.action_next()
    def action_next(self):
        self.count += 1
        self.query_one(LinePanel).set_lines([line("steady text"), line("count ", Span(str(self.count), "ok"))])

Counter().run()
"""


class Console:
    """A program in a pseudo-terminal and the screen that it draws."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)
        self.output = bytearray()
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self.stream = pyte.ByteStream(self.screen)

    def read(self) -> None:
        """Take what the program has written, waiting a moment for more."""
        if select.select([self.master], [], [], 0.05)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            self.output += data
            self.stream.feed(data)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
            self.read()

    def shows(self, *rows: str) -> Callable[[], bool]:
        """Return the condition that the screen shows these rows and nothing else."""
        wanted = [*rows, *[""] * (self.screen.lines - len(rows))]
        return lambda: [row.rstrip() for row in self.screen.display] == wanted

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def scribble(self) -> None:
        """Cover the screen with text that the program knows nothing of."""
        for row in range(self.screen.lines):
            self.stream.feed(f"\x1b[{row + 1};1H{'#' * (self.screen.columns - 1)}".encode())

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.screen.resize(height, width)
        self.process.send_signal(signal.SIGWINCH)


@pytest.fixture
def console(request: pytest.FixtureRequest) -> Iterator[Console]:
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")},
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "TEXTUAL_DISABLE_KITTY_KEY": "1",
        **getattr(request, "param", {}),
    }
    console = Console(environment)
    yield console
    console.process.kill()
    console.process.wait()
    os.close(console.master)


@pytest.mark.parametrize("console", [{}, {"LLMTOP_DIFF": "0"}, {"LLMTOP_SHIFT": "0"}], indirect=True)
def test_the_program_draws_updates_and_leaves_the_terminal_clean(console: Console) -> None:
    console.wait(console.shows("Counter", "steady text", "count 1"))
    console.press("n")
    console.wait(console.shows("Counter", "steady text", "count 2"))
    console.press("q")
    console.wait(lambda: b"\x1b[?1004l" in console.output)
    assert console.process.wait(PATIENCE_S) == 0
    assert b"\x1b[?1049l" in console.output
    assert console.screen.cursor.attrs == pyte.screens.Char(" ")


def test_an_update_sends_the_changed_cell_alone(console: Console) -> None:
    console.wait(console.shows("Counter", "steady text", "count 1"))
    start = len(console.output)
    console.press("n")
    console.wait(console.shows("Counter", "steady text", "count 2"))
    assert b"steady" not in console.output[start:]
    assert len(console.output) - start < 60


def test_ctrl_l_draws_over_foreign_output(console: Console) -> None:
    console.wait(console.shows("Counter", "steady text", "count 1"))
    console.scribble()
    console.press("\x0c")
    console.wait(console.shows("Counter", "steady text", "count 1"))


@pytest.mark.parametrize("sizes", [[(51, 8), (WIDTH, HEIGHT)], [(WIDTH, HEIGHT)]], ids=["changed", "unchanged"])
def test_after_a_resize_everything_is_drawn_again(console: Console, sizes: list[tuple[int, int]]) -> None:
    console.wait(console.shows("Counter", "steady text", "count 1"))
    for width, height in sizes:
        console.scribble()
        console.resize(width, height)
        console.wait(console.shows("Counter", "steady text", "count 1"))


def test_a_suspended_program_draws_everything_when_it_comes_back(console: Console) -> None:
    console.wait(console.shows("Counter", "steady text", "count 1"))
    console.process.send_signal(signal.SIGTSTP)
    console.wait(lambda: b"\x1b[?1004l" in console.output)
    os.waitpid(console.process.pid, os.WUNTRACED)
    console.scribble()
    console.process.send_signal(signal.SIGCONT)
    console.wait(console.shows("Counter", "steady text", "count 1"))


@pytest.mark.parametrize(
    ("base", "switch", "expected"),
    [
        (LinuxDriver, "", CellDiffDriver),
        (LinuxDriver, "0", SturdyDriver),
        (HeadlessDriver, "", HeadlessDriver),
    ],
)
def test_only_the_linux_driver_is_replaced(
    base: type[Driver], switch: str, expected: type[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMTOP_DIFF", switch)
    assert driver_class_for(base) is expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_writer_that_has_died_with_its_terminal_holds_nothing_up() -> None:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGCONT)}
    driver = CellDiffDriver(App[None]())
    for number, handler in kept.items():
        signal.signal(number, handler)
    gone = Path("/dev/full").open("w")  # noqa: SIM115  its end is an error of its own
    driver._writer_thread = WriterThread(gone)
    driver._writer_thread.start()

    def draw_and_leave() -> None:
        for number in range(100):  # more than its queue holds
            driver.write(f"\x1b[1;1H{number}")
        driver.close()

    leaving = Thread(target=draw_and_leave, daemon=True)
    leaving.start()
    await asyncio.to_thread(leaving.join, PATIENCE_S)
    assert not leaving.is_alive()
    assert not driver._writer_thread.is_alive()
    with pytest.raises(OSError, match="No space"):
        gone.close()
