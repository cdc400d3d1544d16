"""Pages that users of other monitors reported as misread, and pages of the same kinds, with their right values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crank import FIXTURES, Crank, vllm_page
from llmtop.contract.snapshot import ServerView, State
from llmtop.engines.exposition import Exposition
from llmtop.engines.page import read_page


def reported(name: str) -> ServerView:
    """A server after the two pages of a report, five seconds apart."""
    crank = Crank()
    for file, t in (("a.txt", 0.0), ("b.txt", 5.0)):
        crank.feed((FIXTURES / "reports" / name / file).read_bytes(), t)
    return crank.view()


def watched(*pages: str, every_s: float = 1.0) -> ServerView:
    crank = Crank(every_s)
    for place, page in enumerate(pages):
        crank.feed(page.encode(), place * every_s)
    return crank.view()


# engines of one page


def test_workers_of_a_gateway_are_rows_of_their_own() -> None:
    server = reported("19-sglang-gateway-workers")
    assert [(row.running, row.kv_usage, row.kv_capacity_tokens) for row in server.engines] == [
        (20, 0.92, 100_000),
        (1, 0.03, 400_000),
    ]
    assert (server.kv_engine, server.kv_usage, server.kv_used_tokens) == ("grpc://192.0.2.1:8001", 0.92, 92_000)
    assert (server.running, server.waiting, server.rates.generation_tok_s) == (21, 4, 540.0)


@pytest.mark.parametrize("label", ["worker_addr", "pod", "instance", "worker_id", "rank", "hostname", "some_new_name"])
def test_any_label_that_differs_tells_engines_apart(label: str) -> None:
    def page(tokens: int) -> str:
        return "".join(
            f'vllm:num_requests_running{{engine="0",model_name="m",{label}="{one}"}} {run}\n'
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m",{label}="{one}"}} {usage}\n'
            f'vllm:generation_tokens_total{{engine="0",model_name="m",{label}="{one}",job="x"}} {tokens * run}\n'
            f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{blocks}",'
            f'kv_cache_size_tokens="{blocks * 16}",model_name="m",{label}="{one}"}} 1\n'
            for one, run, usage, blocks in (("a", 3, 0.2, 1000), ("b", 1, 0.9, 100))
        )

    server = watched(page(0), page(10))
    assert [(row.engine, row.running, row.kv_usage, row.kv_capacity_tokens) for row in server.engines] == [
        ("a", 3, 0.2, 16_000),
        ("b", 1, 0.9, 1_600),
    ]
    assert (server.kv_engine, server.rates.generation_tok_s) == ("b", 40.0)


def test_blocks_are_shared_by_the_engines_of_one_server_and_not_by_two_servers() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="{rank}",model_name="m",replica_name="{pod}"}} 1\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m",replica_name="{pod}"}} 0.5\n'
        f'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="{blocks}",replica_name="{pod}"}} 1\n'
        for pod, blocks in (("a", 2000), ("b", 600))
        for rank in (0, 1)
    )
    assert [(row.engine, row.kv_capacity_tokens) for row in watched(page).engines] == [
        ("0/a", 16_000),
        ("0/b", 4_800),
        ("1/a", 16_000),
        ("1/b", 4_800),
    ]


def test_two_models_are_two_rows_and_a_label_that_only_repeats_them_is_no_name() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="0",model_name="{m}",served="{m}"}} 1\n' for m in ("llama", "qwen")
    )
    assert [(row.engine, row.model) for row in watched(page).engines] == [("llama/0", "llama"), ("qwen/0", "qwen")]


def test_what_only_splits_one_figure_is_no_row() -> None:
    page = "".join(
        f'sglang:num_running_reqs{{priority="{p}",tp_rank="{t}"}} 4\n' for p in ("", "1") for t in ("0", "1")
    )
    assert [(row.engine, row.running) for row in watched(page).engines] == [("0", 4)]


def test_what_belongs_to_no_single_engine_is_in_the_sum_and_no_row() -> None:
    def page(n: int) -> str:
        ranks = "".join(f'sglang:num_running_reqs{{dp_rank="{d}"}} {d + 1}\n' for d in (0, 1))
        return (
            ranks + f"sglang:generation_tokens_total {100 * n}\nsglang:prompt_tokens_total {40 * n}\n"
            f"sglang:num_requests_total {20 * n}\n"  # most of those that ended began in the window too
            f"sglang:time_to_first_token_seconds_sum {n}\nsglang:time_to_first_token_seconds_count {2 * n}\n"
        )

    server = watched(page(0), page(1))
    assert [(row.engine, row.running) for row in server.engines] == [("0", 1), ("1", 2)]
    assert (server.running, server.rates.prompt_tok_s, server.latency.ttft.mean_s) == (3, 40.0, 0.5)


def test_replicas_behind_ray_whose_tokenizers_have_workers_of_their_own() -> None:
    server = reported("20-ray-sglang")
    assert (server.running, server.waiting, server.kv_usage, server.kv_capacity_tokens) == (12, 3, 0.55, 200_000)
    assert (server.rates.generation_tok_s, server.latency.ttft.n, len(server.engines)) == (600.0, 5, 1)
    assert server.engine == "sglang-ray"


def test_the_processes_of_a_federated_page_have_no_common_start() -> None:
    def page(tokens: int) -> str:
        return "".join(
            f'process_start_time_seconds{{instance="{one}"}} {born}\n'
            f'vllm:num_requests_running{{instance="{one}"}} 1\n'
            f'vllm:generation_tokens_total{{instance="{one}"}} {tokens}\n'
            for one, born in (("a", 1.7e9), ("b", 1.6e9))
        )

    server = watched(page(0), page(5))
    assert (server.restarts, server.rates.generation_tok_s, server.up_s) == (0, 10.0, None)


# queues, pools


def test_queues_beside_the_schedulers_are_waiting_too() -> None:
    server = reported("09-sglang-pd-decode")
    assert (server.waiting, server.waiting_by_reason) == (7, {"prealloc": 5, "transfer": 2})
    assert (server.limited_by, server.engines[0].role) == ("QUEUE", "decode")
    assert "waiting 7, KV 5 %: prealloc 5, transfer 2;" in (server.limited_by_evidence or "")
    assert server.rates.generation_tok_s == 42.0


def test_requests_swapped_out_of_the_cache_of_an_old_vllm_wait_for_it() -> None:
    def page(swapped: int) -> str:
        return (
            'vllm:num_requests_running{model_name="m"} 6\nvllm:num_requests_waiting{model_name="m"} 2\n'
            f'vllm:num_requests_swapped{{model_name="m"}} {swapped}\nvllm:gpu_cache_usage_perc{{model_name="m"}} 0.93\n'
            'vllm:num_preemptions_total{model_name="m"} 41\n'
        )

    server = watched(page(3), page(3))
    assert (server.running, server.waiting, server.waiting_by_reason) == (6, 5, {"queue": 2, "swapped": 3})
    assert server.limited_by == "KV_PRESSURE"
    assert (server.limited_by_evidence or "").startswith("KV 93 %, waiting 5 (3 swapped out), preempted 0;")
    server = watched(page(0), page(0))
    assert (server.waiting, server.waiting_by_reason) == (2, {})


def test_roles_on_one_page_are_rows_with_their_own_queues() -> None:
    page = (
        'sglang:num_running_reqs{engine_type="prefill"} 2\nsglang:num_running_reqs{engine_type="decode"} 9\n'
        'sglang:num_queue_reqs{engine_type="prefill"} 4\n'
        'sglang:num_prefill_inflight_queue_reqs{engine_type="prefill"} 3\n'
        'sglang:num_queue_reqs{engine_type="decode"} 0\nsglang:num_decode_transfer_queue_reqs{engine_type="decode"} 1\n'
    )
    server = watched(page)
    assert [(row.role, row.waiting, row.waiting_by_reason) for row in server.engines] == [
        ("decode", 1, {"transfer": 1}),
        ("prefill", 7, {"queue": 4, "inflight": 3}),
    ]
    assert (server.waiting, server.waiting_by_reason) == (8, {"queue": 4, "inflight": 3, "transfer": 1})


def test_a_full_state_pool_is_no_full_kv_cache() -> None:
    server = reported("18-sglang-mamba-usage")
    assert server.limited_by == "STATE_POOL"
    assert (server.limited_by_evidence or "").startswith("state pool 94 %, waiting 0, KV 12 %")
    assert (server.kv_usage, server.kv_used_tokens, server.room_requests) == (0.12, 120_000, 3)
    assert server.pool_usage == {"full": 0.12, "mamba": 0.94, "swa": 0.0}


@pytest.mark.parametrize(
    ("page", "usage"),
    [
        ("token_usage 0.94\nsglang:mamba_usage 0.94\n", None),  # the fullest is the state pool: nothing of KV is said
        ("token_usage 0.94\nsglang:mamba_usage 0.1\n", 0.94),
        ("token_usage 0.94\nsglang:mamba_usage 0.94\nsglang:num_used_tokens 250\n", 0.25),
        ("token_usage 0.94\nsglang:swa_token_usage 0.4\nsglang:full_token_usage 0.2\n", 0.4),
    ],
)
def test_kv_usage_beside_other_pools(page: str, usage: float | None) -> None:
    server = watched(f"sglang:num_running_reqs 1\nsglang:max_total_num_tokens 1000\nsglang:{page}")
    assert server.kv_usage == usage
    if "swa" in page:  # how many tokens that pool holds is not said
        assert (server.kv_used_tokens, server.room_requests) == (None, None)


def test_a_pool_that_has_no_name_is_a_limit_all_the_same() -> None:
    page = (
        "sglang:num_running_reqs 10\nsglang:num_queue_reqs 0\nsglang:max_total_num_tokens 1000\n"
        "sglang:num_used_tokens 120\nsglang:token_usage 0.94\n"
    )
    server = watched(page)
    assert (server.kv_usage, server.kv_used_tokens, server.pool_usage) == (0.12, 120, {"other": 0.94})
    assert server.limited_by == "STATE_POOL"


def test_sizes_of_which_it_is_not_said_whose_they_are_are_nobodys() -> None:
    models = "".join(
        f'vllm:num_requests_running{{engine="0",model_name="{m}"}} 1\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="{m}"}} 0.5\n'
        for m in "ab"
    )
    sizes = [f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{n}"}} 1\n' for n in (1000, 4000)]
    assert [row.kv_capacity_tokens for row in watched(models + "".join(sizes)).engines] == [None, None]
    unknown = sizes[0].replace("1000", "None")  # before the profile run
    one = models.replace('"b"', '"a"') + sizes[1] + unknown
    assert [row.kv_capacity_tokens for row in watched(one).engines] == [64_000]


def test_whoever_waits_in_one_of_several_queues_waits() -> None:
    lmdeploy = "lmdeploy:num_requests_running 2\nlmdeploy:num_requests_waiting 0\nlmdeploy:num_api_requests_waiting 5\n"
    assert watched(lmdeploy).waiting == 5
    front = "dynamo_frontend_"
    dynamo = f"{front}inflight_requests 3\n{front}queued_requests 0\n{front}router_queue_pending_requests 4\n"
    assert watched(dynamo).waiting == 4
    vllm = "vllm:num_requests_running 2\nvllm:num_requests_waiting 0\n"
    assert watched(vllm + 'vllm:num_requests_waiting_by_reason{reason="deferred"} 4\n').waiting == 4


def test_the_last_speed_of_an_engine_that_hangs_is_not_its_speed() -> None:
    page = (
        "sglang:num_running_reqs 5\nsglang:num_queue_reqs 2\nsglang:gen_throughput 88\nsglang:prompt_tokens_total 9\n"
    )
    server = watched(*[page] * 3)
    assert (server.state, server.rates.generation_tok_s) == (State.SERVING, 88.0)
    server = watched(*[page] * 9)
    assert (server.state, server.rates.generation_tok_s) == (State.STALLED, None)
    assert server.engines[0].generation_tok_s is None


# other names


def test_the_front_end_of_dynamo() -> None:
    server = reported("07-dynamo-frontend")
    assert (server.engine, server.state, server.running, server.waiting) == ("dynamo", State.SERVING, 7, 3)
    assert (server.rates.generation_tok_s, server.max_model_len, server.max_num_seqs) == (200.0, 131_072, 256)
    assert (server.kv_usage, server.reason) == (None, None)
    assert server.latency.ttft.n == 5


def test_nim_has_the_families_without_a_prefix() -> None:
    server = reported("08-nim-no-prefix")
    assert (server.engine, server.running, server.waiting, server.kv_usage) == ("nim", 6, 2, 0.42)
    assert (server.rates.generation_tok_s, server.latency.ttft.n, server.max_num_seqs) == (300.0, 10, 256)
    assert server.latency.ttft.mean_s == pytest.approx(0.2)


def test_bare_names_without_an_engine_are_anybodys() -> None:
    assert watched("prompt_tokens_total 5\nrequest_success_total 3\n").engine is None


def test_triton_counts_requests_in_microseconds() -> None:
    def page(n: int) -> str:
        kinds = (("scheduled", 3), ("active", 5), ("waiting", 2))
        blocks = (("fraction", 0.25), ("used", 25), ("max", 100), ("tokens_per", 64))
        return (
            "".join(f'nv_trt_llm_request_metrics{{model="m",request_type="{k}",version="1"}} {v}\n' for k, v in kinds)
            + "".join(
                f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{k}",model="m",version="1"}} {v}\n'
                for k, v in blocks
            )
            + f'nv_inference_request_success{{model="m",version="1"}} {n}\n'
            + f'nv_inference_request_duration_us{{model="m",version="1"}} {n * 2_500_000}\n'
        )

    server = watched(page(10), page(14))
    assert (server.engine, server.model, server.running, server.waiting) == ("triton", "m", 3, 2)
    assert (server.kv_usage, server.kv_capacity_tokens, server.latency.e2e.mean_s) == (0.25, 6400, 2.5)
    assert (server.rates.requests_s, server.rates.generation_tok_s) == (4.0, None)


def test_an_engine_behind_a_front_end_on_one_page_is_read_once() -> None:
    page = vllm_page(running=3, kv=0.5).decode() + (
        'dynamo_component_gpu_cache_usage_percent{model="m"} 0.5\ndynamo_component_inflight_requests{model="m"} 4\n'
    )
    server = watched(page)
    assert (server.engine, server.running, len(server.engines)) == ("vllm", 3, 1)


# caches, speculation, errors


def test_hits_beside_an_external_cache_are_local() -> None:
    server = reported("11-external-cache")
    assert (server.prefix_hit_rate, server.prefix_hit_scope) == (0.1, "local")
    assert server.external_prefix_hit_rate == 0.72
    rates = server.rates
    assert (rates.prompt_tok_s, rates.prompt_computed_tok_s, rates.prompt_cached_tok_s) == (10_000, 1800, 8200)
    assert server.offload_usage == 0.97


def test_hits_outside_the_engine_are_cached_prompts_too() -> None:
    def page(n: int) -> str:
        cache = "".join(
            f"vllm:{name}_total {count * n}\n"
            for name, count in (
                ("prefix_cache_queries", 1000),
                ("prefix_cache_hits", 300),
                ("external_prefix_cache_queries", 700),
                ("external_prefix_cache_hits", 500),
            )
        )
        return f"vllm:num_requests_running 2\nvllm:prompt_tokens_total {1000 * n}\n{cache}"

    server = watched(page(0), page(1))
    assert (server.prefix_hit_rate, server.prefix_hit_scope, server.external_prefix_hit_rate) == (0.3, "local", 0.5)
    assert (server.rates.prompt_computed_tok_s, server.rates.prompt_cached_tok_s) == (200.0, 800.0)


def test_tiers_of_sglang_and_its_answers_by_status() -> None:
    def page(n: int, sources: str) -> str:
        cached = {"device": 100, "host": 300, "storage_mooncake": 100}
        told = "".join(f'sglang:cached_tokens_total{{cache_source="{s}"}} {c * n}\n' for s, c in cached.items())
        return (
            f"sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:prompt_tokens_total {1000 * n}\n"
            "sglang:hicache_host_used_tokens 30\nsglang:hicache_host_total_tokens 120\n"
            f'sglang:http_responses_total{{endpoint="/generate",method="POST",status_code="400"}} {5 * n}\n'
            f"sglang:num_requests_total {10 * n}\n" + (told if sources else f"sglang:cached_tokens_total {500 * n}\n")
        )

    tiers = watched(page(0, "tiers"), page(1, "tiers"))
    assert (tiers.prefix_hit_rate, tiers.prefix_hit_scope, tiers.external_prefix_hit_rate) == (0.1, "local", 0.4)
    assert (tiers.offload_usage, tiers.rates.prompt_cached_tok_s, tiers.rates.http_4xx_s) == (0.25, 500.0, 5.0)
    plain = watched(page(0, ""), page(1, ""))
    assert (plain.prefix_hit_rate, plain.prefix_hit_scope, plain.external_prefix_hit_rate) == (0.5, "all", None)


def test_more_looked_up_than_prompted_leaves_the_parts_unknown() -> None:
    def page(prompt: int, queries: int, hits: int) -> str:
        return (
            f"vllm:num_requests_running 1\nvllm:prompt_tokens_total {prompt}\n"
            f"vllm:gpu_prefix_cache_queries_total {queries}\nvllm:gpu_prefix_cache_hits_total {hits}\n"
        )

    server = watched(page(0, 0, 0), page(100, 245, 120))
    assert server.prefix_hit_rate == pytest.approx(0.49, abs=0.001)
    assert (server.rates.prompt_computed_tok_s, server.rates.prompt_cached_tok_s) == (None, None)
    server = watched(page(0, 0, 0), page(100, 100, 40))
    assert (server.rates.prompt_computed_tok_s, server.rates.prompt_cached_tok_s) == (60.0, 40.0)


def test_speculation_as_vllm_counts_it() -> None:
    def page(n: int) -> str:
        spec = "vllm:spec_decode_num_"
        return (
            f"vllm:num_requests_running 1\n{spec}drafts_total {10 * n}\n{spec}draft_tokens_total {30 * n}\n"
            f"{spec}accepted_tokens_total {12 * n}\n"
            + "".join(
                f'{spec}accepted_tokens_per_pos_total{{position="{p}"}} {a * n}\n' for p, a in ((0, 8), (1, 3), (2, 1))
            )
        )

    server = watched(page(5), page(6))
    assert (server.spec_acceptance_rate, server.spec_accepted_length) == (0.4, 2.2)
    assert server.spec_accepted_by_position == (0.8, 0.3, 0.1)


def test_speculation_as_sglang_says_it() -> None:
    page = "sglang:num_running_reqs 2\nsglang:spec_accept_length 2.6\nsglang:spec_accept_rate 0.53\n"
    server = watched(page, page)
    assert (server.spec_acceptance_rate, server.spec_accepted_length, server.spec_tokens_per_step) == (0.53, 2.6, 2.6)
    idle = page.replace("reqs 2", "reqs 0")  # the last value stays
    assert watched(idle, idle).spec_accepted_length is None


def test_speculation_of_llamacpp() -> None:
    def page(n: int) -> str:
        spec = "llamacpp:spec_decode_num_"
        return (
            f"llamacpp:requests_processing 1\n{spec}drafts_total {n}\n"
            f"{spec}draft_tokens_total {4 * n}\n{spec}accepted_tokens_total {3 * n}\n"
        )

    server = watched(page(1), page(2))
    assert (server.spec_acceptance_rate, server.spec_accepted_length) == (0.75, 4.0)


def test_errors_by_reason_and_by_status() -> None:
    def page(n: int) -> str:
        reasons = (("stop", 7), ("length", 2), ("error", 1))
        answers = (("2xx", 10), ("4xx", 5), ("5xx", 2))
        return (
            "vllm:num_requests_running 1\n"
            + "".join(f'vllm:request_success_total{{finished_reason="{r}"}} {v * n}\n' for r, v in reasons)
            + "".join(
                f'http_requests_total{{handler="/v1/completions",method="POST",status="{s}"}} {v * n}\n'
                for s, v in answers
            )
        )

    server = watched(page(1), page(2))
    assert server.finished_by_reason == {"stop": 7.0, "length": 2.0, "error": 1.0}
    rates = server.rates
    assert (rates.requests_s, rates.errors_s, rates.http_4xx_s, rates.http_5xx_s) == (10.0, 1.0, 5.0, 2.0)
    assert watched("vllm:num_requests_running 1\n" * 2).rates.http_4xx_s is None


# a balancer


def pages_in_turn(started: bool, count: int = 8) -> list[bytes]:
    """Two replicas that answer one after the other."""
    return [
        vllm_page(running=10 - 9 * (n % 2), generation=(500_000.0, 200_000.0)[n % 2] + 100 * n, start=born)
        for n in range(count)
        for born in ((1e9 + 1000 * (n % 2)) if started else None,)
    ]


@pytest.mark.parametrize("started", [True, False])
def test_two_servers_that_answer_in_turn_do_not_restart(started: bool) -> None:
    crank = Crank()
    for n, page in enumerate(pages_in_turn(started)):
        rates = crank.feed(page, float(n)).view().rates
        assert rates.generation_tok_s is None  # no spike
    assert crank.view().engines[0].generation_tok_s is None
    view = crank.view()
    assert (view.restarts, view.servers_in_turn, view.state) == (0, 2, State.SERVING)
    assert view.reason == "two servers answer in turn at this address: no rates"


@pytest.mark.parametrize("order", ["ABCABCABCABC", "ABACBCABCBAC", "AABBCCAABBCC"])
@pytest.mark.parametrize("started", [True, False])
def test_three_servers_in_any_order(order: str, started: bool) -> None:
    crank = Crank()
    for n, who in enumerate(order):
        place = "ABC".index(who)
        start = 1e9 + 1000 * place if started else None
        tokens = (500_000.0, 200_000.0, 900_000.0)[place] + 70 * n
        view = crank.feed(vllm_page(running=place, generation=tokens, start=start), float(n)).view()
        spikes = view.rates.generation_tok_s
        assert spikes is None or spikes < 1000
    assert (view.servers_in_turn, view.restarts) == (3, 0)


def test_servers_of_other_models_in_turn() -> None:
    crank = Crank()
    for n in range(8):
        crank.feed(vllm_page(model="ab"[n % 2], running=1, generation=5000.0 + n), float(n))
    assert (crank.view().servers_in_turn, crank.view().restarts) == (2, 0)


def test_a_restart_is_still_one() -> None:
    crank = Crank()
    for n, (start, tokens) in enumerate(((1e9, 500_000), (1e9, 500_100), (1e9 + 50, 0), (1e9 + 50, 90))):
        crank.feed(vllm_page(running=1, generation=float(tokens), start=start), float(n))
    view = crank.view()
    assert (view.restarts, view.servers_in_turn, view.rates.generation_tok_s) == (1, None, 90.0)


def test_a_server_that_begins_anew_is_a_restart_whatever_its_clock_says() -> None:
    pages = (
        vllm_page(running=3, generation=1e6, prompt=2e6, start=1e9),
        vllm_page(running=1, generation=500.0, prompt=1200.0, start=1e9 + 1000),
    )
    crank = Crank()
    for n, body in enumerate(pages):
        page = read_page(Exposition().parse(body), float(n))
        assert page is not None
        crank.take(replace(page, clock=1.7e9 + n), float(n))
    assert (crank.view().restarts, crank.view().servers_in_turn) == (1, None)


def test_one_server_again_has_rates_again() -> None:
    crank = Crank()
    for n, page in enumerate(pages_in_turn(True)):
        crank.feed(page, float(n))
    for n in range(10, 80):
        crank.feed(vllm_page(running=1, generation=600_000.0 + 50 * n, start=1e9), float(n))
    view = crank.view()
    assert (view.servers_in_turn, view.rates.generation_tok_s, view.restarts) == (None, 50.0, 0)


def test_a_worker_of_dynamo_is_one_row_whatever_its_endpoints_are() -> None:
    who = 'dynamo_component="backend",worker_id="7",dp_rank="0",model="m"'
    page = f"dynamo_component_gpu_cache_usage_percent{{{who}}} 0.25\n" + "".join(
        f'dynamo_component_inflight_requests{{dynamo_endpoint="{name}",worker_id="7"}} {n}\n'
        for name, n in (("generate", 4), ("clear", 0))
    )
    assert [(row.running, row.kv_usage) for row in watched(page).engines] == [(4, 0.25)]
