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
from llmtop.load.measure import most_at_once
from llmtop.load.pace import Climb, Pace, block_measurement, estimate_s, level_between, level_s, straight
from llmtop.load.plan import Caps, Level, Plan, Timeouts
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
    assert plan.refine
    assert not build("quick", BASE, Options(concurrencies=(1, 2, 4))).refine  # who names the users gets those
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
    assert estimate_s(boxed, pace) == pytest.approx(20.0 + (2048 / 4000 + 127 * 0.03) / 2)  # the last one, half done
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


@pytest.mark.parametrize("name", ["gh200", "m2max"])
def test_the_estimate_where_answers_come_as_a_whole_is_within_30_percent(name: str) -> None:
    """By a long prompt, two answers alone, and ever more short ones at once."""

    def played(users: int, requests: int, tokens: int, answer: int) -> LevelResult:
        return run_level(load_profile(name), DemoLevel(users, requests, tokens, answer))

    patient = replace(BASE, warm_up=False, timeouts=Timeouts(ttft_s=1e6), caps=Caps(level_s=1e6, run_s=1e6))
    plan = build("sweep", patient)
    levels = block_measurement(plan)
    took = {(x.concurrency, x.output_len): played(x.concurrency, x.concurrency, 16, x.output_len) for x in levels}
    steps = tuple((users, result.duration_s) for (users, tokens), result in took.items() if tokens == 24)
    answers = tuple((tokens, result.duration_s) for (users, tokens), result in took.items() if users == 1)
    read_s = played(1, 1, 2048, 12).duration_s - straight(answers, 12)
    pace = Pace(2048 / read_s, steps, None, answers)
    truth = sum(played(x.concurrency, x.num_prompts, 2048, 128).duration_s for x in plan.levels)
    assert estimate_s(plan, pace) == pytest.approx(truth, rel=0.3)


def test_a_server_slower_than_requests_wait_ends_the_plan_early() -> None:
    pace = Pace(700, ((1, 1.05), (4, 70.0)), 4, ((24, 1.05), (128, 7.0)))
    plan = build("sweep", replace(BASE, warm_up=False))
    first = 64 * (2048 / 700 + 7.0)
    assert estimate_s(plan, pace) == pytest.approx(first + 3 * plan.timeouts.first_token_s(plan.levels[1]))


def test_a_climb_ends_with_the_second_failure_or_when_nothing_is_gained_after_the_first() -> None:
    def ended(levels: list[tuple[float, bool]], limits: bool = True) -> int:
        climb = Climb(limits)
        return next(n for n, level in enumerate(levels) if climb.ends(*level))

    assert ended([(100, True), (101, True), (99, True), (101, False), (110, True)]) == 3
    assert ended([(100, True), (150, False), (200, True), (250, False)]) == 3
    assert ended([(100, True), (101, True)], limits=False) == 1


def test_the_estimate_of_a_climb_stops_where_it_stops() -> None:
    pace = Pace(4000, ((1, 0.03), (32, 0.1)))
    plan = build("quick", replace(BASE, warm_up=False))
    reached = replace(plan, levels=plan.levels[:6])  # c=16 reads 8 s of prompts, c=32 sixteen
    assert estimate_s(plan, pace) == estimate_s(reached, pace)
    assert (estimate_s(replace(plan, slo={}), pace) or 0.0) > (estimate_s(plan, pace) or 0.0)


@pytest.mark.parametrize(
    ("kept", "users"),
    [
        ({1: True, 2: True, 4: True, 8: False}, 6),
        ({1: True, 16: True, 32: False, 64: True, 24: True}, 28),  # the first that fails counts
        ({4: True, 8: False, 6: False}, 5),
        ({16: True, 18: False}, None),  # 17 of 16 is no news
        ({1: True, 2: False}, None),
        ({1: False}, None),
        ({1: True, 8: True}, None),
        ({}, None),
    ],
)
def test_half_way_between_the_last_good_and_the_first_bad_level(kept: dict[int, bool], users: int | None) -> None:
    levels = {Level(f"c={c}", c, 4 * c, 2048, 128, duration_s=20.0): good for c, good in kept.items()}
    between = level_between(levels)
    assert between == (Level(f"c={users}", users, 4 * users, 2048, 128, duration_s=20.0) if users else None)


def test_levels_of_the_same_number_of_requests_have_that_number_between_too() -> None:
    between = level_between({Level("c=4", 4, 64, 8, 8): True, Level("c=8", 8, 64, 8, 8): False})
    assert between == Level("c=6", 6, 64, 8, 8)


def test_the_estimate_counts_what_is_tried_between() -> None:
    pace = Pace(4000, ((1, 0.03), (32, 0.1)))  # c=4 reads prompts for 2 s, c=8 for 4.1
    climb = build("quick", replace(BASE, warm_up=False))
    more = (estimate_s(climb, pace) or 0.0) - (estimate_s(replace(climb, refine=0), pace) or 0.0)
    between = [level_s(replace(climb.levels[2], concurrency=c, num_prompts=4 * c), pace) for c in (6, 7)]
    assert more == pytest.approx(sum(between))


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
