"""One replica as Prometheus saw it: scraped pages in, a `ServerView` out, by the rules of a server that is asked."""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from llmtop.contract.snapshot import LatencySet, Rates, ServerView, State
from llmtop.contract.units import clean, duration
from llmtop.engines.rates import LATENCY_WINDOW_S, RATE_WINDOW_S, WindowSpans
from llmtop.engines.tracker import STALE_AFTER_INTERVALS, Failure, ServerTracker
from llmtop.fleet.api import Labels, ScrapedSeries
from llmtop.fleet.pages import PageMaker

SCRAPES = 4  # that a window holds at least
GUESSED_S = 15.0  # between two scrapes, where nothing tells
DELAY_S = 5.0  # by which what was scraped may come late: VictoriaMetrics keeps it back for two
GONE_S = 300.0  # what has said nothing for so long is no replica any more
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")
_NODE_LABELS = ("node", "nodename", "kubernetes_node", "hostname", "Hostname")


def spans_for(scrape_s: float) -> WindowSpans:
    """The windows of a replica that is scraped every so many seconds."""
    return WindowSpans(max(RATE_WINDOW_S, SCRAPES * scrape_s), max(LATENCY_WINDOW_S, SCRAPES * scrape_s))


def scrape_interval(moments: Collection[float]) -> float | None:
    """The seconds between two scrapes, by when they were."""
    ordered = sorted(set(moments))
    steps = [later - earlier for earlier, later in pairwise(ordered)]
    return statistics.median(steps) if steps else None


class Replica:
    """Remembers the pages and the `up` of one target; all times are Unix times of Prometheus."""

    def __init__(self, labels: Labels, scrape_s: float) -> None:
        told = dict(labels)
        self.labels = labels
        self.scrape_s = scrape_s
        self.instance = clean(told.get("instance") or told.get("pod") or ", ".join(told.values()) or "?", 200)
        self.url = f"http://{self.instance}" if _ADDRESS.fullmatch(self.instance) else self.instance
        self.pod = clean(told.get("pod", "")) or None
        host = self.instance.rpartition(":")[0] or self.instance
        self.node = next((clean(told[label]) for label in _NODE_LABELS if told.get(label)), host.strip("[]"))
        self.host = host
        self._tracker = ServerTracker(self.url, self.pod, spans_for(scrape_s))
        self._pages = PageMaker(labels)
        self._closer = PageMaker(labels)
        self._latency: LatencySet | None = None
        self._latest = 0.0
        self._up: tuple[float, float] | None = None
        self.why: str | None = None  # the last scrape failed
        self._viewed: tuple[float, ServerView] | None = None  # and when: hundreds cost what they cost

    @property
    def seen(self) -> float:
        """When it was last heard of."""
        return max(self._latest, self._up[0] if self._up is not None else 0.0)

    @property
    def down(self) -> bool:
        """Whether the last scrape failed."""
        return self._up is not None and self._up[1] == 0.0 and self._up[0] >= self._latest

    @property
    def _patience(self) -> float:
        """The interval by which it grows stale."""
        return max(self.scrape_s, DELAY_S / STALE_AFTER_INTERVALS)

    def feed(self, series: Sequence[ScrapedSeries], now: float) -> None:
        """Take what was scraped since the last time."""
        for page in self._pages.pages(series, self._latest, now - self.scrape_s):
            self._latest, self._viewed = page.t, None
            self._tracker.feed(page, page.t)

    def told_up(self, series: ScrapedSeries) -> None:
        """Take what `up` says."""
        before, self._up = self._up, max(series.points, default=self._up, key=lambda point: point[0])
        self._viewed = self._viewed if before is not None and self._up and before[1] == self._up[1] else None
        self.why = self.why if self.down else None

    def told_why(self, reason: str | None) -> None:
        """Take why its scrapes fail, in Prometheus' words."""
        self.why, self._viewed = reason, None

    def failed(self, failure: Failure, now: float) -> None:
        """Prometheus itself gave no answer."""
        self._viewed = None
        self._tracker.feed(failure, now)

    def look_closer(self, series: Sequence[ScrapedSeries]) -> None:
        """Take the buckets of a whole window: quantiles are made from them by our own rule."""
        self._viewed = None
        tracker = ServerTracker(self.url, None, spans_for(self.scrape_s))
        pages = self._closer.pages(series, 0.0)
        for page in pages:
            tracker.feed(page, page.t)
        if pages:
            self._latency = tracker.view(pages[-1].t, pages[-1].t, self.scrape_s).latency

    def forget_closer(self) -> None:
        """Nobody looks at it any more, so that its quantiles grow old."""
        self._latency, self._viewed = None, self._viewed if self._latency is None else None

    def view(self, now: float) -> ServerView:
        """The server at a Unix time of Prometheus; without rates once it is not scraped any more."""
        if self._viewed is not None and now - self._latest <= STALE_AFTER_INTERVALS * self._patience and not self.down:
            then, view = self._viewed
            up_s = None if view.up_s is None else view.up_s + now - then
            return replace(view, age_s=max(0.0, now - self._latest), up_s=up_s, node=self.node)
        self._viewed = (now, self._view(now))
        return self._viewed[1]

    def _view(self, now: float) -> ServerView:
        view = self._tracker.view(now, now, self._patience)
        if self.down:
            last = f", last sample {duration(now - self._latest)} ago" if self._latest else ""
            words = f"Prometheus cannot scrape it: {self.why or 'up = 0'}{last}"
            view = ServerView(
                self.url, State.DOWN, words, view.engine, model=view.model, age_s=view.age_s, restarts=view.restarts
            )
        elif view.state is State.STALE:
            view = replace(view, rates=Rates(), latency=LatencySet(), kv_growth_tok_s=None, kv_full_in_s=None)
        elif self._latency is not None and view.state.live:
            view = replace(view, latency=self._latency)
        return replace(view, name=self.pod, node=self.node, interval_s=self.scrape_s, interval_wanted_s=self.scrape_s)
