"""Level results and the doubts about them, from hand-made records and counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmtop.load.completion import Outcome
from llmtop.load.counters import ServerCounters
from llmtop.load.flags import cross_check, flags
from llmtop.load.plan import Level, Plan
from llmtop.load.prompts import Profile
from llmtop.load.records import RequestRecord
from llmtop.load.results import CrossCheck, Totals
from llmtop.load.summary import LevelRaw, ServerExtremes, detailed_arrays, level_result
from llmtop.load.vitals import Vitals

LEVEL = Level("c=4", 4, 120, 100, 8)
PLAN = Plan("http://x", (LEVEL,))


def record(i: int, **more: Any) -> RequestRecord:
    """One of four users: TTFT 0.1 s, eight tokens 10 ms apart, the next at once."""
    start = (i // 4) * 0.17
    base: dict[str, Any] = {"ttft_s": 0.1, "latency_s": 0.17, "itls_s": (0.01,) * 7, "first_wave": i < 4}
    base |= {"prompt_tokens": 100, "output_tokens": 8, "asked_prompt": 100, "asked_output": 8}
    return RequestRecord(i, i % 4, start, start + 0.17, **({"outcome": Outcome.OK} | base | more))


def counters(scale: int = 0, **more: Any) -> ServerCounters:
    values = {"generation": 960 * scale, "prompt": 12_000 * scale, "requests": 120 * scale, "preemptions": 0}
    values |= {"hits": 0, "queries": 12_000 * scale, "running": 0, "waiting": 0}
    return ServerCounters(0.0, **(values | more))


def raw(*changed: RequestRecord, **more: Any) -> LevelRaw:
    records = {r.index: r for r in [*(record(i) for i in range(120)), *changed]}
    base: dict[str, Any] = {"before": counters(), "after": counters(1), "warm_up": record(0)}
    base |= {"profile": Profile(model="m", use_ids=True), "plan": PLAN, "level": LEVEL, "first": True}
    base |= {"records": tuple(records.values()), "t0_s": 0.0, "date": "20260101-000000"}
    return LevelRaw(**(base | more))


def names(level: LevelRaw) -> list[str]:
    return [flag.name for flag in flags(level)]


def test_a_clean_level_has_no_flag_and_equal_counters() -> None:
    assert names(raw()) == []
    assert cross_check(raw()) == CrossCheck(True, Totals(960, 12_000, 120), Totals(960, 12_000, 120))


@pytest.mark.parametrize(
    ("level", "name", "words"),
    [
        (raw(workers=(Vitals(cpu_share=0.7),)), "client-limited", "worker CPU 70%"),
        (raw(workers=(Vitals(wait_share=0.03),)), "client-limited", "waited for a core 3.0%"),
        (raw(workers=(Vitals(lag_p99_s=0.006),)), "client-limited", "loop lag P99 6.0 ms"),
        (raw(replace(record(3), start_s=0.02)), "client-limited", "first wave spread over 20 ms"),
        (raw(after=counters(1, generation=970)), "not alone", "970"),
        (raw(after=counters(1, requests=122)), "not alone", "122 finished requests"),
        (raw(before=counters(running=3)), "not alone", "3 requests of others"),
        (raw(after=counters(1, generation=950)), "counters differ", "950 at the server, 960 here"),
        (raw(before=None), "not checked", "could not be read"),
        (raw(after=counters(1, hits=120)), "cache", "1.0%"),
        (raw(after=counters(1, preemptions=2)), "preempted", "2 preemptions"),
        (raw(watch=ServerExtremes(waiting_max=5)), "queueing", "up to 5"),
        (raw(max_num_seqs=2), "measures the queue", "max_num_seqs"),
        (raw(record(5, output_tokens=None, output_estimated=True)), "tokens estimated", "no usage"),
        (raw(record(5, outcome=Outcome.SHORT)), "short", "1 answers"),
        (raw(profile=Profile(refused=("ignore_eos",))), "short", "no ignore_eos"),
        (raw(record(5, prompt_tokens=101)), "prompt length", "101 prompt tokens for 100"),
        (raw(warm_up=None), "cold", "warm-up"),
        (raw(before=counters(2), after=counters(1)), "server restarted", "fell"),
        (
            raw(before=counters(start_time=1000.0), after=counters(1, start_time=2000.0)),
            "server restarted",
            "start time",
        ),
        (raw(before=counters(ttft=(0.0, 0)), after=counters(1, ttft=(6.0, 120))), "late", "100 ms here, 50 ms"),
        (raw(before=counters(itl=(0.0, 0)), after=counters(1, itl=(33.6, 840))), "clumped", "10 ms here, 40 ms"),
    ],
)
def test_each_doubt_has_its_reason(level: LevelRaw, name: str, words: str) -> None:
    found = {flag.name: flag.reason for flag in flags(level)}
    assert name in found
    assert words in found[name]


def test_heaps_of_chunks_are_clumped() -> None:
    heap = [record(i, itls_s=(0.0,) * 6 + (0.07,)) for i in range(120)]
    level = raw(*heap, before=counters(itl=(0.0, 0)), after=counters(1, itl=(8.4, 840)))
    assert "86%" in {flag.name: flag.reason for flag in flags(level)}["clumped"]


def test_few_samples_below_a_hundred() -> None:
    level = replace(raw(), records=raw().records[:99], after=counters(1, generation=792, requests=99, prompt=9900))
    assert names(level) == ["few samples"]


def test_tokens_of_broken_requests_do_not_mean_that_others_are_there() -> None:
    cut = record(7, outcome=Outcome.CUT, output_tokens=None, itls_s=(0.01,) * 2)
    assert "not alone" not in names(raw(cut, after=counters(1, requests=119)))


def test_level_result_by_hand() -> None:
    result = level_result(raw())
    assert result.duration == pytest.approx(30 * 0.17)
    assert result.tok_s == pytest.approx(960 / 5.1)
    assert result.user_tok_s == pytest.approx(960 / 5.1 / 4)
    assert result.decode_tok_s == pytest.approx(100.0)
    assert [result.ttft_burst, result.ttft_steady] == [pytest.approx(0.1), pytest.approx(0.1)]
    assert result.ttft_steady_n == 116
    assert (result.attainment, result.tokens_per_chunk, result.peak_concurrency) == (1.0, 1.0, 4)
    assert (result.errors, result.failed, result.completed) == ({}, 0, 120)
    assert result.steady_tok_s == pytest.approx(960 / 5.1, rel=0.05)  # waves of 32 tokens at both edges
    assert result.drift_tok_s == pytest.approx(0.0, abs=0.1)


def test_failures_leave_the_latencies_and_stay_in_the_attainment() -> None:
    slow, cut = record(8, ttft_s=5.0), record(9, outcome=Outcome.CUT, ttft_s=9.0)
    gone = record(10, outcome=Outcome.CANCELLED)
    result = level_result(raw(slow, cut, gone))
    assert (result.completed, result.failed) == (118, 1)
    assert result.errors == {"cut": 1, "cancelled": 1}
    assert result.attainment == pytest.approx(117 / 119)
    assert result.ttft is not None
    assert result.ttft.p99_ms < 5000


def test_no_success_has_no_speed() -> None:
    dead = [record(i, outcome=Outcome.HTTP_5XX, ttft_s=None, itls_s=(), output_tokens=None) for i in range(120)]
    result = level_result(raw(*dead))
    assert (result.user_tok_s, result.decode_tok_s, result.ttft_burst) == (None, None, None)
    assert (result.completed, result.attainment) == (0, 0.0)


def test_detailed_arrays_have_one_entry_per_request() -> None:
    arrays = detailed_arrays(raw(record(9, outcome=Outcome.CUT, message="gone")))
    assert {len(values) for values in arrays.values()} == {120}
    assert (arrays["errors"][9], arrays["output_lens"][9], arrays["output_lens"][8]) == ("cut: gone", 0, 8)


def test_goodput_counts_requests_within_the_limits() -> None:
    plan = replace(PLAN, goodput_ms={"ttft": 150.0}, metadata={"host": "spark-a"})
    result = level_result(replace(raw(record(8, ttft_s=0.16)), plan=plan))
    assert result.goodput_s == pytest.approx(119 / 5.1)
    assert result.goodput_share == pytest.approx(119 / 120)
    assert result.metadata == {"host": "spark-a"}
