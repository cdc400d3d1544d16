"""The poller: a thread with its own event loop that turns sources into one frozen `Snapshot` per interval.

Deadlines are fixed and missed ones are skipped, never caught up. What a source does wrong is data in the snapshot,
never an exception.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llmtop.contract.settings import DEFAULT_PORT, Settings, Target
from llmtop.contract.snapshot import Mark, Snapshot
from llmtop.engines.discover import server_processes
from llmtop.engines.ranks import RankProcess, rank_processes
from llmtop.machine.owners import ProcessOwners
from llmtop.machine.source import MachineSource
from llmtop.session.assemble import Assembler
from llmtop.session.server_watch import ServerWatch, devices_of

if TYPE_CHECKING:
    from llmtop.fleet.fleet import Fleet
    from llmtop.nodes.source import NodeSource
    from llmtop.recording.exporter import Exporter
    from llmtop.recording.prometheus import PrometheusFile
    from llmtop.recording.write import Recorder

RESCAN_S = 5.0
RANKS_S = 15.0  # the parts of a server stay for as long as it does
Sink = Callable[[Snapshot], None]


class Feed(Protocol):
    """Where the snapshots of a screen come from: a poller, or the player of a recording."""

    error: BaseException | None
    on_error: Callable[[], object]  # called in the feed's thread once `error` is set

    @property
    def recording(self) -> Path | None:
        """The file that is being recorded to."""

    def start(self) -> None:
        """Begin."""

    def stop(self, timeout_s: float = 0.5) -> None:
        """End; waits no longer than `timeout_s`."""

    def mark(self, text: str) -> None:
        """Begin a new epoch with a mark."""

    def note(self, text: str) -> None:
        """Put the mark of a load level into the next snapshot."""

    def starting(self, url: str, words: str | None) -> None:
        """Tell what is known of the start-up of a server."""

    def look_at(self, urls: Collection[str]) -> None:
        """Tell which servers are on screen."""

    def target(self, url: str) -> Target:
        """The server under a URL."""

    def set_interval(self, seconds: float) -> None:
        """Another interval from now on."""

    def record(self, path: Path | None) -> None:
        """Record to a file from now on, or stop recording."""

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        """Put something that is no snapshot into the recording."""


class Poller:
    """Watches servers and the machine; hands a snapshot to `sink` (in this thread) once per interval."""

    def __init__(self, settings: Settings, machine: MachineSource, sink: Sink) -> None:
        self._settings = settings
        self._machine = machine
        self._sink = sink
        self._interval = settings.interval_s
        self._watches: list[ServerWatch] = []
        self._nodes = _nodes(settings) if settings.nodes else ()
        self._fleet = _fleet(settings) if settings.fleet else None
        self._owners = ProcessOwners(settings.procfs)
        self._ranks: tuple[RankProcess, ...] = ()
        self._ranks_due = 0.0
        self._assembler = Assembler(settings.memory, this_machine=settings.this_machine)
        self._recorder = self._new_recorder(settings.record) if settings.record else None
        self._textfile = _textfile(settings.prometheus_file) if settings.prometheus_file else None
        self._exporter = _exporter(*settings.export) if settings.export else None
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="llmtop-poller", daemon=True)
        self.error: BaseException | None = None
        self.on_error: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Begin polling."""
        self._thread.start()

    def stop(self, timeout_s: float = 0.5) -> None:
        """End polling; waits a moment for the thread, but never for a request or a driver that hangs."""
        self._stopping.set()
        self._machine.stop()
        self._soon(self._poke)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def mark(self, text: str) -> None:
        """Begin a new low-water epoch and put a mark into the next snapshot."""
        self._soon(lambda: self._assembler.mark(text, time.time()))

    def note(self, text: str) -> None:
        """Put the mark of a load level into the next snapshot."""
        self._soon(lambda: self._assembler.note(Mark("level", text, time.time())))

    def starting(self, url: str, words: str | None) -> None:
        """Tell what a followed log says of the start-up of a server; None when it is over."""
        for watch in self._watches:
            if watch.target.url == url and watch.followed != words:
                watch.followed = words
                self.event("phase", {"url": url, "text": words})

    def look_at(self, urls: Collection[str]) -> None:
        """Read these servers of a fleet more closely than the others."""
        fleet = self._fleet
        if fleet is not None and self._loop is None:
            fleet.look_at(urls)
        elif fleet is not None:
            self._soon(lambda: self._poke() if fleet.look_at(urls) else None)

    def target(self, url: str) -> Target:
        """The server watched under a URL, with its key; a bare target for one that is not watched."""
        known = (*(watch.target for watch in self._watches), *self._settings.targets)
        return next((target for target in known if target.url == url), Target(url))

    def set_interval(self, seconds: float) -> None:
        """Poll every `seconds` from now on."""
        self._interval = seconds
        self._soon(self._poke)

    @property
    def recording(self) -> Path | None:
        """The file that is being recorded to; also while writing to it fails."""
        recorder = self._recorder
        return recorder.path if recorder is not None else None

    def record(self, path: Path | None) -> None:
        """Record to a file from the next snapshot on, or stop recording."""
        recorder = self._new_recorder(path) if path else None
        if recorder is not None:
            recorder.open()
        before, self._recorder = self._recorder, recorder
        if before is not None:
            self._soon(before.close)

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        """Put something that is no snapshot into the recording and on the page for Prometheus, if they are there."""
        if self._exporter is not None:
            self._exporter.event(kind, values)
        recorder = self._recorder
        if recorder is not None:
            self._soon(lambda: recorder.event(kind, values))

    def _new_recorder(self, path: Path) -> Recorder:
        from llmtop.recording.write import (
            Recorder,  # most sessions record nothing, and the first frame waits for imports
        )

        return Recorder(path, raw=self._settings.record_raw, interval_s=self._interval)

    @property
    def settled(self) -> bool:
        """Whether every server was polled twice and asked what it is, and the machine was read in full."""
        if self._fleet is not None:
            return self._fleet.settled
        watches, nodes = list(self._watches), self._nodes
        watched = {watch.target.url for watch in watches}
        found = all(node.settled and watched.issuperset(t.url for t in node.targets) for node in nodes)
        polled = all(watch.settled or (watch.node is not None and not watch.node.up) for watch in watches)
        return self._machine.ready() and bool(watches or nodes) and found and polled

    def _poke(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def _soon(self, action: Callable[[], object]) -> None:
        """Run an action in the poller's loop; nothing happens when that is gone."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            return

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # handed to whoever owns the poller
            self.error = error
            self.on_error()
        finally:
            if self._recorder is not None:
                self._recorder.close()
            if self._exporter is not None:
                self._exporter.close()

    async def _main(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._machine.start()
        for node in self._nodes:
            node.start()
        if self._recorder is not None:
            self._recorder.open()  # so that the first snapshot already says when it cannot be written
        try:
            await self._poll_on()
        finally:
            for watch in self._watches:
                watch.cancel()
            await asyncio.gather(*(node.stop() for node in self._nodes))
            if self._fleet is not None:
                await self._fleet.stop()

    async def _poll_on(self) -> None:
        assert self._loop is not None
        await self._find()
        await self._tick()  # pays for imports and connecting; the grid of deadlines begins after it
        deadline = scanned = self._loop.time()
        while not self._stopping.is_set():
            missed = (self._loop.time() - deadline) // self._interval  # is not caught up
            deadline += self._interval * (1 + max(0.0, missed))
            if await self._woken_before(deadline):
                deadline = self._loop.time()
            if self._loop.time() - scanned >= (RESCAN_S if self._settings.found else RANKS_S):
                scanned = self._loop.time()
                await self._find()
            await self._tick()

    async def _woken_before(self, deadline: float) -> bool:
        """Sleep until the deadline; True when something changed that needs a tick now."""
        assert self._wake is not None
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _find(self) -> None:
        """Watch what was named; without names, what serves a model on this host, also when it appears later."""
        assert self._loop is not None
        if self._fleet is None and self._loop.time() >= self._ranks_due:
            self._ranks_due = self._loop.time() + RANKS_S
            self._ranks = await asyncio.to_thread(rank_processes, self._settings.procfs)
        targets: Sequence[Target] = self._settings.targets
        if self._settings.found:
            targets = (*targets, *await asyncio.to_thread(local_targets, self._settings))
        await self._watch((target, None) for target in targets)

    async def _watch(self, found: Iterable[tuple[Target, NodeSource | None]]) -> None:
        known = {watch.target.url for watch in self._watches}
        fresh: list[ServerWatch] = []
        for target, node in found:
            if target.url not in known:
                known.add(target.url)
                fresh.append(ServerWatch(target, self._settings, node))
        await asyncio.gather(*(watch.prepare() for watch in fresh))
        self._watches += fresh

    async def _tick(self) -> None:
        for node in self._nodes:
            node.check()
        await self._watch((target, node) for node in self._nodes for target in node.targets)
        begun = [watch.begin(self._interval) for watch in self._watches]
        begun += [] if self._fleet is None else [self._fleet.begin(self._interval)]
        polls = [poll for poll in begun if poll is not None]
        if polls:
            await asyncio.wait(polls, timeout=0.8 * self._interval)
        if not self._stopping.is_set():
            snapshot = self._snapshot()
            self._write(snapshot)
            self._sink(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        """Write the files first: they do not wait for a screen or a pipe."""
        recorder = self._recorder
        if recorder is not None:
            self._write_pages(recorder)
            recorder.write(snapshot)
        for output in (self._textfile, self._exporter):
            if output is not None:
                output.write(snapshot)

    def _write_pages(self, recorder: Recorder) -> None:
        for watch in self._watches if recorder.raw else ():
            body, watch.body = watch.body, None  # once: a poll that fails brings no page
            if body is not None:
                recorder.page(watch.target.url, body, watch.body_t)

    def _snapshot(self) -> Snapshot:
        t, now = time.monotonic(), time.time()
        sample = self._machine.sample()
        outputs = (self._recorder, self._textfile)
        trouble = tuple(output.status for output in outputs if output is not None and output.status is not None)
        shown = [watch for watch in self._watches if not self._nobody_there(watch)]
        views = [watch.view(t, now) for watch in shown]
        for watch, view in zip(shown, views, strict=True):
            if watch.restarted():
                self._assembler.note(Mark("restart", f"restart {view.name or view.model or view.url}", now))
        remote = [node.reading(t) for node in self._nodes]
        if self._fleet is not None:
            fleet = self._fleet
            return self._assembler.build(fleet.views(), sample, t, now, {}, trouble, fleet.machines, fleet=fleet.view())
        here = {watch.pid or watch.target.pid or 0: watch.target.url for watch in self._watches if watch.node is None}
        owners = self._owners.of(sample.devices, here)
        owned = devices_of(self._watches, sample.devices, owners)
        pids = {watch.target.url: watch.pid or watch.target.pid or 0 for watch in shown}
        for node, reading in zip(self._nodes, remote, strict=True):
            owned |= {target.url: node.devices_of(target.url, reading) for target in node.targets}
        return self._assembler.build(
            views, sample, t, now, owned, trouble, remote, owners=owners, ranks=self._ranks, pids=pids
        )

    def _nobody_there(self, watch: ServerWatch) -> bool:
        """The default port is tried on the quiet: it is no server until something has answered there."""
        quiet = self._settings.found and watch.target.port == DEFAULT_PORT
        return quiet and not watch.answered and watch.pid is None


def _textfile(path: Path) -> PrometheusFile:
    from llmtop.recording.prometheus import PrometheusFile

    return PrometheusFile(path)


def _exporter(host: str, port: int) -> Exporter:
    from llmtop.recording.exporter import Exporter

    exporter = Exporter(host, port)
    if not port:
        print(f"llmtop: metrics at {exporter.url}", file=sys.stderr)
    return exporter


def _fleet(settings: Settings) -> Fleet:
    from llmtop.fleet.fleet import Fleet

    return Fleet(settings)


def _nodes(settings: Settings) -> tuple[NodeSource, ...]:
    from llmtop.nodes.node import RemoteNode  # most sessions have none

    return tuple(RemoteNode(address, settings.memory) for address in settings.nodes)


def local_targets(settings: Settings) -> list[Target]:
    """The servers of this host by their processes."""
    return [Target(process.url) for process in server_processes(settings.procfs)]
