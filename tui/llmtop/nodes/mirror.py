"""What a node's reader sent, as this machine's own readings are: a `MachineSample`, and the processes that serve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmtop.contract.snapshot import Device, Host
from llmtop.contract.units import clean
from llmtop.engines.discover import ServerProcess, server_processes
from llmtop.engines.ranks import RankProcess, rank_processes
from llmtop.machine.headroom import MemoryMode, host_pool, is_unified, pool_key
from llmtop.machine.holders import Owner
from llmtop.machine.host import HostReader
from llmtop.machine.owners import ProcessOwners
from llmtop.machine.sample import Dip, MachineSample, MemInfo
from llmtop.machine.suspicion import Suspicion
from llmtop.nodes.blocks import Block
from llmtop.nodes.smi import Gpus
from llmtop.nodes.tree import StreamedTree

_PAGES = range(1024, 2**21)
SMI_SILENT_S = 10.0


class Mirror:
    """The newest reading of a node."""

    def __init__(self, memory_mode: MemoryMode = "auto") -> None:
        self._mode: MemoryMode = memory_mode
        self._tree, self._gpus = StreamedTree(), Gpus(memory_mode)
        self._reader = HostReader(Path("/proc"), Path("/sys"), self._tree)
        self._host, self._mem, self._cdmm = Host(), MemInfo(), False
        self._owners = ProcessOwners(self._tree.procfs)
        self._dips: dict[str, Dip] = {}
        self._suspicion = Suspicion()
        self._began: float | None = None
        self.servers: tuple[ServerProcess, ...] = ()
        self.ranks: tuple[RankProcess, ...] = ()
        self.scanned = False
        self.read_at: float | None = None  # monotonic
        self._time = 0.0
        self.no_gpus: str | None = None  # why nvidia-smi has no rows

    def take(self, blocks: Sequence[Block], t: float, now: float) -> None:
        """One reading, complete at monotonic `t` and Unix `now`."""
        scanned = False
        dips: list[tuple[float, bytes]] = []
        for block in blocks:
            if block.kind == "dip":
                dips.append((now - _seconds(block.name), block.body))
            elif block.kind == "scan":
                scanned = True
                self._tree.forget_processes()
            else:
                self._put(block, t, now)
        self._began, self.read_at, self._time = self._began or t, t, now
        nodes, self._cdmm = self._reader.nodes(), self._reader.cdmm()
        self._mem = self._reader.mem(known=nodes)
        self._host = self._reader.host(self._mem)
        if scanned:
            self.servers, self.scanned = tuple(server_processes(self._tree.procfs)), True
            self.ranks = rank_processes(self._tree.procfs)
        for when, text in dips:
            self._note_host_dip(self._reader.mem(known=nodes, text=text), when, t)
        self._note_host_dip(self._mem, now, t)

    def _put(self, block: Block, t: float, now: float) -> None:
        if block.kind == "file":
            self._tree.files[block.name] = block.body
        elif block.kind == "link":
            self._tree.links[block.name] = block.body.decode("utf-8", "replace").strip()
        elif block.kind == "folder":
            self._tree.folders.add(block.name)
        elif block.kind == "gpu":
            self._take_gpus(block, t, now)
        elif block.kind == "apps":
            self._gpus.take_processes(block.name, block.body, t)
        elif block.kind == "smi" and block.name == "gpu":
            self.no_gpus = clean(block.body.decode("utf-8", "replace"), 160) or None
        elif block.kind == "hello":
            self._tree.page_size = _page_size(block.body)

    def _take_gpus(self, block: Block, t: float, now: float) -> None:
        """Row by row: there are two of each GPU in a reading, and the lesser headroom is the dip."""
        self.no_gpus = None  # whatever failed before
        for row in block.body.splitlines():
            self._gpus.take(block.name, row, t)
            for key, dip in self._gpus.dips(self._mem.total, now).items():
                self._note_dip(key, dip)

    def _note_host_dip(self, mem: MemInfo, when: float, t: float) -> None:
        devices = self._gpus.devices(mem.total, t)
        pool = host_pool(self._judged(mem, devices, t), devices, self._cdmm, self._mode)
        if pool is not None and pool.headroom_bytes is not None:
            self._note_dip(pool_key(pool), Dip(pool.headroom_bytes, when))

    def _judged(self, mem: MemInfo, devices: Sequence[Device], t: float) -> MemInfo:
        return self._suspicion.judge(mem, [device for device in devices if is_unified(device, self._mode)], t)

    def _note_dip(self, key: str, dip: Dip) -> None:
        known = self._dips.get(key)
        if known is None or dip.headroom_bytes < known.headroom_bytes:
            self._dips[key] = dip

    def owners(self, devices: Sequence[Device], servers: Mapping[int, str]) -> Mapping[int, Owner]:
        """What the processes on the GPUs belong to."""
        return self._owners.of(devices, servers)

    def gpus_settled(self, t: float) -> bool:
        """Whether it is known which GPUs there are, or that this is not to be known."""
        return self._gpus.told or self.no_gpus is not None or self.silent(t) is not None

    def silent(self, t: float) -> str | None:
        """What is wrong with an nvidia-smi that has said nothing yet."""
        waited = 0.0 if self._began is None else t - self._began
        slow = not self._gpus.told and self.no_gpus is None and waited > SMI_SILENT_S
        return f"nvidia-smi does not answer for {waited:.0f} s" if slow else None

    def sample(self, t: float) -> MachineSample:
        """The newest reading, with the dips since the last call."""
        dips, self._dips = self._dips, {}
        devices = self._gpus.devices(self._mem.total, t)
        return MachineSample(
            time=self._time,
            host=self._host,
            mem=self._judged(self._mem, devices, self.read_at or t),
            devices=devices,
            cdmm=self._cdmm,
            dips=dips,
        )


def _seconds(text: str) -> float:
    try:
        return min(60.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


def _page_size(hello: bytes) -> int:
    try:
        size = json.loads(hello)["page_size"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return 4096
    return size if isinstance(size, int) and size in _PAGES else 4096
