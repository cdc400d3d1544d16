"""States, restarts and engines of one server over hand-cranked time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from crank import EPOCH, Crank, vllm_page
from llmtop.contract.snapshot import Latency, Rates, ServerView, State
from llmtop.engines.tracker import Failure, Identity

REFUSED = Failure("refused", "connection refused")
TIMEOUT = Failure("timeout", "no answer within 5 s")
AUTH = Failure("auth", "HTTP 401 from /metrics: a key is needed")
BAD = Failure("bad", "HTTP 500 from /metrics")
EMPTY = Failure("empty", "no engine metrics")


def serving(seconds: int = 5, start: float | None = None) -> Crank:
    """A server that makes 100 tokens a second, polled once a second."""
    crank = Crank()
    for second in range(seconds):
        crank.feed(vllm_page(running=2, kv=0.5, generation=100.0 * second, start=start), float(second))
    return crank


# --- states -----------------------------------------------------------------------------------------------------------


def test_before_the_first_answer_nothing_is_known() -> None:
    view = Crank().view()
    assert (view.state, view.reason, view.age_s) == (State.DOWN, "no answer yet", None)
    assert (view.running, view.waiting, view.kv_usage, view.rates, view.engines) == (None, None, None, Rates(), ())


@pytest.mark.parametrize(
    ("failure", "state"),
    [
        (REFUSED, State.DOWN),
        (TIMEOUT, State.DOWN),
        (BAD, State.DOWN),
        (AUTH, State.AUTH),
        (EMPTY, State.NO_ENGINE_METRICS),
    ],
)
def test_failures_without_any_page(failure: Failure, state: State) -> None:
    view = Crank().take(failure, 0.0).view()
    assert (view.state, view.reason, view.running) == (state, failure.text, None)


def test_a_server_that_works_serves_and_one_without_requests_is_idle() -> None:
    assert serving().view().state is State.SERVING
    idle = Crank().feed(vllm_page(), 0.0).feed(vllm_page(), 1.0).view()
    assert (idle.state, idle.running, idle.waiting) == (State.IDLE, 0, 0)


def test_waiting_requests_alone_are_not_idle() -> None:
    assert Crank().feed(vllm_page(waiting=3), 0.0).view().state is State.SERVING


def test_a_refused_connection_is_down_at_once_and_values_go() -> None:
    view = serving().take(REFUSED, 5.0).view()
    assert (view.state, view.running, view.kv_usage, view.rates) == (State.DOWN, None, None, Rates())
    assert view.latency.ttft == Latency()
    assert view.model == "m"  # what it was is still known


@pytest.mark.parametrize("failure", [TIMEOUT, BAD])
def test_one_bad_answer_keeps_the_values_and_three_intervals_make_them_stale(failure: Failure) -> None:
    crank = serving().take(failure, 5.0)
    assert (crank.view().state, crank.view().reason) == (State.SERVING, failure.text)
    assert crank.view(6.9).state is State.SERVING
    stale = crank.view(7.5)
    assert (stale.state, stale.running, stale.age_s) == (State.STALE, 2, 3.5)
    assert stale.rates.generation_tok_s == 100.0


def test_a_poll_that_never_ends_is_stale_too() -> None:
    assert serving().view(8.0).state is State.STALE


def test_a_page_without_engines_after_good_ones() -> None:
    crank = serving().take(EMPTY, 5.0)
    assert crank.view().state is State.SERVING
    view = crank.view(9.0)
    assert (view.state, view.running) == (State.NO_ENGINE_METRICS, None)


def test_a_good_page_ends_every_failure() -> None:
    crank = serving()
    for failure in (TIMEOUT, BAD, AUTH, EMPTY):
        crank.take(failure, 5.0)
    view = crank.feed(vllm_page(running=2, generation=600), 6.0).view()
    assert (view.state, view.reason, view.restarts) == (State.SERVING, None, 0)
    assert view.rates.generation_tok_s == 100.0


def test_a_local_process_that_does_not_listen_yet_is_starting() -> None:
    crank = Crank().take(REFUSED, 0.0)
    crank.tracker.identity = Identity(starting="process 7 is starting, port 8000 is not open yet", local=True)
    view = crank.view()
    assert view.state is State.STARTING
    assert "process 7" in (view.reason or "")


def test_a_failing_health_check_beside_a_good_page_is_in_the_reason() -> None:
    crank = serving()
    crank.tracker.identity = Identity(health="/health says 503")
    view = crank.view()
    assert (view.state, view.reason) == (State.SERVING, "/health says 503")


def test_stalled_says_how_many_run_and_since_when() -> None:
    crank = serving()
    for second in range(5, 12):
        crank.feed(vllm_page(running=2, kv=0.5, generation=400), float(second))
        assert crank.view().state is (State.STALLED if second >= 9 else State.SERVING)
    view = crank.view()
    assert view.reason == "2 running, nothing moved for 7 s"
    assert view.engines[0].state is State.STALLED
    assert crank.feed(vllm_page(running=2, generation=401), 12.0).view().state is State.SERVING


def test_gauges_that_are_no_numbers_are_unknown_and_never_idle() -> None:
    page = vllm_page(running=None, waiting=None, kv=None, generation=5)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        page += f'vllm:{name}{{engine="0",model_name="m"}} NaN\n'.encode()
    view = Crank().feed(page, 0.0).view()
    assert (view.running, view.waiting, view.kv_usage) == (None, None, None)
    assert view.state is State.SERVING


@pytest.mark.parametrize(("kv", "told"), [(-0.1, None), (1.5, None), (1.004, 1.0), (0.0, 0.0)])
def test_a_kv_usage_that_is_no_fraction_is_unknown(kv: float, told: float | None) -> None:
    assert Crank().feed(vllm_page(kv=kv), 0.0).view().kv_usage == told


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_another_start_time_is_a_restart_though_counters_rose() -> None:
    crank = serving(start=1000.0).feed(vllm_page(generation=1e6, start=2000.0), 5.0)
    view = crank.view()
    assert (view.restarts, view.rates.generation_tok_s) == (1, None)
    assert crank.feed(vllm_page(generation=1e6 + 50, start=2000.0), 6.0).view().rates.generation_tok_s == 50.0


def test_a_port_that_was_dead_in_between_is_a_restart() -> None:
    view = serving().take(REFUSED, 5.0).feed(vllm_page(generation=9000), 6.0).view()
    assert (view.restarts, view.rates.generation_tok_s) == (1, None)


def test_the_same_process_behind_a_refused_poll_is_no_restart() -> None:
    crank = serving(start=1000.0).take(REFUSED, 5.0)
    view = crank.feed(vllm_page(running=2, generation=600, start=1000.0), 6.0).view()
    assert (view.restarts, view.rates.generation_tok_s) == (0, 100.0)


def test_another_model_on_the_port_is_a_restart_and_old_numbers_go() -> None:
    crank = serving()
    view = crank.feed(vllm_page(model="other", running=1, generation=5000), 5.0).view()
    assert (view.model, view.restarts, view.rates.generation_tok_s) == ("other", 1, None)
    assert [row.model for row in view.engines] == ["other"]


def test_restarts_are_counted_once_each() -> None:
    crank = serving()
    for number in range(1, 4):
        crank.feed(vllm_page(generation=1), 10.0 * number).feed(vllm_page(generation=50), 10.0 * number + 1)
        assert crank.view().restarts == number


def test_up_time_is_from_the_process_start_time() -> None:
    assert Crank().feed(vllm_page(start=EPOCH - 3600), 0.0).view().up_s == 3600.0
    assert Crank().feed(vllm_page(start=EPOCH + 99), 0.0).view().up_s is None  # its clock is ahead of ours


@pytest.mark.parametrize("jump", [-1e6, -0.5, 3600.0, 1e9])
def test_a_jump_of_the_wall_clock_changes_no_rate_and_no_state(jump: float) -> None:
    crank = serving(start=EPOCH - 60)
    right, jumped = (crank.tracker.view(4.0, EPOCH + 4.0 + by, 1.0) for by in (0.0, jump))
    assert replace(jumped, up_s=right.up_s) == right


# --- engines ----------------------------------------------------------------------------------------------------------


def engines(t: float, *present: int, tokens_s: float = 100.0) -> bytes:
    return b"".join(
        vllm_page(engine=str(engine), running=1, kv=0.1 * (engine + 1), generation=1e6 + tokens_s * t)
        for engine in present
    )


def test_engines_may_appear_and_vanish_without_a_spike() -> None:
    chance = random.Random(5)
    for _ in range(30):
        crank = Crank()
        for second in range(40):
            present = [engine for engine in range(4) if chance.random() < 0.8] or [0]
            view = crank.feed(engines(float(second), *present), float(second)).view()
            assert [row.engine for row in view.engines] == [str(engine) for engine in present]
            assert view.running == len(present)
            rate = view.rates.generation_tok_s
            assert rate is None or 0.0 <= rate <= 100.0 * len(present) * 1.0001
            assert view.kv_usage == pytest.approx(0.1 * (present[-1] + 1))
            assert view.kv_engine == str(present[-1])


def test_engines_are_in_numeric_order() -> None:
    view = Crank().feed(engines(0.0, 10, 9, 2, 0), 0.0).view()
    assert [row.engine for row in view.engines] == ["0", "2", "9", "10"]


def test_one_stalled_engine_beside_a_working_one() -> None:
    crank = Crank()
    for second in range(10):
        working = vllm_page(engine="0", running=1, generation=100.0 * second)
        crank.feed(working + vllm_page(engine="1", running=4, generation=7), float(second))
    view = crank.view()
    assert view.state is State.SERVING
    assert [row.state for row in view.engines] == [State.SERVING, State.STALLED]
    assert "engine 1: 4 running" in (view.reason or "")


def test_two_models_on_one_page_have_names_of_their_own() -> None:
    view = Crank().feed(vllm_page(model="a", running=1) + vllm_page(model="b", running=2), 0.0).view()
    assert sorted(row.engine for row in view.engines) == ["a/0", "b/0"]
    assert view.running == 3


def test_a_restarted_engine_resets_its_row_and_not_the_others() -> None:
    crank = Crank()
    for second in range(5):
        crank.feed(engines(float(second), 0, 1), float(second))
    page = vllm_page(engine="0", running=1, generation=1e6 + 500) + vllm_page(engine="1", running=1, generation=3)
    view = crank.feed(page, 5.0).view()
    assert view.restarts == 1
    assert [row.generation_tok_s for row in view.engines] == [100.0, None]
    assert view.rates.generation_tok_s == 100.0


# --- capacity and room ------------------------------------------------------------------------------------------------


def config(**labels: object) -> bytes:
    text = ",".join(f'{name}="{value}"' for name, value in ({"engine": "0"} | labels).items())
    return f"vllm:cache_config_info{{{text}}} 1.0\n".encode()


def test_room_is_what_is_free_of_the_fullest_engine_in_whole_requests() -> None:
    exact = config(num_gpu_blocks=96, block_size=32, kv_cache_size_tokens=3072, kv_cache_max_concurrency="3.0")
    view = Crank().feed(vllm_page(kv=0.5) + exact, 0.0).view()
    assert (view.kv_capacity_tokens, view.kv_capacity_approx) == (3072, False)
    assert view.kv_used_tokens == 1520  # one block of the 96 is never used
    assert (view.max_model_len, view.room_requests) == (1024, 1)
    assert Crank().feed(vllm_page(kv=0.7) + exact, 0.0).view().room_requests == 0


def test_blocks_times_block_size_is_approximate() -> None:
    view = Crank().feed(vllm_page(kv=0.5) + config(num_gpu_blocks=96, block_size=32), 0.0).view()
    assert (view.kv_capacity_tokens, view.kv_capacity_approx) == (3072, True)
    assert view.room_requests is None  # nobody said how long a request may be


@pytest.mark.parametrize("concurrency", ["nan", "inf", "1e-320", "None", "0"])
def test_an_odd_concurrency_leaves_the_length_unknown(concurrency: str) -> None:
    page = vllm_page(kv=0.5) + config(kv_cache_size_tokens=3072, kv_cache_max_concurrency=concurrency)
    view = Crank().feed(page, 0.0).view()
    assert (view.kv_capacity_tokens, view.max_model_len, view.room_requests) == (3072, None, None)


def filling(*usages: float, running: int = 1) -> ServerView:
    """A cache of 1000 tokens with these usages, a second apart."""
    crank = Crank()
    for second, usage in enumerate(usages):
        page = vllm_page(running=running, kv=usage, generation=float(second)) + config(kv_cache_size_tokens=1000)
        crank.feed(page, float(second))
    return crank.view()


def test_time_to_full_only_while_it_rises() -> None:
    rising = [0.3 + 0.02 * second for second in range(20)]
    view = filling(*rising)
    assert view.kv_growth_tok_s == pytest.approx(20.0)
    assert view.kv_full_in_s == pytest.approx(16.0)
    assert filling(*rising, 0.0).kv_full_in_s is None
    assert filling(*rising, running=0).kv_full_in_s is None
    assert filling(*rising[:8]).kv_full_in_s is None  # too early to say
    assert filling(*[0.9] * 20).kv_full_in_s is None


@pytest.mark.parametrize("top", [0.34, 0.6, 0.94])
@pytest.mark.parametrize("period", [5, 8, 12, 20])
def test_a_cache_that_comes_and_goes_never_says_when_it_is_full(top: float, period: int) -> None:
    chance = random.Random(3)
    saw = [top * (0.6 + 0.4 * (t % period) / period) + 0.01 * chance.random() for t in range(90)]
    spoke = [filling(*saw[:end]).kv_full_in_s is not None for end in range(period, 90)]
    assert not any(spoke[1:])  # the first rise may be one that goes on


def test_waiting_without_anybody_running_stalls_too() -> None:
    crank = Crank()
    for second in range(6):
        crank.feed(vllm_page(waiting=37, kv=0.31, generation=9e4), float(second))
        assert crank.view().state is (State.STALLED if second >= 5 else State.SERVING)
    assert crank.view().reason == "37 waiting, nothing moved for 5 s"
    assert crank.feed(vllm_page(waiting=36, running=1, kv=0.31, generation=9e4 + 1), 6.0).view().reason is None


def test_max_num_seqs_comes_from_outside_the_page() -> None:
    crank = serving()
    assert crank.view().max_num_seqs is None
    crank.tracker.identity = Identity(max_num_seqs=32, max_model_len=4096, version="0.32.0")
    view = crank.view()
    assert (view.max_num_seqs, view.max_model_len, view.version) == (32, 4096, "0.32.0")


def test_old_pages_without_a_prompt_split_use_the_prefix_cache_hits() -> None:
    crank = Crank()
    for second in range(3):
        hits = f'vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {30 * second}\n'.encode()
        crank.feed(vllm_page(prompt=100.0 * second) + hits, float(second))
    rates = crank.view().rates
    assert (rates.prompt_tok_s, rates.prompt_cached_tok_s, rates.prompt_computed_tok_s) == (100.0, 30.0, 70.0)


def test_a_page_cut_mid_line_updates_what_it_has() -> None:
    crank = serving()
    whole = vllm_page(running=7, waiting=9, kv=0.9, generation=1e6)
    view = crank.feed(whole[: whole.index(b"vllm:num_requests_waiting") + 20], 5.0).view()
    assert (view.running, view.waiting, view.kv_usage) == (7, 0, 0.5)
    assert view.rates.generation_tok_s == 100.0
    assert "cut short" in (view.reason or "")
    assert crank.feed(vllm_page(running=2, generation=600), 6.0).view().rates.generation_tok_s == 100.0
