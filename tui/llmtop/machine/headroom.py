"""Memory pools: how much is left of each, the least that was ever left, and whether that is a problem.

For every pool `used + reserved + headroom == total`, and a number that no source gave stays None.

A percentage says little: a GB10 runs for weeks with 4 % available. What precedes a dead machine is headroom
that falls without stopping, tasks that stall for memory, and pages being swapped out: see `PoolWatch`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from llmtop.contract.snapshot import Device, DeviceMemory, Host, Pool
from llmtop.machine.killers import lines
from llmtop.machine.sample import Dip, MachineSample, MemInfo, NodeMem
from llmtop.machine.suspicion import foreign

MemoryMode = Literal["auto", "unified", "discrete"]

Level = Literal["ok", "low", "critical"]

_GIB = 2**30
_SEVERITY: dict[Level, int] = {"ok": 0, "low": 1, "critical": 2}

EMPTY_SOON_S = 15.0  # time to zero that is worth an alarm
NEARLY_FULL = 0.10  # share of the total below which an imminent zero is critical
PSI_LOW, PSI_CRITICAL = 1.0, 10.0  # "full avg10": % of the time in which every task waited for memory
SWAP_OUT_LOW = 50e6  # bytes/s
HOST_LOW = 0.03  # share of the total
HBM_LOW = (2 * _GIB, 0.05)  # whichever is less
HBM_CRITICAL = (_GIB // 2, 0.01)

TREND_S = 3.25  # a little more than three readings a second apart
TREND_MIN_S = 1.9
TREND_NOISE = 2**20  # bytes/s: slower than this is not falling
SAME_SIZE = 0.03
NOT_OURS = "unknown: /proc/meminfo is not this machine's (that of a container?)"
IN_DOUBT = "in doubt: /proc/meminfo may not be this machine's"
HOLD_S = 3.0  # a state is left only after this long below it

_GRACE = re.compile(r"\bG[HB][1-9]00\b")


def is_grace(name: str | None) -> bool:
    """Whether a device name is a Grace Hopper or Grace Blackwell part: HBM beside the CPU's own LPDDR."""
    return name is not None and _GRACE.search(name) is not None


def pool_key(pool: Pool) -> str:
    """The key of a pool in `MachineSample.dips` and `LowWater`: the device for HBM, else the kind."""
    return (pool.device or pool.name) if pool.kind == "hbm" else pool.kind


def device_key(device: Device) -> str:
    """The `pool_key` of the HBM pool of a device."""
    return device.uuid or _device_name(device)


def device_headroom(memory: DeviceMemory) -> int:
    """Bytes of device memory nobody holds: NVML total - reserved - used (v2; v1 counts reserved as used)."""
    return max(0, memory.total - memory.reserved - memory.used)


def pools(sample: MachineSample, memory_mode: MemoryMode = "auto") -> tuple[Pool, ...]:
    """The memory pools of a machine, GPU memory first; a MIG instance stands in for its parent.

    Discrete cards have one pool each and host RAM apart; Grace has HBM and LPDDR, never added; on GB10, Thor
    and Orin the only pool is the host's memory.
    """
    own = tuple(
        _hbm(device, sample)
        for device in sample.devices
        if not is_unified(device, memory_mode) and not _is_split(device, sample.devices)
    )
    host = host_pool(sample.mem, sample.devices, sample.cdmm, memory_mode)
    if host is None:
        return own
    # on Grace HBM may count with it, and a share of all is none of the pool's
    if host.headroom_bytes is not None and (host.kind != "lpddr" or sample.cdmm):
        host = replace(host, killers=lines(sample.killers, sample.mem))
    return (host, *own) if host.kind == "unified" else (*own, host)


def is_unified(device: Device, memory_mode: MemoryMode) -> bool:
    """Whether the device allocates from host memory, by what was read or by the user's override."""
    wanted = memory_mode == "unified" or (memory_mode == "auto" and device.unified)
    return wanted and device.mig is None


def host_pool(mem: MemInfo, devices: Sequence[Device], cdmm: bool, memory_mode: MemoryMode = "auto") -> Pool | None:
    """The pool made of host memory ("unified", "lpddr" or "ram"); None where /proc/meminfo gave nothing."""
    shared = [device for device in devices if is_unified(device, memory_mode)]
    why = mem.foreign or foreign(mem, shared)
    if shared:
        return _unified(mem, shared[0], why)
    if mem.total is None:
        return None
    if any(is_grace(device.name) for device in devices):
        return _lpddr(mem, devices, cdmm, why)
    basis = _available_basis(mem) + ("" if why is None else f", of the container alone ({why})")
    return _host_pool("RAM", "ram", mem.total, mem.available, basis)


