"""What each engine's page says, signal by signal, and what it cannot say."""

from __future__ import annotations

import math

import pytest

from crank import Crank
from llmtop.contract.snapshot import ServerView, State
from llmtop.engines.registry.llamacpp import Slots
from llmtop.engines.registry.tensorrt import as_page, read_iterations


def watched(*pages: str, every_s: float = 1.0) -> ServerView:
    """A server whose pages came one after the other."""
    crank = Crank(every_s)
    for place, page in enumerate(pages):
        crank.feed(page.encode(), place * every_s)
    return crank.view()


VLLM = """vllm:num_requests_running{engine="0",model_name="NAME"} 3
vllm:generation_tokens_total{engine="0",model_name="NAME"} TOKENS
"""


def vllm(tokens: float, name: str = "m", more: str = "") -> str:
    return VLLM.replace("NAME", name).replace("TOKENS", str(tokens)) + more


# spellings


@pytest.mark.parametrize("name", ["a # {b", 'a{b=\\"c\\",d} 5 # 6', 'a\\"} 7 # {\\"', "},{", "\\\\", 'a\\\\\\" x'])
def test_what_looks_like_an_exemplar_in_a_label_is_the_label(name: str) -> None:
    server = watched(vllm(100, name), vllm(150, name))
    assert (server.running, server.rates.generation_tok_s) == (3, 50.0)
    assert server.model == name.replace('\\"', '"').replace("\\\\", "\\")


def test_a_byte_order_mark_costs_nothing() -> None:
    assert watched("\ufeff" + vllm(1)).running == 3


def test_a_very_long_label_is_read() -> None:
    assert watched(vllm(1, "n" * 200_000)).running == 3


def test_a_server_that_never_sends_the_last_newline_has_rates() -> None:
    pages = [vllm(n * 40, more=f"vllm:prompt_tokens_total {n}\n# TYPE z gauge\nz 5") for n in range(6)]
    server = watched(*pages)
    assert server.rates.generation_tok_s == 40.0
    assert server.reason == "the page was cut short"


def test_pages_cut_at_other_places_have_none() -> None:
    whole = vllm(40) + 'vllm:prompt_tokens_total{engine="0",model_name="m"} 7\n'
    server = watched(whole, vllm(80) + "vllm:pro", vllm(120)[:-20], vllm(160) + "vllm:prompt_t")
    assert server.rates.generation_tok_s is None
    assert server.running == 3


# restarts


def born(family: str, when: float) -> str:
    return f'vllm:{family}_created{{engine="0",model_name="m"}} {when}\n'


@pytest.mark.parametrize(
    "family", ["generation_tokens", "num_preemptions", "iteration_tokens_total", "request_params_n"]
)
def test_any_family_that_was_born_anew_is_a_restart(family: str) -> None:
    server = watched(vllm(1000, more=born(family, 1.7e9)), vllm(5000, more=born(family, 1.70001e9)))
    assert (server.restarts, server.rates.generation_tok_s) == (1, None)


def test_a_family_that_is_born_later_is_none() -> None:
    first = born("generation_tokens", 1.7e9)
    server = watched(vllm(1000, more=first), vllm(1050, more=first + born("request_success", 1.70001e9)))
    assert (server.restarts, server.rates.generation_tok_s) == (0, 50.0)


# KV cache


def test_blocks_are_divided_among_engines_not_among_models() -> None:
    config = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1\n'
    server = watched(vllm(1, "a") + vllm(1, "b") + config)
    assert [row.kv_capacity_tokens for row in server.engines] == [16_000, 16_000]


def test_replicas_behind_ray_have_blocks_of_their_own() -> None:
    page = "".join(
        f'ray_vllm_num_requests_running{{ReplicaId="{r}",model_name="m"}} 1\n'
        f'ray_vllm_cache_config_info{{ReplicaId="{r}",block_size="16",model_name="m",num_gpu_blocks="1000"}} 1\n'
        for r in ("r1", "r2")
    )
    assert [row.kv_capacity_tokens for row in watched(page).engines] == [16_000, 16_000]


