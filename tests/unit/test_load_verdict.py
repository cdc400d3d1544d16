"""Limits, sweet spot, first failing level and knee."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmtop.load.results import LevelResult, RunResult, Spread
from llmtop.load.verdict import (
    CRITERIA,
    BadLimit,
    announcement,
    judge,
    parse_goodput,
    parse_slo,
    single_user,
    with_ratios,
)

SLO = {"user_tok_s": 6.0, "ttft_p99": 4.0}


def spread(p99_s: float, mean_ms: float = 0.0, std_ms: float = 0.0) -> Spread:
    return Spread(mean_ms, 0.0, std_ms, 0.0, 0.0, 0.0, p99_s * 1000)


def level(c: int, tok_s: float, p99_s: float, **more: Any) -> LevelResult:
    """A level of the sweep in the facts of a GB10."""
    base: dict[str, Any] = {"level": f"c={c}", "concurrency": c, "tok_s": tok_s, "user_tok_s": tok_s / c}
    base |= {"ttft": spread(p99_s), "ttft_steady": 1.1, "completed": 64}
    return LevelResult(**(base | more))


SWEEP = [level(1, 30.0, 0.5), level(8, 94.0, 3.93), level(16, 113.0, 7.9), level(32, 126.0, 17.0, user_tok_s=3.9)]


def test_sweet_spot_first_fail_and_knee_in_words() -> None:
    answer = judge(SWEEP, SLO)
    assert (answer.sweet_spot, answer.knee, answer.met, answer.monotone) == (8, 32, True, True)
    first = answer.first_fail
    assert first is not None
    assert (first.concurrency, first.criterion, first.value, first.burst_only) == (16, "ttft_p99", 7.9, True)
    assert answer.words == (
        "c=8: 94.0 tok/s (3.1x one user), 11.8 each, P99 TTFT 3.9 s. "
        "c=16 fails: P99 TTFT 7.9 s (limit 4.0 s), burst only: the steady TTFT would pass."
    )


def test_the_bases_of_articles() -> None:
    """The published sweep of a GB10: 34.33 tok/s decoded alone, 2.71 and 4.20 times it by 8 and 32 users."""
    alone = level(1, 30.0, 0.5, decode_tok_s=34.33, input_len=2048, output_len=128)
    more = [level(c, 34.33 * times, 3.9, input_len=2048, output_len=128) for c, times in ((8, 2.71), (32, 4.20))]
    other = level(16, 113.0, 7.9, input_len=512, output_len=128)
    ratios = [one.times_decode_alone for one in with_ratios([alone, *more, other])]
    assert ratios == [pytest.approx(30.0 / 34.33), pytest.approx(2.71), pytest.approx(4.20), None]
    answer = judge([alone, *more], SLO | {"user_tok_s": 3.0})
    assert answer.words.startswith("c=32: 144 tok/s (4.8x one user, 4.20x its decode alone)")


def test_a_gap_in_the_middle_ends_the_climb() -> None:
    levels = [level(1, 30, 0.5), level(4, 60, 5.0, ttft_steady=4.5), level(8, 94, 3.0)]
    answer = judge(levels, SLO)
    assert (answer.sweet_spot, answer.monotone) == (1, False)
    assert answer.first_fail is not None
    assert not answer.first_fail.burst_only


def test_levels_are_judged_in_the_order_of_their_load() -> None:
    assert judge(list(reversed(SWEEP)), SLO).sweet_spot == 8


def test_nothing_passes() -> None:
    answer = judge([level(1, 30, 9.0)], SLO)
    assert (answer.sweet_spot, answer.met) == (None, False)


def test_errors_fail_a_level_unless_allowed() -> None:
    bad = [level(1, 30, 0.5, failed=1)]
    first = judge(bad, SLO).first_fail
    assert first is not None
    assert (first.criterion, first.value) == ("errors", 1)
    assert judge(bad, SLO | {"errors": 1.0}).sweet_spot == 1


def test_latencies_of_no_request_are_unknown_and_keep_no_limit() -> None:
    first = judge([level(1, 0.0, 0.0, user_tok_s=None, ttft=None)], {"ttft_p99": 4.0, "errors": 9.0}).first_fail
    assert first is not None
    assert first.value is None


def test_a_rate_that_was_not_kept_up_with_is_neither_sweet_spot_nor_knee() -> None:
    slow = level(256, 100.0, 0.5, level="10 req/s", request_rate=10.0, user_tok_s=9.0)
    fast = replace(slow, level="25 req/s", request_rate=25.0, tok_s=180.0, saturated=True, achieved_req_s=18.0)
    answer = judge([slow, fast], SLO)
    assert (answer.sweet_spot, answer.knee, answer.at_least) == (10, 10, False)
    assert answer.words.endswith("25 req/s fails: requests done per second 18.0 (limit 25.0).")


def test_interrupted_levels_are_left_out() -> None:
    answer = judge([SWEEP[0], replace(SWEEP[2], interrupted=True)], SLO)
    assert (answer.sweet_spot, answer.first_fail) == (1, None)
    assert judge([replace(SWEEP[0], interrupted=True)], SLO).met is False


def test_open_loop_levels_are_named_by_their_rate() -> None:
    rates = [level(256, 30.0 * r, 0.5 * r, level=f"{r} req/s", request_rate=r, user_tok_s=9.0) for r in (1, 10)]
    answer = judge(rates, SLO)
    assert (answer.sweet_spot, answer.first_fail is not None) == (1, True)


def test_where_levels_differ_in_size_every_one_must_pass() -> None:
    sizes = [level(1, 30, 0.5, level="in 5000"), level(1, 30, 5.0, level="in 10000")]
    answer = judge(sizes, SLO, climbs=False)
    assert (answer.sweet_spot, answer.knee, answer.met) == (None, None, False)
    assert judge(sizes, {"ttft_p99": 6.0}, climbs=False).met


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("ttft_p99=4s,user_tok_s=6", {"ttft_p99": 4.0, "user_tok_s": 6.0}),
        ("ttft_mean=300ms", {"ttft_mean": 0.3}),
        ("e2e_p95 = 1.5", {"e2e_p95": 1.5}),
        ("attainment=99%,errors=0", {"attainment": 0.99, "errors": 0.0}),
        ("user_tok_s=6tok/s", {"user_tok_s": 6.0}),
        ("TTFT_P99=2m", {"ttft_p99": 120.0}),
    ],
)
def test_limits_as_typed(text: str, limits: dict[str, float]) -> None:
    assert parse_slo(text) == pytest.approx(limits)


@pytest.mark.parametrize(
    "text", ["", "ttft_p99", "ttft_p98=4", "ttft_p99=fast", "ttft_p99=-1s", "tok_s=4s", "errors=inf"]
)
def test_limits_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(BadLimit):
        parse_slo(text)


def test_goodput_as_vllm_writes_it() -> None:
    assert parse_goodput(["ttft:4000", "tpot:100"]) == {"ttft": 4000.0, "tpot": 100.0}
    for wrong in ("ttft=4", "itl:4", "ttft:x", "ttft:-1", "ttft:nan", "ttft:inf"):
        with pytest.raises(BadLimit):
            parse_goodput([wrong])


def test_every_criterion_reads_a_level() -> None:
    assert {name for name, criterion in CRITERIA.items() if criterion.value(level(1, 1.0, 1.0)) is None} == {
        *("decode_tok_s", "attainment", "ttft_burst", "req_s"),
        *(f"{name}_{kind}" for name in ("tpot", "itl", "e2el", "e2e") for kind in ("mean", "p50", "p90", "p95", "p99")),
    }


def test_single_user_speeds_are_lengths_over_times_by_the_servers_clock_where_it_tells() -> None:
    def sized(name: str, tokens: int, ttft: float, out: int = 1, server: float | None = None) -> LevelResult:
        times = spread(0.0, ttft, 1.0), spread(0.0, 25.0, 0.1)
        sizes = {"input_len": tokens, "output_len": out}
        return LevelResult(name, completed=5, ttft=times[0], tpot=times[1], server_ttft_s=server, **sizes)  # type: ignore[arg-type]

    speeds = single_user(
        [sized("pp512", 512, 122.0, server=0.12), sized("pp2048", 2048, 512.0), sized("tg128@d0", 16, 20.0, 128)]
    )
    assert [str(speed) for speed in speeds] == ["pp512 4,266.7 ± 35.6", "pp2048 4,000.0 ± 7.8", "tg128@d0 40.0 ± 0.2"]


def test_the_sweet_spot_is_announced_with_its_speed() -> None:
    found = RunResult("sweep", "", levels=tuple(SWEEP), sweet_spot=16)
    assert announcement(found) == "sweet spot: 16 users, 113 tok/s"
    assert announcement(replace(found, sweet_spot=1)) == "sweet spot: 1 user, 30.0 tok/s"
    assert announcement(replace(found, sweet_spot=None)) is None
    rates = tuple(replace(SWEEP[0], request_rate=rate) for rate in (0.5, 1.5))
    assert announcement(replace(found, levels=rates, sweet_spot=1.5)) == "sweet spot: 1.5 requests/s, 30.0 tok/s"
