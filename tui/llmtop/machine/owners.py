"""What the processes on the GPUs belong to, by the processes above them and the container they run in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmtop.contract.snapshot import Device
from llmtop.machine.containers import INSPECTOR, container_of
from llmtop.machine.holders import Owner
from llmtop.machine.tree import Folder

_MOST_ABOVE = 64  # a torn reading could go in circles
_SHORT_ID = 12


@dataclass(frozen=True, slots=True)
class _Place:
    """A process and those above it, nearest first, and the id of its container."""

    line: tuple[int, ...]
    container: str | None


class ProcessOwners:
    """Remembers the place of every process that holds memory, while it does."""

    def __init__(self, procfs: Folder) -> None:
        self._procfs = procfs
        self._places: dict[int, _Place] = {}
        self._own = container_of(procfs, "self")  # in which everything here is, says nothing

    def of(self, devices: Iterable[Device], servers: Mapping[int, str]) -> dict[int, Owner]:
        """The owners of the processes of the devices by their pids; `servers` are URLs by the pid that serves.

        A process without a name is not visible here: its pid may be another's.
        """
        pids = {process.pid for device in devices for process in device.processes if process.name is not None}
        # a node sends its processes later than its GPUs, and from memory they cost nothing
        kept = self._places.items() if isinstance(self._procfs, Path) else ()
        self._places = {pid: place for pid, place in kept if pid in pids and len(place.line) > 1}
        return {pid: self._owner(pid, servers) for pid in pids}

    def _owner(self, pid: int, servers: Mapping[int, str]) -> Owner:
        place = self._places.get(pid)
        if place is None:
            place = self._places[pid] = _Place(tuple(_line(self._procfs, pid)), container_of(self._procfs, pid))
        server = next((servers[above] for above in place.line if above in servers), None)
        return Owner(server, self._name(place.container))

    def _name(self, container: str | None) -> str | None:
        if container is None or container == self._own:
            return None
        # those of another machine are not asked for here
        named = INSPECTOR.name(container) if isinstance(self._procfs, Path) else None
        return named or container[:_SHORT_ID]


def parent_of(procfs: Folder, pid: int) -> int:
    """The process that started another one; 0 where that is not known."""
    try:
        return int((procfs / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _line(procfs: Folder, pid: int) -> Iterable[int]:
    for _ in range(_MOST_ABOVE):
        if pid <= 0:
            return
        yield pid
        pid = parent_of(procfs, pid)
