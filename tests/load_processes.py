"""Processes that a load test starts, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def workers(pid: int) -> list[int]:
    """The load workers of a process."""
    return [child for child in children(pid) if b"llmtop.load.worker" in command_of(child)]


def children(pid: int) -> list[int]:
    found = [path.parent.name for path in Path("/proc").glob("[0-9]*/stat") if parent_of(path) == pid]
    return [int(name) for name in found]


def parent_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, ValueError):
        return -1


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
