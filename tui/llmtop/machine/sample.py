"""What was read of the machine at one instant: host, devices, memory, and the dips in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmtop.contract.snapshot import Device, Host, Rail, SourceStatus

if TYPE_CHECKING:
    from llmtop.machine.killers import KillRule


@dataclass(frozen=True, slots=True)
class Dip:
    """The least headroom of one pool since the last reading, and when it was seen (Unix time)."""

    headroom_bytes: int
    time: float


@dataclass(frozen=True, slots=True)
class MemInfo:
    """The lines of /proc/meminfo and of the HBM node that headroom needs, in bytes."""

    total: int | None = None
    free: int | None = None
    available: int | None = None
    available_approx: bool = False
    huge_total: int = 0
    huge_free_bytes: int = 0
    swap_total: int | None = None
    swap_free: int | None = None
    nodes: dict[int, NodeMem] = field(default_factory=dict)
    mounted: str | None = None  # the file system that is mounted over it
    foreign: str | None = None  # why it is known not to be the machine's, but a container's
    doubt: str | None = None  # why it may not be


@dataclass(frozen=True, slots=True)
class NodeMem:
    """One NUMA node: total, free and page cache that could be given back (bytes), and whether it has CPUs."""

    total: int
    free: int
    reclaimable: int
    has_cpus: bool | None = None


@dataclass(frozen=True, slots=True)
class MachineSample:
    """One reading of the machine: host, devices, memory, and the dips caught since the last one.

    `dips` is keyed like `headroom.pool_key`: a device uuid for HBM, "unified", "lpddr" or "ram".
    """

    time: float
    host: Host = field(default_factory=Host)
    mem: MemInfo = field(default_factory=MemInfo)
    devices: tuple[Device, ...] = ()
    cdmm: bool = False
    dips: dict[str, Dip] = field(default_factory=dict)
    status: tuple[SourceStatus, ...] = ()
    killers: tuple[KillRule, ...] = ()
    fabric: tuple[Rail, ...] = ()