@pytest.mark.parametrize(
    ("page", "capacity", "usage"),
    [
        ("sglang:num_pages 100\nsglang:page_size 16\nsglang:token_usage 0.5\n", 1600, 0.5),
        ('sglang:cache_config_info{num_pages="100",page_size="16"} 1\nsglang:num_running_reqs 1\n', 1600, None),
        ("sglang_max_total_num_tokens 1600\nsglang_token_usage 0.25\n", 1600, 0.25),
        ("tgi_batch_current_max_tokens 400\ntgi_batch_max_total_tokens 1600\n", 1600, 0.25),
        (
            "trtllm_kv_cache_used_blocks 25\ntrtllm_kv_cache_max_blocks 50\ntrtllm_kv_cache_tokens_per_block 32\n",
            1600,
            0.5,
        ),
        ("trtllm_kv_cache_max_blocks 50\ntrtllm_num_requests_running 1\n", None, None),
    ],
)
def test_capacity_and_usage_as_each_engine_says_them(page: str, capacity: int | None, usage: float | None) -> None:
    server = watched(page)
    assert (server.kv_capacity_tokens, server.kv_usage) == (capacity, usage)


# prefix cache


@pytest.mark.parametrize(
    ("first", "second", "rate"),
    [
        ("vllm:gpu_prefix_cache_hit_rate 0.1\n", "vllm:gpu_prefix_cache_hit_rate 0.4\n", 0.4),
        ("vllm:gpu_prefix_cache_hit_rate -1\n", "vllm:gpu_prefix_cache_hit_rate -1\n", None),
        ("sglang:cache_hit_rate 0.4\n", "sglang:cache_hit_rate 0.4\n", 0.4),
        (
            "llamacpp:prompt_tokens_total 100\nllamacpp:prompt_tokens_cached_total 100\n",
            "llamacpp:prompt_tokens_total 130\nllamacpp:prompt_tokens_cached_total 110\n",
            0.25,
        ),
        (
            "trtllm_prompt_tokens_total 100\ntrtllm_prompt_cached_tokens_total 0\ntrtllm_kv_cache_hit_rate 0.9\n",
            "trtllm_prompt_tokens_total 140\ntrtllm_prompt_cached_tokens_total 10\ntrtllm_kv_cache_hit_rate 0.9\n",
            0.25,
        ),
        (
            "lmdeploy:prompt_tokens_total 100\nlmdeploy:cached_tokens_total 0\n",
            "lmdeploy:prompt_tokens_total 140\nlmdeploy:cached_tokens_total 10\n",
            0.25,
        ),
    ],
)
def test_prefix_hits_as_each_engine_says_them(first: str, second: str, rate: float | None) -> None:
    assert watched(first, second).prefix_hit_rate == rate


# speed


def sglang(running: int, speed: float, tokens: int, more: str = "") -> str:
    return (
        f"sglang:num_running_reqs {running}\nsglang:gen_throughput {speed}\n"
        f"sglang:generation_tokens_total {tokens}\n{more}"
    )


def test_sglang_says_its_speed_where_its_counter_waits_for_the_end() -> None:
    server = watched(*[sglang(5, 300.0 + n % 2, 1000) for n in range(9)])
    assert (server.state, server.rates.generation_tok_s) == (State.SERVING, 300.0)
    assert server.engines[0].generation_tok_s == 300.0
    assert watched(sglang(0, 300.0, 1000), sglang(0, 300.0, 1000)).rates.generation_tok_s == 0.0


def test_sglangs_live_counter_is_better_than_its_gauge() -> None:
    live = 'sglang:realtime_tokens_total{mode="decode"} '
    pages = [sglang(5, 300.0, 1000, f"{live}{n * 70}\n") for n in range(3)]
    assert watched(*pages).rates.generation_tok_s == 70.0


def ranks(n: int, live: str) -> str:
    """Two ranks of SGLang at 50 tok/s each, beside counters of both that move every 6 s, when requests end."""
    each = "".join(
        f'sglang:num_running_reqs{{dp_rank="{d}"}} 4\n' + live.format(labels=f'dp_rank="{d}"', tokens=50 * n)
        for d in (0, 1)
    )
    return each + f"sglang:generation_tokens_total {600 * (n // 6)}\nsglang:num_requests_total {6 * (n // 6)}\n"


