"""llmtop on a terminal that counts what it costs: bytes, and frames by the marks of synchronised output."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from program import COMMAND, environment
from terminal import Terminal

SYNC_QUERY, SYNC_YES, FRAME = b"\x1b[?2026$p", b"\x1b[?2026;2$y", b"\x1b[?2026l"
KEYS = {
    "f5": "\x1b[15~",
    "f6": "\x1b[17~",
    "f7": "\x1b[18~",
    "f8": "\x1b[19~",
    "f9": "\x1b[20~",
    "escape": "\x1b",
    "tab": "\t",
    "enter": "\r",
}


class Measured(Terminal):
    """The installed llmtop with `args`; its state, configuration and home are below `folder`."""

    def __init__(
        self, folder: Path, *args: str, size: tuple[int, int] = (80, 24), env: Mapping[str, str] | None = None
    ) -> None:
        settings = environment(folder, {"XDG_STATE_HOME": str(folder / "state"), **(env or {})})
        self.bytes = self.frames = 0
        super().__init__([COMMAND, *args], settings, folder, *size)

    def __enter__(self) -> Self:
        return self

    def keys(self, *keys: str) -> None:
        """Press keys by name, or type texts."""
        for key in keys:
            self.press(KEYS.get(key, key))
            self.look(0.05)

    def wait_all(self, *words: str) -> str:
        """Read until all of these are on the screen."""
        return self.wait(lambda text: all(word in text for word in words), f"showed {words}")

    def look(self, seconds: float) -> None:
        """Read for some time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            assert self._read(left), f"ended:\n{self.text}"

    def drain(self, holds: Callable[[], bool], seconds: float) -> None:
        """Read without looking until something holds: a terminal in Python would cost more than the program."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not within {seconds} s"
            if select.select([self._fd], [], [], 0.2)[0]:
                os.read(self._fd, 1 << 16)

    def cost(self, seconds: float) -> tuple[float, float]:
        """Bytes and frames per second over the next `seconds`."""
        bytes_before, frames_before = self.bytes, self.frames
        self.look(seconds)
        return (self.bytes - bytes_before) / seconds, (self.frames - frames_before) / seconds

    def _read(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            return False
        if SYNC_QUERY in data:
            os.write(self._fd, SYNC_YES)
        self.bytes += len(data)
        self.frames += data.count(FRAME)
        self._stream.feed(data)
        return bool(data)
