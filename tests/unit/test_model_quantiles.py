"""Quantiles from bucket deltas, against a plain implementation and against the observations themselves."""

from __future__ import annotations

import bisect
import math
import random

import pytest

from llmtop.contract.snapshot import Latency, Quantile
from llmtop.engines.page_record import Histogram
from llmtop.engines.quantiles import delta, latency, merge, quantile

INF = math.inf
BOUNDS = (0.1, 0.2, 0.5, 1.0, 5.0, INF)


def histogram(*samples: float, bounds: tuple[float, ...] = BOUNDS) -> Histogram:
    counts = tuple(float(sum(sample <= bound for sample in samples)) for bound in bounds)
    return Histogram(bounds, counts, sum(samples), float(len(samples)))


def test_linear_inside_a_bucket() -> None:
    # 4 observations in (0.2, 0.5]: rank 2 of 4 is half way through the bucket
    found = quantile(0.5, histogram(0.3, 0.3, 0.4, 0.4))
    assert found is not None
    assert found.value_s == pytest.approx(0.35)
    assert (found.bound, found.low_s, found.high_s) == ("=", 0.2, 0.5)


def test_edges_say_what_is_known() -> None:
    assert quantile(0.5, histogram(0.001, 0.002)) == Quantile(0.1, "<", low_s=0.0, high_s=0.1)
    assert quantile(0.5, histogram(7.0, 900.0)) == Quantile(5.0, ">", low_s=5.0)
    assert quantile(0.5, histogram()) is None
    assert quantile(0.5, Histogram((INF,), (4.0,), 1.0, 4.0)) is None


def test_a_quantile_lies_in_the_bucket_of_the_true_one() -> None:
    chance = random.Random(3)
    for _ in range(300):
        samples = sorted(chance.lognormvariate(-1.0, 1.5) for _ in range(chance.randint(1, 400)))
        q = chance.choice((0.5, 0.95, 0.99))
        true = samples[max(0, math.ceil(q * len(samples)) - 1)]
        place = bisect.bisect_left(BOUNDS, true)
        found = quantile(q, histogram(*samples))
        assert found is not None
        if place == 0:
            assert found == Quantile(0.1, "<", low_s=0.0, high_s=0.1)
        elif place == len(BOUNDS) - 1:
            assert found == Quantile(5.0, ">", low_s=5.0)
        else:
            assert found.bound == "="
            assert BOUNDS[place - 1] <= found.value_s <= BOUNDS[place]


def test_merging_rows_equals_one_row_with_all_observations() -> None:
    chance = random.Random(4)
    for _ in range(100):
        parts = [[chance.expovariate(2.0) for _ in range(chance.randint(0, 60))] for _ in range(3)]
        merged = latency(histogram(*part) for part in parts)
        whole = latency([histogram(*(sample for part in parts for sample in part))])
        assert (merged.n, merged.p50, merged.p95, merged.p99) == (whole.n, whole.p50, whole.p95, whole.p99)
        assert merged.mean_s == (None if whole.mean_s is None else pytest.approx(whole.mean_s))


def test_rows_with_other_bounds_merge_over_the_common_ones() -> None:
    fine = histogram(0.15, 0.3, bounds=(0.1, 0.2, 0.5, INF))
    coarse = histogram(0.05, 0.4, bounds=(0.1, 0.5, INF))
    merged = merge([fine, coarse])
    assert merged is not None
    assert (merged.bounds, merged.counts) == ((0.1, 0.5, INF), (1.0, 4.0, 4.0))


def test_torn_reads_are_made_monotone() -> None:
    old = Histogram((0.1, 1.0, INF), (5.0, 9.0, 9.0), 1.0, 9.0)
    new = Histogram((0.1, 1.0, INF), (9.0, 8.0, 12.0), 2.0, 12.0)
    change = delta(new, old)
    assert change is not None
    assert change.counts == (4.0, 4.0, 4.0)
    assert list(change.counts) == sorted(change.counts)


def test_no_observation_is_unknown_and_not_zero() -> None:
    figures = latency([histogram()])
    assert figures == Latency(n=0)
    assert latency([]) == Latency()


def test_too_few_observations_are_marked_weak() -> None:
    for n, weak95, weak99 in ((19, True, True), (20, False, True), (99, False, True), (100, False, False)):
        figures = latency([histogram(*([0.3] * n))])
        assert figures.p50 is not None
        assert figures.p95 is not None
        assert figures.p99 is not None
        assert (figures.p50.weak, figures.p95.weak, figures.p99.weak) == (False, weak95, weak99)


def test_a_nan_sum_loses_the_mean_and_keeps_the_quantiles() -> None:
    figures = latency([Histogram(BOUNDS, histogram(0.3, 0.4).counts, math.nan, 2.0)])
    assert figures.mean_s is None
    assert figures.p50 is not None


def test_counts_beyond_all_numbers_are_unknown() -> None:
    assert latency([Histogram((1.0, INF), (1e308, 1e308), 1.0, 1e308)] * 2) == Latency()
