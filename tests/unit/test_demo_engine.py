"""The simulated engine: counts, conserved KV blocks, order, preemption, aborts, prefix cache, canvases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from llmtop.demo import profile as profiles
from llmtop.demo.blocks import BlockPool
from llmtop.demo.counters import BucketCounter, length_bounds
from llmtop.demo.engine import Engine, Output, Request
from llmtop.demo.profile import MachineProfile, ProfileError
from llmtop.demo.timing import StepModel, Work


def small(kv_tokens: int = 1600, max_num_seqs: int = 4, budget: int = 256) -> MachineProfile:
    """GB10's speeds with a small cache."""
    profile = profiles.load("gb10")
    engine = replace(profile.engine, kv_tokens=kv_tokens, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
    return replace(profile, engine=engine)


def run(engine: Engine, now: float = 0.0, steps: int = 100_000) -> tuple[list[Output], float]:
    """Runs until idle."""
    outputs: list[Output] = []
    for _ in range(steps):
        step = engine.begin(now)
        if step is None:
            return outputs, now
        now = step.end
        outputs += engine.finish(step)
    raise AssertionError("the engine did not come to rest")


def test_one_request_is_counted_as_vllm_counts_it() -> None:
    engine = Engine(small())
    engine.submit(Request("a", range(300), 5, arrival=1.0))
    outputs, end = run(engine, now=2.0)

    assert [(o.first, o.count, o.finish_reason) for o in outputs] == [
        (0, 1, None), (1, 1, None), (2, 1, None), (3, 1, None), (4, 1, "length"),
    ]  # fmt: skip
    c = engine.counters
    assert (c.prompt_tokens, c.generation_tokens, c.cached_tokens) == (300, 5, 0)
    assert (c.prefix_queries, c.prefix_hits) == (300, 0)
    assert c.finished == {"stop": 0, "length": 1, "abort": 0, "error": 0, "repetition": 0}
    assert (c.ttft.count, c.itl.count, c.e2e.count, c.tpot.count) == (1, 4, 1, 1)
    # 300 prompt tokens in chunks of 256 and 44: two steps, one with the first token
    assert engine.effort.steps == 6
    assert c.iteration.count == 5
    assert c.iteration.sum == 300 + 5
    assert c.queue.sum == pytest.approx(1.0)
    assert c.e2e.sum == pytest.approx(end - 1.0)
    assert c.ttft.sum == pytest.approx(c.queue.sum + c.prefill.sum)
    assert c.inference.sum == pytest.approx(c.prefill.sum + c.decode.sum)
    assert c.tpot.sum == pytest.approx(c.decode.sum / 4)
    assert c.itl.sum == pytest.approx(c.decode.sum)
    assert engine.gauges.running == engine.gauges.waiting == 0
    assert engine.gauges.kv_usage == 0.0


def test_generation_tokens_equal_itl_and_ttft_counts() -> None:
    engine = Engine(small(kv_tokens=4096))
    for i in range(12):
        engine.submit(Request(str(i), range(i * 100, i * 100 + 50), 7 + i, 0.0))
    run(engine)
    c = engine.counters
    assert c.generation_tokens == sum(7 + i for i in range(12)) == c.itl.count + c.ttft.count


def test_the_model_ends_by_itself_or_by_length() -> None:
    engine = Engine(small())
    engine.submit(Request("stop", range(10), 8, 0.0, stop_after=3))
    engine.submit(Request("length", range(10, 20), 2, 0.0, stop_after=3))
    outputs, _ = run(engine)
    assert {o.id: o.finish_reason for o in outputs if o.finish_reason} == {"stop": "stop", "length": "length"}
    assert engine.counters.generation_tokens == 3 + 2


def test_first_come_first_served_within_the_places() -> None:
    engine = Engine(small(max_num_seqs=2))
    for i in range(5):
        engine.submit(Request(str(i), range(i * 50, i * 50 + 20), 4, 0.0))
    step = engine.begin(0.0)
    assert step is not None
    engine.finish(step)
    assert (engine.gauges.running, engine.gauges.waiting) == (2, 3)
    outputs, _ = run(engine, step.end)
    assert [o.id for o in outputs if o.finish_reason] == ["0", "1", "2", "3", "4"]


def test_a_step_stays_within_its_token_budget() -> None:
    engine = Engine(small(kv_tokens=4096, max_num_seqs=8, budget=64))
    for i in range(6):
        engine.submit(Request(str(i), range(i * 500, i * 500 + 150), 6, 0.0))
    now = 0.0
    while (step := engine.begin(now)) is not None:
        assert sum(tokens for _, tokens in step.items) <= 64
        now = step.end
        engine.finish(step)


def test_the_newest_request_is_preempted_and_finishes_all_the_same() -> None:
    # 20 blocks of 16 tokens: both prompts fit, both answers do not
    engine = Engine(small(kv_tokens=320))
    engine.submit(Request("old", range(100), 120, 0.0))
    engine.submit(Request("new", range(1000, 1100), 120, 0.0))
    outputs, _ = run(engine)
    assert engine.counters.preemptions >= 1
    assert [o.id for o in outputs if o.finish_reason] == ["old", "new"]
    assert engine.counters.generation_tokens == 240
    assert engine.counters.prompt_tokens == 200
    assert engine.counters.prefix_queries == 200  # an admission after a preemption asks no second time
    assert engine.counters.preempted.sum == engine.counters.preemptions


def test_usage_leaves_out_the_null_block() -> None:
    engine = Engine(small(kv_tokens=160))  # ten usable blocks
    engine.submit(Request("a", range(40), 10, 0.0))
    step = engine.begin(0.0)
    assert step is not None
    engine.finish(step)
    assert engine.gauges.kv_usage == pytest.approx(3 / 10)


def test_a_known_prefix_is_read_from_the_cache_even_after_its_request_ended() -> None:
    engine = Engine(small(kv_tokens=4096, budget=2048))
    engine.submit(Request("a", range(160), 2, 0.0))
    run(engine)
    engine.submit(Request("b", range(160), 2, 10.0))
    run(engine, 10.0)
    # the last token is always computed, so the tenth block is not taken from the cache
    assert engine.counters.prefix_hits == engine.counters.cached_tokens == 144
    assert engine.counters.prompt_tokens == 320
    assert engine.counters.kv_computed.sum == 160 + 16
    engine.submit(Request("c", range(160), 2, 20.0, salt="mine"))
    run(engine, 20.0)
    assert engine.counters.prefix_hits == 144


def test_running_requests_share_the_blocks_of_a_prefix() -> None:
    engine = Engine(small(kv_tokens=1600, budget=2048))
    engine.submit(Request("a", range(320), 50, 0.0))
    step = engine.begin(0.0)
    assert step is not None
    engine.finish(step)
    used = engine.pool.used
    engine.submit(Request("b", [*range(320), 7], 50, 0.0))
    step = engine.begin(step.end)
    assert step is not None
    assert engine.pool.used <= used + 2


def test_an_abort_frees_everything_and_is_counted_nowhere() -> None:
    engine = Engine(small(max_num_seqs=1))
    engine.submit(Request("running", range(50), 50, 0.0))
    engine.submit(Request("queued", range(100, 150), 50, 0.0))
    step = engine.begin(0.0)
    assert step is not None
    engine.finish(step)
    assert engine.abort("running")
    assert engine.abort("queued")
    assert not engine.abort("queued")
    assert engine.pool.used == 0
    assert (engine.gauges.running, engine.gauges.waiting) == (0, 0)
    assert engine.begin(step.end) is None
    assert sum(engine.counters.finished.values()) == 0
    assert engine.counters.e2e.count == 0
    assert (engine.counters.generation_tokens, engine.counters.ttft.count) == (1, 1)


def test_an_abort_in_the_middle_of_a_step_gives_no_output() -> None:
    engine = Engine(small())
    engine.submit(Request("a", range(50), 50, 0.0))
    engine.submit(Request("b", range(100, 150), 50, 0.0))
    step = engine.begin(0.0)
    assert step is not None
    engine.abort("a")
    assert [o.id for o in engine.finish(step)] == ["b"]


def test_kv_blocks_are_conserved_whatever_happens() -> None:
    rng = random.Random(7)
    for _ in range(20):
        engine = Engine(small(kv_tokens=rng.choice((320, 480, 1600)), max_num_seqs=5))
        now, alive = 0.0, 0
        for number in range(60):
            start = rng.choice((0, 0, 500))
            longest = engine.config.kv_tokens - 130
            prompt = range(start, start + rng.randint(1, min(longest, 200)))
            engine.submit(Request(str(number), prompt, rng.randint(1, 60), now))
            for _ in range(rng.randint(0, 6)):
                step = engine.begin(now)
                if step is None:
                    break
                if rng.random() < 0.2:
                    alive -= engine.abort(str(rng.randint(0, number)))
                now = step.end
                engine.finish(step)
                held = engine.pool.used
                assert 0 <= held <= engine.pool.total - 1
                assert engine.gauges.kv_usage == pytest.approx(held / (engine.pool.total - 1))
                assert held + engine.pool.free == engine.pool.total - 1
        run(engine, now)
        assert engine.pool.used == 0
        assert engine.running == engine.waiting == 0


def test_equal_inputs_give_equal_runs() -> None:
    def once() -> list[tuple[str, int, str | None]]:
        engine = Engine(small(kv_tokens=480))
        for i in range(8):
            engine.submit(Request(str(i), range(i * 7, i * 7 + 90), 40, 0.0))
        return [(o.id, o.first, o.finish_reason) for o in run(engine)[0]]

    assert once() == once()


def test_requests_that_can_never_run_are_refused() -> None:
    engine = Engine(small(kv_tokens=160))
    with pytest.raises(ValueError, match="cannot be served"):
        engine.submit(Request("a", range(150), 11, 0.0))
    with pytest.raises(ValueError, match="cannot be served"):
        engine.submit(Request("a", (), 1, 0.0))
    engine.submit(Request("a", range(10), 1, 0.0))
    with pytest.raises(ValueError, match="in use"):
        engine.submit(Request("a", range(10), 1, 0.0))


def test_a_diffusion_model_puts_a_canvas_out_at_once() -> None:
    engine = Engine(profiles.load("gh200"))
    engine.submit(Request("a", range(100), 600, 0.0))
    outputs, _ = run(engine)
    assert [(o.first, o.count) for o in outputs] == [(0, 256), (256, 256), (512, 88)]
    c = engine.counters
    assert c.generation_tokens == c.committed_tokens == 600
    assert (c.ttft.count, c.itl.count) == (1, 2)
    assert c.denoising_steps == 48 * 3


def test_prefill_speed_is_the_profile_s_at_both_lengths() -> None:
    model = StepModel(profiles.load("gb10").timing)
    assert 2048 / (model.wake_s + model.prompt_seconds(2048)) == pytest.approx(4092.79)
    assert 8192 / (model.wake_s + model.prompt_seconds(8192)) == pytest.approx(3547.65)


def test_a_step_costs_at_least_the_weights_and_scales_with_speed() -> None:
    timing = profiles.load("gb10").timing
    work = Work(chunks=((0, 16),), decodes=0, context_tokens=0, kv_usage=0.0)
    assert StepModel(timing).seconds(work) == pytest.approx(0.0291)
    assert StepModel(timing, speed=5).seconds(work) == pytest.approx(0.0291 / 5)
    full = replace(work, kv_usage=1.0)
    assert StepModel(timing).seconds(full) == pytest.approx(0.0291 * 1.15)


@pytest.mark.parametrize("name", profiles.names())
def test_every_profile_loads(name: str) -> None:
    assert profiles.load(name).key == name


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kv_tokens = 849942", "kv_tokens = 100", "kv_tokens has no room"),
        ("kv_tokens = 849942", 'kv_tokens = "many"', "engine: kv_tokens: expected int"),
        ("kv_tokens = 849942", "kv_tokenz = 1", "unknown key 'kv_tokenz'"),
        ("max_model_len = 32768", "", "max_model_len"),
        ('memory = "unified"', 'memory = "magic"', "expected one of unified"),
        ("power_w = [4.5, 46.0]", "power_w = [4.5]", "expected 2 values"),
        ("[model]", "[model", "gb10.toml"),
    ],
)
def test_a_bad_profile_says_what_is_wrong(old: str, new: str, words: str) -> None:
    from importlib.resources import files

    text = (files("llmtop.demo") / "profiles" / "gb10.toml").read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(ProfileError, match=words):
        profiles.parse("gb10", text.replace(old, new, 1))