@pytest.mark.parametrize(
    ("live", "speed"),
    [
        ('sglang:realtime_tokens_total{{{labels},mode="decode"}} {tokens}\n', 100.0),
        ("sglang:gen_throughput{{{labels}}} 50\n", 100.0),
        ("", None),  # 8 run and 6 end at a time: neither 0 nor a spike
    ],
)
def test_tokens_of_ranks_are_not_counted_again_when_requests_end(live: str, speed: float | None) -> None:
    server = watched(*(ranks(n, live) for n in range(21)))
    assert (server.state, server.rates.generation_tok_s) == (State.SERVING, speed)


def test_an_engine_that_tells_its_figures_every_40_steps_is_not_stalled_in_between() -> None:
    def page(n: int) -> str:  # 5 steps a second: new figures every 8 s
        return sglang(1, 5.0, 500, f'sglang:realtime_tokens_total{{mode="decode"}} {n // 8 * 40}\n')

    for pages in range(10, 60, 7):
        assert watched(*(page(n) for n in range(pages))).state is State.SERVING
    assert watched(*(page(n) for n in range(45))).rates.generation_tok_s == 5.0
    assert watched(*[page(8)] * 20).state is State.STALLED


def test_of_shards_the_lowest_of_each_rank_is_read() -> None:
    def page(shards: str) -> str:
        pairs = (shard.split("/") for shard in shards.split())
        return "".join(f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} 3\n' for dp, tp in pairs)

    assert watched(page("0/0 0/1 0/2 0/3")).running == 3
    assert watched(page("0/0 1/1 2/2 3/3")).running == 12  # data-parallel attention: each has its own
    assert watched('sglang:num_running_reqs{tp_rank=""} 3\n').running == 3
    assert (
        watched("".join(f'sglang:num_running_reqs{{tp_rank="{n}",attn_tp_rank="{n}"}} 3\n' for n in range(4))).running
        == 3
    )


def ended(engine: str, running: int, requests: int, tokens: int) -> str:
    """A page of an engine whose token counters move when a request ends."""
    names = {
        "sglang": ("sglang:num_running_reqs", "sglang:num_requests_total", "sglang:{}_tokens_total"),
        "tgi": ("tgi_batch_current_size", "tgi_request_success", "tgi_request_{}_sum"),
        "trtllm": ("trtllm_num_requests_running", "trtllm_request_success_total", "trtllm_{}_tokens_total"),
    }[engine]
    kinds = ("generated_tokens", "input_length") if engine == "tgi" else ("generation", "prompt")
    own = "".join(f"{names[2].format(kind)} {tokens}\n" for kind in kinds)
    return f"{names[0]} {running}\n{names[1]} {requests}\n{own}"


