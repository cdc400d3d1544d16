"""The process of a server that starts on this machine: since when, whether it lives, and where its output goes."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

from llmtop.engines.discover import is_local, process_of

LOOK_S = 1.0
_ENGINES = ("vllm", "sglang", "enginecore", "multiprocessing", "ray::")


def lives(procfs: Path, pid: int) -> bool:
    """Whether the process is there and not a zombie that nobody has waited for."""
    try:
        return ") Z " not in (procfs / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return False


def is_engine(procfs: Path, pid: int) -> bool:
    """Whether a pid that a log names is an engine's here too: in a container and on another machine pids differ."""
    try:
        words = (procfs / str(pid) / "cmdline").read_bytes()[:4096].decode("utf-8", "replace").lower()
    except OSError:
        return False
    return any(word in words for word in _ENGINES) and lives(procfs, pid)


def began(procfs: Path, pid: int) -> float | None:
    """The Unix time at which the process began."""
    try:
        fields = (procfs / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        boot = next(line for line in (procfs / "stat").read_text().splitlines() if line.startswith("btime "))
        return float(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def output_file(procfs: Path, pid: int) -> Path | None:
    """The regular file that the process writes its output to; None for a pipe, a terminal, or one that is deleted."""
    link = procfs / str(pid) / "fd" / "1"
    try:
        path = Path(os.readlink(link))
        there = path.stat()
        mine = link.stat()
    except OSError:
        return None
    same = (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
    return path if same and stat.S_ISREG(there.st_mode) else None


class ProcessProbe:
    """A daemon thread that looks for the server of an address of this machine, and from then on whether it lives.

    `pid` and what goes with it are set together, once; `gone_at` is the Unix time at which it was not there any more.
    """

    def __init__(self, procfs: Path, host: str, port: int) -> None:
        self._procfs, self._host, self._port = procfs, host, port
        self._stop = threading.Event()
        self.pid: int | None = None
        self.began: float | None = None
        self.output: Path | None = None
        self.gone_at: float | None = None

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="llmtop-process", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def _run(self) -> None:
        here = is_local(self._host)
        while here and not self._stop.is_set() and self.gone_at is None:
            if self.pid is None:
                self._look()
            elif not lives(self._procfs, self.pid):
                self.gone_at = time.time()
            self._stop.wait(LOOK_S)

    def _look(self) -> None:
        found = process_of(self._procfs, self._host, self._port)
        if found is not None and not found.listening:  # one that listens was there before
            self.began, self.output = began(self._procfs, found.pid), output_file(self._procfs, found.pid)
            self.pid = found.pid
