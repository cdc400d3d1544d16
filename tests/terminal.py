"""A program in a terminal: a pty, and what pyte makes of its bytes."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pyte

PATIENCE_S = 30.0
LEFT, RIGHT = "\x1b[D", "\x1b[C"


class Terminal:
    """Runs a command in a terminal of `columns` x `rows`; `with` sees to its end."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, columns: int = 110, rows: int = 30
    ) -> None:
        self._fd, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": "xterm-256color", "COLORTERM": "", "LANG": "C.UTF-8"},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)

    @property
    def rows(self) -> list[str]:
        """What is on the screen now."""
        return list(self._screen.display)

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(self.rows)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._fd, keys.encode())

    def _read(self, seconds: float) -> bool:
        """Take what the program writes within some time; False when it has gone."""
        readable, _, _ = select.select([self._fd], [], [], seconds)
        if not readable:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self._stream.feed(data)
        return bool(data)

    def wait(self, holds: Callable[[str], object], what: str) -> str:
        """Read until something holds of the screen; its text then."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(self.text):
            assert time.monotonic() < deadline, f"never {what}:\n{self.text}"
            assert self._read(0.1), f"ended before {what}:\n{self.text}"
        return self.text

    def wait_for(self, words: str) -> str:
        """Read until some words are on the screen."""
        return self.wait(lambda text: words in text, f"showed {words!r}")

    def end(self) -> int:
        """Read until the program has gone; its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(0.1) and self.process.poll() is None:
            assert time.monotonic() < deadline, f"did not end:\n{self.text}"
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE_S)
        os.close(self._fd)
