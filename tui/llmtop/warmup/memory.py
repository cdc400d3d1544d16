"""The machine's memory during a start-up: every reading with its time, and the least of any interval."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from llmtop.contract.snapshot import Device, Pool
from llmtop.machine.headroom import PoolWatch, pool_key, pools
from llmtop.machine.sample import Dip
from llmtop.machine.source import MachineSource
from llmtop.warmup.evidence import MachineMemory

_MAX_READINGS = 72_000  # four hours at 5 Hz
_JUDGE_S = 0.5  # states and trends change slowly; the dips are taken at every step
_FELL = 256 * 2**20
_ENGINE_WORDS = ("vllm", "enginecore", "sglang")


class MemoryLog:
    """Reads a machine source and keeps what it said about every pool."""

    def __init__(self, source: MachineSource) -> None:
        self._source = source
        self._watch = PoolWatch()
        self._times: dict[str, list[float]] = {}
        self._values: dict[str, list[int]] = {}
        self._devices: tuple[Device, ...] = ()
        self._judged = 0.0
        self.pools: tuple[Pool, ...] = ()

    def start(self) -> None:
        """Begin sampling."""
        self._source.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._source.stop()

    def ready(self) -> bool:
        """Whether the machine was read once in full."""
        return self._source.ready()

    def step(self, judge: bool = False) -> None:
        """Take the newest reading and the dips since the last one; `judge` brings the pools up to date at once."""
        sample = self._source.sample()
        for key, dip in sample.dips.items():
            self._add(key, dip)
        if self.pools and not judge and sample.time - self._judged < _JUDGE_S:
            return
        self._judged, self._devices = sample.time, sample.devices
        self.pools = self._watch.update(pools(sample), sample.host, sample.time, loading=True)
        for pool in self.pools:
            if pool.headroom_bytes is not None and pool_key(pool) not in sample.dips:
                self._add(pool_key(pool), Dip(pool.headroom_bytes, sample.time))

    def _add(self, key: str, dip: Dip) -> None:
        times, values = self._times.setdefault(key, []), self._values.setdefault(key, [])
        at = bisect_right(times, dip.time)
        times.insert(at, dip.time)
        values.insert(at, dip.headroom_bytes)
        if len(times) > _MAX_READINGS:
            del times[0], values[0]

    def least(self, key: str, began: float, ended: float) -> Dip | None:
        """The least headroom of a pool from `began` until before `ended`; None when it was not read in between."""
        times = self._times.get(key, [])
        first, last = bisect_left(times, began), bisect_left(times, ended)
        if first >= last:
            return None
        values = self._values[key][first:last]
        least = min(values)
        return Dip(least, times[first + values.index(least)])

    def readings(self, key: str | None) -> list[tuple[float, int]]:
        """All readings of a pool, oldest first."""
        return [] if key is None else list(zip(self._times.get(key, []), self._values.get(key, []), strict=True))

    def names(self) -> dict[str, str]:
        """Pool key -> name."""
        return {pool_key(pool): pool.name for pool in self.pools}

    def main(self) -> Pool | None:
        """The pool the engine fills: the tightest GPU whose headroom fell, else unified memory or RAM."""
        cards = [p for p in self.pools if p.kind == "hbm" and p.headroom_bytes is not None]
        fallen = [p for p in cards if self._fall(pool_key(p)) >= _FELL]
        if cards:
            return min(fallen or cards, key=lambda p: p.headroom_bytes or 0)
        return next((p for kind in ("unified", "ram") for p in self.pools if p.kind == kind), None)

    def _fall(self, key: str) -> int:
        values = self._values.get(key, [])
        return values[0] - min(values) if values else 0

    def memory(self, engine_pids: Iterable[int], whole: bool) -> MachineMemory | None:
        """The main pool for the ledger; `whole` says that it was watched from before the start."""
        pool = self.main()
        if pool is None:
            return None
        first = self._values.get(pool_key(pool), [])
        devices = [d for d in self._devices if pool.device is None or d.uuid == pool.device]
        engine, others = _owners(devices, set(engine_pids))
        return MachineMemory(
            name=pool.name,
            source="driver" if pool.kind == "hbm" else "/proc/meminfo",
            unified=pool.kind != "hbm",
            total_bytes=pool.total_bytes,
            used_bytes=pool.used_bytes,
            reserved_bytes=pool.reserved_bytes,
            engine_bytes=engine,
            others_bytes=others,
            free_at_start_bytes=first[0] if whole and first else None,
        )


def _owners(devices: list[Device], pids: set[int]) -> tuple[int | None, int | None]:
    """Memory of the engine's processes and of all others; None where the driver does not tell."""
    processes = [p for device in devices for p in device.processes]
    if not processes or any(p.memory_bytes is None for p in processes):
        return None, None
    mine = [p for p in processes if p.pid in pids or any(word in (p.name or "").lower() for word in _ENGINE_WORDS)]
    engine = sum(p.memory_bytes or 0 for p in mine)
    total = sum(p.memory_bytes or 0 for p in processes)
    return (engine if mine else None), total - engine
