"""Quantiles from bucket deltas between two pages, with what a bucket can and cannot say.

The rule is Prometheus' `histogram_quantile` (linear inside a bucket) with two honest edges: in the first bucket only
"less than its bound" is known, in +Inf only "more than the last bound". Buckets of several rows are added before
the quantile; quantiles are never averaged.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from llmtop.contract.snapshot import Latency, Quantile
from llmtop.engines.page_record import Histogram

P95_NEEDS = 20
P99_NEEDS = 100


def delta(new: Histogram, old: Histogram | None) -> Histogram | None:
    """What was observed between two pages of the same process; None when their bounds differ.

    `old` None means that the histogram did not exist yet. Reads are not atomic: each bucket is raised to the one
    before.
    """
    if old is None:
        old = Histogram(new.bounds, (0.0,) * len(new.counts), 0.0, 0.0)
    if old.bounds != new.bounds:
        return None
    counts: list[float] = []
    floor = 0.0
    for after, before in zip(new.counts, old.counts, strict=True):
        floor = max(floor, after - before)
        counts.append(floor)
    total = None if new.sum is None or old.sum is None else new.sum - old.sum
    return Histogram(new.bounds, tuple(counts), total, max(0.0, new.count - old.count))


def merge(parts: Sequence[Histogram]) -> Histogram | None:
    """The sum of several histograms over the bounds that all of them have; None for none."""
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    common = set(parts[0].bounds).intersection(*(part.bounds for part in parts[1:]))
    bounds = tuple(sorted(common))
    tables = [dict(zip(part.bounds, part.counts, strict=True)) for part in parts]
    counts = tuple(sum(table[bound] for table in tables) for bound in bounds)
    sums = [part.sum for part in parts if part.sum is not None]
    total = sum(sums) if len(sums) == len(parts) else None
    return Histogram(bounds, counts, total, sum(part.count for part in parts))


def quantile(q: float, histogram: Histogram, needs: int = 0) -> Quantile | None:
    """The `q` quantile in seconds; None without observations. Below `needs` observations it is marked weak."""
    n = histogram.counts[-1]
    bounds = histogram.bounds
    finite = len(bounds) - 1  # the last is +Inf
    if n <= 0 or not finite:
        return None
    rank = q * n
    weak = n < needs
    j = bisect_left(histogram.counts, rank)
    if j >= finite:
        return Quantile(bounds[finite - 1], ">", weak, low_s=bounds[finite - 1])
    if j == 0:
        return Quantile(bounds[0], "<" if bounds[0] > 0 else "=", weak, min(0.0, bounds[0]), bounds[0])
    below, above = bounds[j - 1], bounds[j]
    under, upto = histogram.counts[j - 1], histogram.counts[j]
    return Quantile(below + (above - below) * (rank - under) / (upto - under), "=", weak, below, above)


def latency(parts: Iterable[Histogram]) -> Latency:
    """The figures of one latency over all rows; unknown when no row has the histogram."""
    merged = merge(tuple(parts))
    if merged is None or not math.isfinite(merged.counts[-1]):
        return Latency()
    n = merged.counts[-1]
    mean = merged.sum / n if n > 0 and merged.sum is not None and math.isfinite(merged.sum) else None
    return Latency(
        int(n),
        mean,
        quantile(0.50, merged),
        quantile(0.95, merged, P95_NEEDS),
        quantile(0.99, merged, P99_NEEDS),
    )
