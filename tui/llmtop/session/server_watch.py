"""One watched server in the poller: when it is polled, what it is, which devices are its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmtop.contract.settings import Settings, Target
from llmtop.contract.snapshot import Device, ServerView
from llmtop.engines.discover import ServerProcess, is_here, process_of
from llmtop.engines.page_record import Page
from llmtop.engines.tracker import Failure, ServerTracker
from llmtop.machine.holders import Owner, used_by

if TYPE_CHECKING:
    from llmtop.nodes.source import NodeSource

SCRAPE_SHARE = 0.05  # of the interval that a scrape may take before the interval stretches
LONGEST_STRETCH_S = 5.0
LOOK_EVERY_S = 2.0
LOCATE_S = 0.3  # a resolver that hangs must not hold up the first frame


class ServerWatch:
    """Polls one server at its own pace; at most one poll is in flight."""

    def __init__(self, target: Target, settings: Settings, node: NodeSource | None = None) -> None:
        from llmtop.engines.server import ServerSource  # here: the first frame does not wait for it

        self.target = target
        self.node = node  # where it runs, if that is read by ssh
        self._procfs = settings.procfs
        self._base_interval = settings.interval_s
        self._source = ServerSource(target, keep_body=settings.record_raw)
        self._tracker = ServerTracker(target.url, target.name)
        self._task: asyncio.Task[None] | None = None
        self._due = self._began = 0.0
        self._pace = settings.interval_s
        self._scrapes: list[float] = []
        self._next_look = 0.0
        self._process: ServerProcess | None = None
        self._locating: asyncio.Task[bool] | None = None
        self._noted_restarts = 0
        self.polls = 0
        self._served: int | None = None  # the process that was seen to serve
        self.followed: str | None = None  # what a followed start-up log says, while it says so
        self.identified = False
        self.answered = False
        self.refused = False
        self._silent = False
        self.body: bytes | None = None
        self.body_t = 0.0

    @property
    def interval_s(self) -> float:
        """The interval in force: stretched so that scrapes take no more than their share of it."""
        if len(self._scrapes) < 3 and max(self._scrapes, default=0.0) <= max(self._base_interval, 1.0):
            return self._base_interval  # the first ones pay for connecting
        typical = sorted(self._scrapes)[len(self._scrapes) // 2]
        stretched = min(typical / SCRAPE_SHARE, LONGEST_STRETCH_S)
        return max(self._base_interval, stretched)

    @property
    def local(self) -> bool:
        """Whether the server runs on this host, as far as it is known by now."""
        task = self._locating
        return task is not None and task.done() and not task.cancelled() and task.result()

    @property
    def settled(self) -> bool:
        """Whether it was polled twice, and it is known what and where it is."""
        located = self.node is not None or (self._locating is not None and self._locating.done())
        return self.polls >= 2 and self.identified and located

    @property
    def pid(self) -> int | None:
        """The process that serves this port here, if it is seen."""
        return self._process.pid if self._process else None

    async def prepare(self) -> None:
        """Do once what would make the first poll late: imports, TLS, the resolver."""
        if self.node is None:
            self._locating = asyncio.create_task(asyncio.to_thread(is_here, self._procfs, self.target.host))
            await asyncio.wait((self._locating,), timeout=LOCATE_S)
        self._source.prepare()

    def begin(self, interval_s: float) -> asyncio.Future[None] | None:
        """Start a poll if one is due; resolves with the page, before the side doors are asked."""
        now = time.monotonic()
        if interval_s != self._base_interval:  # a new pace counts from the last poll on
            self._base_interval = interval_s
            self._due = self._due_after(self._began)
        if self._task is not None and self._task.done():
            self._task.result()  # an error of ours must not go unseen
            self._task = None
        if self._task is not None or now < self._due or (self.node is not None and not self.node.up):
            return None
        self._began, self._pace = now, self.interval_s
        self._due = self._due_after(now)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._round(done))
        return done

    def _due_after(self, began: float) -> float:
        """When the poll after the one that began then is due, with some slack: ticks and deadlines are two clocks."""
        return began + self.interval_s - 0.1 * self._base_interval

    async def _round(self, done: asyncio.Future[None]) -> None:
        try:
            await self._poll()
            if not done.done():
                done.set_result(None)
            await self._after()
        finally:
            if not done.done():
                done.set_result(None)

    async def _poll(self) -> None:
        poll = await self._source.poll()
        failure = poll.result.kind if isinstance(poll.result, Failure) else None
        if failure == "refused" and not self.refused:
            self._next_look = 0.0
        self.refused, self._silent = failure == "refused", failure in ("refused", "timeout")
        if not self._silent:
            self._scrapes = [*self._scrapes[-4:], poll.seconds]
        if isinstance(poll.result, Page):
            self.body, self.body_t = poll.body, poll.result.t
        if self.refused:
            await self._look_for_process()
        self.answered |= not self.refused
        result = self._leaving(poll.result)
        before = self._tracker.restarts
        self._tracker.feed(result, poll.t)
        self.polls += 1
        if self._tracker.restarts != before:
            self._process, self._next_look = None, 0.0
            await self._source.identify(again=True)
        self._tell_tracker()

    async def _after(self) -> None:
        """What can wait until the page is on screen."""
        if not self._silent:
            await self._source.identify()
            if self._process is None:
                await self._look_for_process()
        self._tell_tracker()
        self.identified = True

    async def _look_for_process(self) -> None:
        now = time.monotonic()
        if self.node is not None:
            self._process = self.node.process(self.target.url)
        elif self.local and now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S if self.refused else now + 10 * LOOK_EVERY_S
            self._process = await asyncio.to_thread(process_of, self._procfs, self.target.host, self.target.port)
        elif not self.local:
            self._process = None

    def _leaving(self, result: Page | Failure) -> Page | Failure:
        """A process that has served and does not listen any more does not start: it is on its way out."""
        process = self._process
        if isinstance(result, Page):
            self._served = process.pid if process is not None else self._served
        elif self.refused and process is not None and process.pid == self._served:
            return replace(result, text=f"shutting down: process {process.pid} is still there, its port is closed")
        return result

    def _tell_tracker(self) -> None:
        process = self._process
        served = process is not None and process.pid == self._served
        starting = self.followed if self.refused and not served else None
        if self.refused and starting is None and process is not None and not process.listening and not served:
            starting = f"process {process.pid} is starting, port {process.port} is not open yet"
        identity = self._source.identity
        self._tracker.identity = replace(
            identity,
            max_num_seqs=identity.max_num_seqs or (process.max_num_seqs if process else None),
            starting=starting,
            local=self.local,
        )

    def view(self, t: float, now: float) -> ServerView:
        """The server at monotonic `t` and Unix `now`."""
        # the next poll comes at the pace that held when the last one began, also if pages are cheap again
        view = self._tracker.view(t, now, max(self._pace, self.interval_s))
        took = self._scrapes[-1] if self._scrapes else None
        view = replace(view, scrape_s=took, interval_wanted_s=self._base_interval, local=self.local)
        return view if self.node is None else replace(view, node=self.node.name, via="ssh")

    def restarted(self) -> bool:
        """Whether a restart was seen since the last call."""
        before, self._noted_restarts = self._noted_restarts, self._tracker.restarts
        return self._noted_restarts > before

    def cancel(self) -> None:
        """Give up the poll in flight."""
        if self._task is not None:
            self._task.cancel()


def devices_of(
    watches: Iterable[ServerWatch], devices: Sequence[Device], owners: Mapping[int, Owner]
) -> dict[str, Sequence[Device]]:
    """The devices each local server uses: all of them for the only server, else those with its processes."""
    local = [watch for watch in watches if watch.local and not watch.refused]
    working = [device for device in devices if device.state == "OK" and device.mig is None]
    if len(local) == 1:
        return {local[0].target.url: working}
    return {watch.target.url: used_by(watch.target.url, working, owners) for watch in local}
