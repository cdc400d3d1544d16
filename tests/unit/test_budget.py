"""The ledger, the advice and the preflight as tables: the arithmetic is written out beside every case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmtop.warmup.advice import advise, advise_failure, round_down
from llmtop.warmup.evidence import Evidence, MachineMemory, default_utilization, evidence, parse_version
from llmtop.warmup.failure import StartFailure
from llmtop.warmup.ledger import ledger
from llmtop.warmup.preflight import MemoryPlan, preflight
from llmtop.warmup.tracker import read_log

LOGS = Path(__file__).parents[1] / "fixtures" / "startup"
MIB = 2**20
GIB = 2**30

# 97 871 MiB, of which 91 000 are in use at 0.60: 57.35 GiB were asked for.
GH200 = Evidence(
    version="0.20.0",
    total_gib=97871 / 1024,
    utilization=0.60,
    weights_gib=34.0,
    kv_gib=19.0,
    graph_gib=1.5,
    graph_budget_gib=0.0,
    used_gib=91000 / 1024,
    reserved_gib=0.6,
)
H100 = Evidence(
    version="0.11.0",
    total_gib=79.65,
    utilization=0.90,
    weights_gib=33.7,
    kv_gib=35.74,
    kv_tokens=1_041_024,
    max_concurrency=15.88,
    model_len=65_536,
    graph_gib=1.93,
    graph_budget_gib=0.0,
    free_at_start_gib=79.1,
    min_headroom_gib=5.1,
    min_phase="graphs",
    measured="all",
)
GB10 = Evidence(
    unified=True,
    version="0.23.1",
    total_gib=121.69,
    utilization=0.70,
    weights_gib=19.05,
    kv_gib=56.1,
    kv_tokens=849_942,
    max_concurrency=25.94,
    model_len=32_768,
    free_at_start_gib=110.0,
    min_headroom_gib=23.3,
    min_phase="graphs",
    measured="all",
)


def lines_of(e: Evidence) -> dict[str, float | None]:
    return {line.key: line.gib for line in ledger(e)}


def group_sum(e: Evidence, group: str) -> float:
    return sum(line.gib for line in ledger(e) if line.group == group and line.gib is not None)


# ------------------------------------------------------------------------------------------------- ledger


def test_gh200_without_a_process_list_names_the_line_that_holds_the_missing_30_gib() -> None:
    lines = lines_of(GH200)
    assert lines["budget"] == pytest.approx(57.35, abs=0.01)
    assert lines["graphs"] == 1.5
    # 88.87 used - 57.35 budget - 1.5 graphs
    assert lines["unowned"] == pytest.approx(30.02, abs=0.01)
    assert lines["free"] == pytest.approx(95.58 - 88.87 - 0.6, abs=0.01)
    assert lines["outside_rest"] == pytest.approx(0.0, abs=1e-9)


def test_gh200_with_a_small_engine_blames_memory_without_an_owner() -> None:
    e = replace(GH200, engine_gib=58.85, others_gib=0.0)
    lines = lines_of(e)
    assert lines["engine"] == pytest.approx(0.0, abs=0.01)
    assert lines["unowned"] == pytest.approx(30.02, abs=0.01)


def test_gh200_with_a_large_engine_blames_the_engine() -> None:
    e = replace(GH200, engine_gib=88.0, others_gib=0.5)
    lines = lines_of(e)
    assert lines["engine"] == pytest.approx(88.0 - 57.35 - 1.5, abs=0.01)
    assert lines["unowned"] == pytest.approx(0.37, abs=0.01)


@pytest.mark.parametrize("engine", [None, 40.0, 58.85, 88.0])
def test_parts_add_up(engine: float | None) -> None:
    e = replace(GH200, engine_gib=engine, others_gib=None if engine is None else 0.3)
    lines = lines_of(e)
    total, budget, outside = lines["total"], lines["budget"], lines["outside"]
    assert total is not None and budget is not None and outside is not None  # noqa: PT018
    assert budget + outside == pytest.approx(total)
    assert group_sum(e, "budget") == pytest.approx(budget)
    assert group_sum(e, "outside") == pytest.approx(outside)


def test_a_failed_start_is_judged_by_what_was_left_at_that_moment() -> None:
    s = read_log((LOGS / "gb10-v0.30-suggestion.log").read_text(encoding="utf-8").splitlines())
    dead = MachineMemory(
        total_bytes=96 * GIB, used_bytes=GIB, reserved_bytes=GIB, engine_bytes=0, others_bytes=GIB // 2
    )
    e = evidence(s, dead.at_failure(GIB // 4))
    assert (e.used_gib, e.engine_gib, e.others_gib) == (94.75, None, 0.5)
    assert evidence(s, dead.at_failure(None)).used_gib is None


def test_a_budget_that_was_not_reached_is_no_memory_in_use() -> None:
    e = replace(GH200, used_gib=30.0)
    line = next(line for line in ledger(e) if line.key == "unowned")
    assert line.gib == pytest.approx(30.0 - 57.35 - 1.5, abs=0.01)
    assert line.label == "less: budget not held"
    assert group_sum(e, "outside") == pytest.approx(lines_of(e)["outside"])


def test_unexplained_rest_of_the_budget_is_its_own_line() -> None:
    # 71.685 - 33.7 - 35.74 - 0 graphs: activation peak and non-torch, which this version does not print
    rest = next(line for line in ledger(H100) if line.key == "budget_rest")
    assert rest.gib == pytest.approx(2.245, abs=0.001)
    assert "activation peak" in rest.label


def test_unknown_stays_unknown() -> None:
    assert all(line.gib is None for line in ledger(Evidence()))


def test_origins_from_a_log_and_a_machine() -> None:
    s = read_log((LOGS / "gb10-v0.30-suggestion.log").read_text(encoding="utf-8").splitlines())
    machine = MachineMemory(unified=True, source="/proc/meminfo", total_bytes=121 * GIB, used_bytes=110 * GIB)
    e = evidence(s, machine)
    origin = {line.key: line.origin for line in ledger(e)}
    assert e.total_gib == 121.69
    assert (origin["total"], origin["weights"], origin["kv"], origin["free"]) == ("log", "log", "log", "computed")
    assert e.non_torch_gib == pytest.approx(86.93 - 81.2)
    assert e.graph_budget_gib == 0.26
    # graphs took 0.31 of the 0.26 set aside
    assert lines_of(e)["graphs"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gb10-v0.23-silent-warmup", 0.42), ("h100-v0.11-tp2", 0.0), ("cuda-v0.8.4-v1", 0.0)],
)
def test_graphs_are_in_the_budget_from_0_21_on(name: str, expected: float) -> None:
    s = read_log((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines())
    assert evidence(s).graph_budget_gib == expected


# ------------------------------------------------------------------------------------------------- advice

# evidence, reserve: utilization, KV GiB, KV tokens, concurrency, sure
ADVICE = {
    # 5.1 - 3 = 2.1; 0.90 + 2.1 / 79.65 = 0.9264 -> 0.92; KV 35.74 + 0.02 x 79.65 = 37.333
    "h100": (H100, None, (0.92, 37.333, 1_087_424, 16.58, "high")),
    # 5.1 - 6 = -0.9; 0.90 - 0.0113 = 0.8887 -> 0.88; KV 35.74 - 0.02 x 79.65 = 34.147
    "h100, larger reserve": (H100, 6.0, (0.88, 34.147, 994_623, 15.17, "high")),
    # 23.3 - 8 = 15.3; 0.70 + 15.3 / 121.69 = 0.8257 -> 0.82; KV 56.1 + 0.12 x 121.69 = 70.703
    "gb10": (GB10, None, (0.82, 70.703, 1_071_181, 32.69, "medium")),
    # 0.60 + (5.0 - 3) / 95.58 = 0.6209 -> 0.62; KV 19 + 0.02 x 95.58 = 20.911
    "gh200": (
        replace(GH200, min_headroom_gib=5.0, measured="all"),
        None,
        (0.62, 20.911, None, None, "high"),
    ),
    # exactly the reserve is left: keep it
    "just right": (replace(H100, min_headroom_gib=3.0), None, (0.90, 35.74, 1_041_024, 15.88, "high")),
    # only a part of the phases was watched
    "partly watched": (replace(H100, measured="part"), None, (0.92, 37.333, 1_087_424, 16.58, "low")),
    # 0.90 + 17 / 79.65 would be 1.11; the start check allows 72.5 / 79.65 = 0.9102
    "never more than was free": (
        replace(H100, min_headroom_gib=20.0, free_at_start_gib=72.5),
        None,
        (0.91, 36.5365, 1_064_224, 16.23, "high"),
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice_from_measured_margins(case: str) -> None:
    e, reserve, (utilization, kv, tokens, seats, sure) = ADVICE[case]
    advice = advise(e, reserve)
    assert advice.utilization == utilization
    assert advice.kv_cache_gib == pytest.approx(kv, abs=0.001)
    assert advice.kv_cache_tokens == (None if tokens is None else pytest.approx(tokens, abs=60))
    assert advice.max_concurrency == seats
    assert advice.confidence == sure
    assert advice.arithmetic


def test_kv_bytes_are_offered_where_the_version_has_the_flag() -> None:
    assert advise(GB10).kv_cache_memory_bytes == int(70.7028 * 1024) * MIB
    assert advise(replace(GB10, version="0.10.1")).kv_cache_memory_bytes is None


def test_given_kv_cache_size_takes_the_margin_itself() -> None:
    # 35.74 + 5.1 - 3 = 37.84
    advice = advise(replace(H100, kv_fixed=True))
    assert advice.utilization is None
    assert advice.kv_cache_gib == pytest.approx(37.84)
    assert advice.kv_cache_memory_bytes == int(37.84 * 1024) * MIB


def test_no_measurement_never_advises_more() -> None:
    e = replace(H100, min_headroom_gib=None, measured="none")
    # 79.1 - 71.685 - 1.93 = 5.485 left by the log's figures
    assert advise(e).utilization == 0.9
    assert advise(e).confidence == "low"
    # 6.5 wanted, 5.485 there: 0.90 - 1.015 / 79.65 = 0.8873 -> 0.88
    assert advise(e, 6.5).utilization == 0.88
    assert advise(replace(e, free_at_start_gib=None)).utilization == 0.9


@pytest.mark.parametrize("known", [replace(H100, total_gib=None), replace(H100, utilization=None)])
def test_no_advice_without_the_basis(known: Evidence) -> None:
    assert advise(known).utilization is None


def test_reserve_that_the_kv_cache_cannot_give() -> None:
    advice = advise(replace(H100, kv_gib=0.5, min_headroom_gib=0.2), 5.0)
    assert advice.utilization is None
    assert "no utilization" in advice.text


# ------------------------------------------------------------------------------------------------ failures

FREE = {"free_gib": 61.05, "total_gib": 119.7, "utilization": 0.52, "requested_gib": 62.24}
LONG = {"max_model_len": 262144.0, "needed_gib": 16.0, "available_gib": 12.48}

# failure, evidence: utilization or None, what the text or a change must say
FAILED = {
    # 61.05 / 119.7 = 0.5100
    "free_too_low": (StartFailure("start", "", FREE, "free_too_low"), Evidence(unified=True), 0.51, "drop_caches"),
    # 119.7 GiB can only be a GB10, also where the machine was not read
    "free_too_low, log alone": (StartFailure("start", "", FREE, "free_too_low"), Evidence(), 0.51, "drop_caches"),
    # 0.52 + (1 + 2.26) / 121.69 = 0.5468 -> 0.55; 110 - 66.9 = 43 GiB stay
    "no_kv": (StartFailure("kv", "", {"kv_cache_gib": -2.26}, "no_kv"), replace(GB10, utilization=0.52), 0.55, "0.55"),
    # 0.90 + 3.26 / 79.65 = 0.9409 -> 0.95 would leave 3.4 of 79.1: allowed
    "no_kv, h100": (StartFailure("kv", "", {"kv_cache_gib": -2.26}, "no_kv"), H100, 0.95, "0.95"),
    # only 75 GiB were free: 75 - 75.7 leaves nothing
    "no_kv, no room": (
        StartFailure("kv", "", {"kv_cache_gib": -2.26}, "no_kv"),
        replace(H100, free_at_start_gib=75.0),
        None,
        "--max-num-batched-tokens",
    ),
    # 262144 x 12.48 / 16 = 204472 -> 204288 in steps of 256
    "len_too_long": (StartFailure("kv", "", LONG, "len_too_long"), Evidence(), None, "--max-model-len 204288"),
    # vLLM's own estimate wins; 0.70 + 3.52 / 121.69 = 0.7289 -> 0.73
    "len_too_long, estimate": (
        StartFailure("kv", "", LONG | {"estimated_max_len": 204000.0}, "len_too_long"),
        GB10,
        0.73,
        "--max-model-len 204000",
    ),
    "len_too_long, V0": (
        StartFailure("kv", "", {"max_model_len": 8192.0, "kv_tokens": 5136.0}, "len_too_long"),
        Evidence(),
        None,
        "--max-model-len 5136",
    ),
    # 90.17 - 82.94 = 7.23
    "profile_assert": (
        StartFailure("profile", "", {"initial_gib": 82.94, "current_gib": 90.17}, "profile_assert"),
        Evidence(),
        None,
        "7.23 GiB",
    ),
    "warmup_oom": (
        StartFailure("warmup", "", {"dummy_requests": 256.0}, "warmup_oom"),
        Evidence(),
        None,
        "--max-num-seqs 128",
    ),
    # 0.1328 - 0.118 = 0.015 short; 0.90 - 3.015 / 22.36 = 0.7652 -> 0.76
    "graphs": (
        StartFailure(
            "graphs", "", {"tried_gib": 136 / 1024, "free_gib": 120.88 / 1024, "total_gib": 22.36}, "out_of_memory"
        ),
        Evidence(utilization=0.90),
        0.76,
        "graph sizes",
    ),
    "profile": (
        StartFailure("profile", "", {"tried_gib": 2.0, "free_gib": 1.0}, "out_of_memory"),
        H100,
        None,
        "--max-num-batched-tokens",
    ),
    "weights": (StartFailure("weights", "", {}, "out_of_memory"), H100, None, "quantised"),
    # 0.95 x 119.7 = 113.715; 0.85 - (0.045 + 8) / 119.7 = 0.7828 -> 0.78
    "ray_oom": (
        StartFailure("kv", "", {"used_gb": 113.76, "total_gb": 119.7}, "ray_oom"),
        Evidence(unified=True, utilization=0.85),
        0.78,
        "RAY_memory_usage_threshold",
    ),
    "deep_gemm": (StartFailure("kv", "", {}, "deep_gemm"), GB10, None, "VLLM_MOE_USE_DEEP_GEMM=0"),
    "killed": (StartFailure("kv", "", {}, "killed", margin_bytes=GIB), GB10, None, "1.00 GiB"),
    "stopped": (StartFailure("kv", "", {}, "stopped"), GB10, None, "nothing to change"),
    "error": (StartFailure("start", "", {}, "error"), GB10, None, "own text"),
}


@pytest.mark.parametrize("case", FAILED)
def test_advice_after_every_known_failure(case: str) -> None:
    failure, e, utilization, words = FAILED[case]
    advice = advise_failure(failure, e)
    assert advice.utilization == utilization
    assert words in " ".join((advice.text, *advice.arithmetic, *advice.changes))


# ----------------------------------------------------------------------------------------------- preflight

SPARK = MemoryPlan(unified=True, version="0.23.0", total_gib=121.69, free_gib=2.77, available_gib=52.0, cache_gib=49.2)
CARD = MemoryPlan(version="0.13.0", total_gib=79.65, free_gib=78.9, cache_gib=None)

# plan: outcome, exit code, words
PLANS = {
    # 0.92 x 79.65 = 73.28 of 78.9: 5.6 stay
    "card": (replace(CARD, utilization=0.92), "start", 0, "5.6 GiB stay free"),
    # 0.97 x 79.65 = 77.26: 1.6 stay
    "card, closer": (replace(CARD, utilization=0.97), "risky", 3, "less than the reserve"),
    "card, too much": (replace(CARD, utilization=0.995), "refused", 1, "79.3 GiB requested, 78.9 GiB free"),
    # nobody checks in 0.8
    "card, no check": (replace(CARD, utilization=0.995, version="0.8.5"), "risky", 3, "does not check"),
    # 0.36 x 121.69 = 43.8 of 52 available: 8.2 stay; MemFree does not count since 0.11.2
    "spark": (replace(SPARK, utilization=0.36), "start", 0, "8.2 GiB stay free"),
    "spark, too much": (replace(SPARK, utilization=0.45), "refused", 1, "52.0 GiB available"),
    # older versions ask CUDA, which sees MemFree only: 0.05 x 121.69 = 6.1 > 2.77
    "spark, old rule": (
        replace(SPARK, utilization=0.05, version="0.11.0"),
        "refused",
        1,
        "2.8 GiB free (cudaMemGetInfo",
    ),
    # used 69.69 + 43.8 = 113.5 <= 115.6: below Ray's line; 0.38: 115.9 above it
    "spark, Ray": (replace(SPARK, utilization=0.38, ray=True, available_gib=52.0), "risky", 3, "Ray kills workers"),
    "nothing known": (MemoryPlan(utilization=0.5), "risky", 3, "memory of the GPU"),
}


@pytest.mark.parametrize("case", PLANS)
def test_preflight_by_the_rule_of_the_version(case: str) -> None:
    plan, outcome, code, words = PLANS[case]
    result = preflight(plan)
    assert (result.outcome, result.exit_code) == (outcome, code)
    assert words in " ".join((result.text, *result.arithmetic))


def test_preflight_warns_of_what_the_check_does_not_see() -> None:
    plan = replace(
        SPARK,
        utilization=None,
        version=None,
        swap_used_gib=1.5,
        zram=True,
        cgroup_limit_gib=100.0,
        others_gib=4.0,
        kv_cache_memory_gib=25.0,
    )
    text = " | ".join(preflight(plan).warnings)
    for words in (
        "version is not known",
        "default 0.92",
        "49.2 GiB of page cache",
        "zram",
        "cgroup",
        "4.0 GiB of GPU",
        "25.0",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("text", "version", "default"),
    [
        ("0.8.5.post1", (0, 8, 5), 0.9),
        ("0.20.1.dev0+g101584af0.d20260424", (0, 20, 1), None),
        ("0.33.0", (0, 33, 0), 0.92),
        ("0.1.dev1+g6804e1b81", None, 0.92),
        (None, None, 0.92),
    ],
)
def test_versions(text: str | None, version: tuple[int, int, int] | None, default: float | None) -> None:
    assert parse_version(text) == version
    assert default_utilization(version) == default


@pytest.mark.parametrize(("value", "rounded"), [(0.9264, 0.92), (0.62, 0.62), (0.6199999999999999, 0.62), (0.5, 0.5)])
def test_utilization_is_rounded_down(value: float, rounded: float) -> None:
    assert round_down(value) == rounded
