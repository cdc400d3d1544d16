"""Plans, the scenarios that make them, and the equal vLLM commands."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from demo_fidelity import Level as DemoLevel
from demo_fidelity import LevelResult, run_level
from llmtop.contract.codec import plain, rebuild
from llmtop.demo.profile import load as load_profile
from llmtop.load.level import arrivals
from llmtop.load.plan import Caps, Level, Pace, Plan, Timeouts, estimate_s
from llmtop.load.probe import most_at_once
from llmtop.load.scenarios import SCENARIOS, Options, TooLong, bench_commands, build, cuts, fit

BASE = Plan(url="http://spark-a:8000", levels=(), model="gpt-oss-120b", seed=7)


def test_the_default_sweep_is_the_one_people_run() -> None:
    plan = build("sweep", BASE)
    assert [(x.concurrency, x.num_prompts, x.input_len, x.output_len) for x in plan.levels] == [
        (c, max(64, 3 * c), 2048, 128) for c in (1, 4, 8, 16, 32)
    ]
    assert (plan.requests(), plan.tokens()) == (352, (720_896, 45_056))


def test_requests_grow_with_the_users_and_levels_named_twice_are_one() -> None:
    levels = build("sweep", BASE, Options(concurrencies=(4, 128, 4))).levels
    assert [(level.concurrency, level.num_prompts) for level in levels] == [(4, 64), (128, 384)]


def test_a_rate_without_end_sends_all_at_once() -> None:
    whole, paced = build("rate", BASE, Options(request_rates=(math.inf, 2.0), num_prompts=12)).levels
    assert (whole.name, whole.request_rate, whole.concurrency) == ("inf req/s", None, 12)
    assert (paced.name, paced.request_rate) == ("2 req/s", 2.0)


def test_what_is_cut_is_said_and_an_answer_that_fills_the_model_is_refused() -> None:
    long = build("sweep", BASE, Options(concurrencies=(1,), input_len=40_000))
    assert cuts(long, 32_768) == "prompts cut from 40,000 to 32,640 tokens: the model takes 32,768 with the answer"
    assert cuts(build("sweep", BASE, Options(concurrencies=(4, 4))), 32_768) is None
    with pytest.raises(TooLong, match="32,768"):
        fit(build("sweep", BASE, Options(output_len=32_768)), 32_768)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_makes_a_plan_that_can_run_and_travels_as_json(name: str) -> None:
    plan = build(name, BASE)
    assert plan.problems() == []
    assert plan.scenario == name
    assert len({level.name for level in plan.levels}) == len(plan.levels)
    assert rebuild(Plan, json.loads(json.dumps(plain(plan)))) == plan


def test_there_are_eight_scenarios() -> None:
    assert list(SCENARIOS) == ["sweep", "quick", "single", "output", "context", "soak", "rate", "burst"]


def test_options_replace_a_scenarios_defaults() -> None:
    options = Options(concurrencies=(2, 3), num_prompts=5, input_len=100, output_len=9)
    assert build("sweep", BASE, options).levels == (Level("c=2", 2, 5, 100, 9), Level("c=3", 3, 5, 100, 9))
    rate = build("rate", BASE, Options(request_rates=(1.5,), burstiness=0.5, concurrencies=(40,))).levels[0]
    assert (rate.name, rate.request_rate, rate.burstiness, rate.concurrency) == ("1.5 req/s", 1.5, 0.5, 40)


def test_prompts_are_cut_to_what_the_model_takes() -> None:
    plan = fit(build("context", BASE), 16_384)
    assert [level.input_len for level in plan.levels] == [5000, 5000, 10_000, 10_000, 16_256, 16_256]
    assert [level.name for level in plan.levels][-2:] == ["in 16256 c=1", "in 16256 c=4"]
    assert fit(plan, None) == fit(plan, 16_384) == plan


def test_quick_is_boxed_and_climbs_by_doubling() -> None:
    plan = build("quick", BASE)
    assert plan.adaptive
    assert [(x.concurrency, x.num_prompts, x.duration_s) for x in plan.levels[:3]] == [
        (1, 4, 20),
        (2, 8, 20),
        (4, 16, 20),
    ]


def test_default_limits_hold_only_where_levels_differ_in_load() -> None:
    assert build("burst", BASE).slo
    assert not build("context", BASE).slo
    assert build("context", replace(BASE, slo={"ttft_p99": 9.0})).slo == {"ttft_p99": 9.0}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (BASE, "no level"),
        (replace(BASE, levels=(Level("a", 513, 600, 1, 1),)), "513"),
        (replace(BASE, levels=(Level("a", 1, 30_000, 1, 1),)), "30000"),
        (replace(BASE, levels=(Level("a", 1, 1, 0, 1),)), "at least 1 token"),
        (replace(BASE, levels=(Level("a", 1, 20_000, 4000, 1),)), "80,020,000 tokens"),
        (replace(BASE, levels=(Level("a", 1, 1, 1, 1, request_rate=-1.0),)), "request rate"),
    ],
)
def test_caps_refuse(plan: Plan, words: str) -> None:
    assert words in " ".join(plan.problems())


def test_a_flag_raises_the_cap() -> None:
    assert not replace(BASE, levels=(Level("a", 513, 600, 1, 1),), caps=Caps(concurrency=1024)).problems()


def test_the_estimate_needs_a_speed() -> None:
    plan = build("sweep", BASE)
    assert estimate_s(plan, None) is None
    seconds = estimate_s(plan, Pace(4170, ((1, 0.032),)))
    assert seconds is not None
    assert 300 < seconds < 900  # six to nine minutes on the machine of this speed, by hand


def test_time_boxes_and_rates_bound_the_estimate() -> None:
    pace, cold = Pace(4000, ((1, 0.03),)), replace(BASE, warm_up=False)
    boxed = replace(cold, levels=(Level("a", 1, 1000, 2048, 128, duration_s=20.0),))
    paced = replace(cold, levels=(Level("a", 99, 10, 16, 8, request_rate=0.5),))
    assert estimate_s(boxed, pace) == 20.0
    assert estimate_s(paced, pace) == pytest.approx(20.0 + 16 / 4000 + 8 * 0.03)


def test_sixteen_times_the_prompt_tokens_take_about_so_much_longer() -> None:
    pace = Pace(4000, ((1, 0.03), (32, 0.1)))
    short, long = (build("sweep", BASE, Options(input_len=n, output_len=16)) for n in (512, 8192))
    assert (estimate_s(long, pace) or 0.0) > 8 * (estimate_s(short, pace) or 0.0)


def test_a_step_is_between_what_was_measured() -> None:
    pace = Pace(4000, ((1, 0.03), (8, 0.051), (32, 0.1)))
    assert [pace.step_s(users) for users in (1, 8, 32)] == pytest.approx([0.03, 0.051, 0.1])
    assert pace.step_s(4) == pytest.approx(0.039)
    assert pace.step_s(56) == pytest.approx(0.149)


@pytest.mark.parametrize("name", ["gb10", "gb10-32b", "gb10-llamacpp", "h100", "ornith-35b"])
def test_the_estimate_of_a_simulated_machine_is_within_30_percent(name: str) -> None:
    """By what a short measurement gives: one long prompt, then many short ones at once."""

    def played(users: int, requests: int, tokens: int, answer: int) -> LevelResult:
        return run_level(load_profile(name), DemoLevel(users, requests, tokens, answer))

    alone, together = played(1, 1, 2048, 12), played(32, 32, 16, 12)
    times = [(begin, begin, end, 11) for begin, end in zip(together.ttfts, together.latencies, strict=True)]
    most, step = most_at_once(times), statistics.median((end - begin) / 11 for begin, _, end, _ in times)
    pace = Pace(2048 / alone.ttfts[0], ((1, (alone.latencies[0] - alone.ttfts[0]) / 11), (most, step)), most)
    if most == 1:
        pace = replace(pace, steps=pace.steps[:1])
    plan = replace(build("sweep", BASE), warm_up=False)
    took = sum(played(x.concurrency, x.num_prompts, 2048, 128).duration_s for x in plan.levels)
    assert estimate_s(plan, pace) == pytest.approx(took, rel=0.3)


def test_first_token_timeout_grows_with_the_prompts_in_flight() -> None:
    assert Timeouts().first_token_s(Level("a", 4, 8, 32_000, 128)) == 248.0


def test_the_equal_commands_of_vllm() -> None:
    first, second, *_ = bench_commands(build("sweep", BASE))
    words = shlex.split(first)
    assert words[:3] == ["vllm", "bench", "serve"]
    options = dict(pairwise(words))
    assert options["--base-url"] == "http://spark-a:8000"
    assert options["--model"] == "gpt-oss-120b"
    assert (options["--random-input-len"], options["--random-output-len"]) == ("2048", "128")
    assert (options["--num-prompts"], options["--max-concurrency"], options["--seed"]) == ("64", "1", "7")
    assert "--ignore-eos" in words
    assert words[words.index("--temperature") + 1] == "0"
    assert "--seed 8" in second
    chat = bench_commands(build("rate", replace(BASE, api="chat", goodput_ms={"ttft": 400.0})))[0]
    assert "--backend openai-chat" in chat
    assert "--endpoint /v1/chat/completions" in chat
    assert "--request-rate 0.5 --burstiness 1" in chat
    assert "--goodput ttft:400" in chat


def test_arrivals_are_rescaled_to_the_rate_and_differ_by_seed() -> None:
    level = Level("r", 8, 200, 1, 1, request_rate=10.0)
    due = arrivals(level, 1)
    assert due == sorted(due)
    assert due[-1] == pytest.approx(20.0)
    assert due != arrivals(level, 2)
    even = arrivals(replace(level, burstiness=1e6), 1)
    gaps = [b - a for a, b in pairwise(even)]
    assert max(gaps) < 0.101
    assert min(gaps) > 0.099
