"""The simulated /metrics page beside a real vLLM 0.32 page: same families, types, labels, bounds and order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from llmtop.demo import profile as profiles
from llmtop.demo.engine import Engine, Request
from llmtop.demo.exposition import PageOptions, number, only_families, page
from llmtop.demo.families import EngineView
from llmtop.demo.faults import HOSTILE_MODEL, Faults

PAGES = Path(__file__).parent.parent / "fixtures" / "pages"


def busy_engine(model_len: int = 32768) -> Engine:
    """An engine in the middle of some requests."""
    profile = profiles.load("gb10")
    engine = Engine(replace(profile, model=replace(profile.model, max_model_len=model_len)))
    for i in range(40):
        engine.submit(Request(str(i), range(i * 1000, i * 1000 + 70), 20 + i, 0.0))
    now = 0.0
    for _ in range(15):
        step = engine.begin(now)
        assert step is not None
        now = step.end
        engine.finish(step)
    return engine


def text(*engines: Engine, **options: object) -> str:
    views = [EngineView(str(i), e) for i, e in enumerate(engines)]
    defaults: dict[str, object] = {"model": "tiny", "started": 1796058894.44, "created": 1796058980.5}
    return page(profiles.load("gb10"), views, PageOptions(**(defaults | options)))  # type: ignore[arg-type]


def parse(body: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(body)}


def value(body: str, name: str, **labels: str) -> float:
    samples = [s for f in parse(body).values() for s in f.samples if s.name == name]
    (match,) = [s for s in samples if labels.items() <= s.labels.items()]
    return float(match.value)


def test_the_page_has_the_real_page_s_families_in_order() -> None:
    real = parse((PAGES / "vllm-0.32.0-c16.txt").read_text(encoding="utf-8"))
    mine = parse(text(busy_engine(1024)))
    assert list(mine) == list(real)
    for name, family in real.items():
        assert (mine[name].type, mine[name].documentation) == (family.type, family.documentation)
        if not name.startswith("http_"):  # these depend on what was asked
            assert signature(mine[name]) == signature(family), name


def signature(family: Metric) -> set[tuple[str, ...]]:
    """Sample names with label names, and the values of labels that are not free text."""
    free = {"model_name", "engine", "patchlevel", "version", "minor"}
    return {
        (
            s.name,
            *sorted(s.labels),
            *(v for k, v in sorted(s.labels.items()) if k not in free and "config_info" not in s.name),
        )
        for s in family.samples
    }


def test_the_page_is_about_as_long_as_a_real_one() -> None:
    assert 45_000 < len(text(busy_engine())) < 65_000


def test_values_are_the_engine_s() -> None:
    engine = busy_engine()
    body = text(engine)
    assert value(body, "vllm:num_requests_running") == engine.gauges.running == 32
    assert value(body, "vllm:num_requests_waiting") == engine.gauges.waiting == 8
    assert value(body, "vllm:num_requests_waiting_by_reason", reason="capacity") == 8
    assert value(body, "vllm:kv_cache_usage_perc") == engine.gauges.kv_usage > 0
    assert value(body, "vllm:generation_tokens_total") == engine.counters.generation_tokens > 0
    assert value(body, "vllm:time_to_first_token_seconds_count") == engine.counters.ttft.count
    assert value(body, "vllm:time_to_first_token_seconds_bucket", le="+Inf") == engine.counters.ttft.count
    assert value(body, "process_start_time_seconds") == 1796058894.44
    assert value(body, "vllm:generation_tokens_created") == 1796058980.5


def test_the_cache_config_says_the_capacity() -> None:
    (sample,) = parse(text(busy_engine()))["vllm:cache_config_info"].samples
    assert sample.labels["kv_cache_size_tokens"] == "849942"
    assert float(sample.labels["kv_cache_max_concurrency"]) == pytest.approx(25.94, abs=0.005)
    assert sample.labels["gpu_memory_utilization"] == "0.74"
    assert (sample.labels["block_size"], sample.labels["num_gpu_blocks"]) == ("16", "53122")


def test_several_engines_give_a_multiprocess_page() -> None:
    idle = Engine(profiles.load("gb10"))
    body = text(busy_engine(), idle, multiprocess=True)
    families = parse(body)
    assert not [name for name in families if name.startswith(("process_", "python_")) or "_created" in name]
    assert value(body, "vllm:num_requests_running", engine="0") == 32
    # an engine that has made no step has counters but no gauges
    assert {s.labels["engine"] for s in families["vllm:kv_cache_usage_perc"].samples} == {"0"}
    assert value(body, "vllm:generation_tokens_total", engine="1") == 0
    config = {s.labels["engine"]: s.labels for s in families["vllm:cache_config_info"].samples}
    assert config["0"]["num_gpu_blocks"] == config["1"]["num_gpu_blocks"] == str(2 * 53122)
    assert config["1"]["kv_cache_size_tokens"] == "849942"


def test_the_multiprocess_page_has_a_real_one_s_families() -> None:
    real = parse((PAGES / "vllm-0.32.0-dp2-idle.txt").read_text(encoding="utf-8"))
    idle = [Engine(profiles.load("gb10")) for _ in range(2)]
    assert set(parse(text(*idle, multiprocess=True))) == set(real)


def test_without_log_stats_no_engine_family_is_left() -> None:
    body = text(busy_engine(), log_stats=False)
    assert "vllm:" not in body
    assert "process_start_time_seconds" in body


def test_sleep_shows_in_the_sleep_state_only() -> None:
    profile = profiles.load("gb10")
    body = page(profile, [EngineView("0", busy_engine(), sleeping=True)], PageOptions("tiny", 0.0, 0.0))
    assert value(body, "vllm:engine_sleep_state", sleep_state="awake") == 0
    assert value(body, "vllm:engine_sleep_state", sleep_state="weights_offloaded") == 1


def test_a_hostile_name_survives_the_official_parser() -> None:
    families = parse(text(busy_engine(), model=HOSTILE_MODEL))
    assert families["vllm:num_requests_running"].samples[0].labels["model_name"] == HOSTILE_MODEL


def test_a_diffusion_profile_adds_its_counters() -> None:
    profile = profiles.load("gh200")
    engine = Engine(profile)
    engine.submit(Request("a", range(10), 64, 0.0))
    now = 0.0
    while (step := engine.begin(now)) is not None:
        now = step.end
        engine.finish(step)
    body = page(profile, [EngineView("0", engine)], PageOptions("d", 0.0, 0.0))
    assert value(body, "vllm:diffusion_num_committed_tokens_total") == 64
    assert value(body, "vllm:diffusion_num_denoising_steps_total") == 48


@pytest.mark.parametrize(
    ("plain", "printed"),
    [
        (0, "0.0"), (12939.0, "12939.0"), (999999.5, "999999.5"), (1e6, "1e+06"), (2004758528, "2.004758528e+09"),
        (1796058894.44, "1.79605889444e+09"), (float("nan"), "NaN"), (float("inf"), "+Inf"),
    ],
)  # fmt: skip
def test_numbers_are_printed_as_the_client_library_does(plain: float, printed: str) -> None:
    assert number(plain) == printed


def test_name_filter_keeps_whole_families() -> None:
    kept = only_families(text(busy_engine()), ["vllm:num_requests_running", "vllm:generation_tokens_total"])
    assert list(parse(kept)) == ["vllm:num_requests_running", "vllm:generation_tokens"]


def test_spoiled_pages() -> None:
    body = text(busy_engine())

    def answer(name: str) -> bytes:
        faults = Faults()
        faults.set(name)
        return faults.answer(lambda: body).body

    assert answer("empty") == b""
    assert answer("html").startswith(b"<!doctype")
    cut = answer("truncated")
    assert body.encode().startswith(cut)
    assert not cut.endswith(b"\n")
    nan = answer("nan").decode()
    assert str(value(nan, "vllm:num_requests_running")) == "nan"
    assert value(nan, "vllm:generation_tokens_total") == value(body, "vllm:generation_tokens_total")
    assert len(answer("huge")) >= 64 * 1024 * 1024


def test_late_pages_are_up_to_300_ms_late_and_repeatable() -> None:
    first, second = Faults(seed=3), Faults(seed=3)
    first.set("late")
    second.set("late")
    delays = [first.delay() for _ in range(50)]
    assert delays == [second.delay() for _ in range(50)]
    assert 0.0 <= min(delays) < 0.1
    assert 0.2 < max(delays) <= 0.3
