"""Parts of a reading to one `Snapshot`: pools, energy, marks and findings, remembered from one to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llmtop.contract.snapshot import Device, FleetView, Mark, Pool, Rail, ServerView, Snapshot, SourceStatus, State
from llmtop.engines.limits import of_all
from llmtop.engines.ranks import RankProcess
from llmtop.fleet.models import models
from llmtop.machine.headroom import LowWater, MemoryMode, PoolWatch, pools
from llmtop.machine.holders import Owner, with_holders
from llmtop.machine.sample import MachineSample
from llmtop.nodes.reading import NodeReading
from llmtop.session.energy import EnergyMeter
from llmtop.session.events import EventLog
from llmtop.session.findings import Findings
from llmtop.session.places import Places
from llmtop.session.spread import SpreadServers, paired

_NOBODY: Mapping[str, int] = {}


@dataclass(slots=True)
class _Memory:
    """What is remembered of the memory of one machine."""

    low_water: LowWater = field(default_factory=LowWater)
    watch: PoolWatch = field(default_factory=PoolWatch)
    pools: tuple[Pool, ...] = ()
    read_at: float | None = None


class Assembler:
    """Builds the snapshots of one session."""

    def __init__(self, memory: MemoryMode = "auto", *, this_machine: bool = False) -> None:
        self._memory: MemoryMode = memory
        self._asked = this_machine
        self._memories: dict[str, _Memory] = {}  # by node
        self._energy, self._findings, self._events = EnergyMeter(), Findings(), EventLog()
        self._marked: float | None = None
        self._epoch = LowWater.START
        self._marks: list[Mark] = []

    def mark(self, text: str, now: float) -> None:
        """Begin a new low-water epoch and note it in the next snapshot."""
        self._marked, self._epoch = now, LowWater.MARK
        for memory in self._memories.values():
            memory.low_water.mark(now)
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
        remote: Sequence[NodeReading] = (),
        fleet: FleetView | None = None,
        owners: Mapping[int, Owner] | None = None,
        ranks: Sequence[RankProcess] = (),
        pids: Mapping[str, int] = _NOBODY,
    ) -> Snapshot:
        """The snapshot at monotonic `t` and Unix `now`; `devices_of` maps server URLs to the devices they use.

        `outputs` is what is wrong with the files that are written, `remote` what was read of other machines, `owners`
        are those of this machine's processes, `ranks` the parts of servers on it, `pids` the processes behind the URLs.
        """
        far = [(reading, reading.sample) for reading in remote if reading.sample is not None]
        self._energy.push((*sample.devices, *(device for _, read in far for device in read.devices)), now)
        views = tuple(self._energy.fill(view, devices_of.get(view.url, ())) for view in servers)
        place = Places(views, sample.host, self._asked, remote)
        starts = {view.node for view in place.servers if view.state is State.STARTING}
        found = self._pools(sample, "", now, loading=place.name in starts)
        names = {view.url: view.name or view.model for view in views}
        here = [with_holders(replace(pool, node=place.name), sample.devices, owners or {}, names) for pool in found]
        devices = [(place.name, device) for device in sample.devices] if place.shown else []
        devices += [(reading.name, device) for reading, read in far for device in read.devices]
        there = [
            with_holders(pool, read.devices, reading.owners, names)
            for reading, read in far
            for pool in self._far_pools(reading, read, loading=reading.name in starts)
        ]
        snapshot = Snapshot(
            time=now,
            servers=place.servers,
            devices=tuple(replace(device, node=name) for name, device in devices),
            host=place.host,
            pools=(*(here if place.shown else ()), *there),
            limited_by=of_all(view.limited_by for view in views),
            sources=(
                *(sample.status if place.shown else ()),
                *(status for reading in remote for status in reading.status),
                *outputs,
            ),
            marks=tuple(self._marks),
            simulated=sample.host.simulated,
            nodes=place.nodes,
            fleet=fleet,
            fabric=_fabric(place, sample, far),
            models=models(place.servers, fleet.source) if fleet is not None else (),
        )
        self._marks.clear()
        everywhere = [(place.name, rank) for rank in ranks]
        everywhere += [(reading.name, rank) for reading in remote for rank in reading.ranks]
        snapshot = replace(snapshot, servers=SpreadServers(snapshot, everywhere, pids).servers)
        found_out = replace(snapshot, findings=self._findings.update(snapshot, t))
        return replace(found_out, events=self._events.update(found_out))

    def _pools(self, sample: MachineSample, node: str, at: float, *, loading: bool) -> tuple[Pool, ...]:
        """The pools of a machine as read at `at`; the same reading is judged once."""
        memory = self._memories.get(node)
        if memory is None:
            memory = self._memories[node] = _Memory()
            if self._marked is not None:
                memory.low_water.mark(self._marked)
        if memory.read_at != at:
            found = pools(sample, self._memory)
            memory.low_water.feed(found, sample.dips, sample.time)
            memory.pools, memory.read_at = memory.watch.update(found, sample.host, at, loading=loading), at
        return memory.low_water.fill(memory.pools, self._epoch)

    def _far_pools(self, reading: NodeReading, sample: MachineSample, *, loading: bool) -> list[Pool]:
        """The pools of another machine; what is not read any more is judged no more."""
        known = self._pools(sample, reading.name, sample.time, loading=loading)
        found = [replace(pool, node=reading.name) for pool in known]
        if reading.state == "ok":
            return found
        return [replace(pool, state=None, falling_bytes_s=None, empty_in_s=None, reason=None) for pool in found]


def _fabric(place: Places, sample: MachineSample, far: Sequence[tuple[NodeReading, MachineSample]]) -> tuple[Rail, ...]:
    """The rails of every machine that is shown, with what is at their other ends."""
    here = [replace(rail, node=place.name) for rail in (sample.fabric if place.shown else ())]
    return paired([*here, *(replace(rail, node=reading.name) for reading, read in far for rail in read.fabric)])
