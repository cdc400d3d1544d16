"""Counters to rates: windows, resets, pages that lack something, and the reference server of 1000 tokens a second."""

from __future__ import annotations

import random

import pytest

from crank import Crank, vllm_page
from llmtop.engines.page_record import Histogram, RowSample
from llmtop.engines.rates import RowWindow


def row(running: float = 1.0, **counters: float) -> RowSample:
    return RowSample(("m", "0"), gauges={"running": running}, counters=counters)


def test_no_rate_before_the_second_page() -> None:
    window = RowWindow()
    window.push(0.0, row(generation=500))
    assert (window.rate("generation"), window.span(), window.delta("generation")) == (None, None, None)


def test_rate_is_the_counter_delta_over_the_window() -> None:
    window = RowWindow()
    for second in range(31):
        window.push(float(second), row(generation=100 * second if second <= 20 else 2000 + 300 * (second - 20)))
    assert window.span() == 10.0
    assert window.rate("generation") == 300.0  # nothing of the first 20 s is left in it


def test_one_poll_alone_never_makes_the_rate() -> None:
    window = RowWindow()
    for second in range(11):
        window.push(float(second), row(generation=100 * second))
    window.push(11.0, row(generation=100 * 10 + 2000))
    assert window.rate("generation") == (3000 - 100) / 10


@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_tokens_a_second_read_so_though_pages_come_late(seed: int) -> None:
    late = random.Random(seed)
    window = RowWindow()
    for second in range(60):
        t = second + late.uniform(0.0, 0.3)  # built as it is sent
        window.push(t, row(generation=int(1000 * t)))
        rate = window.rate("generation")
        assert rate is None or 990 <= rate <= 1010


def test_a_fallen_counter_resets_the_whole_row() -> None:
    window = RowWindow()
    window.push(0.0, row(generation=1000, prompt=50))
    window.push(1.0, row(generation=1100, prompt=60))
    assert window.push(2.0, row(generation=1150, prompt=5))
    assert (window.rate("generation"), window.rate("prompt")) == (None, None)
    assert not window.push(3.0, row(generation=1250, prompt=25))
    assert (window.rate("generation"), window.rate("prompt")) == (100.0, 20.0)


def test_another_creation_time_resets_though_no_counter_fell() -> None:
    window = RowWindow()
    old, new = ({"running": 1.0, "created": created} for created in (100.0, 200.0))
    window.push(0.0, RowSample(("m", "0"), gauges=old, counters={"generation": 10}))
    assert window.push(1.0, RowSample(("m", "0"), gauges=new, counters={"generation": 5000}))
    assert window.rate("generation") is None


def test_random_restarts_never_give_a_negative_rate_or_a_spike() -> None:
    chance = random.Random(7)
    for _ in range(50):
        window, tokens = RowWindow(), 1e6
        for second in range(60):
            tokens = chance.choice((0.0, 50.0)) if chance.random() < 0.05 else tokens + chance.uniform(0, 100)
            window.push(float(second), row(generation=tokens))
            rate = window.rate("generation")
            assert rate is None or 0.0 <= rate <= 100.0


def test_a_counter_that_appears_rose_from_zero() -> None:
    window = RowWindow()
    window.push(0.0, row(generation=5))
    window.push(1.0, row(generation=5, requests=3))
    assert window.delta("requests") == 3


def test_a_counter_missing_from_one_page_makes_no_spike() -> None:
    window = RowWindow()
    for second in range(30):
        tokens = 1e6 + 10 * second
        window.push(float(second), row(prompt=second) if second == 10 else row(generation=tokens, prompt=second))
        rate = window.rate("generation")
        assert rate is None if second in (0, 10) else rate == pytest.approx(10.0)


def test_a_restart_behind_a_page_without_the_counter_is_still_seen() -> None:
    window = RowWindow()
    window.push(0.0, row(generation=1000))
    window.push(1.0, row())
    assert window.push(2.0, row(generation=10))
    assert window.rate("generation") is None


