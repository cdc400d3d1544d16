"""A short sweep in a real tmux, from the key to the answer and back to the dashboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.test_tmux import Tmux
from program import COMMAND, environment

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
DEMO = f"{COMMAND} demo --no-traffic --speed 50; echo left with $?; cat"


@contextmanager
def demo(folder: Path, columns: int, rows: int, term: str) -> Iterator[Tmux]:
    """`llmtop demo` at fifty times its speed, without traffic of its own."""
    environ = environment(folder, {"TERM": "xterm-256color", "XDG_STATE_HOME": str(folder / "state")})
    for name in ("TMUX", "NO_COLOR", "LLMTOP_THEME", "TEXTUAL_THEME"):
        environ.pop(name, None)
    config = folder / "tmux.conf"
    config.write_text("set -g default-terminal tmux-256color\nset -g status off\n")
    server = Tmux(folder / "tmux", environ)
    size = ("-x", str(columns), "-y", str(rows))
    server("-f", str(config), "new-session", "-d", *size, f"export TERM={term}; {DEMO}")
    try:
        yield server
    finally:
        server("kill-server")


@pytest.mark.parametrize(
    ("columns", "rows", "term"), [(80, 24, "tmux-256color"), (200, 50, "tmux-256color"), (80, 24, "linux")]
)
def test_a_sweep_from_the_key_to_the_answer(tmp_path: Path, columns: int, rows: int, term: str) -> None:
    with demo(tmp_path, columns, rows, term) as tmux:
        tmux.wait_text("IDLE", "q Quit")
        tmux.press("l")
        tmux.wait_text("Users", "352 requests, 720,896 prompt + 45,056 output tokens", "vllm bench serve")
        tmux.press("2,8")
        tmux.wait_text("levels  c=2  c=8")
        tmux.press("F5")
        tmux.wait_text("Send 128 requests to 127.0.0.1", "y Yes")
        tmux.press("y")
        tmux.wait_text("1/2 c=2", "Client", "Server", "running", "o first wave", "F8 Stop")
        tmux.wait_text("2/2 c=8", "c=2 ", "P99 (n)")
        text = tmux.wait_text(
            "Answer", "sweet spot at least 8", "c=2 ", "c=8 ", "server back to 0 running", "F7 New plan"
        )
        assert "every level keeps your limits: more may fit" in " ".join(text.split())
        assert all(len(row) <= columns for row in tmux.rows)
        assert text.isascii() == (term == "linux")
        tmux.press("Escape")
        tmux.wait_text("KV cache" if rows > 20 else "KV", "q Quit")
        tmux.press("q")
        assert tmux.wait_end() == 0
    assert len(list((tmp_path / "state" / "llmtop" / "runs").glob("*-sweep/report.md"))) == 1
