"""Statistics against the aggregates that `vllm bench serve` computed from the same arrays."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from llmtop.load import stats
from llmtop.load.completion import Outcome
from llmtop.load.records import RequestRecord
from llmtop.load.results import bench_keys, values_of

BENCH = sorted((Path(__file__).parent.parent / "fixtures" / "bench").glob("*.json.gz"))
OTHER = {"duration", "num_prompts", "burstiness", "max_concurrency", "failed", "rtfx"}


def timings(result: dict[str, Any]) -> list[stats.Timing]:
    names = ("start_times", "ttfts", "itls", "latencies", "input_lens", "output_lens")
    return [stats.Timing(*row) for row in zip(*(result[name] for name in names), strict=True)]


@pytest.mark.parametrize("path", BENCH, ids=lambda path: path.name)
def test_aggregates_of_a_captured_run(path: Path) -> None:
    result = json.loads(gzip.decompress(path.read_bytes()))
    computed = bench_keys(stats.measured(timings(result), result["duration"]))
    wanted = {k: v for k, v in result.items() if isinstance(v, int | float) and k not in OTHER}
    assert len(wanted) == 36
    assert {key: computed[key] for key in wanted} == pytest.approx(wanted, rel=1e-9)


def test_five_captured_runs() -> None:
    assert len(BENCH) == 5


def test_no_request_gives_zeros_as_vllm_does() -> None:
    keys = bench_keys(stats.measured([], 1.0))
    assert {value for key, value in keys.items() if key.endswith("_ms")} == {0.0}
    assert values_of(stats.measured([], 1.0))["mean_ttft_ms"] is None


def record(start: float, end: float, **more: Any) -> RequestRecord:
    return RequestRecord(index=0, slot=0, start_s=start, end_s=end, outcome=Outcome.OK, **more)


def test_peak_concurrency_is_exact_when_one_ends_as_the_next_starts() -> None:
    assert stats.peak_concurrency([record(0, 1), record(1, 2), record(1.5, 3)]) == 2


def test_a_rate_at_which_prompts_queue_is_not_sustained_though_answers_end_together() -> None:
    """60 prompts a second for a server that reads 50; decoding waits for them, so that all answers end in one heap."""
    found = stats.pacing([record(k / 60, 1.7 + k / 100, ttft_s=0.02 + k / 50 - k / 60) for k in range(100)])
    assert found.saturated is True
    assert found.offered_s == pytest.approx(60)
    assert found.achieved_s == pytest.approx(100 / (1.7 + 0.99))


def test_a_sustained_rate_is_done_no_faster_than_it_was_offered() -> None:
    found = stats.pacing([record(k / 10, k / 10 + 1.0 - 0.004 * k, ttft_s=0.1) for k in range(60)])
    assert (found.saturated, found.achieved_s) == (False, found.offered_s)


def test_steady_window_runs_from_the_last_first_token_of_the_first_wave_to_the_last_launch() -> None:
    wave = [record(0, 9, ttft_s=1.0, first_wave=True), record(0, 9, ttft_s=3.0, first_wave=True)]
    assert stats.steady_window([*wave, record(5, 9, ttft_s=1.0)]) == (3.0, 5)
    assert stats.steady_window(wave) is None
    assert stats.steady_window([]) is None


def test_decode_time_counts_from_the_tokens_of_the_first_chunk() -> None:
    merged = stats.Timing(0.0, 1.0, (1.0,), 2.0, 5, 6, first_tokens=4)
    assert merged.tpot_s == 0.5
    assert stats.Timing(0.0, 1.0, (), 1.0, 5, 256, first_tokens=256).tpot_s is None
    assert stats.Timing(0.0, 1.0, (), 1.0, 5, 1).tpot_s is None


def test_tokens_of_a_span_are_weighted_by_tokens_per_chunk() -> None:
    three_each = stats.Timing(0.0, 1.0, (1.0,), 2.0, 5, 6)
    assert stats.tokens_between([three_each], 0.5, 1.5) == 3.0


def test_goodput_needs_every_limit() -> None:
    fast, slow = stats.Timing(0, 0.1, (0.1,), 0.2, 5, 2), stats.Timing(0, 0.3, (0.1,), 0.4, 5, 2)
    assert stats.good_requests([fast, slow], {"ttft": 200, "e2el": 250}) == 1
    assert stats.good_requests([fast, slow], {"tpot": 100.0001}) == 2


def test_a_record_survives_json() -> None:
    one = record(0.125, 9.5, ttft_s=0.1, itls_s=(0.25, 0.5), prompt_tokens=7)
    again = RequestRecord.from_json(json.loads(json.dumps(one.to_json())))
    assert {**again.to_json(), "itls_s": tuple(again.itls_s)} == one.to_json()
