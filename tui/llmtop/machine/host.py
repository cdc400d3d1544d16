"""The machine itself, from /proc and /sys: memory, NUMA nodes, CPU, swap, pressure, process names.

Every file is opened anew at each reading (about 30 µs), so trees renamed or replaced underneath are seen.
A missing or unreadable file means "nothing found there": its values are None, and nothing raises.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmtop.contract.secrets import mask
from llmtop.contract.snapshot import Host
from llmtop.machine.board import TOTAL, BoardReader
from llmtop.machine.sample import MemInfo, NodeMem
from llmtop.machine.tree import Files

# The inode of the first pid namespace is fixed in the kernel (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_LARGEST_PID = 2**22  # PID_MAX_LIMIT of a 64-bit kernel
_PSI_FULL = re.compile(r"^full .*?avg10=([0-9.]+)", re.MULTILINE)
_COHERENT_MODE = re.compile(r'^CoherentGPUMemoryMode:\s*"?(\w*)"?', re.MULTILINE)
_NODE_NAME = re.compile(r"node(\d+)$")


@dataclass(frozen=True, slots=True)
class _Counters:
    """What rates are made of: jiffies of all CPUs, pages swapped out, and when they were read."""

    at: float
    busy: int | None
    all: int | None
    swapped_out: int | None


class Disk:
    """The files of this machine; implements `Files`."""

    page_size = os.sysconf("SC_PAGE_SIZE")

    def read(self, path: str, *, whole: bool = True) -> bytes | None:
        """The file as it stands now; None where there is none."""
        return _read_bytes(path, whole=whole)

    def names(self, path: str) -> list[str]:
        """What is in a folder; empty where there is none."""
        try:
            return os.listdir(path)
        except OSError:
            return []

    def clock(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()


class HostReader:
    """Reads one /proc and one /sys tree, which may be copies of those of another machine, or streamed from it."""

    def __init__(self, procfs: Path, sysfs: Path, files: Files | None = None) -> None:
        self._procfs = str(procfs)
        self._nodes_dir = str(sysfs / "devices/system/node")
        self._files = files or Disk()
        self._board = BoardReader(str(sysfs), self._files)
        self._last: _Counters | None = None
        self._mounted: str | None = None  # read once: nobody mounts over it later

    def mem(
        self, nodes: Iterable[int] = (), known: Mapping[int, NodeMem] | None = None, text: bytes | None = None
    ) -> MemInfo:
        """/proc/meminfo (or its `text`) and the named NUMA nodes, the others as they are `known`."""
        found = {node: read for node in nodes if (read := self._node(node)) is not None}
        text = self.meminfo() if text is None else text
        return _meminfo(text.decode("utf-8", "replace"), {**(known or {}), **found}, self._over_meminfo())

    def meminfo(self) -> bytes:
        """/proc/meminfo as it stands; empty where there is none."""
        return self._files.read(self._procfs + "/meminfo", whole=False) or b""  # the kernel gives it in one piece

    def _over_meminfo(self) -> str | None:
        """The kind of what is mounted over /proc/meminfo; in a copied tree, over that of the process that copied it."""
        if self._mounted is None:
            places = {
                f"{self._procfs}/meminfo",
                *(() if os.path.islink(self._procfs + "/self") else ("/proc/meminfo",)),
            }
            lines = (self._text(self._procfs + "/self/mountinfo") or "").splitlines()
            parts = (line.partition(" - ") for line in lines)
            kinds = (kind.split() for mount, _, kind in parts if any(mount.split()[4:5] == [place] for place in places))
            self._mounted = next((kind[0] for kind in kinds if kind), "")
        return self._mounted or None

    def nodes(self) -> dict[int, NodeMem]:
        """Every NUMA node with a meminfo file; empty without a /sys tree."""
        names = self._files.names(self._nodes_dir)
        numbers = sorted(int(match[1]) for name in names if (match := _NODE_NAME.match(name)))
        return {number: read for number in numbers if (read := self._node(number)) is not None}

    def host(self, mem: MemInfo) -> Host:
        """Name, CPU %, swap and pressure; rates are over the time since the last call, None at the first."""
        now = self._counters()
        last, self._last = self._last, now
        board = self._board.read()
        swap = None if mem.swap_total is None or mem.swap_free is None else mem.swap_total - mem.swap_free
        return Host(
            name=self.name(),
            cpu_percent=None if last is None else _cpu_percent(last, now),
            mem_total_bytes=mem.total,
            mem_available_bytes=mem.available,
            swap_used_bytes=swap,
            swap_out_bytes_s=None if last is None else self._swap_out(last, now),
            psi_full_avg10=self._psi(),
            power_w=board.rails.get(TOTAL),
            power_rails_w=board.rails,
            prochot=board.prochot,
        )

    def name(self) -> str:
        """The host name of the tree, else of this machine."""
        text = self._text(self._procfs + "/sys/kernel/hostname")
        return (text or "").strip() or socket.gethostname()

    def cdmm(self) -> bool:
        """Whether the driver keeps HBM to itself (coherent driver-based memory) and not as a NUMA node."""
        match = _COHERENT_MODE.search(self._text(self._procfs + "/driver/nvidia/params") or "")
        return match is not None and match[1] == "driver"

    def pid_max(self) -> int:
        """The largest process id this machine can hand out."""
        return _int(self._text(self._procfs + "/sys/kernel/pid_max")) or _LARGEST_PID

    def process_name(self, pid: int) -> str | None:
        """The name of a process by its id on the host; None in a pid namespace with ids of its own."""
        if not self._sees_host_pids():
            return None
        short = _printable(self._text(f"{self._procfs}/{pid}/comm"))
        command = _printable((self._text(f"{self._procfs}/{pid}/cmdline") or "").split("\0")[0])
        # comm is cut at 15 characters; the command line has the whole of the same name.
        long = mask(command).rsplit("/", 1)[-1]  # a title that a process gave itself may have all its arguments
        return long if long.startswith(short) and long else short or None

    def _sees_host_pids(self) -> bool:
        try:
            return os.readlink(self._procfs + "/self/ns/pid") == _FIRST_PID_NAMESPACE
        except OSError:
            return True  # not a live /proc of ours: a copy or the host's, mounted elsewhere

    def _node(self, number: int) -> NodeMem | None:
        folder = f"{self._nodes_dir}/node{number}"
        text, line = "\n" + (self._text(folder + "/meminfo") or ""), f"\nNode {number} "
        total, free = _bytes(text, line + "MemTotal:"), _bytes(text, line + "MemFree:")
        if total is None or free is None:
            return None
        cache = (_bytes(text, line + name) or 0 for name in ("Active(file):", "Inactive(file):", "SReclaimable:"))
        cpus = self._text(folder + "/cpulist")
        return NodeMem(total, free, sum(cache), has_cpus=None if cpus is None else bool(cpus.strip()))

    def _counters(self) -> _Counters:
        busy, total = _jiffies(self._text(self._procfs + "/stat"))
        swapped = _number("\n" + (self._text(self._procfs + "/vmstat") or ""), "\npswpout ")
        return _Counters(self._files.clock(), busy, total, swapped)

    def _swap_out(self, last: _Counters, now: _Counters) -> float | None:
        if last.swapped_out is None or now.swapped_out is None or now.at <= last.at:
            return None
        pages = now.swapped_out - last.swapped_out
        return pages * self._files.page_size / (now.at - last.at) if pages >= 0 else None

    def _psi(self) -> float | None:
        match = _PSI_FULL.search(self._text(self._procfs + "/pressure/memory") or "")
        try:
            return None if match is None else float(match[1])
        except ValueError:
            return None

    def _text(self, path: str) -> str | None:
        text = self._files.read(path)
        return None if text is None else text.decode("utf-8", "replace")


def available_in(text: bytes) -> int | None:
    """MemAvailable of a meminfo, in bytes: the one number that is worth a look ten times a second."""
    start = text.find(b"\nMemAvailable:")
    number = text[start + 14 : text.find(b" kB", start)] if start >= 0 else b""
    return int(number) * 1024 if number.strip().isdigit() else None


def _read_bytes(path: str, *, whole: bool = True) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = piece = os.read(file, 65536)
        while whole and piece:
            piece = os.read(file, 65536)
            text += piece
        return text
    except OSError:
        return None
    finally:
        os.close(file)


def _int(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _printable(text: str | None) -> str:
    return "".join(c for c in text or "" if c.isprintable()).strip()


def _number(text: str, label: str) -> int | None:
    """The number behind `label`, which begins with the line feed before it; None for none, or a negative one."""
    start = text.find(label)
    if start < 0:
        return None
    words = text[start + len(label) : start + len(label) + 40].partition("\n")[0].split()
    value = _int(words[0]) if words else None
    return None if value is None or value < 0 else value


def _bytes(text: str, label: str) -> int | None:
    """As `_number`, of a line in kB."""
    value = _number(text, label)
    return None if value is None else value * 1024


def _meminfo(text: str, nodes: dict[int, NodeMem], mounted: str | None) -> MemInfo:
    text = "\n" + text
    free, available = _bytes(text, "\nMemFree:"), _bytes(text, "\nMemAvailable:")
    approximate = available is None and free is not None
    if available is None and free is not None:
        cache = (_bytes(text, "\nActive(file):") or 0) + (_bytes(text, "\nInactive(file):") or 0)
        available = free + cache // 2
    page = _bytes(text, "\nHugepagesize:") or 0
    return MemInfo(
        total=_bytes(text, "\nMemTotal:"),
        free=free,
        available=available,
        available_approx=approximate,
        huge_total=(_number(text, "\nHugePages_Total:") or 0) * page,
        huge_free_bytes=(_number(text, "\nHugePages_Free:") or 0) * page,
        swap_total=_bytes(text, "\nSwapTotal:"),
        swap_free=_bytes(text, "\nSwapFree:"),
        nodes=nodes,
        mounted=mounted,
    )


def _jiffies(text: str | None) -> tuple[int | None, int | None]:
    """Busy and all jiffies of the `cpu` line of /proc/stat; guest time is already in user time."""
    fields = (text or "").partition("\n")[0].split()
    try:
        numbers = [int(number) for number in fields[1:9]]
    except ValueError:
        return None, None
    if fields[:1] != ["cpu"] or len(numbers) < 4:
        return None, None
    idle = sum(numbers[3:5])  # idle and waiting for I/O
    return sum(numbers) - idle, sum(numbers)


def _cpu_percent(last: _Counters, now: _Counters) -> float | None:
    if last.busy is None or last.all is None or now.busy is None or now.all is None or now.all <= last.all:
        return None
    return min(100.0, max(0.0, 100.0 * (now.busy - last.busy) / (now.all - last.all)))
