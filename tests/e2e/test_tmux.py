"""The installed program in a real tmux, used as a person does."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from program import COMMAND, environment

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
PATIENCE_S = 30.0
LEFT = re.compile(r"left with (\d+)")


@dataclass(frozen=True, slots=True)
class Tmux:
    """One tmux server with one window."""

    socket: Path
    environ: dict[str, str]

    def __call__(self, *words: str) -> str:
        """Run a tmux command."""
        command = ["tmux", "-S", str(self.socket), *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environ, timeout=20, check=True)
        return done.stdout

    @property
    def rows(self) -> list[str]:
        """What the window shows."""
        return self("capture-pane", "-p").splitlines()

    def wait(self, holds: Callable[[str], bool], what: str) -> str:
        """Wait until something holds of the text in the window."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(text := "\n".join(self.rows)):
            assert time.monotonic() < deadline, f"never {what}:\n{text}"
            time.sleep(0.05)
        return text

    def wait_text(self, *texts: str) -> str:
        """Wait until all of these are in the window."""
        return self.wait(lambda text: all(part in text for part in texts), f"shows {texts}")

    def press(self, *keys: str) -> None:
        """Press keys by the names tmux gives them."""
        self("send-keys", *keys)

    @property
    def running(self) -> bool:
        """Whether the program has not ended."""
        return LEFT.search("\n".join(self.rows)) is None

    def wait_end(self) -> int:
        """Wait for the exit code, which the shell prints where the program was."""
        left = LEFT.search(self.wait(lambda text: LEFT.search(text) is not None, "ends"))
        assert left is not None
        return int(left[1])


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    """`llmtop demo` at 80x24."""
    # a shell that exports its size must not fix that of the screen
    environ = environment(tmp_path, {"TERM": "xterm-256color", "COLUMNS": "20000", "LINES": "20000"})
    for name in ("TMUX", "NO_COLOR", "LLMTOP_THEME", "TEXTUAL_THEME"):
        environ.pop(name, None)
    server = Tmux(tmp_path / "tmux", environ)
    config = tmp_path / "tmux.conf"
    config.write_text("set -g default-terminal tmux-256color\nset -g status off\n")
    server("-f", str(config), "new-session", "-d", "-x", "80", "-y", "24", f"{COMMAND} demo; echo left with $?; cat")
    yield server
    server("kill-server")


def test_every_core_number_at_80x24(tmux: Tmux) -> None:
    text = tmux.wait_text("SERVING", "simulated", " of 32", "tok/s", "J/token")
    for part in (
        "KV cache",
        "headroom",
        "low-water",
        "running",
        "waiting",
        "TTFT",
        "ITL",
        "E2EL",
        "●",
        "util",
    ):
        assert part in text
    assert all(len(row) <= 80 for row in tmux.rows)
    assert tmux.running


def test_pages_by_their_keys_and_quit(tmux: Tmux) -> None:
    tmux.wait_text("SERVING", "q Quit")
    tmux.press("e")
    tmux.wait_text("TTFT p95", "Esc Back")
    tmux.press("Escape")
    tmux.wait_text("KV cache", "q Quit")
    tmux.press("g")
    tmux.wait_text("name / process", "power")
    tmux.press("?")
    tmux.wait_text("Keys")
    tmux.press("d")
    tmux.wait_text("KV cache")
    tmux.press("p")
    tmux.wait_text("PAUSED")
    tmux.press("q")
    assert tmux.wait_end() == 0
    assert "Traceback" not in "\n".join(tmux.rows)


def test_a_storm_of_resizes_leaves_a_right_screen(tmux: Tmux) -> None:
    tmux.wait_text("SERVING")
    pick = random.Random(4)
    for _ in range(40):
        tmux("resize-window", "-x", str(pick.randint(1, 250)), "-y", str(pick.randint(1, 80)))
    tmux("resize-window", "-x", "132", "-y", "43")
    tmux.wait_text("SERVING", "KV cache", "q Quit")
    tmux("resize-window", "-x", "40", "-y", "12")
    text = tmux.wait_text("KV ", "headroom", "running", "tok/s", "? Help")
    assert all(len(row) <= 40 for row in text.splitlines())
    assert tmux.running
    tmux.press("F10")
    assert tmux.wait_end() == 0


def test_ctrl_c_quits(tmux: Tmux) -> None:
    tmux.wait_text("q Quit")
    tmux.press("C-c")
    assert tmux.wait_end() == 0
