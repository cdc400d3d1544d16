"""Many servers through one Prometheus: what was scraped of them, at most ten questions at a time, as `ServerView`s.

Asked for are samples as they were scraped, with their times, and never Prometheus' own rates: those live on when a
target is dead, and its quantiles make values up. So a replica goes through the same tracker as a server that is
asked for its page; only its windows are longer (four scrapes at least).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Iterable, Sequence

from llmtop.contract.settings import Settings
from llmtop.contract.snapshot import FleetView, ServerView, State
from llmtop.engines.registry import ENGINES, PROCESS, reads, spelled
from llmtop.engines.registry.entry import Kind
from llmtop.engines.tracker import Failure
from llmtop.fleet.api import Labels, PrometheusApi, PrometheusError, ScrapedSeries, one_of
from llmtop.fleet.machines import machines, machines_query
from llmtop.fleet.pages import Owners
from llmtop.fleet.replica import GONE_S, GUESSED_S, Replica, scrape_interval, spans_for
from llmtop.nodes.reading import NodeReading

LOOK_AROUND_S = 60.0  # how often it is asked what there is, and what time it is there
LOOK_BACK_S = 300.0
CLOSER, CLOSER_PARTS = 250, 2  # so many replicas in one question for buckets, and so many of these
_PROCESS = frozenset(source.metric for source in PROCESS.sources)
_STATES = {"refused": State.DOWN, "timeout": State.DOWN, "bad": State.DOWN, "auth": State.AUTH}


class Fleet:
    """Runs in the poller's loop; a refresh is in flight once at most, and none comes sooner than there can be news."""

    def __init__(self, settings: Settings) -> None:
        assert settings.fleet is not None
        self._address = settings.fleet
        self._select = self._address.select
        self._api = PrometheusApi(self._address)
        self._owners = Owners()
        self._replicas: dict[Labels, Replica] = {}
        self._names: list[str] = []
        self._jobs: set[str] = set()
        self._instances: set[str] = set()
        self._up_selects = bool(self._select)  # the matchers fit `up` too
        self._known_scrape_s: float | None = None  # seconds between two scrapes, once they tell
        self._reasons_at = 0.0  # when it may be asked again why scrapes fail
        self._clock = 0.0  # Prometheus' clock less ours
        self._look_around_at = self._due = 0.0
        self._last_good: float | None = None
        self._closer: frozenset[str] | None = None  # the URLs on screen; None: all
        self._task: asyncio.Task[None] | None = None
        self._trouble: PrometheusError | None = None
        self._machines: tuple[NodeReading, ...] = ()
        self._asked = 0
        self._took: float | None = None
        self.refreshes = 0

    # for the poller

    def begin(self, interval_s: float) -> asyncio.Task[None] | None:
        """Start a refresh if one is due."""
        if self._task is not None and self._task.done():
            self._task.result()  # an error of ours must not go unseen
            self._task = None
        now = time.monotonic()
        if self._task is not None or now < self._due:
            return None
        self._due = now + max(0.9 * interval_s, self._scrape_s / 2 if self._replicas else 0.0)
        self._task = asyncio.create_task(self._refresh())
        return self._task

    def look_at(self, urls: Collection[str]) -> bool:
        """What is on screen, which alone needs quantiles; whether there is something new to be read for it."""
        before, self._closer = self._closer, frozenset(urls)
        new = before is not None and not self._closer <= before
        self._due = 0.0 if new else self._due
        return new

    async def stop(self) -> None:
        """Give up the refresh in flight."""
        if self._task is not None:
            self._task.cancel()
        await self._api.close()

    @property
    def settled(self) -> bool:
        """Whether it was asked in full once."""
        return self.refreshes > 0

    @property
    def machines(self) -> tuple[NodeReading, ...]:
        """What exporters tell of the machines of the replicas."""
        return self._machines

    def views(self) -> list[ServerView]:
        """The replicas now; where there are none, one row that says why."""
        now = self._now()
        if self._replicas or not self.refreshes:
            return sorted((replica.view(now) for replica in self._replicas.values()), key=lambda view: view.url)
        where = f" for {{{self._select}}}" if self._select else ""
        error = self._trouble or PrometheusError("empty", f"Prometheus has no metrics of a model server{where}")
        return [ServerView(self._address.target.url, _STATES.get(error.kind, State.NO_ENGINE_METRICS), str(error))]

    def view(self) -> FleetView:
        """The fleet as a whole; before the first scrapes are known there is no window to tell of."""
        spans = None if self._known_scrape_s is None else spans_for(self._known_scrape_s)
        age = None if self._last_good is None else max(0.0, time.time() - self._last_good)
        reason = None if self._trouble is None else str(self._trouble)
        url = self._address.target.url
        return FleetView(
            url,
            self._select or None,
            self._known_scrape_s,
            None if spans is None else spans.rate_s,
            None if spans is None else spans.latency_s,
            self._asked,
            self._took,
            age,
            reason,
        )

    # asking

    def _now(self) -> float:
        return time.time() + self._clock

    @property
    def _scrape_s(self) -> float:
        return self._known_scrape_s or GUESSED_S

    @property
    def _reach(self) -> float:
        """How far back a whole window lies: the newest scrape is not from now, and the oldest is a bit before it."""
        return spans_for(self._scrape_s).latency_s + 2 * self._scrape_s

    async def _refresh(self) -> None:
        self._api.requests, began = 0, time.monotonic()
        try:
            if began >= self._look_around_at:
                await self._look_around()
                self._look_around_at = began + LOOK_AROUND_S
            await self._read()
            await self._read_machines()
            await self._read_closer()
            await self._read_reasons(began)
            self._trouble, self._last_good = None, time.time()
        except PrometheusError as error:
            self._trouble = error
            self._look_around_at = 0.0
            for replica in self._replicas.values():
                replica.failed(Failure("timeout", str(error)), self._now())
        finally:
            self._asked, self._took = self._api.requests, time.monotonic() - began
        self.refreshes += 1

    def _selector(self, names: Collection[str], *more: str) -> str:
        parts = [f"__name__=~{one_of(names)}", self._select, *more]
        return "{" + ",".join(part for part in parts if part) + "}"

    async def _look_around(self) -> None:
        """Learn its clock, which families there are, of which jobs, and how often they are scraped."""
        asked = time.time()
        self._clock = await self._api.time() - (asked + time.time()) / 2
        found = await self._api.names(self._select, self._now() - LOOK_BACK_S)
        self._names = [name for name in found if reads(name) and not name.endswith("_created")]
        probes = _probes(self._names)
        if not probes:
            return
        probe = await self._api.query(f"{self._selector(probes)}[{LOOK_BACK_S:.0f}s]")
        moments: dict[Labels, set[float]] = {}
        for series in probe:
            told = dict(series.labels)
            self._jobs |= {told["job"]} if "job" in told else set()
            self._instances |= {told["instance"]} if "instance" in told else set()
            moments.setdefault(self._owners.of(series.labels), set()).update(t for t, _ in series.points)
        paces = [pace for times in moments.values() if (pace := scrape_interval(times)) is not None]
        self._known_scrape_s = max(paces, default=self._known_scrape_s)

    async def _read(self) -> None:
        """Take what was scraped since the last time, of everything but buckets."""
        since = math.inf if self._last_good is None else time.time() - self._last_good
        reach = math.ceil(min(self._reach, since + 2 * self._scrape_s + 1))
        ups = await self._ups(reach)
        named = [name for name in self._names if not name.endswith("_bucket") and name not in _PROCESS]
        series = await self._api.query(f"{self._selector(named)}[{reach}s]") if named else []
        by_owner = self._by_owner([*series, *await self._processes(reach)])
        told = {self._owners.of(one.labels) for one in series}
        for labels in told - self._replicas.keys():
            self._replicas[labels] = Replica(labels, _pace(by_owner[labels]) or self._scrape_s)
        now = self._now()
        for labels, replica in self._replicas.items():
            replica.feed(by_owner.get(labels, ()), now)
        mixed = {up.job for up in ups if up.points[-1][1] and up.labels not in self._replicas}
        for up in ups:
            if up.labels not in self._replicas and not up.points[-1][1] and (self._up_selects or up.job not in mixed):
                self._replicas[up.labels] = Replica(up.labels, self._scrape_s)  # dead before we came
            if up.labels in self._replicas:
                self._replicas[up.labels].told_up(up)
        self._replicas = {key: one for key, one in self._replicas.items() if now - one.seen < GONE_S + self._scrape_s}

    async def _read_reasons(self, now: float) -> None:
        """Ask why the scrapes of those that are down fail, where that is told."""
        dead = [replica for replica in self._replicas.values() if replica.down]
        if not dead or now < self._reasons_at:
            return
        self._reasons_at = now + LOOK_AROUND_S
        errors = await self._api.scrape_errors()
        for replica in dead:
            replica.told_why(errors.get(replica.labels))

    async def _ups(self, reach: int) -> list[ScrapedSeries]:
        """`up` of what is selected; where the matchers are of other labels, of the jobs that serve models."""
        jobs = f'{{__name__="up",job=~{one_of(self._jobs)}}}[{reach}s]' if self._jobs else ""
        found: list[ScrapedSeries] = []
        if self._up_selects:
            found = await self._api.query(f"{self._selector(['up'])}[{reach}s]")
        if not found and jobs:  # of a job that serves nothing else the dead are known too
            found, self._up_selects = await self._api.query(jobs), False
        self._owners.learn([one.labels for one in found])
        return [one for one in found if one.points]

    async def _processes(self, reach: int) -> list[ScrapedSeries]:
        """What the processes of the replicas say of themselves, whatever they serve."""
        if not self._jobs or not self._instances:
            return []
        where = f"job=~{one_of(self._jobs)},instance=~{one_of(self._instances)}"
        return await self._api.query(f"{{__name__=~{one_of(_PROCESS)},{where}}}[{reach}s]")

    def _by_owner(self, series: Iterable[ScrapedSeries]) -> dict[Labels, list[ScrapedSeries]]:
        found: dict[Labels, list[ScrapedSeries]] = {}
        for one in series:
            found.setdefault(self._owners.of(one.labels), []).append(one)
        return found

    def _looked_at(self) -> list[Replica]:
        """The replicas on screen, as many as may be asked for."""
        wanted = self._closer
        shown = [one for one in self._replicas.values() if wanted is None or one.url in wanted]
        return shown[: CLOSER * CLOSER_PARTS]

    async def _read_machines(self) -> None:
        looked_at = self._looked_at()
        found = await self._api.query(machines_query(looked_at)) if looked_at else []
        self._machines = machines(found, looked_at, self._now())

    async def _read_closer(self) -> None:
        """Take the buckets of the replicas on screen, over the whole window."""
        looked_at = self._looked_at()
        for replica in self._replicas.values():
            if replica not in looked_at:
                replica.forget_closer()
        names = _histograms(self._names)
        for start in range(0, len(looked_at) if names else 0, CLOSER):
            part = looked_at[start : start + CLOSER]
            places = {dict(replica.labels).get("instance", "") for replica in part}
            only = f"instance=~{one_of(places)}" if all(places) else ""
            series = await self._api.query(f"{self._selector(names, only)}[{math.ceil(self._reach)}s]")
            found = self._by_owner(series)
            for replica in part:
                replica.look_closer(found.get(replica.labels, ()))


def _pace(series: Sequence[ScrapedSeries]) -> float | None:
    return scrape_interval({t for one in series for t, _ in one.points})


def _probes(names: Collection[str]) -> set[str]:
    """One cheap family of every engine that there is."""
    cheap: set[str] = set()
    plain = {spelled(name).removeprefix("ray_"): name for name in names}
    for engine in ENGINES:
        simple = (spelled(one.metric) for one in engine.sources if one.kind in (Kind.GAUGE, Kind.COUNTER))
        cheap |= {plain[found] for found in [next((name for name in simple if name in plain), None)] if found}
    return cheap


def _histograms(names: Iterable[str]) -> set[str]:
    """The families with buckets, whole."""
    buckets = {name.removesuffix("_bucket") for name in names if name.endswith("_bucket")}
    return {name + suffix for name in buckets for suffix in ("_bucket", "_sum", "_count")}