def test_an_unknown_machine_names_the_known_ones() -> None:
    with pytest.raises(ProfileError, match=r"known: .*gb10"):
        profiles.load("../etc/passwd")


def test_a_preempted_request_goes_before_those_that_never_ran() -> None:
    engine = Engine(small(kv_tokens=320, max_num_seqs=2))
    engine.submit(Request("old", range(100), 120, 0.0))
    engine.submit(Request("new", range(1000, 1100), 120, 0.0))
    engine.submit(Request("late", range(2000, 2010), 5, 0.0))
    outputs, _ = run(engine)
    assert engine.counters.preemptions >= 1
    # one block would be enough for the late one, but the preempted one stands before it
    old_done = next(i for i, o in enumerate(outputs) if o.id == "old" and o.finish_reason)
    late_begins = next(i for i, o in enumerate(outputs) if o.id == "late")
    assert late_begins > old_done


def test_a_shared_block_stays_held_until_its_last_holder_goes() -> None:
    pool = BlockPool(total=5, block_size=16)
    (block,) = pool.take(1)
    pool.remember(block, content=99)
    pool.hold(pool.cached([99]))
    pool.release([block])
    assert (pool.used, pool.free) == (1, 3)
    pool.release([block])
    assert (pool.used, pool.free) == (0, 4)
    assert pool.cached([99]) == [block]


def test_the_least_recently_used_content_is_lost_first() -> None:
    pool = BlockPool(total=4, block_size=16)
    blocks = pool.take(3)
    for block, content in zip(blocks, (1, 2, 3), strict=True):
        pool.remember(block, content)
    pool.release(blocks)  # the tail of a request goes before its head
    pool.take(1)
    assert [bool(pool.cached([content])) for content in (1, 2, 3)] == [True, True, False]
    with pytest.raises(IndexError, match="3 KV blocks asked for, 2 free"):
        pool.take(3)


def test_a_bucket_holds_its_upper_bound() -> None:
    histogram = BucketCounter((0.3, 0.5))
    for value in (0.3, 0.4, 0.5, 0.6):
        histogram.observe(value)
    assert histogram.cumulative() == [1, 3, 4]
    assert histogram.sum == pytest.approx(1.8)


def test_length_bounds_end_at_the_longest_request() -> None:
    assert length_bounds(1024) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    assert length_bounds(50)[-1] == 50