def _device_name(device: Device) -> str:
    if device.mig is not None:
        return f"GPU {device.index} MIG {device.mig}"
    return f"GPU {device.index} HBM" if is_grace(device.name) else f"GPU {device.index} memory"


def _is_split(device: Device, devices: Sequence[Device]) -> bool:
    return device.mig is None and any(d.mig is not None and d.index == device.index for d in devices)


def _hbm(device: Device, sample: MachineSample) -> Pool:
    pool = Pool(_device_name(device), "hbm", device=device.uuid)
    memory = device.memory
    if device.state == "LOST" or memory is None:
        return replace(pool, basis=device.reason or "the driver gives no memory size for this device")
    headroom = device_headroom(memory)
    reserved = min(memory.reserved, memory.total)
    return replace(
        pool,
        total_bytes=memory.total,
        used_bytes=memory.total - reserved - headroom,
        reserved_bytes=reserved,
        headroom_bytes=headroom,
        cuda_free_bytes=headroom,
        reclaimable_bytes=_cache_in_hbm(device, sample),
        basis="NVML total - reserved - used",
    )


def _cache_in_hbm(device: Device, sample: MachineSample) -> int | None:
    """Page cache the kernel keeps in this device's memory, which happens only where HBM is a NUMA node."""
    if sample.cdmm:
        return 0
    nodes = _hbm_nodes((device,), sample.mem)
    if not nodes:
        return None if is_grace(device.name) else 0
    # Several devices without a node id of their own: no telling which cache is whose.
    return nodes[0].reclaimable if len(nodes) == 1 else None


def _hbm_nodes(devices: Sequence[Device], mem: MemInfo) -> list[NodeMem]:
    """The NUMA nodes made of HBM: those NVML names, else (on Grace) those with memory and no CPUs.

    Where nobody says which node has CPUs, it is the one as large as a device.
    """
    named = {device.numa_node for device in devices if device.numa_node is not None}
    nodes = [mem.nodes[n] for n in sorted(named) if n in mem.nodes and mem.nodes[n].has_cpus is not True]
    nodes = [node for node in nodes if node.total > 0]
    if nodes or not any(is_grace(device.name) for device in devices):
        return nodes
    populated = [node for node in mem.nodes.values() if node.total > 0]
    bare = [node for node in populated if node.has_cpus is False]
    untold = [node for node in populated if node.has_cpus is None]
    return bare or [node for node in untold if any(_as_large(node, device) for device in devices)]


def _as_large(node: NodeMem, device: Device) -> bool:
    """Whether a node may be a device's memory: the driver keeps less than a hundredth of a GH200's to itself."""
    total = device.memory.total if device.memory is not None else 0
    return abs(node.total - total) < SAME_SIZE * total


def _lpddr(mem: MemInfo, devices: Sequence[Device], cdmm: bool, why: str | None) -> Pool:
    name, basis, total, available = "Grace LPDDR", _available_basis(mem), mem.total or 0, mem.available
    if why is not None:
        return Pool(name, "lpddr", basis=NOT_OURS, reason=why)
    populated = [node for node in mem.nodes.values() if node.total > 0]
    hbm = [] if cdmm else _hbm_nodes(devices, mem)
    if hbm:
        total -= sum(node.total for node in hbm)
        in_hbm = sum(node.free + node.reclaimable for node in hbm)
        available = None if available is None else available - in_hbm
        return _host_pool(name, "lpddr", total, available, f"{basis} - HBM node")
    if cdmm or len(populated) == 1 or (populated and all(node.has_cpus for node in populated)):
        return _host_pool(name, "lpddr", total, available, basis)
    return Pool(name, "lpddr", basis="unknown: MemTotal may contain HBM, whose NUMA node was not found")


def _unified(mem: MemInfo, device: Device, why: str | None) -> Pool:
    name = (device.name or "GPU").removeprefix("NVIDIA ").strip() + " unified"
    if why is not None:
        return Pool(name, "unified", device=device.uuid, basis=NOT_OURS, reason=why)
    if mem.total is None:
        return Pool(name, "unified", device=device.uuid, basis="unknown: /proc/meminfo gave nothing")
    gain = None if mem.available is None or mem.free is None else max(0, mem.available - mem.free)
    # With HugeTLB configured, CUDA can allocate from free huge pages only.
    available = mem.huge_free_bytes if mem.huge_total else mem.available
    basis = "free huge pages" if mem.huge_total else _available_basis(mem)
    pool = _host_pool(name, "unified", mem.total, available, basis, device.uuid, mem.free, gain)
    return pool if mem.doubt is None else replace(pool, basis=f"{pool.basis}, {IN_DOUBT}", reason=mem.doubt)


