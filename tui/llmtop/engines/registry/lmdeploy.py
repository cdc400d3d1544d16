"""LMDeploy."""

from __future__ import annotations

from llmtop.engines.command_line import process
from llmtop.engines.registry.entry import EngineEntry, Remedies, counter, gauge, histogram

LMDEPLOY = EngineEntry(
    "lmdeploy",
    "LMDeploy",
    (
        *gauge("running", "lmdeploy:num_requests_running"),
        *gauge("waiting", "lmdeploy:num_requests_waiting", fold="max"),
        *gauge("waiting", "lmdeploy:num_api_requests_waiting", fold="max"),  # where the engine's own queue is empty
        *gauge("kv_usage", "lmdeploy:gpu_cache_usage_perc", fold="max"),
        *counter("generation", "lmdeploy:generation_tokens_total"),
        *counter("prompt", "lmdeploy:prompt_tokens_total"),
        *counter("cached", "lmdeploy:cached_tokens_total"),
        *counter("hits", "lmdeploy:cached_tokens_total"),
        *counter("queries", "lmdeploy:prompt_tokens_total"),
        *gauge("prefix_rate", "lmdeploy:prefix_cache_hit_rate"),
        *counter("requests", "lmdeploy:request_success_total", "lmdeploy:num_requests_succeeded"),
        *counter("finished", "lmdeploy:request_success_total", by="finished_reason"),
        *counter("drafted", "lmdeploy:spec_decode_num_draft_tokens_total"),
        *counter("accepted", "lmdeploy:spec_decode_num_accepted_tokens_total"),
        *histogram("ttft", "lmdeploy:time_to_first_token_seconds"),
        *histogram("itl", "lmdeploy:iter_token_latency"),
        *histogram("tpot", "lmdeploy:time_per_output_token_seconds"),
        *histogram("e2e", "lmdeploy:e2e_request_latency_seconds"),
        *histogram("queue", "lmdeploy:request_queue_time_seconds"),
    ),
    row_labels=("engine",),
    owner="lmdeploy",
    processes=(
        process(r"(^|/)lmdeploy$", "serve", "api_server"),
        process(r"lmdeploy\.serve\.openai\.api_server$"),
    ),
    port=23333,
    port_options=("--server-port",),
    limit_options=("--max-batch-size",),
    remedies=Remedies(
        users="raise --max-batch-size",
        cache="fewer users, a shorter --session-len, --quant-policy 8, or more --cache-max-entry-count",
        memory="lower --cache-max-entry-count",
    ),
    without_metrics="started with --disable-metrics? older ones need --enable-metrics",
)
