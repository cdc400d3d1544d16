"""The installed program on a real pseudo-terminal: how it appears, behaves when the terminal does not, and leaves."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from bench.pages import BusyPage
from console import Console
from fakes.pages import PageServer
from program import COMMAND, bare, environment

COLOUR = re.compile(rb"\x1b\[([\d;]*)m")
RESTORED = {
    "alternate screen left": b"\x1b[?1049l",
    "cursor shown": b"\x1b[?25h",
    "mouse buttons off": b"\x1b[?1000l",
    "mouse motion off": b"\x1b[?1003l",
    "paste mode off": b"\x1b[?2004l",
    "keyboard protocol off": b"\x1b[<u",
}


def terminal(folder: Path, **extra: str) -> dict[str, str]:
    """The environment of an ordinary colour terminal."""
    environ = environment(folder, {"TERM": "xterm-256color", "COLORTERM": "truecolor"} | extra)
    for name in ("NO_COLOR", "TEXTUAL_THEME", "LLMTOP_THEME", "LLMTOP_DIFF", "LLMTOP_SHIFT"):
        if name not in extra:
            environ.pop(name, None)
    return environ


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def assert_restored(console: Console) -> None:
    """The terminal is as it was found."""
    tail = bytes(console.output)
    last_frame = tail.rfind(b"\x1b[?1049h")
    missing = [what for what, sequence in RESTORED.items() if tail.rfind(sequence) < last_frame]
    assert missing == []
    assert console.modes_now() == console.modes


def assert_gone(children: list[psutil.Process]) -> None:
    """Nothing that was started is left."""
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_the_first_frame_waits_for_no_answer(silent: str, tmp_path: Path) -> None:
    with Console([COMMAND, silent, *bare(tmp_path)], terminal(tmp_path)) as console:
        console.wait_text("llmtop", "KV cache", "running –", "q Quit")
        assert "0.0 %" not in console.text
        console.press("q")
        assert console.wait_end() == 0


@pytest.mark.parametrize(
    ("keys", "number", "code"),
    [
        ("q", None, 0),
        ("\x1b[21~", None, 0),
        ("\x03", None, 0),
        (None, signal.SIGTERM, 143),
        (None, signal.SIGHUP, 129),
    ],
    ids=["q", "F10", "Ctrl+C", "SIGTERM", "SIGHUP"],
)
def test_every_way_out_restores_the_terminal(
    keys: str | None, number: signal.Signals | None, code: int, tmp_path: Path
) -> None:
    with Console([COMMAND, "demo"], terminal(tmp_path)) as console:
        console.wait_text("SERVING", "simulated", "headroom")
        children = console.children()
        assert children
        if keys is not None:
            console.press(keys)
        if number is not None:
            console.process.send_signal(number)
        assert console.wait_end() == code
        assert_restored(console)
        assert_gone(children)
        assert b"Traceback" not in console.output


def test_a_request_that_hangs_does_not_keep_it(silent: str, tmp_path: Path) -> None:
    with Console([COMMAND, silent, *bare(tmp_path)], terminal(tmp_path)) as console:
        console.wait_text("q Quit")
        began = time.monotonic()
        console.press("q")
        assert console.wait_end() == 0
        assert time.monotonic() - began < 4.0


def test_a_closed_terminal_ends_it(tmp_path: Path) -> None:
    with Console([COMMAND, "demo"], terminal(tmp_path)) as console:
        console.wait_text("SERVING")
        children = console.children()
        console.hang_up()
        assert console.wait_end() in (0, 129)
        assert_gone(children)


def test_a_terminal_that_stops_reading_costs_no_poll(tmp_path: Path) -> None:
    busy, recording = BusyPage(), tmp_path / "run.jsonl"
    pages = [busy.advance() for _ in range(400)]
    with PageServer([*pages, pages[-1]]) as server:
        command = [COMMAND, server.url, "-d", "0.5", "--record", str(recording), *bare(tmp_path)]
        with Console(command, terminal(tmp_path), (200, 50)) as console:
            console.wait_text("SERVING", "tok/s")
            console.wait(lambda: len(server.scrapes()) > 8, "polled")
            with console.stalled():
                began, before, seen = time.monotonic(), len(server.scrapes()), len(console.output)
                for _ in range(15):  # far more than the terminal and the writer take
                    console.press("t")
                while time.monotonic() - began < 20.0:
                    time.sleep(0.1)
                polls = [t for t in server.scrapes()[before:] if t - began < 20.0]
                assert len(console.output) == seen
            assert len(polls) >= 0.9 * 20.0 / 0.5
            assert max(later - earlier for earlier, later in pairwise(polls)) < 2.0
            console.wait(lambda: len(console.output) > seen, "draws again")
            assert_truthful(console, server, pages[-1])
            console.press("q")
            assert console.wait_end() == 0
    times = [line["time"] for line in map(json.loads, recording.read_text().splitlines()) if "servers" in line]
    assert max(later - earlier for earlier, later in pairwise(times)) < 2.0
    assert times[-1] - times[0] > 20.0


def assert_truthful(console: Console, server: PageServer, page: bytes) -> None:
    """Once the server stands still, drawing everything anew changes nothing on the screen."""
    server.pages[:] = [page]
    console.press("p")
    console.wait_text("PAUSED")
    settled = ""
    while settled != console.text:
        settled = console.text
        time.sleep(1.0)
    console.press("\x0c")
    time.sleep(1.5)
    assert console.text == settled


def test_what_another_program_wrote_over_it_goes_with_ctrl_l(tmp_path: Path) -> None:
    with Console([COMMAND, "demo"], terminal(tmp_path)) as console:
        console.wait_text("SERVING", "q Quit")
        console.scribble("\x1b[2;14HBroadcast message")  # over a rule that never changes by itself
        console.wait_text("Broadcast message")
        console.press("\x0c")
        console.wait(lambda: "Broadcast" not in console.text, "repaired")


def test_a_storm_of_sizes_never_breaks_it(tmp_path: Path) -> None:
    with Console([COMMAND, "demo"], terminal(tmp_path), (80, 24)) as console:
        console.wait_text("SERVING")
        for size in [(40, 12), (1, 1), (250, 80), (10, 3), (80, 24), (2, 2), (132, 43), (80, 24)] * 4:
            console.resize(size)
            time.sleep(0.03)
        console.wait_text("SERVING", "headroom", "q Quit")
        assert console.process.poll() is None
        console.press("q")
        assert console.wait_end() == 0
        assert_restored(console)


def test_no_color_means_no_colour_code(tmp_path: Path) -> None:
    with Console([COMMAND, "demo"], terminal(tmp_path, NO_COLOR="1")) as console:
        console.wait_text("SERVING", "tok/s")
        for keys in ("e", "g", "?", "v", "t"):
            console.press(keys)
            time.sleep(0.3)
        console.press("q")
        assert console.wait_end() == 0
        coloured = [found for found in COLOUR.findall(bytes(console.output)) if _has_colour(found)]
        assert coloured == []


def _has_colour(parameters: bytes) -> bool:
    codes = [int(code) for code in parameters.split(b";") if code]
    return any(30 <= code <= 38 or 40 <= code <= 48 or 90 <= code <= 107 for code in codes)


def test_the_linux_console_gets_ascii(tmp_path: Path) -> None:
    environ = terminal(tmp_path, TERM="linux")
    with Console([COMMAND, "demo"], environ) as console:
        console.wait_text("SERVING", "tok/s", "KV cache")
        console.press("q")
        assert console.wait_end() == 0
        assert bytes(console.output).isascii()
        assert b"\x1b[>" not in console.output


def test_a_locale_without_utf8_gets_ascii(tmp_path: Path) -> None:
    environ = terminal(tmp_path, PYTHONIOENCODING="latin-1")
    with Console([COMMAND, "demo"], environ) as console:
        console.wait_text("SERVING", "KV cache")
        console.press("q")
        assert console.wait_end() == 0
        assert bytes(console.output).isascii()


def test_without_the_mouse_it_is_left_alone(tmp_path: Path) -> None:
    with Console([COMMAND, "demo", "--no-mouse"], terminal(tmp_path)) as console:
        console.wait_text("SERVING")
        console.press("q")
        assert console.wait_end() == 0
        assert not re.search(rb"\x1b\[\?10(?:00|02|03|05|06|15)h", bytes(console.output))


def test_a_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    with Console([COMMAND, "demo"], terminal(tmp_path, TERM="dumb")) as console:
        console.wait(lambda: console.output.count(b"\n") >= 4, "four lines")
        console.process.send_signal(signal.SIGINT)
        assert console.wait_end() == 0
        assert b"\x1b" not in console.output


def test_no_terminal_gets_lines(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, "demo"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=terminal(tmp_path),
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        process.terminate()
        assert process.wait(15) == 143
        assert all(line.endswith(b"\n") for line in lines)
        assert b"\x1b" not in b"".join(lines)
    finally:
        process.kill()
        process.wait()
        process.communicate()


BROKEN = """
import sys
from llmtop import cli
from llmtop.ui.screens import dashboard

whole, frames = dashboard.page, []

def page(*args):
    frames.append(args)
    if len(frames) > 3:
        raise ZeroDivisionError("a panel that breaks")
    return whole(*args)

dashboard.page = page
cli.main(["demo"])
"""


def test_a_crash_restores_the_terminal_and_then_says_why(tmp_path: Path) -> None:
    with Console([sys.executable, "-c", BROKEN], terminal(tmp_path)) as console:
        console.wait(lambda: console.process.poll() is not None, "ends")
        assert console.wait_end() == 70
        assert_restored(console)
        after = bytes(console.output).partition(b"\x1b[?1049l")[2]
        assert b"Traceback" in after
        assert b"ZeroDivisionError: a panel that breaks" in after
        assert b"Traceback" not in bytes(console.output).partition(b"\x1b[?1049l")[0]