def _host_pool(
    name: str,
    kind: Literal["unified", "lpddr", "ram"],
    total: int,
    available: int | None,
    basis: str,
    device: str | None = None,
    cuda_free: int | None = None,
    reclaimable: int | None = None,
) -> Pool:
    headroom = None if available is None else min(max(0, available), total)
    return Pool(
        name,
        kind,
        device=device,
        total_bytes=total,
        used_bytes=None if headroom is None else total - headroom,
        reserved_bytes=0,
        headroom_bytes=headroom,
        cuda_free_bytes=cuda_free,
        reclaimable_bytes=reclaimable,
        basis=_told(basis, available, total),
    )


def _told(basis: str, available: int | None, total: int) -> str:
    if available is None:
        return "unknown: no MemAvailable"
    return basis if available <= total else f"{basis}, no more than the total (/proc/meminfo has more available)"


def _available_basis(mem: MemInfo) -> str:
    return "≈ MemFree + half of the file cache" if mem.available_approx else "MemAvailable"


@dataclass(slots=True)
class _Epoch:
    began: float
    ended: float | None = None
    least: dict[str, Dip] = field(default_factory=dict)

    def take(self, key: str, dip: Dip) -> None:
        inside = dip.time >= self.began and (self.ended is None or dip.time <= self.ended)
        if inside and (key not in self.least or dip.headroom_bytes < self.least[key].headroom_bytes):
            self.least[key] = dip


class LowWater:
    """The least headroom of every pool and when it was seen: since the start, since a mark, per named phase.

    A reading counts by the time it was made, so a dip delivered late still goes to the phase it fell in.
    """

    START = "start"
    MARK = "mark"

    def __init__(self) -> None:
        self._epochs = {self.START: _Epoch(began=float("-inf"))}

    def feed(self, pools: Iterable[Pool], dips: Mapping[str, Dip], time: float) -> None:
        """Take the current headrooms, read at `time`, and the dips seen between two readings."""
        for pool in pools:
            key = pool_key(pool)
            if pool.headroom_bytes is not None:
                self._take(key, Dip(pool.headroom_bytes, time))
            if key in dips:
                self._take(key, dips[key])

    def mark(self, time: float) -> None:
        """Begin the epoch "mark" anew."""
        self.begin(self.MARK, time)

    def begin(self, name: str, time: float) -> None:
        """Begin an epoch called `name` at `time`, forgetting an earlier one of that name."""
        self._epochs[name] = _Epoch(began=time)

    def end(self, name: str, time: float) -> None:
        """End an epoch; its minima stay readable. An unknown name is ignored."""
        if name in self._epochs:
            self._epochs[name].ended = time

    def epoch(self, name: str = START) -> Mapping[str, Dip]:
        """The least headroom per `pool_key` within an epoch; empty for one that never began."""
        known = self._epochs.get(name)
        return {} if known is None else dict(known.least)

    def fill(self, pools: Iterable[Pool], name: str = START) -> tuple[Pool, ...]:
        """The pools with `low_water_bytes` and `low_water_time` of an epoch."""
        least = self.epoch(name)
        return tuple(_with_low_water(pool, least.get(pool_key(pool))) for pool in pools)

    def _take(self, key: str, dip: Dip) -> None:
        for epoch in self._epochs.values():
            epoch.take(key, dip)


def _with_low_water(pool: Pool, dip: Dip | None) -> Pool:
    if dip is None or pool.basis == NOT_OURS:  # what was read before that was known is no low
        return pool
    return replace(pool, low_water_bytes=dip.headroom_bytes, low_water_time=dip.time)


@dataclass(frozen=True, slots=True)
class _Verdict:
    level: Level
    reason: str | None = None


@dataclass(slots=True)
class _Track:
    """What is remembered of one pool: recent readings, the state held and when it was last deserved."""

    readings: deque[tuple[float, int]] = field(default_factory=deque)
    held: _Verdict = _Verdict("ok")
    deserved: float = 0.0


