"""Moments worth showing: a new peak of tok/s and a new low-water mark of memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmtop.contract.snapshot import Event, Pool, ServerView, Snapshot, State
from llmtop.contract.units import gib, rate

LEAST_GAIN = 0.05
LEARN_S = 30.0  # what comes sooner after the start or a mark is no record
LEAST_GAP_S = 20.0


@dataclass(slots=True)
class _Record:
    """The extreme so far, the one that was told last, and when that was."""

    since: float
    best: float
    told: float
    told_at: float


@dataclass(slots=True)
class Notices:
    """Remembers what was announced since the start or the last mark."""

    _records: dict[str, _Record] = field(default_factory=dict)

    def push(self, snapshot: Snapshot) -> list[Event]:
        """What is worth saying about this snapshot."""
        if any(mark.kind == "mark" for mark in snapshot.marks):
            self._records.clear()
        several = len(snapshot.servers) > 1
        found = [self._peak(server, several, snapshot.time) for server in snapshot.servers]
        found += [
            self._low_water(pool, snapshot.on(pool.node), snapshot.time)
            for pool in snapshot.pools
            if pool.kind != "ram"
        ]
        return [event for event in found if event is not None]

    def _peak(self, server: ServerView, several: bool, now: float) -> Event | None:
        value = server.rates.generation_tok_s
        if value is None or server.state is State.STALE:
            return None
        record = self._take(f"peak {server.url}", value, now)
        if record.best < record.told * (1 + LEAST_GAIN) or record.best <= 0 or not _due(record, now):
            return None
        record.told, record.told_at = record.best, now
        who = f"{server.name or server.model or server.url}: " if several else ""
        return Event(now, "peak", f"{who}new peak {rate(record.best)} tok/s", server.url, server.node)

    def _low_water(self, pool: Pool, where: str, now: float) -> Event | None:
        low, total = pool.low_water_bytes, pool.total_bytes
        if low is None or not total:
            return None
        record = self._take(f"low-water {pool.node} {pool.kind} {pool.device}", -low, now)
        if record.best < record.told + LEAST_GAIN * total or not _due(record, now):
            return None
        record.told, record.told_at = record.best, now
        text = f"new low-water {gib(low)} of {gib(total)} GiB ({pool.name}{where})"
        return Event(now, "low_water", text, node=pool.node)

    def _take(self, name: str, value: float, now: float) -> _Record:
        """The record with this value; while it is being learned nothing is news."""
        record = self._records.get(name)
        if record is None or now < record.since:  # the clock was set back
            record = self._records[name] = _Record(now, value, value, now)
        record.best = max(record.best, value)
        if now - record.since < LEARN_S:
            record.told, record.told_at = record.best, now - LEAST_GAP_S
        return record


def _due(record: _Record, now: float) -> bool:
    return now - record.since >= LEARN_S and now - record.told_at >= LEAST_GAP_S
