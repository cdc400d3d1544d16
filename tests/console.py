"""A program on a pseudo-terminal of its own, with pyte as the terminal and a reader that can be told to stop."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import psutil
import pyte

PATIENCE_S = 30.0
Size = tuple[int, int]
# what pyte would print instead of ignoring it: keyboard protocol, mode queries
_FOREIGN = re.compile(rb"\x1b\[[<>=][\d;]*u|\x1b\[\?\d+\$p")
_CUT_OFF = re.compile(rb"\x1b(?:\[[\d;?<>=$]*|\][^\x07\x1b]*)?$")


class Console:
    """Runs a command; `output` is all it sent, `screen` what a terminal shows of it."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], size: Size = (100, 30)) -> None:
        self.master, self._slave = pty.openpty()
        self._set_size(size)
        self.modes = termios.tcgetattr(self._slave)
        self.output = bytearray()
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._held = b""
        self._lock = threading.Lock()
        self._reading = threading.Event()
        self._reading.set()
        self._parked, self._ended = threading.Event(), threading.Event()
        self.process = subprocess.Popen(
            command,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=dict(environ),
            preexec_fn=_take_terminal,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            if not self._reading.is_set():
                self._parked.set()
                self._reading.wait()
                self._parked.clear()
            try:
                ready, _, _ = select.select([self.master], [], [], 0.1)
                chunk = os.read(self.master, 65536) if ready else b""
            except (OSError, ValueError):
                return
            with self._lock:
                self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        self.output += chunk
        data = self._held + chunk
        cut = _CUT_OFF.search(data)
        end = cut.start() if cut else len(data)
        self._held = data[end:]
        self._stream.feed(_FOREIGN.sub(b"", data[:end]))

    # what is seen

    @property
    def rows(self) -> list[str]:
        """The rows of the screen."""
        with self._lock:
            return list(self._screen.display)

    @property
    def text(self) -> str:
        """The screen."""
        return "\n".join(self.rows)

    def wait(self, holds: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until something holds; fails with the screen otherwise, also when the program has ended."""
        deadline = time.monotonic() + patience_s
        while not holds():
            assert time.monotonic() < deadline, f"never {what}:\n{self.text}\n{bytes(self.output[-2000:])!r}"
            time.sleep(0.02)

    def wait_text(self, *texts: str) -> None:
        """Wait until all of these are on the screen."""
        self.wait(lambda: all(text in self.text for text in texts), f"shows {texts}")

    # what is done to it

    def press(self, keys: str | bytes) -> None:
        """Type."""
        os.write(self.master, keys if isinstance(keys, bytes) else keys.encode())

    def resize(self, size: Size) -> None:
        """Change the size of the window."""
        with self._lock:
            self._screen.resize(size[1], size[0])
            self._set_size(size)
        self.process.send_signal(signal.SIGWINCH)

    def _set_size(self, size: Size) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def scribble(self, text: str) -> None:
        """Have another program write on the terminal."""
        os.write(self._slave, text.encode())

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """A terminal that reads nothing for a while."""
        self._reading.clear()
        self._parked.wait(PATIENCE_S)
        try:
            yield
        finally:
            self._reading.set()

    def hang_up(self) -> None:
        """Close the terminal."""
        self._ended.set()
        self._reading.set()
        self._reader.join(5)
        os.close(self._slave)
        os.close(self.master)
        self._slave = self.master = -1

    # how it ends

    def children(self) -> list[psutil.Process]:
        """The processes it has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_end(self) -> int:
        """Its exit code as a shell shows it, once all it wrote has been read."""
        code = self.process.wait(PATIENCE_S)
        seen = -1
        while self.master >= 0 and seen != len(self.output):
            seen = len(self.output)
            time.sleep(0.3)
        return code if code >= 0 else 128 - code

    def modes_now(self) -> list[Any]:
        """The line discipline of the terminal."""
        return termios.tcgetattr(self._slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._reading.set()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self._reader.join(5)
        for end in (self._slave, self.master):
            if end >= 0:
                os.close(end)


def _take_terminal() -> None:
    """In the child: a session of its own, with standard input as its terminal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