class PoolWatch:
    """Decides `state`, `reason`, `falling_bytes_s` and `empty_in_s` of pools from reading to reading."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}

    def update(self, pools: Iterable[Pool], host: Host, time: float, *, loading: bool = False) -> tuple[Pool, ...]:
        """The pools with their state at `time` in seconds; state None where headroom is unknown.

        While a server is `loading`, a fall ends with its weights and its cache: it is a trend only near the end.
        """
        return tuple(self._judge(pool, host, time, loading) for pool in pools)

    def _judge(self, pool: Pool, host: Host, time: float, loading: bool) -> Pool:
        key = pool_key(pool)
        if pool.headroom_bytes is None or not pool.total_bytes:
            self._tracks.pop(key, None)
            return replace(pool, state=None, falling_bytes_s=None, empty_in_s=None)
        track = self._tracks.setdefault(key, _Track())
        rate = falling(track.readings, time, pool.headroom_bytes)
        goes_on = rate is not None and not (loading and _share(pool) >= NEARLY_FULL)
        empty_in = pool.headroom_bytes / rate if rate is not None and goes_on else None
        pool = replace(pool, falling_bytes_s=rate, empty_in_s=empty_in)
        verdict = _hold(track, _verdict(pool, host), time)
        if verdict.level == "ok" and pool.reason is not None:  # a figure in doubt is no reason to be calm
            return replace(pool, state=None)
        return replace(pool, state=verdict.level, reason=verdict.reason)


def falling(readings: deque[tuple[float, int]], time: float, headroom: int) -> float | None:
    """Add a reading and give the rate at which headroom falls in bytes/s; None while it does not.

    The lesser of the rates over the first and the second half of the last 3 s (of the last two readings, if these
    are further apart): one large allocation or one odd reading is no trend.
    """
    if readings and time <= readings[-1][0]:
        readings.clear()
    readings.append((time, headroom))
    while len(readings) > 2 and readings[0][0] < time - TREND_S:
        readings.popleft()
    if time - readings[0][0] < TREND_MIN_S:
        return None
    turn = readings[len(readings) // 2]
    halves = [(start, end) for start, end in ((readings[0], turn), (turn, readings[-1])) if start != end]
    rate = min((start[1] - end[1]) / (end[0] - start[0]) for start, end in halves)
    return rate if rate > TREND_NOISE else None


def _verdict(pool: Pool, host: Host) -> _Verdict:
    causes = _trend_causes(pool) + (_hbm_causes(pool) if pool.kind == "hbm" else _host_causes(pool, host))
    if not causes:
        return _Verdict("ok")
    worst = max((cause.level for cause in causes), key=lambda level: _SEVERITY[level])
    return _Verdict(worst, "; ".join(c.reason for c in causes if c.level == worst and c.reason))


def _trend_causes(pool: Pool) -> list[_Verdict]:
    rate, empty_in = pool.falling_bytes_s, pool.empty_in_s
    if rate is None or empty_in is None or empty_in >= EMPTY_SOON_S:
        return []
    level: Level = "critical" if _share(pool) < NEARLY_FULL else "low"
    return [_Verdict(level, f"empty in {empty_in:.0f} s if it keeps falling by {rate / _GIB:.1f} GiB/s")]


def _host_causes(pool: Pool, host: Host) -> list[_Verdict]:
    causes: list[_Verdict] = []
    psi, swap_out = host.psi_full_avg10, host.swap_out_bytes_s
    if psi is not None and psi > PSI_LOW:
        level: Level = "critical" if psi > PSI_CRITICAL else "low"
        causes.append(_Verdict(level, f"all tasks wait for memory {psi:.0f} % of the time (PSI full)"))
    if _share(pool) < HOST_LOW:
        causes.append(_Verdict("low", _left(pool)))
    strikes = next((killer for killer in pool.killers if killer.armed and killer.headroom_bytes), None)
    if strikes is not None and (pool.headroom_bytes or 0) < (strikes.headroom_bytes or 0) + _GIB:
        at = f"{strikes.name} kills at {(strikes.headroom_bytes or 0) / _GIB:.1f} GiB"
        causes.append(_Verdict("low", f"{(pool.headroom_bytes or 0) / _GIB:.1f} GiB left, {at}"))
    if swap_out is not None and swap_out > SWAP_OUT_LOW:
        causes.append(_Verdict("low", f"swapping out {swap_out / 1e6:.0f} MB/s"))
    return causes


def _hbm_causes(pool: Pool) -> list[_Verdict]:
    headroom, total = pool.headroom_bytes or 0, pool.total_bytes or 0
    steps: tuple[tuple[Level, tuple[int, float]], ...] = (("critical", HBM_CRITICAL), ("low", HBM_LOW))
    for level, (size, share) in steps:
        if headroom < min(size, share * total):
            return [_Verdict(level, _left(pool))]
    return []


def _hold(track: _Track, now: _Verdict, time: float) -> _Verdict:
    milder = _SEVERITY[now.level] < _SEVERITY[track.held.level]
    if milder and 0 <= time - track.deserved < HOLD_S:
        return track.held
    track.held, track.deserved = now, time
    return now


def _share(pool: Pool) -> float:
    return (pool.headroom_bytes or 0) / (pool.total_bytes or 1)


def _left(pool: Pool) -> str:
    return f"{(pool.headroom_bytes or 0) / _GIB:.1f} GiB left ({_share(pool):.1%})"
