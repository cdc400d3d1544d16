"""Runs a program on a pseudo-terminal that reads as fast as it can, and measures bytes, CPU time and memory."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from fakes import nvml

HERE = Path(__file__).parent
LLMTOP = str(Path(sys.executable).with_name("llmtop"))
FLOOR = (sys.executable, str(HERE / "floor.py"))
SYNC_START = b"\x1b[?2026h"
SYNC_QUERY, SYNC_ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
CACHE = Path(tempfile.gettempdir()) / f"llmtop-bench-{os.getuid()}"
PATIENCE_S = 30.0
Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a program used: bytes and frames a second to the terminal, % of a core, resident bytes, and CPU seconds
    to the first frame.
    """

    bytes_s: float
    frames_s: float
    cpu_percent: float
    rss: int
    first_frame_cpu_s: float


class Watched:
    """A program on a pseudo-terminal of this size; `marker` is in its first frame."""

    def __init__(self, command: Sequence[str], size: Size, marker: str, environ: Mapping[str, str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=dict(environ), start_new_session=True
        )
        os.close(slave)
        self.received = self.frames = 0
        self.first_frame_cpu_s: float | None = None
        self.shown = threading.Event()
        self.tail = b""
        self._marker = marker.encode()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        head = b""
        while True:
            try:
                ready, _, _ = select.select([self.master], [], [], 0.2)
                chunk = os.read(self.master, 65536) if ready else None
            except OSError:
                return
            if chunk is None:
                continue
            if not chunk:
                return
            self.received += len(chunk)
            self.frames += chunk.count(SYNC_START)
            self.tail = (self.tail + chunk)[-4096:]
            if SYNC_QUERY in chunk:
                os.write(self.master, SYNC_ANSWER)
            if not self.shown.is_set():
                head += chunk
                if self._marker in head:
                    self.first_frame_cpu_s = cpu_s(self.process.pid)
                    self.shown.set()

    def wait_shown(self) -> None:
        """Wait for the first frame."""
        if not self.shown.wait(PATIENCE_S):
            raise AssertionError(f"no first frame: {self.tail!r}")

    def usage(self, settle_s: float, window_s: float) -> Usage:
        """Let it settle after its first frame, then measure for a window."""
        self.wait_shown()
        time.sleep(settle_s)
        bytes_before, frames_before = self.received, self.frames
        cpu_before, before = cpu_s(self.process.pid), time.monotonic()
        time.sleep(window_s)
        seconds = time.monotonic() - before
        assert self.process.poll() is None, self.tail
        return Usage(
            (self.received - bytes_before) / seconds,
            (self.frames - frames_before) / seconds,
            (cpu_s(self.process.pid) - cpu_before) / seconds * 100,
            rss(self.process.pid),
            self.first_frame_cpu_s or 0.0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join(1.0)
        os.close(self.master)


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process so far, from the scheduler, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue  # the thread has just ended
    return total / 1e9


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


@dataclass(frozen=True, slots=True)
class Bench:
    """A page server with its machine's files."""

    port: int
    environ: Mapping[str, str]
    flags: Sequence[str]

    def llmtop(self, servers: int = 1) -> list[str]:
        """The command line that watches so many of its servers."""
        return [LLMTOP, *self.flags, *(f"http://127.0.0.1:{self.port}/s{number}" for number in range(servers))]


@contextmanager
def bench(still: bool = False) -> Iterator[Bench]:
    """Serve busy pages and a busy machine (or ones that stand still) from a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, str(HERE / "serve.py"), str(folder), *(["--still"] if still else [])]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            flags = ["--procfs", str(folder / "proc"), "--sysfs", str(folder / "no-sys")]
            yield Bench(port, environment(folder), flags)
        finally:
            process.terminate()
            process.wait(5.0)


def environment(folder: Path) -> dict[str, str]:
    """A plain colour terminal, no configuration of the user's, and the fake GPU where it can be built."""
    environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    for name in ("NO_COLOR", "TEXTUAL_THEME", "LLMTOP_THEME", "LLMTOP_DIFF", "LLMTOP_SHIFT", "VLLM_API_KEY"):
        environ.pop(name, None)
    environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    # as installed: with compiled modules, also where the tests run without
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ["PYTHONPYCACHEPREFIX"] = str(CACHE)
    try:
        library = nvml.build(folder / "lib")
    except pytest.skip.Exception:
        return environ
    return environ | {
        name: value
        for name, value in nvml.environment(library, folder / "scenario.txt").items()
        if name in ("LD_LIBRARY_PATH", "FAKE_NVML")
    }
