"""Any bytes typed and any sizes of the terminal: the screen goes on, leaves when asked, and gives the terminal back.

`LLMTOP_FUZZ=5000` plays so many moves, always other ones; in the gate they are few and always the same.
"""

from __future__ import annotations

import random
import select
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from console import Console
from e2e.test_terminal import assert_restored, terminal
from fakes.pages import Engine, PageServer
from hypo import LONG
from program import COMMAND, bare

LEAVE = b"\x1b[201~\x1b[21~"  # the end of a paste, F10
PIECES = (
    *(b"\x1b", b"\x1b[", b"\x1bO", b"\x1b[<", b"\x1b[1;", b"\x1b]", b"\x1bP", b"\x1b[200~", b"\x1b[201~"),
    *(b"\x1b[<0;10;5M", b"\x1b[<0;10;5m", b"\x1b[<35;12;7M", b"\x1b[<32;90;2M", b"\x1b[<64;9;9M", b"\x1b[<66;9;9M"),
    *(b"\x1b[<0;9999;9999M", b"\x1b[<0;-5;10M", b"\x1b[<255;1;1M", b"\x1b[M   ", b"\x1b[32;10;5M"),
    *(b"\x1b[?2026;2$y", b"\x1b[?2048;1$y", b"\x1b[48;0;0;0;0t", b"\x1b[48;99999;99999;1;1t", b"\x1b[I", b"\x1b[O"),
    *(b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\x1b[5~", b"\x1b[6~", b"\x1b[15~", b"\x1b[Z", b"\x1b[1;2R"),
    *(b"\x1b]10;rgb:zz/zz/zz\x07", b"\x1bP>|q\x1b\\", b"\x1b[?1;2c", b"\x1b[97;5u", b"\x1b[57441;1:3u"),
    *(b"\x1b[55296u", b"\x1b[9999999999u", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    *(bytes([key]) for key in b"egvw?l/\t\r ][tm+-o\x10\x0c\x1a\x7f\x00"),
    *("ü".encode(), "漢".encode(), "\U0001f600".encode(), b"x" * 300, b"9" * 50, b"\x7f" * 20),
    b"\x1b[200~" + b"pasted line\r" * 20_000 + b"\x1b[201~",
)
QUITS = (b"q", b"\x03", b"\x11", b"\x1c")


def typed(chance: random.Random) -> bytes:
    """Something typed that is not the wish to leave: known, cut, or any bytes."""
    piece = chance.choice(PIECES)
    kind = chance.random()
    if kind < 0.6:
        return piece
    data = piece[: chance.randint(1, len(piece))] if kind < 0.8 else chance.randbytes(chance.randint(1, 12))
    for key in QUITS:
        data = data.replace(key, b"e")
    return data


def write(console: Console, data: bytes) -> None:
    """Type it, as fast as the program reads; one that has suspended itself is continued."""
    process = psutil.Process(console.process.pid)
    deadline = time.monotonic() + 40
    while data and console.process.poll() is None:
        if select.select([], [console.master], [], 0.1)[1]:
            console.press(data[:512])
            data = data[512:]
        if console.process.poll() is None and process.status() == psutil.STATUS_STOPPED:
            process.send_signal(signal.SIGCONT)
        assert time.monotonic() < deadline, f"reads no more:\n{console.text}"


@pytest.mark.parametrize("seed", [1, 2])
def test_any_input_and_any_size(seed: int, tmp_path: Path) -> None:
    chance = random.Random(None if LONG else seed)
    with (
        PageServer([Engine().page]) as server,
        Console([COMMAND, server.url, *bare(tmp_path)], terminal(tmp_path, XDG_STATE_HOME=str(tmp_path))) as console,
    ):
        console.wait_text("SERVING")
        for _ in range(int(LONG or 250)):
            if chance.random() < 0.1:
                console.resize((chance.choice((1, 2, 20, 80, 300, 500)), chance.choice((1, 2, 5, 24, 100, 200))))
            write(console, typed(chance))
        console.resize((100, 30))
        ends_when_asked(console)
        assert_restored(console)
        assert b"Traceback" not in console.output


def ends_when_asked(console: Console) -> None:
    """F10 leaves; what is half typed, a dialog or a load test in between may take some of them."""
    deadline = time.monotonic() + 40
    while console.process.poll() is None:
        assert time.monotonic() < deadline, f"does not leave:\n{console.text}"
        write(console, LEAVE)
        time.sleep(0.1)
    code = console.wait_end()
    assert code == 0, bytes(console.output[-5000:]).rpartition(b"\x1b[?1049l")[2].decode("utf-8", "replace")


def test_a_flood_of_keys_is_taken_as_fast_as_it_can_be(tmp_path: Path) -> None:
    with Console([COMMAND, "demo"], terminal(tmp_path)) as console:
        console.wait_text("SERVING")
        memory = psutil.Process(console.process.pid).memory_info
        before, most = memory().rss, 0
        for _ in range(60):
            console.press(b"\x1b[A" * 1365)
            most = max(most, memory().rss)
        assert most < before + 20e6
        ends_when_asked(console)


BROKEN = """
from llmtop import cli
from llmtop.ui.terminal import typed

def feed(self, data):
    raise ZeroDivisionError("a key that breaks")

typed.Typed.feed = feed
cli.main(["demo"])
"""


def test_a_crash_of_the_reading_ends_the_program_and_says_why(tmp_path: Path) -> None:
    with Console([sys.executable, "-c", BROKEN], terminal(tmp_path)) as console:
        console.wait_text("SERVING")
        console.press("e")
        assert console.wait_end() == 70
        assert_restored(console)
        assert b"ZeroDivisionError: a key that breaks" in bytes(console.output).partition(b"\x1b[?1049l")[2]


FROZEN = """
import time
from llmtop import cli
from llmtop.ui.session import Session

Session.note = lambda *_: time.sleep(1000)
cli.main(["demo"])
"""
IGNORING = f"import signal, os; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv({COMMAND!r}, ['llmtop', *ARGS])"
RECORDING = Path(__file__).parents[1] / "fixtures/recordings/first-format.jsonl"


@pytest.mark.parametrize("words", [["demo"], ["replay", str(RECORDING)]], ids=["live", "replay"])
@pytest.mark.parametrize("seen", [b"\x1b[?1049h", b"KV cache", None], ids=["before a frame", "at the first", "settled"])
def test_a_terminal_that_goes_ends_it_where_sighup_is_ignored(
    words: list[str], seen: bytes | None, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", IGNORING.replace("ARGS", repr(words))]
    with Console(command, terminal(tmp_path)) as console:
        console.wait(lambda: (seen or b"tok/s") in console.output, "comes")
        if seen is None:
            console.wait_text("TTFT")
        children = console.children()
        console.hang_up()
        assert console.wait_end() == 129
        assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_terminal_that_goes_ends_an_app_that_is_busy_for_ever(tmp_path: Path) -> None:
    with Console([sys.executable, "-c", FROZEN], terminal(tmp_path)) as console:
        console.wait_text("SERVING")
        console.press("m")
        console.hang_up()
        assert console.wait_end() == 129
