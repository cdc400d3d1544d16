"""Parts of a reading to one `Snapshot`: pools, energy, marks and findings, remembered from one to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmtop.contract.snapshot import Device, Mark, Pool, ServerView, Snapshot, SourceStatus, State
from llmtop.engines.limits import of_all
from llmtop.machine.headroom import LowWater, MemoryMode, PoolWatch, pools
from llmtop.machine.sample import MachineSample
from llmtop.session.energy import EnergyMeter
from llmtop.session.events import EventLog
from llmtop.session.findings import Findings
from llmtop.session.places import Places


class Assembler:
    """Builds the snapshots of one session."""

    def __init__(self, memory: MemoryMode = "auto", *, this_machine: bool = False) -> None:
        self._memory: MemoryMode = memory
        self._asked = this_machine
        self._low_water, self._watch = LowWater(), PoolWatch()
        self._energy, self._findings, self._events = EnergyMeter(), Findings(), EventLog()
        self._epoch = LowWater.START
        self._marks: list[Mark] = []

    def mark(self, text: str, now: float) -> None:
        """Begin a new low-water epoch and note it in the next snapshot."""
        self._low_water.mark(now)
        self._epoch = LowWater.MARK
        self.note(Mark("mark", text, now))

    def note(self, mark: Mark) -> None:
        """Put a mark into the next snapshot without a new epoch."""
        self._marks.append(mark)

    def build(
        self,
        servers: Sequence[ServerView],
        sample: MachineSample,
        t: float,
        now: float,
        devices_of: Mapping[str, Sequence[Device]],
        outputs: Sequence[SourceStatus] = (),
    ) -> Snapshot:
        """The snapshot at monotonic `t` and Unix `now`; `devices_of` maps server URLs to the devices they use.

        `outputs` is what is wrong with the files that are written.
        """
        self._energy.push(sample.devices, now)
        views = tuple(self._energy.fill(view, devices_of.get(view.url, ())) for view in servers)
        place = Places(views, sample.host, asked=self._asked)
        found = self._pools(sample, now, loading=any(v.local and v.state is State.STARTING for v in views))
        snapshot = Snapshot(
            time=now,
            servers=place.servers,
            devices=tuple(replace(device, node=place.name) for device in sample.devices) if place.shown else (),
            host=place.host,
            pools=tuple(replace(pool, node=place.name) for pool in found) if place.shown else (),
            limited_by=of_all(view.limited_by for view in views),
            sources=(*(sample.status if place.shown else ()), *outputs),
            marks=tuple(self._marks),
            simulated=sample.host.simulated,
            nodes=place.nodes,
        )
        self._marks.clear()
        found_out = replace(snapshot, findings=self._findings.update(snapshot, t))
        return replace(found_out, events=self._events.update(found_out))

    def _pools(self, sample: MachineSample, now: float, *, loading: bool) -> tuple[Pool, ...]:
        found = pools(sample, self._memory)
        self._low_water.feed(found, sample.dips, sample.time)
        return self._watch.update(self._low_water.fill(found, self._epoch), sample.host, now, loading=loading)
