"""SGLang, also as its gateway and Ray pass it on."""

from __future__ import annotations

import re

from llmtop.engines.command_line import process
from llmtop.engines.registry.entry import (
    AT_END,
    Door,
    EngineEntry,
    Kind,
    MetricSource,
    Remedies,
    counter,
    gauge,
    histogram,
    queue,
)

# where cached prompt tokens were: on the GPU (older versions do not say), or in a tier below
_OWN, _TIERS = re.compile("|device|total"), re.compile("host|storage.*")

SGLANG = EngineEntry(
    "sglang",
    "SGLang",
    (
        *gauge("running", "sglang:num_running_reqs"),
        *gauge("waiting", "sglang:num_queue_reqs"),
        # one side of disaggregated serving has queues of its own, before and after the one of the scheduler
        *queue("prealloc", "sglang:num_decode_prealloc_queue_reqs", "sglang:num_prefill_prealloc_queue_reqs"),
        *queue("bootstrap", "sglang:num_prefill_bootstrap_queue_reqs"),
        *queue("transfer", "sglang:num_decode_transfer_queue_reqs"),
        *queue("inflight", "sglang:num_prefill_inflight_queue_reqs"),
        *queue("grammar", "sglang:num_grammar_queue_reqs"),
        # `token_usage` is the fullest of all pools, also of those that hold no KV
        *gauge("pool:full", "sglang:full_token_usage", fold="max"),
        *gauge("pool:swa", "sglang:swa_token_usage", fold="max"),
        *gauge("pool:mamba", "sglang:mamba_usage", fold="max"),
        *gauge("any_pool", "sglang:token_usage", fold="max"),
        *gauge("kv_used_tokens", "sglang:num_used_tokens", "sglang:kv_used_tokens", fold="max"),
        *gauge("offload_used", "sglang:hicache_host_used_tokens", fold="max"),
        *gauge("offload_total", "sglang:hicache_host_total_tokens", fold="max"),
        *gauge("kv_capacity", "sglang:max_total_num_tokens", fold="max"),
        *gauge("kv_blocks", "sglang:num_pages", fold="max"),
        *gauge("kv_block_tokens", "sglang:page_size", fold="max"),
        MetricSource("config", "sglang:cache_config_info", Kind.CONFIG),
        *gauge("max_model_len", "sglang:context_len", fold="max"),
        *gauge("max_num_seqs", "sglang:max_running_requests", fold="max"),
        # the plain counters move only when a request ends
        *counter("generation", "sglang:realtime_tokens_total", match=("mode", "decode")),
        *gauge("generation_rate", "sglang:gen_throughput"),
        *counter("generation", "sglang:generation_tokens_total", rank=AT_END),
        *counter("prompt", "sglang:prompt_tokens_total", rank=AT_END),
        *counter("computed", "sglang:realtime_tokens_total", match=("mode", "prefill_compute")),
        *counter("hits", "sglang:cached_tokens_total", match=("cache_source", _OWN), rank=AT_END),
        *counter("external_hits", "sglang:cached_tokens_total", match=("cache_source", _TIERS), rank=AT_END),
        *counter("queries", "sglang:prompt_tokens_total", rank=AT_END),
        *gauge("prefix_rate", "sglang:cache_hit_rate"),
        *counter("preemptions", "sglang:num_retracted_requests_total"),
        *counter("requests", "sglang:num_requests_total"),
        *counter("http", "sglang:http_responses_total", by="status_code"),
        *counter("finished:abort", "sglang:num_aborted_requests_total"),
        *counter("transfer_failures", "sglang:num_transfer_failed_reqs_total"),
        *counter("transfer_failures", "sglang:num_bootstrap_failed_reqs_total"),
        *gauge("spec_rate", "sglang:spec_accept_rate"),
        *gauge("spec_length", "sglang:spec_accept_length"),
        *histogram("ttft", "sglang:time_to_first_token_seconds"),
        *histogram("itl", "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        *histogram("tpot", "sglang:request_time_per_output_token_seconds"),
        *histogram("e2e", "sglang:e2e_request_latency_seconds"),
        *histogram("queue", "sglang:queue_time_seconds"),
    ),
    row_labels=("dp_rank",),
    shard_labels=("pp_rank", "tp_rank", "moe_ep_rank", "moe_tp_rank", "attn_tp_rank", "attn_cp_rank"),
    steps_told=40,  # --decode-log-interval
    door=Door(
        "/server_info",
        version=(("version",),),
        max_model_len=(("context_length",),),
        max_num_seqs=(("max_running_requests",),),
    ),
    owner="sglang",
    processes=(process(r"sglang\.launch_server$"), process(r"(^|/)sglang$", "serve")),
    port=30000,
    limit_options=("--max-running-requests",),
    remedies=Remedies(
        users="raise --max-running-requests",
        cache="fewer users, a shorter --context-length, --kv-cache-dtype fp8_e5m2, or more --mem-fraction-static",
        memory="lower --mem-fraction-static or --max-running-requests",
    ),
    without_metrics="start it with --enable-metrics",
)
