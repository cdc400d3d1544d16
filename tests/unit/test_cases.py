"""The pages that tripped real monitors, and captured pages of five vLLM versions, with their right values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from crank import FIXTURES, Crank, captured, case, expected
from llmtop.contract.snapshot import Quantile, State
from llmtop.engines.exposition import Exposition, Parsed
from llmtop.engines.page_record import Page, RowSample
from llmtop.engines.series import Labels, Rank, SampleSlot, resolve
from llmtop.engines.tracker import Failure

CAPTURES = ("0.8.5", "0.10.2", "0.20.2", "0.30.0", "0.32.0", "0.32.0-dp2", "0.32.0-specdecode")


def fed(name: str, *times: float, files: tuple[str, ...] = ("a.txt", "b.txt")) -> Crank:
    """A tracker after the pages of a case, fed at these times."""
    crank = Crank()
    for file, t in zip(files, times, strict=False):
        crank.feed(case(name, file), t)
    return crank


def test_kv_usage_of_several_api_servers_is_the_largest() -> None:
    name = "01-kv-pid-label"
    view = fed(name, 0).view()
    assert view.kv_usage == expected(name)["kv_usage"]
    assert len(view.engines) == expected(name)["rows"]


def test_a_stale_copy_of_the_kv_usage_is_not_added() -> None:
    page = case("01-kv-pid-label", "a.txt").replace(b'pid="277"} 0.0', b'pid="277"} 0.3')
    assert Crank().feed(page, 0).view().kv_usage == expected("01-kv-pid-label")["kv_usage"]


def test_two_names_of_one_gauge_are_not_added() -> None:
    assert fed("03-kv-two-names", 0).view().kv_usage == expected("03-kv-two-names")["kv_usage"]


def test_old_names_without_engine_label() -> None:
    name = "04-kv-old-name-only"
    view = fed(name, 0).view()
    assert (view.kv_usage, view.running) == (expected(name)["kv_usage"], expected(name)["running"])
    assert view.kv_engine == view.engines[0].engine == expected(name)["engine"]


def test_old_name_of_inter_token_latency() -> None:
    page = Crank().feed(case("04-kv-old-name-only", "a.txt"), 0).page
    assert page is not None
    assert "itl" in page.rows[0].histograms


@pytest.mark.parametrize(
    ("name", "files", "times"),
    [
        ("05-stale-after-abort", ("t0.txt", "t5.txt", "t30.txt"), (0.0, 5.0, 30.0)),
        ("06-hung-engine", ("t0.txt", "t0.txt", "t60.txt"), (0.0, 30.0, 60.0)),
    ],
)
def test_running_without_progress_is_stalled(name: str, files: tuple[str, ...], times: tuple[float, ...]) -> None:
    crank = fed(name, *times[:2], files=files)
    assert crank.view().state is State.SERVING  # two polls are not enough
    view = crank.feed(case(name, files[2]), times[2]).view()
    assert view.state is State.STALLED
    assert view.reason is not None
    assert f"{view.running} running" in view.reason
    assert view.rates.generation_tok_s == 0.0


def test_a_queue_that_grows_beside_a_hung_engine_is_shown() -> None:
    assert expected("06-hung-engine")["waiting_grew"]
    assert fed("06-hung-engine", 0, 60, files=("t0.txt", "t60.txt")).view().waiting == 3


def test_aborted_requests_show_in_ttft_and_not_in_e2e() -> None:
    name = "08-aborts-invisible"
    view = fed(name, 0, 5).view()
    assert (view.latency.ttft.n, view.latency.e2e.n) == (3, expected(name)["finished"])
    assert view.running is not None
    assert view.latency.ttft.n is not None
    assert view.latency.ttft.n - view.running == expected(name)["aborted_estimate"]
    assert view.latency.e2e.p50 is None


@pytest.mark.parametrize(
    ("name", "latency", "edge_s", "mean_ms"),
    [("09-queue-p50-artefact", "queue", 0.3, 0.72), ("10-itl-first-bucket", "itl", 0.01, 4.06)],
)
def test_in_the_first_bucket_only_its_bound_and_the_mean_are_known(
    name: str, latency: str, edge_s: float, mean_ms: float
) -> None:
    figures = getattr(fed(name, 0, 10).view().latency, latency)
    assert figures.p50 == Quantile(edge_s, "<", low_s=0.0, high_s=edge_s)
    assert figures.mean_s * 1000 == pytest.approx(mean_ms, abs=0.005)
    assert mean_ms == expected(name)["mean_ms"]


def test_latency_in_the_first_of_all_buckets() -> None:
    assert fed("12-ttft-all-zero", 0, 10).view().latency.ttft.p50 == Quantile(0.001, "<", low_s=0.0, high_s=0.001)


@pytest.mark.parametrize(
    ("name", "delta", "signal"),
    [("13-counter-reset", "gen_delta", "generation"), ("15-counter-reset-noclock", "prompt_delta", "prompt")],
)
def test_a_restart_begins_a_new_window(name: str, delta: str, signal: str) -> None:
    crank = fed(name, 0, 10)
    view = crank.view()
    assert view.restarts == 1
    assert view.rates.generation_tok_s is None  # one page of the new process: no rate yet, and no negative one
    assert view.latency.ttft.n is None
    assert crank.page is not None
    assert crank.page.rows[0].counters[signal] == expected(name)[delta]
    assert crank.feed(case(name, "b.txt"), 11).view().rates.generation_tok_s == 0.0


def test_sglang_counts_while_it_generates() -> None:
    name = "16-sglang-finish-only"
    crank = fed(name, 0, 9, files=("t0.txt", "t9.txt"))
    rates = [crank.view().rates.generation_tok_s, crank.feed(case(name, "t18.txt"), 18).view().rates.generation_tok_s]
    assert rates == pytest.approx(expected(name)["tps"], abs=0.05)


def test_a_throughput_gauge_that_sticks_is_not_believed() -> None:
    name = "17-sglang-throughput-stuck"
    view = fed(name, 0, 10, files=("t0.txt", "t10.txt")).view()
    assert view.rates.generation_tok_s == expected(name)["tps"]
    assert view.state is State.IDLE


def test_the_total_of_priorities_is_not_added_to_them() -> None:
    assert fed("19-sglang-priority", 0).view().waiting == expected("19-sglang-priority")["waiting"]


def test_llamacpp_rate_is_over_busy_time() -> None:
    name = "20-llamacpp-finish-only"
    crank = fed(name, 0, 10, files=("t0.txt", "t10.txt"))
    assert crank.view().rates.generation_tok_s is None  # a request runs, its tokens are not counted yet
    rate = crank.feed(case(name, "t20.txt"), 20).view().rates.generation_tok_s
    assert rate == pytest.approx(expected(name)["mean_tps_t20"], abs=0.05)


def test_gauges_that_any_scraper_resets_are_never_read() -> None:
    for metric in expected("22-llamacpp-gauge-stolen")["ignore"]:
        assert resolve(metric, {}) == ()


def test_no_kv_gauge_is_unknown_and_not_zero() -> None:
    view = fed("23-llamacpp-no-kv", 0).view()
    assert (view.engine, view.kv_usage) == ("llamacpp", expected("23-llamacpp-no-kv")["kv_usage"])


def test_data_parallel_engines_keep_their_rows() -> None:
    name = "24-dp-four-engines"
    expect = expected(name)
    view = fed(name, 0).view()
    assert view.running == expect["running"]
    assert (view.kv_usage, view.kv_engine) == (expect["kv_max"], "2")
    assert view.kv_capacity_tokens == expect["capacity_tokens_per_engine"]
    shares = [row.kv_usage for row in view.engines if row.kv_usage is not None]
    assert sum(shares) / len(shares) == pytest.approx(expect["kv_mean"])
    assert {row.kv_capacity_tokens for row in view.engines} == {expect["capacity_tokens_per_engine"]}


def test_block_counts_of_data_parallel_engines_are_their_sum() -> None:
    page = case("24-dp-four-engines", "a.txt").replace(b',kv_cache_size_tokens="160000"', b"")
    view = Crank().feed(page, 0).view()
    assert view.kv_capacity_tokens == expected("24-dp-four-engines")["capacity_tokens_per_engine"]
    assert view.kv_capacity_approx


def test_the_word_none_as_a_label_value() -> None:
    view = fed("26-cache-config-none", 0).view()
    assert view.kv_capacity_tokens == expected("26-cache-config-none")["capacity_tokens"]
    assert view.kv_usage == 0.0  # the engine is there and has not stepped yet


def test_lora_adapters_of_the_newest_label_set() -> None:
    page = b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n' + case("27-lora-timestamps", "a.txt")
    assert list(Crank().feed(page, 0).view().lora) == expected("27-lora-timestamps")["running_adapters"]


def test_openmetrics_of_the_rust_front_end() -> None:
    name = "28-rust-openmetrics"
    expect = expected(name)
    crank = fed(name, 0)
    view = crank.view()
    assert (view.engine, view.running, view.kv_usage) == (expect["dialect"], expect["running"], expect["kv_usage"])
    assert view.kv_capacity_tokens is None
    assert crank.page is not None
    row = crank.page.rows[0]
    assert row.counters["generation"] == expect["generation_tokens"]
    assert row.histograms["ttft"].count == expect["ttft_count"]
    assert not crank.page.partial


def test_an_empty_page_never_drops_what_is_known() -> None:
    crank = fed("40-waiting-reasons", 0).feed(case("30-multiproc-empty-filter", "a.txt"), 1)
    assert crank.view().waiting == expected("40-waiting-reasons")["waiting"]


def test_the_last_of_identical_series_wins() -> None:
    page = case("31-dup-family", "a.txt").replace(b"http_requests_total", b"vllm:num_requests_running")
    parsed = Exposition().parse(page)
    expect = expected("31-dup-family")
    assert list(parsed.values.values()) == [expect["value"]]
    assert len(parsed.values) == expect["series"]


def test_a_router_in_front_of_servers() -> None:
    expect = expected("33-stack-router")
    view = fed("33-stack-router", 0).view()
    assert (view.engine, view.kv_usage, view.waiting) == (expect["dialect"], expect["kv_usage"], expect["waiting"])
    assert view.running == 3


def test_prompt_tokens_split_into_computed_and_cached() -> None:
    name = "36-prefill-cached"
    rates = fed(name, 0, 1).view().rates
    assert rates.prompt_computed_tok_s == expected(name)["prefill_computed_tps"]
    assert rates.prompt_cached_tok_s == expected(name)["prefill_cached_tps"]
    assert rates.prompt_tok_s == 100_000


def test_a_prompt_counts_once_per_sequence() -> None:
    rate = fed("37-prompt-n-times", 0, 1).view().rates.prompt_tok_s
    assert rate == expected("37-prompt-n-times")["prompt_delta"]


@pytest.mark.parametrize("suffix", [b"_total", b""])
def test_hit_rate_by_either_spelling(suffix: bytes) -> None:
    later = case("39-hit-rate-no-total", "a.txt").replace(b"_total{", suffix + b"{")
    earlier = later.replace(b"512000000.0", b"0.0").replace(b"457000000.0", b"0.0")
    rate = Crank().feed(earlier, 0).feed(later, 1).view().prefix_hit_rate
    assert rate == pytest.approx(expected("39-hit-rate-no-total")["hit_rate_lifetime"], abs=5e-5)


def test_waiting_by_reason_is_a_split_and_no_addend() -> None:
    expect = expected("40-waiting-reasons")
    view = fed("40-waiting-reasons", 0).view()
    assert view.waiting == expect["waiting"]
    assert view.waiting_by_reason == {"capacity": expect["capacity"], "deferred": expect["deferred"]}


def test_a_sleeping_engine_is_not_stalled() -> None:
    crank = Crank()
    for t in (0.0, 5.0, 10.0, 15.0):
        crank.feed(case("42-sleeping", "a.txt"), t)
    view = crank.view()
    assert view.state is State.SLEEPING
    assert f"level {expected('42-sleeping')['level']}" in (view.reason or "")


def test_a_page_without_engine_families() -> None:
    crank = fed("43-no-vllm-families", 0)
    assert crank.page is None
    view = crank.view()
    assert (view.state, view.engine) == (State.NO_ENGINE_METRICS, expected("43-no-vllm-families")["dialect"])
    assert (view.running, view.kv_usage) == (None, None)


def test_no_observation_is_unknown() -> None:
    latency = fed("45-no-samples-window", 0, 10).view().latency
    assert (latency.ttft.p50, latency.ttft.mean_s) == (expected("45-no-samples-window")["p50"], None)
    assert latency.ttft.n == 0


def test_a_torn_bucket_is_repaired_and_no_restart() -> None:
    view = fed("46-bucket-tear", 0, 10).view()
    assert (view.latency.ttft.n, view.restarts) == (expected("46-bucket-tear")["n"], 0)


def test_a_cut_page_keeps_its_complete_lines() -> None:
    crank = fed("49-truncated", 0)
    view = crank.view()
    assert crank.page is not None
    assert (view.running, crank.page.partial) == (expected("49-truncated")["running"], True)
    assert "generation" not in crank.page.rows[0].counters
    assert "cut short" in (view.reason or "")


@pytest.mark.parametrize("file", ["html.txt", "json.txt", "auth.txt"])
def test_what_is_no_metrics_page_has_no_samples(file: str) -> None:
    body = case("50-not-metrics", file)
    parsed = Exposition().parse(body)
    assert (len(parsed.values), parsed.lines) == (expected("50-not-metrics")["samples"], 0)
    assert Crank().feed(body, 0).view().state is State.NO_ENGINE_METRICS


def test_hostile_labels_are_data() -> None:
    expect = expected("51-hostile-labels")
    view = fed("51-hostile-labels", 0).view()
    assert len(view.engines) == expect["rows"]
    harmless = ["".join(char for char in name if char.isprintable()) for name in expect["names"]]
    assert [row.model for row in view.engines] == harmless
    assert [row.running for row in view.engines] == [1, 2, 3, 4, 5]


def test_timestamps_and_exemplars_are_not_the_value() -> None:
    expect = expected("52-timestamps-exemplars")
    assert fed("52-timestamps-exemplars", 0).view().running == expect["running"]
    page = case("52-timestamps-exemplars", "b.txt").replace(b"h_", b"vllm:time_to_first_token_seconds_")
    exposition = Exposition()
    for _ in range(2):  # the second time the series are known
        values = {(slot.source.metric, slot.bound): v for slot, v in exposition.parse(page).values.items()}
        assert values["vllm:time_to_first_token_seconds_bucket", 1.0] == expect["h_le1"]
        assert values["vllm:time_to_first_token_seconds_bucket", math.inf] == 5


def test_diffusion_tokens_per_step() -> None:
    assert fed("55-diffusion", 0, 10).view().spec_tokens_per_step == expected("55-diffusion")["tok_per_step"]


# --- captured pages ---------------------------------------------------------------------------------------------------

Key = tuple[str, str, Labels, Rank, float, str, object]


def _key(slot: SampleSlot) -> Key:
    return (slot.source.metric, slot.signal, slot.labels, slot.rank, slot.bound, slot.text, slot.config)


def _by_official_parser(body: bytes) -> Counter[tuple[Key, float]]:
    found: Counter[tuple[Key, float]] = Counter()
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.update((_key(slot), sample.value) for slot in resolve(sample.name, sample.labels))
    return found


def _by_ours(parsed: Parsed) -> Counter[tuple[Key, float]]:
    return Counter((_key(slot), value) for slot, value in parsed.values.items())


@pytest.mark.parametrize("version", CAPTURES)
def test_every_sample_equals_the_official_parsers(version: str) -> None:
    exposition, pages = Exposition(), 0
    for _, body, _ in captured(version):
        parsed = exposition.parse(body)
        assert _by_ours(parsed) == _by_official_parser(body)
        assert (parsed.bad_lines, parsed.partial) == (0, False)
        pages += 1
    assert pages >= 5


TIMELINE = (
    ("num_requests_running", "gauges", "running"),
    ("num_requests_waiting", "gauges", "waiting"),
    ("kv_cache_usage_perc", "gauges", "kv_usage"),
    ("num_preemptions_total", "counters", "preemptions"),
    ("prompt_tokens_total", "counters", "prompt"),
    ("generation_tokens_total", "counters", "generation"),
    ("prefix_cache_queries_total", "counters", "queries"),
    ("prefix_cache_hits_total", "counters", "hits"),
    ("request_success_total", "counters", "requests"),
)


def _summed(rows: Iterable[RowSample], kind: str, signal: str) -> float | None:
    known = [values[signal] for row in rows if signal in (values := getattr(row, kind))]
    return sum(known) if known else None


@pytest.mark.parametrize("version", CAPTURES)
def test_values_of_the_timeline(version: str) -> None:
    crank = Crank()
    for t, body, row in captured(version):
        crank.feed(body, t)
        assert isinstance(crank.page, Page)
        for column, kind, signal in TIMELINE:
            told = row[column]
            if told == "-" and column == "kv_cache_usage_perc":
                told = row["gpu_cache_usage_perc"]
            if told != "-":
                assert _summed(crank.page.rows, kind, signal) == pytest.approx(float(told), rel=1e-5), (t, column)
    assert crank.view().restarts == 0


def test_generated_tokens_are_those_that_the_clients_counted() -> None:
    told = (FIXTURES / "captures" / "0.32.0" / "client.txt").read_text().split()
    counted = [int(word.removeprefix("out_tok=")) for word in told if word.startswith("out_tok=")]
    pages = list(captured("0.32.0"))
    for phase, tokens in zip(("c1", "c4", "c16", "c64"), counted, strict=True):
        crank = Crank()
        for place, t in zip(_phase_bounds(pages, phase), (0.0, 8.0), strict=True):
            crank.feed(pages[place][1], t)
        assert crank.view().rates.generation_tok_s == tokens / 8.0


def _phase_bounds(pages: list[tuple[float, bytes, dict[str, str]]], phase: str) -> tuple[int, int]:
    """From the last page before a phase to the first or second one after it, when all is counted."""
    inside = [place for place, page in enumerate(pages) if page[2]["phase"] == phase]
    return inside[0] - 1, min(inside[-1] + 2, len(pages) - 1)


def _fed_phase(pages: list[tuple[float, bytes, dict[str, str]]], phase: str) -> Crank:
    first, last = _phase_bounds(pages, phase)
    crank = Crank()
    for t, body, _ in pages[first : last + 1]:
        crank.feed(body, t)
    return crank


@pytest.mark.parametrize(
    ("phase", "p50_ms", "mean_ms", "p99_ms"),
    [("c1", 16.8, 19.3, 56.2), ("c4", 21.9, 24.6, 75.2), ("c16", 32.5, 39.9, 209.5), ("c64", 2305, 2428, 4944)],
)
def test_ttft_over_the_window_of_a_real_load(phase: str, p50_ms: float, mean_ms: float, p99_ms: float) -> None:
    ttft = _fed_phase(list(captured("0.32.0")), phase).view().latency.ttft
    assert ttft.p50 is not None
    assert ttft.p99 is not None
    assert ttft.mean_s is not None
    figures = (ttft.p50.value_s * 1e3, ttft.mean_s * 1e3, ttft.p99.value_s * 1e3)
    assert figures == pytest.approx((p50_ms, mean_ms, p99_ms), rel=2e-3, abs=0.06)
    assert ttft.p99.weak == (ttft.n is not None and ttft.n < 100)


def test_queueing_time_of_a_real_load_without_a_queue_is_below_its_first_bound() -> None:
    queue = _fed_phase(list(captured("0.32.0")), "c16").view().latency.queue
    assert queue.p50 == Quantile(0.3, "<", low_s=0.0, high_s=0.3)
    assert queue.mean_s == pytest.approx(0.00072, abs=5e-6)


def test_an_idle_data_parallel_server_has_no_gauges_and_is_idle() -> None:
    _, body, _ = next(captured("0.32.0-dp2"))
    crank = Crank().feed(body, 0)
    assert crank.page is not None
    assert all("running" not in row.gauges for row in crank.page.rows)
    view = crank.view()
    assert (view.state, view.running, view.waiting, view.kv_usage) == (State.IDLE, 0, 0, 0.0)
    assert [row.engine for row in view.engines] == ["0", "1"]
    assert view.kv_capacity_tokens == 3072


def test_an_old_server_that_has_only_its_configuration_is_idle() -> None:
    _, body, _ = next(captured("0.8.5"))
    view = Crank().feed(body, 0).view()
    assert (view.state, view.running, view.kv_usage) == (State.IDLE, 0, 0.0)
    assert view.kv_capacity_tokens


def test_speculative_decoding_gives_more_than_one_token_a_step() -> None:
    crank = Crank()
    for t, body, _ in captured("0.32.0-specdecode"):
        crank.feed(body, t)
    tokens = crank.view().spec_tokens_per_step
    assert tokens is not None
    assert 1.0 < tokens < 6.0


def test_two_engines_never_add_their_kv_usage() -> None:
    crank = Crank()
    for t, body, row in captured("0.32.0-dp2"):
        usage = crank.feed(body, t).view().kv_usage
        assert usage is not None
        assert 0.0 <= usage <= 1.0
        if row["kv_cache_usage_perc"] not in ("-", "0"):
            assert usage >= float(row["kv_cache_usage_perc"]) / 2 - 1e-5


def test_a_failure_between_pages_is_no_restart() -> None:
    pages = list(captured("0.30.0"))
    crank = Crank().feed(pages[0][1], 0).take(Failure("bad", "HTTP 500"), 1).feed(pages[1][1], 2)
    assert crank.view().restarts == 0
