"""Whether the kernel's out-of-memory killer ended a process: what its control group counts and the kernel log say.

Without evidence nothing is said: a SIGKILL has many senders.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KERNEL_LOG = Path("/dev/kmsg")
_MOST_RECORDS = 200_000
_SLACK_S = 2.0  # the kernel's clock and the monotonic one are set apart by suspends and rounding
_KILLED = re.compile(r"(Memory cgroup out of memory|Out of memory[^:]*): Killed process (\d+) \(([^)]*)\)(.*)")
_RSS = re.compile(r"(anon|file|shmem)-rss:(\d+)kB")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Counted:
    """How many processes of a control group the killer has ended, as it stood at one time."""

    group: str
    file: Path
    kills: int


class OomWatch:
    """Looks at a process while it lives, and tells after its end whether the out-of-memory killer was there."""

    def __init__(
        self, pid: int, procfs: Path = Path("/proc"), sysfs: Path = Path("/sys"), log: Path = KERNEL_LOG
    ) -> None:
        self._pids = {pid}
        self._log = log
        self._since = time.monotonic()
        groups = _groups(procfs, pid)
        self._before = tuple(counted for group in groups if (counted := _count(sysfs, group)) is not None)

    def add(self, pids: Iterable[int]) -> None:
        """Watch these processes too: an engine dies with the child that was killed."""
        self._pids.update(pids)

    def evidence(self) -> str | None:
        """What shows that the killer ended one of the processes, or one of their control group; None without any."""
        return _logged(self._log, self._pids, self._since) or self._counted()

    def _counted(self) -> str | None:
        """The nearest control group that is still there: that of a container goes with its last process."""
        for before in self._before:
            now = _kills(before.file)
            if now is not None:
                words = f"control group {before.group} counts oom_kill {before.kills} → {now}"
                return words if now > before.kills else None
        return None


def _logged(log: Path, pids: set[int], since: float) -> str | None:
    for at, text in _records(log):
        match = _KILLED.search(text)
        if match and int(match[2]) in pids and at >= since - _SLACK_S:
            held = sum(int(size) for _, size in _RSS.findall(match[4]))
            size = f", which held {held / 2**20:.1f} GiB of host memory" if held else ""
            limit = " at its control group's limit" if match[1].startswith("Memory cgroup") else ""
            return f"kernel log: the OOM killer ended process {match[2]} ({match[3]}){limit}{size}"
    return None


def _records(log: Path) -> Iterator[tuple[float, str]]:
    """The kernel's records in its buffer: seconds since boot and text; nothing where that may not be read."""
    try:
        file = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for _ in range(_MOST_RECORDS):
            try:
                piece = os.read(file, 65536)
            except BrokenPipeError:  # overwritten meanwhile; the next read goes on behind the gap
                continue
            except OSError:  # nothing more for now
                return
            if not piece:
                return
            yield from _parsed(piece.decode("utf-8", "replace"))
    finally:
        os.close(file)


def _parsed(piece: str) -> Iterator[tuple[float, str]]:
    for line in piece.splitlines():
        head, found, text = line.partition(";")
        fields = head.split(",")
        if found and len(fields) > 2 and fields[2].isdecimal():
            yield int(fields[2]) / 1e6, text


def _groups(procfs: Path, pid: int) -> Iterator[tuple[str, str]]:
    """The memory control groups of a process and those around them, as (hierarchy, path), the nearest first."""
    try:
        lines = (procfs / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in sorted(lines):  # the one hierarchy of version 2 is number 0
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers in ("", "memory") and path:
            folder = PurePosixPath(path)
            yield from ((controllers, str(parent)) for parent in (folder, *folder.parents))


def _count(sysfs: Path, group: tuple[str, str]) -> _Counted | None:
    hierarchy, path = group
    folder = sysfs / "fs/cgroup" / hierarchy / path.lstrip("/")
    file = folder / ("memory.oom_control" if hierarchy else "memory.events")
    kills = _kills(file)
    return None if kills is None else _Counted(path, file, kills)


def _kills(file: Path) -> int | None:
    try:
        match = _COUNT.search(file.read_text())
    except OSError:
        return None
    return int(match[1]) if match else None
