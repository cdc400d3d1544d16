"""Figures of the rows of one page: of one row, of all together, and how a page compares with the rows before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from llmtop.engines import kv
from llmtop.engines.page_record import MOST_REQUESTS, Page, RowKey, RowSample

Rows = tuple[RowSample, ...]


def requests(row: RowSample, name: str) -> int | None:
    """Running or waiting; 0 for an engine that is there but has not stepped yet (data-parallel vLLM)."""
    value = row.gauges.get(name)
    if value is not None:
        return round(value) if 0 <= value < MOST_REQUESTS else None
    return 0 if kv.not_stepped(row) else None


def load_words(row: RowSample) -> str:
    """How many run and wait, whichever there are."""
    known = [(requests(row, name), name) for name in ("running", "waiting")]
    return ", ".join(f"{number} {name}" for number, name in known if number)


def total(rows: Rows, name: str) -> int | None:
    """Running or waiting of all rows that know it."""
    known = [value for row in rows if (value := requests(row, name)) is not None]
    return sum(known) if known else None


def sum_of_all(values: Iterable[int | None]) -> int | None:
    """A sum of which every part is known."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if known and len(known) == len(listed) else None


def counter_total(rows: Rows, name: str) -> int | None:
    """A counter of all rows that have it; None for a sum that is no number."""
    known = sum(row.counters[name] for row in rows if name in row.counters)
    return int(known) if math.isfinite(known) and any(name in row.counters for row in rows) else None


def share(rows: Rows, part: str, whole: str) -> float | None:
    """One counter of another since the server started (0..1)."""
    above, below = counter_total(rows, part), counter_total(rows, whole)
    return min(1.0, above / below) if above is not None and below else None


def whole(value: float | None) -> int | None:
    """A counter of one row as a whole number."""
    return None if value is None else int(value)


def by_reason(rows: Rows) -> dict[str, int]:
    """Who waits, by reason, over all rows."""
    reasons: dict[str, int] = {}
    for row in rows:
        for reason, number in row.waiting_by_reason.items():
            reasons[reason] = reasons.get(reason, 0) + number
    return reasons


def largest(rows: Rows, name: str) -> float | None:
    """The largest of a fraction over the rows that know it."""
    return max((v for row in rows if (v := row.gauges.get(name)) is not None and 0.0 <= v <= 1.01), default=None)


def pools(rows: Rows) -> dict[str, float]:
    """How full each pool of a cache is that has several; of several engines the fullest of each."""
    names = sorted({name for row in rows for name in row.gauges if name.startswith("pool:")})
    return {name.partition(":")[2]: value for name in names if (value := largest(rows, name)) is not None}


def state_pool(row: RowSample) -> float | None:
    """How full the fullest pool is that holds no KV."""
    others = [value for name, value in pools((row,)).items() if name not in ("full", "swa")]
    return max(others, default=None)


def model_name(page: Page) -> str | None:
    """The first model that the page names."""
    return next((row.key[0] for row in page.rows if row.key[0]), None)


def covers(page: Page, before: Mapping[RowKey, RowSample]) -> bool:
    """Whether a page has every row, counter and bucket of the rows before."""
    rows = {row.key: row for row in page.rows}
    return all(key in rows and _has_all(rows[key], old) for key, old in before.items())


def _has_all(new: RowSample, old: RowSample) -> bool:
    bounds = {name: histogram.bounds for name, histogram in new.histograms.items()}
    same = all(bounds.get(name) == histogram.bounds for name, histogram in old.histograms.items())
    return same and new.counters.keys() >= old.counters.keys()


def grew(page: Page, before: Mapping[RowKey, RowSample]) -> bool:
    """Whether a page has a counter or histogram that its row had not before."""
    return any(
        row.counters.keys() - old.counters.keys() or row.histograms.keys() - old.histograms.keys()
        for row in page.rows
        if (old := before.get(row.key)) is not None
    )
