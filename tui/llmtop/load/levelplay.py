"""One level from the runner's side: workers start together, their records and the server's counters are gathered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from llmtop.contract.snapshot import Snapshot
from llmtop.contract.units import clean
from llmtop.engines.registry import engine_text
from llmtop.load.child import SILENT_S, Child, WorkerFailed
from llmtop.load.counters import CounterReader, ServerCounters, delta
from llmtop.load.events import Event, FirstToken, Lane, LevelPreparing, LevelStarted, Progress, RequestDone
from llmtop.load.files import RunFiles
from llmtop.load.level import STOPPED, Share
from llmtop.load.pace import Pace, level_s
from llmtop.load.plan import Plan
from llmtop.load.prompts import Profile
from llmtop.load.records import RequestRecord
from llmtop.load.summary import LevelRaw, ServerExtremes
from llmtop.load.vitals import Vitals

POLL_S = 1.0  # a page costs the server about 10 ms of the process that streams the answers
FIRST_POLL_S = 0.25  # a short level has its peak here
LEAD_S = 0.05  # from "go" to the common start
SETTLE_TRIES = 6
WORDS = 400  # of a reason, at most
_PREFILL_TOK_S, _TPOT_S = 4000.0, 0.03  # a guess, for the share of each level in the whole; ratios matter alone


class Watcher:
    """Reads a server's counters, and memory and power where a snapshot says them; keeps extremes.

    Memory and power count only when the snapshot holds the server at `url` and says that it runs on this host.
    """

    def __init__(self, url: str, reader: CounterReader, snapshots: Callable[[], Snapshot | None] | None) -> None:
        self._url = url
        self._reader = reader
        self._snapshots = snapshots
        self.last: ServerCounters | None = None
        self.tok_s: float | None = None
        self.max_num_seqs: int | None = None  # by the command line of a server on this host
        self.engine: str | None = None  # as people call it, with its version
        self.reset()

    def reset(self) -> None:
        """Forgets the extremes: a level begins."""
        self._since = time.time()
        self._pages: list[ServerCounters] = []
        self._loaded: list[ServerCounters] = []  # those that came while requests were sent
        self._headroom: list[int] = []
        self._power: list[float] = []
        self._energy: list[tuple[float, float]] = []  # time and joules
        self.tok_s = None

    async def read(self, *, loaded: bool = False) -> ServerCounters | None:
        """The counters now; the latest snapshot enters the extremes, and they do where the level is `loaded`."""
        counters = await self._reader.read()
        if counters is not None:
            self._pages.append(counters)
            self._loaded += [counters] if loaded else []
            self._rate(counters)
        self.last = counters
        snapshot = self._snapshots() if self._snapshots is not None else None
        for view in snapshot.servers if snapshot is not None else ():
            if view.url == self._url:
                self.max_num_seqs = view.max_num_seqs or self.max_num_seqs
                self.engine = engine_text(view.engine, view.version) or self.engine
                if snapshot is not None and (view.local or view.node is not None):
                    self._memory(snapshot, view.node)
        return counters

    async def of_model(self, model: str | None) -> ServerCounters | None:
        """The counters of one model, of a server that routes to several."""
        self._reader.model = model
        return await self.read()

    def extremes(self) -> ServerExtremes:
        """Of everything read since `reset`; a level too short for a page of its own says nothing of KV and queue."""
        pages = self._loaded
        return ServerExtremes(
            kv_max=max((p.kv_usage for p in pages if p.kv_usage is not None), default=None),
            waiting_max=max((p.waiting for p in pages if p.waiting is not None), default=None),
            running_max=max((p.running for p in pages if p.running is not None), default=None),
            headroom_min_bytes=min(self._headroom, default=None),
            power_w=sum(self._power) / len(self._power) if self._power else None,
            energy_w=_slope(self._energy),
        )

    def _rate(self, counters: ServerCounters) -> None:
        """Generated tokens per second over the last one to two seconds."""
        past = [page for page in self._pages if counters.time_s - page.time_s >= 1.0]
        made = delta(past[-1].generation, counters.generation) if past else None
        self.tok_s = made / (counters.time_s - past[-1].time_s) if made is not None else None

    def _memory(self, snapshot: Snapshot, node: str | None) -> None:
        """The memory and power of the machine that the server runs on."""
        if not snapshot.current(node):
            return
        for pool in snapshot.pools:
            if pool.kind not in ("hbm", "unified") or pool.node != node:
                continue
            self._headroom += [pool.headroom_bytes] if pool.headroom_bytes is not None else []
            if pool.low_water_bytes is not None and (pool.low_water_time or 0.0) >= self._since:
                self._headroom.append(pool.low_water_bytes)  # sampled more often than snapshots are made
        devices = [device for device in snapshot.devices if device.node == node]
        power = [device.power_w for device in devices if device.power_w is not None]
        if power:
            self._power.append(sum(power))
        energy = [device.energy_j for device in devices]
        if energy and all(value is not None for value in energy):
            self._energy.append((snapshot.time, sum(value or 0.0 for value in energy)))


def _slope(points: list[tuple[float, float]]) -> float | None:
    """Joules per second from the first point to the last; None without two moments."""
    if not points or points[-1][0] <= points[0][0]:
        return None
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


class LevelPlay:
    """Plays one level on some workers."""

    def __init__(
        self,
        plan: Plan,
        profile: Profile,
        index: int,
        workers: list[Child],
        watcher: Watcher,
        emit: Callable[[Event], None],
        files: RunFiles | None,
        pace: Pace | None = None,
    ) -> None:
        self._plan, self._profile, self._index = plan, profile, index
        self._level = plan.levels[index]
        self._workers, self._watcher = workers, watcher
        self._emit, self._files = emit, files
        self._records: list[RequestRecord] = []
        self._snaps: dict[int, dict[str, Any]] = {}
        self._ends: list[dict[str, Any]] = []
        guess = Pace(_PREFILL_TOK_S, ((1, profile.tpot_s or _TPOT_S),))
        self._weights = [level_s(level, pace or guess, plan.warm_up) for level in plan.levels]
        self._known = pace is not None
        self._t0 = 0.0

    async def run(self) -> LevelRaw:
        """The level, raw; raises `WorkerFailed` when a worker cannot play its part."""
        self._emit(LevelPreparing(self._index, self._level))
        warm_up = await self._prepare()
        self._watcher.reset()
        before = await self._watcher.read()
        date = f"{datetime.now():%Y%m%d-%H%M%S}"
        self._t0 = time.perf_counter() + LEAD_S
        self._emit(LevelStarted(self._index, self._level, self._t0))
        for worker in self._workers:
            worker.say(cmd="go", t0=self._t0)
        poll = asyncio.ensure_future(self._poll())
        try:
            await asyncio.gather(*(self._listen(i, worker) for i, worker in enumerate(self._workers)))
        finally:
            poll.cancel()
        after = await self._settled(before)
        return self._raw(date, warm_up, before, after)

    async def _prepare(self) -> RequestRecord | None:
        count = len(self._workers)
        slots = self._level.concurrency
        for i, worker in enumerate(self._workers):
            share = Share(slots // count + (i < slots % count), i, count, warm_up=i == 0)
            worker.say(cmd="prepare", level=self._index, share=asdict(share))
        ready = await asyncio.gather(*(worker.hear("ready") for worker in self._workers))
        warm_up = ready[0]["warm_up"]
        return RequestRecord.from_json(warm_up) if warm_up else None

    async def _poll(self) -> None:
        pause = FIRST_POLL_S
        while True:
            await asyncio.sleep(pause)
            pause = POLL_S
            counters = await self._watcher.read(loaded=True)
            if counters is not None and self._files is not None:
                self._files.server(self._level.name, counters)

    async def _listen(self, number: int, worker: Child) -> None:
        """Takes a worker's records and snapshots until it says that its part is over."""
        while True:
            event = await self._hear(worker)
            if event["event"] == "req":
                self._record(RequestRecord.from_json(event["record"]))
            elif event["event"] == "snap":
                self._snaps[number] = event
                if number == min(self._snaps):
                    self._emit(self._progress())
            else:
                self._ends.append(event)
                return

    async def _hear(self, worker: Child) -> dict[str, Any]:
        """The worker's next event; one that ended in the midst of its part has played it so far, and ends the level."""
        try:
            return await worker.hear("req", "snap", "level", silent_s=SILENT_S)
        except WorkerFailed as error:
            why = STOPPED if worker.stopping else clean(str(error), WORDS)
            for one in self._workers:
                one.stop()
            return {"event": "level", "stopped": why, "interrupted": True, "vitals": {}}

    def _record(self, record: RequestRecord) -> None:
        self._records.append(record)
        if self._files is not None:
            self._files.request(self._level.name, record)
        self._emit(RequestDone(self._index, record))

    def _progress(self) -> Progress:
        snaps = list(self._snaps.values())
        now = max(snap["now"] for snap in snaps)
        fraction = self._fraction(now)
        speeds = [snap["tok_s"] for snap in snaps if snap["tok_s"] is not None]
        return Progress(
            index=self._index,
            level=self._level,
            now_s=now,
            sent=sum(snap["sent"] for snap in snaps),
            completed=sum(snap["completed"] for snap in snaps),
            errors=sum(snap["errors"] for snap in snaps),
            running=sum(snap["running"] for snap in snaps),
            tokens=sum(snap["tokens"] for snap in snaps),
            tok_s=sum(speeds) if speeds else None,
            server_tok_s=self._watcher.tok_s,
            server=self._watcher.last,
            lanes=tuple(Lane(*lane) for snap in snaps for lane in snap["lanes"]),
            first_tokens=tuple(FirstToken(*ttft) for snap in snaps for ttft in snap.pop("ttfts", ())),
            fraction=fraction,
            eta_s=self._eta(now, fraction),
        )

    def _part(self, now: float) -> float:
        """How much of this level is over, 0..1."""
        level = self._level
        done: float = sum(snap["completed"] + snap["errors"] for snap in self._snaps.values()) / level.num_prompts
        timed = (now - self._t0) / level.duration_s if level.duration_s is not None else 0.0
        return min(1.0, max(done, timed))

    def _fraction(self, now: float) -> float:
        """How much of the run is over, levels weighted by their estimated time."""
        weights = self._weights
        done = sum(weights[: self._index]) + weights[self._index] * self._part(now)
        return done / sum(weights)

    def _eta(self, now: float, fraction: float) -> float | None:
        """Seconds left by this level's own pace; None before it has any."""
        part = self._part(now)
        if part < 0.1 and self._known:
            return (1 - fraction) * sum(self._weights)
        if part < 0.02:
            return None
        pace = (now - self._t0) / (part * self._weights[self._index])
        return max(0.0, pace * (1 - fraction) * sum(self._weights))

    async def _settled(self, before: ServerCounters | None) -> ServerCounters | None:
        """The counters once they hold all of ours; servers count a moment after they have answered."""
        ours = sum(record.output for record in self._records)
        after: ServerCounters | None = None
        for _ in range(SETTLE_TRIES):
            after = await self._watcher.read()
            made = delta(before.generation, after.generation) if before and after else None
            if made is None or (made >= ours and not after.running):  # type: ignore[union-attr]
                break
            await asyncio.sleep(0.1)
        return after

    def _soaked(self, stops: list[str]) -> bool:
        """Whether a person ended a soak, which is how it is meant to end."""
        return self._plan.scenario == "soak" and stops[:1] == [STOPPED]

    def _raw(
        self, date: str, warm_up: RequestRecord | None, before: ServerCounters | None, after: ServerCounters | None
    ) -> LevelRaw:
        stops = [end["stopped"] for end in self._ends if end["stopped"]]
        return LevelRaw(
            plan=self._plan,
            profile=self._profile,
            level=self._level,
            first=self._index == 0,
            records=tuple(sorted(self._records, key=lambda record: record.index)),
            t0_s=self._t0,
            date=date,
            stopped=stops[0] if stops and not self._soaked(stops) else None,
            refused=any(end.get("refused") for end in self._ends),
            interrupted=any(end["interrupted"] for end in self._ends) and not self._soaked(stops),
            warm_up=warm_up,
            workers=tuple(Vitals(**end["vitals"]) for end in self._ends),
            before=before,
            after=after,
            watch=self._watcher.extremes(),
        )