@pytest.mark.parametrize("engine", ["sglang", "tgi", "trtllm"])
def test_counters_that_wait_for_the_end_tell_no_speed_before_many_ended(engine: str) -> None:
    def speeds(*steps: tuple[int, int, int]) -> tuple[float | None, float | None]:
        rates = watched(*(ended(engine, *step) for step in steps)).rates
        return rates.generation_tok_s, rates.prompt_tok_s

    assert speeds(*[(1, 5, 1000)] * 9) == (None, None)  # in the middle of a request: not 0
    assert speeds(*[(1, 5, 1000)] * 8, (1, 6, 1600)) == (None, None)  # at its end: no spike of 18 s of work
    assert speeds(*[(0, 5, 1000)] * 9) == (0.0, 0.0)
    assert speeds((0, 5, 1000), *[(1, 5, 1000)] * 7, (0, 6, 1600)) == (75.0, 75.0)  # all of it in the window
    assert speeds(*((2, 5 * n, 500 * n) for n in range(30))) == (500.0, 500.0)
    slow = speeds(*((2, n // 2, 100 * (n // 2)) for n in range(60)))  # 5 end in 10 s, 30 in a minute
    assert all(speed == pytest.approx(50.0, rel=0.05) for speed in slow)


def test_llamacpp_prints_six_digits() -> None:
    def page(tokens: str) -> str:
        return f"llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total {tokens}\n"

    pages = [page(f"{1.234e6 + int(0.07 * n) * 10:.6g}") for n in range(59)]  # 0.7 tok/s, ten at a time
    assert watched(*pages).rates.generation_tok_s == pytest.approx(0.7, rel=0.05)  # over 58 s; over 10 s it is 1
    assert watched(*pages[-12:]).rates.generation_tok_s is None  # one step says nothing of a speed
    busy = [pages[0] + f"llamacpp:tokens_predicted_seconds_total {100 + n}\n" for n in range(3)]
    assert watched(*busy).rates.generation_tok_s is None  # it worked, and its digits do not show how much
    idle = [one.replace("processing 1", "processing 0") for one in pages[-12:]]
    still = [idle[-1]] * 12
    assert watched(*pages, *still).rates.generation_tok_s == 0.0


def test_llamacpp_has_a_mean_time_between_tokens() -> None:
    def page(tokens: int, busy: float) -> str:
        return f"llamacpp:tokens_predicted_total {tokens}\nllamacpp:tokens_predicted_seconds_total {busy}\n"

    itl = watched(page(100, 5.0), page(200, 7.0)).latency.itl
    assert (itl.n, itl.mean_s, itl.p50) == (100, 0.02, None)
    assert watched(page(123_456_000, 9e4), page(123_457_000, 9e4 + 1)).latency.itl.mean_s is None  # one step of 1000


# states


def test_what_has_nothing_that_could_move_is_not_stalled() -> None:
    page = "vllm:num_requests_running 3\nvllm:num_requests_waiting 0\n"
    assert watched(*[page] * 9).state is State.SERVING


def test_llamacpp_decodes_though_its_token_counter_waits() -> None:
    pages = [f"llamacpp:requests_processing 1\nllamacpp:n_decode_total {n}\n" for n in range(9)]
    assert watched(*pages).state is State.SERVING
    assert watched(*[pages[0]] * 9).state is State.STALLED


def test_digits_that_do_not_move_are_no_stall_for_a_minute() -> None:
    page = "llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total 1.23457e+07\n"
    assert watched(*[page] * 20).state is State.SERVING
    assert watched(*[page] * 70).state is State.STALLED
    assert watched(*[page.replace("e+07", "e+04")] * 20).state is State.STALLED


def test_an_iteration_count_that_moves_is_life() -> None:
    crank = Crank()
    for n in range(9):
        gauges = read_iterations(f'[{{"iter": {100 + 30 * n}, "numActiveRequests": 2}}]'.encode())
        assert gauges is not None
        crank.take(as_page(None, gauges, float(n)), float(n))
    assert (crank.view().state, crank.view().running) == (State.SERVING, 2)


def test_one_engine_asleep_and_the_other_idle_is_idle() -> None:
    asleep = 'vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="awake"} 0\n'
    rows = "".join(f'vllm:num_requests_running{{engine="{e}",model_name="m"}} 0\n' for e in "01")
    assert watched(rows + asleep).state is State.IDLE
    assert watched(rows.splitlines(keepends=True)[1] + asleep).state is State.SLEEPING


def test_another_engine_on_the_port_is_a_restart() -> None:
    first = "sglang:num_running_reqs 1\nsglang:generation_tokens_total 100\n"
    second = "llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total 1.23456e+06\n"
    server = watched(first, first, second)
    assert (server.engine, server.restarts, server.rates.generation_tok_s) == ("llamacpp", 1, None)
    rust = "# TYPE x counter\n" + vllm(150) + "# EOF\n"
    assert watched(vllm(100), rust).restarts == 0  # the other front end of the same engine


# the rest


@pytest.mark.parametrize(
    "page",
    [
        "sglang:num_pages 1e300\nsglang:page_size 1e300\n",
        "sglang:num_pages -100\nsglang:page_size 16\n",
        "sglang:max_total_num_tokens 1e300\nsglang:context_len -4\n",
        "trtllm_kv_cache_max_blocks 1e300\ntrtllm_kv_cache_tokens_per_block 1e300\n",
        "sglang:context_len 0.4\nsglang:gen_throughput -5\n",
    ],
)
def test_a_silly_number_is_no_number(page: str) -> None:
    server = watched(page, page)
    assert (server.kv_capacity_tokens, server.max_model_len, server.room_requests) == (None, None, None)
    assert server.rates.generation_tok_s in (None, 0.0)


def test_a_sum_that_is_no_number_is_unknown() -> None:
    rows = "".join(f'vllm:num_preemptions_total{{engine="{e}"}} 1.7e308\n' for e in "01")
    assert watched(rows).preemptions_total is None


@pytest.mark.parametrize(
    "slot",
    [
        {"n_ctx": math.inf},
        {"n_ctx": math.nan},
        {"n_ctx": 10**400},
        {"n_ctx": 4096, "n_prompt_tokens": 10**400, "is_processing": True},
        {"n_ctx": 4096, "is_processing": True, "next_token": [{"n_decoded": math.inf}]},
    ],
    ids=lambda slot: ",".join(slot),
)
def test_a_silly_number_in_a_slot_is_no_number(slot: dict[str, object]) -> None:
    crank, slots = Crank(), Slots()
    for n in range(3):
        crank.feed(f"llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total {n}e6\n".encode(), float(n))
        assert crank.page is not None
        crank.take(slots.fill(crank.page, [slot]), float(n))
    assert crank.view().kv_capacity_tokens in (None, 4096)


@pytest.mark.parametrize("figure", ["1" + "0" * 400, "Infinity", "NaN", "-1", "true", '"7"'])
def test_a_silly_number_of_an_iteration_is_no_number(figure: str) -> None:
    blocks = f'{{"maxNumBlocks": {figure}, "tokensPerBlock": 32}}'
    gauges = read_iterations(f'[{{"iter": 1, "numQueuedRequests": {figure}, "kvCacheStats": {blocks}}}]'.encode())
    assert gauges is not None
    assert Crank().take(as_page(None, gauges, 0.0), 0.0).view().kv_capacity_tokens is None


def test_a_number_of_waiting_requests_that_is_none_is_not_shown() -> None:
    reason = 'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="R"} '
    page = vllm(1, more="".join(reason.replace("R", r) + f"{v}\n" for r, v in (("a", -2), ("b", 1e300), ("c", 4))))
    assert watched(page).waiting_by_reason == {"c": 4}


def test_tensorrt_without_a_prefix_and_without_a_name() -> None:
    def page(seconds: float, n: int) -> str:
        labels = 'engine_type="undefined",model_name="undefined"'
        return "".join(
            f"e2e_request_latency_seconds_{part}\n"
            for part in (
                f"sum{{{labels}}} {seconds}",
                f'bucket{{{labels},le="0.3"}} 0',
                f'bucket{{{labels},le="+Inf"}} {n}',
                f"count{{{labels}}} {n}",
            )
        )

    server = watched(page(1.0, 1), page(3.0, 2))
    assert (server.engine, server.model, server.latency.e2e.mean_s) == ("trtllm-serve", None, 2.0)
    bare = page(1.0, 1).replace('engine_type="undefined",', "")
    assert watched(bare).engine is None


@pytest.mark.parametrize(
    "page",
    [
        'nv_inference_request_success{model="m",version="1"} 5\n',
        'request_success_total{engine_type="undefined",model_name="undefined",finished_reason="stop"} 5\n',
        'dynamo_frontend_requests_total{model="m",status="success"} 5\n',
    ],
)
def test_only_vllm_is_idle_where_it_counts_and_has_no_gauges(page: str) -> None:
    server = watched(page, page)
    assert (server.running, server.waiting, server.kv_usage) == (None, None, None)
    idle = watched(vllm(5).partition("\n")[2])
    assert (idle.running, idle.waiting, idle.kv_usage) == (0, 0, 0.0)


def test_tgi_times_by_what_a_batch_did() -> None:
    def page(prefill: float, decode: float, n: int) -> str:
        return "".join(
            f'tgi_batch_inference_duration_{part}{{method="{method}"}} {value}\n'
            for method, total in (("prefill", prefill), ("decode", decode))
            for part, value in (("sum", total), ("count", n))
        )

    latency = watched(page(1.0, 1.0, 10), page(3.0, 1.5, 20)).latency
    assert (latency.ttft.mean_s, latency.itl.mean_s) == (0.2, 0.05)
