"""What the server itself counts while it is under load, for the cross-check and the columns beside ours."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from llmtop.engines.exposition import Exposition
from llmtop.engines.page import read_page
from llmtop.engines.page_record import Page
from llmtop.net.connection import Connector, fetch


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """One page's gauges and counters, summed over engines (KV usage: the fullest); None = not on the page.

    `time_s` is time.perf_counter when the page had come. `itl` and `ttft` are (seconds, observations).
    """

    time_s: float
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    generation: int | None = None
    prompt: int | None = None
    requests: int | None = None
    preemptions: int | None = None
    hits: int | None = None
    queries: int | None = None
    itl: tuple[float, int] | None = None
    ttft: tuple[float, int] | None = None
    start_time: float | None = None
    engine: str | None = None


def _sum(maps: Iterable[Mapping[str, float]], signal: str) -> int | None:
    values = [values[signal] for values in maps if signal in values]
    return round(sum(values)) if values else None


def _histogram(page: Page, name: str) -> tuple[float, int] | None:
    found = [row.histograms[name] for row in page.rows if name in row.histograms]
    if not found or any(histogram.sum is None for histogram in found):
        return None
    return sum(histogram.sum or 0.0 for histogram in found), round(sum(h.count for h in found))


def counters_of(page: Page, now: float) -> ServerCounters:
    """The counters of a page; engines whose gauges are absent are idle."""
    gauges = [row.gauges for row in page.rows]
    counters = [row.counters for row in page.rows]
    usage = [values["kv_usage"] for values in gauges if "kv_usage" in values]
    return ServerCounters(
        time_s=now,
        running=_sum(gauges, "running"),
        waiting=_sum(gauges, "waiting"),
        kv_usage=max(usage, default=None),
        generation=_sum(counters, "generation"),
        prompt=_sum(counters, "prompt"),
        requests=_sum(counters, "requests"),
        preemptions=_sum(counters, "preemptions"),
        hits=_sum(counters, "hits"),
        queries=_sum(counters, "queries"),
        itl=_histogram(page, "itl"),
        ttft=_histogram(page, "ttft"),
        start_time=page.start_time,
        engine=page.dialect,
    )


class CounterReader:
    """Reads `/metrics` of one server."""

    def __init__(self, connector: Connector, headers: Mapping[str, str]) -> None:
        self._connector = connector
        self._headers = headers
        self._exposition = Exposition()
        self.model: str | None = None  # whose page it is, where a server routes to several

    async def read(self, timeout_s: float = 2.0) -> ServerCounters | None:
        """The counters now; None when the server has no such page or does not answer in time."""
        route = "/metrics" if self.model is None else f"/metrics?model={quote(self.model)}&autoload=false"
        try:
            status, body = await fetch(self._connector, "GET", route, self._headers, b"", timeout_s)
        except (OSError, TimeoutError):
            return None
        page = read_page(self._exposition.parse(body), time.perf_counter()) if status == 200 else None
        return counters_of(page, time.perf_counter()) if page is not None else None


def delta(before: int | None, after: int | None) -> int | None:
    """What was added between two readings; None when one is unknown or the counter fell."""
    if before is None or after is None or after < before:
        return None
    return after - before


def restarted(before: ServerCounters, after: ServerCounters) -> bool:
    """Whether the server is another process than before: a new start time, or a counter that fell."""
    if before.start_time and after.start_time and abs(after.start_time - before.start_time) > 1.0:
        return True
    pairs = [(before.generation, after.generation), (before.prompt, after.prompt)]
    return any(then is not None and now is not None and now < then for then, now in pairs)


def server_mean(before: ServerCounters | None, after: ServerCounters | None, name: str) -> float | None:
    """The mean of a latency by the server's histogram between two readings, in seconds."""
    then, now = getattr(before, name, None), getattr(after, name, None)
    if then is None or now is None or now[1] <= then[1]:
        return None
    return float((now[0] - then[0]) / (now[1] - then[1]))