@pytest.mark.parametrize("odd", ["NaN", "+Inf", "-Inf"])
@pytest.mark.parametrize("place", [0, 3])
def test_a_counter_that_is_no_number_makes_no_spike_and_no_restart(odd: str, place: int) -> None:
    crank = Crank()
    for second in range(25):
        page = vllm_page(generation=1e6 + 10 * second)
        if second == place:
            page = page.replace(b" 1000000.0", f" {odd}".encode()).replace(b" 1000030.0", f" {odd}".encode())
        view = crank.feed(page, float(second)).view()
        rate = view.rates.generation_tok_s
        assert rate is None if second in (0, place) or (place == 0 and second == 1) else rate == pytest.approx(10.0)
    assert view.restarts == 0


def test_bucket_deltas_are_over_the_latency_window() -> None:
    window = RowWindow()
    for second in range(0, 130, 10):
        counts = (float(second), 2.0 * second)
        ttft = Histogram((1.0, float("inf")), counts, float(second), counts[-1])
        window.push(float(second), RowSample(("m", "0"), histograms={"ttft": ttft}))
    change = window.histogram("ttft")
    assert change == Histogram((1.0, float("inf")), (60.0, 120.0), 60.0, 120.0)


def test_other_bounds_begin_a_new_window() -> None:
    window = RowWindow()
    for t, bounds, n in (
        (0.0, (1.0, float("inf")), 5.0),
        (1.0, (2.0, float("inf")), 6.0),
        (2.0, (2.0, float("inf")), 9.0),
    ):
        window.push(t, RowSample(("m", "0"), histograms={"ttft": Histogram(bounds, (n, n), n, n)}))
    change = window.histogram("ttft")
    assert change is not None
    assert change.counts == (3.0, 3.0)


def test_a_histogram_missing_from_one_page_is_not_taken_for_a_new_one() -> None:
    window = RowWindow()
    held = Histogram((1.0, float("inf")), (500.0, 500.0), 5.0, 500.0)
    window.push(0.0, RowSample(("m", "0"), histograms={"ttft": held}))
    for t in (1.0, 62.0):  # the page without it becomes the base of the window
        window.push(t, RowSample(("m", "0")))
    window.push(63.0, RowSample(("m", "0"), histograms={"ttft": held}))
    change = window.histogram("ttft")
    assert change is not None
    assert change.count == 0.0  # and not the 500 of its whole life
    later = Histogram((1.0, float("inf")), (503.0, 503.0), 5.3, 503.0)
    window.push(64.0, RowSample(("m", "0"), histograms={"ttft": later}))
    change = window.histogram("ttft")
    assert change is not None
    assert change.count == 3.0


@pytest.mark.parametrize("signal", ["generation", "prompt", "iterations", "preemptions", "requests"])
def test_any_moving_counter_is_progress(signal: str) -> None:
    window = RowWindow()
    still = dict.fromkeys(("generation", "prompt", "iterations", "preemptions", "requests"), 1.0)
    for second in range(10):
        window.push(float(second), row(**still))
    assert window.stalled
    window.push(10.0, row(**(still | {signal: 2.0})))
    assert not window.stalled


def test_stalled_needs_three_polls_and_five_seconds() -> None:
    fast, slow = RowWindow(), RowWindow()
    for poll in range(30):
        fast.push(poll * 0.2, row(generation=1))
        assert fast.stalled == (poll * 0.2 >= 5.0)
    for poll in range(4):
        slow.push(poll * 30.0, row(generation=1))
        assert slow.stalled == (poll >= 2)


def test_an_idle_engine_never_counts_as_still() -> None:
    window = RowWindow()
    for second in range(20):
        window.push(float(second), row(running=0.0, generation=1))
    window.push(20.0, row(running=1.0, generation=1))
    assert not window.stalled  # the request came a moment ago


def test_a_page_without_counters_is_no_progress() -> None:
    window = RowWindow()
    for second in range(12):
        window.push(float(second), row() if second == 6 else row(generation=9))
    assert window.stalled
