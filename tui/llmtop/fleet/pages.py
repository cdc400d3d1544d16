"""Series of Prometheus become the metrics pages again that they were scraped from, at the time of the scrape."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from llmtop.engines.exposition import Parsed
from llmtop.engines.page import read_page
from llmtop.engines.page_record import Page
from llmtop.engines.rows import Rows
from llmtop.engines.series import SampleSlot, resolve
from llmtop.fleet.api import Labels, ScrapedSeries

WHOLE = 0.9  # of what the page before had: one with less may still be coming in


class PageMaker:
    """The pages of one replica; remembers what its series are."""

    def __init__(self, own: Labels) -> None:
        self._own = frozenset(own)  # labels of the replica and not of its series
        self._slots: dict[tuple[str, Labels], tuple[SampleSlot, ...]] = {}
        self._rows = Rows()
        self._size = 0

    def pages(self, series: Iterable[ScrapedSeries], after: float, unsure_after: float = math.inf) -> list[Page]:
        """The pages younger than `after`; one younger than `unsure_after` only if it seems to be whole."""
        by_time: dict[float, dict[SampleSlot, float]] = {}
        for one in series:
            slots = self._of(one)
            for t, value in one.points if slots else ():
                if t > after:
                    by_time.setdefault(t, {}).update(dict.fromkeys(slots, value))
        pages: list[Page] = []
        for t in sorted(by_time):
            if t > unsure_after and len(by_time[t]) < WHOLE * self._size:
                break
            self._size = len(by_time[t])
            page = self._page(by_time[t], t)
            pages += [] if page is None else [page]
        return pages

    def _of(self, one: ScrapedSeries) -> tuple[SampleSlot, ...]:
        key = (one.name, one.labels)
        if key not in self._slots:
            self._slots[key] = resolve(one.name, dict(pair for pair in one.labels if pair not in self._own))
        return self._slots[key]

    def _page(self, values: dict[SampleSlot, float], t: float) -> Page | None:
        rows = self._rows.keys(values.keys())
        page = read_page(Parsed(values, len(values), 0, False, False, rows, self._rows.places), t)
        return None if page is None else replace(page, clock=t)


class Owners:
    """Which replica each series is of: the labels of its `up`, or those that name a target everywhere."""

    NAMES = ("cluster", "namespace", "job", "instance", "pod")

    def __init__(self) -> None:
        self._by_place: dict[tuple[str | None, str | None], list[Labels]] = {}
        self._known: dict[Labels, Labels] = {}

    def learn(self, ups: Collection[Labels]) -> None:
        """Take in the labels of every `up`."""
        for labels in ups:
            held = self._by_place.setdefault(_place(dict(labels)), [])
            if labels not in held:
                held.append(labels)
                self._known.clear()

    def of(self, labels: Labels) -> Labels:
        """The labels of the replica that a series with these labels is of."""
        found = self._known.get(labels)
        if found is None:
            found = self._known[labels] = self._find(labels)
        return found

    def _find(self, labels: Labels) -> Labels:
        told = dict(labels)
        for own in self._by_place.get(_place(told), ()):
            if all(told.get(name) == value for name, value in own):
                return own
        return tuple((name, told[name]) for name in self.NAMES if name in told)


def _place(labels: dict[str, str]) -> tuple[str | None, str | None]:
    return labels.get("job"), labels.get("instance")
