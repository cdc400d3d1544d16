"""A machine that is read by ssh: its memory and GPUs, and the servers that run on it, as targets to poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from llmtop.contract.settings import MemoryMode, NodeAddress, Target
from llmtop.contract.snapshot import Device, SourceStatus
from llmtop.engines.discover import ServerProcess
from llmtop.machine.holders import used_by
from llmtop.nodes.blocks import Block
from llmtop.nodes.link import NodeLink
from llmtop.nodes.mirror import Mirror
from llmtop.nodes.reading import NodeReading

STALE_S = 3.5
SETTLE_S = 10.0
PATIENCE_S = 4.0  # a login takes a second; after that it is said how long it takes


class RemoteNode:
    """One node of a session; implements `NodeSource`."""

    def __init__(self, address: NodeAddress, memory_mode: MemoryMode = "auto") -> None:
        self.name = address.name
        self._address = address
        self._mirror = Mirror(memory_mode)
        self._link = NodeLink(address, self._take)
        self._task: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._processes: dict[str, ServerProcess] = {}
        self._targets: dict[str, Target] = {}
        self._up_since: float | None = None
        self._started = 0.0

    def start(self) -> None:
        """Begin to connect."""
        self._started = time.monotonic()
        self._task = asyncio.create_task(self._link.run())

    def check(self) -> None:
        """Raise what went wrong in our own code: it must not go unseen."""
        for task in (self._finding, self._task):
            if task is not None and task.done() and not task.cancelled():
                task.result()

    async def stop(self) -> None:
        """End the connection and what came with it."""
        tasks = [task for task in (self._finding, self._task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def up(self) -> bool:
        """Whether it is connected."""
        return self._link.up

    @property
    def targets(self) -> Sequence[Target]:
        """The servers that were found there and can be asked."""
        return [*self._targets.values()]

    @property
    def settled(self) -> bool:
        """Whether it was read in full once, or has failed."""
        if not self.up:
            return self._link.failures > 0
        waited = time.monotonic() - (self._up_since or time.monotonic())
        found = self._finding is None or self._finding.done()
        whole = self._mirror.scanned and found and self._mirror.gpus_settled(time.monotonic())
        return whole or waited > SETTLE_S

    def process(self, url: str) -> ServerProcess | None:
        """The process that serves a target there, as far as it is seen."""
        return self._processes.get(url)

    def reading(self, t: float) -> NodeReading:
        """What is known at monotonic `t`."""
        read_at, reason = self._mirror.read_at, self._link.reason
        if read_at is None:
            waited = t - self._started
            if self._link.failures == 0 and waited > PATIENCE_S:
                reason = f"no answer for {waited:.0f} s"
            tried = SourceStatus(self.name, self._link.failures == 0, reason)
            return NodeReading(self.name, "down", reason, status=(tried,))
        age, sample = max(0.0, t - read_at), self._mirror.sample(t)
        owners = self._mirror.owners(sample.devices, {held.pid: url for url, held in self._processes.items()})
        if self.up and age <= STALE_S:
            status = self._status(reason, age, t)
            return NodeReading(self.name, "ok", reason, age, sample, status, owners, self._mirror.ranks)
        reason = reason or "no new reading"
        status = (SourceStatus(self.name, False, reason, age),)
        return NodeReading(self.name, "stale", reason, age, sample, status, owners, self._mirror.ranks)

    def _status(self, reason: str | None, age: float, t: float) -> tuple[SourceStatus, ...]:
        gpus = self._mirror.silent(t) or self._mirror.no_gpus
        missing = gpus == "no nvidia-smi"
        return (
            SourceStatus(self.name, reason is None, reason, age),
            SourceStatus(f"nvidia-smi on {self.name}", gpus is None or missing, gpus, age),
        )

    def devices_of(self, url: str, reading: NodeReading) -> Sequence[Device]:
        """The devices a server there uses: all of them for the only one, else those with its processes."""
        devices = reading.sample.devices if reading.sample is not None else ()
        working = [device for device in devices if device.state == "OK"]
        if len({*self._targets, *self._processes}) == 1:
            return working
        return used_by(url, working, reading.owners)

    def _take(self, blocks: list[Block]) -> None:
        t = time.monotonic()
        if not self.up:
            self._up_since = t
        self._mirror.take(blocks, t, time.time())
        if any(block.kind == "scan" for block in blocks) and (self._finding is None or self._finding.done()):
            self._finding = asyncio.create_task(self._find())

    async def _find(self) -> None:
        """Open a way to every server that has none yet."""
        seen: dict[str, ServerProcess] = {}
        targets = dict(self._targets)
        for process in self._mirror.servers:
            url = self._url(process, seen)
            seen[url] = process
            if url not in targets and (path := await self._link.forward(process.host, process.port)) is not None:
                targets[url] = Target(url, node=self.name, via=path)
        # the node's key is for its only server; of several none can be told to be meant
        key = self._address.key if len({*targets, *seen}) == 1 else None
        self._targets = {url: replace(target, key=key) for url, target in targets.items()}
        self._processes = seen

    def _url(self, process: ServerProcess, taken: dict[str, ServerProcess]) -> str:
        """Its address, with the node's name in place of one that means something there alone."""
        here = process.url.replace(f"//{process.host}:", f"//{self.name}:", 1)
        here = here.replace(f"//[{process.host}]:", f"//{self.name}:", 1)
        return here if here not in taken else here.replace(f"//{self.name}:", f"//{process.host}.{self.name}:", 1)
