"""vLLM: in Python and in Rust, behind Ray, and the production-stack router that speaks with its names."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.engines.command_line import process
from llmtop.engines.registry.entry import EngineEntry, Kind, MetricSource, Remedies, counter, gauge, histogram, queue

# vLLM's families; a process registers nearly all of them when it starts
_FAMILIES = (
    *("generation_tokens", "prompt_tokens", "prompt_tokens_by_source", "prompt_tokens_cached", "request_success"),
    *("num_preemptions", "prefix_cache_hits", "prefix_cache_queries", "iteration_tokens_total"),
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds"),
    *("request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"),
    *("request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
    *("request_params_n", "request_params_max_tokens", "gpu_prefix_cache_hits", "gpu_prefix_cache_queries"),
)


def _born(*metrics: str) -> Iterator[MetricSource]:
    """When a process began; the oldest series of a row counts, because some are born with the first request."""
    for metric in metrics:
        yield MetricSource("created", f"{metric}_created", Kind.GAUGE, "min")


def _each(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)


VLLM = EngineEntry(
    "vllm",
    "vLLM",
    (
        *gauge("running", "vllm:num_requests_running"),
        *gauge("waiting", "vllm:num_requests_waiting"),
        MetricSource("waiting", "vllm:num_requests_waiting_by_reason", Kind.REASON, by="reason"),
        *queue("swapped", "vllm:num_requests_swapped"),  # up to 0.9: preempted, their cache moved to the host
        # up to 0.11.0 every API server process exported its own copy of the gauge, all but one at 0
        *gauge("kv_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", fold="max"),
        *counter("generation", "vllm:generation_tokens_total"),
        *counter("prompt", "vllm:prompt_tokens_total"),
        *counter("computed", "vllm:prompt_tokens_by_source_total", match=("source", "local_compute")),
        *counter("cached", "vllm:prompt_tokens_by_source_total", match=("source", "local_cache_hit")),
        *counter("transferred", "vllm:prompt_tokens_by_source_total", match=("source", "external_kv_transfer")),
        *counter("cached", "vllm:prompt_tokens_cached_total", rank=20),
        *counter("tier", "vllm:prompt_tokens_cached_by_source_total", by="source"),
        *counter("preemptions", "vllm:num_preemptions_total"),
        *counter("requests", "vllm:request_success_total"),
        *counter("finished", "vllm:request_success_total", by="finished_reason"),
        *counter("hits", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        *counter("queries", "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        *counter("external_hits", "vllm:external_prefix_cache_hits_total"),
        *counter("external_queries", "vllm:external_prefix_cache_queries_total"),
        *gauge(
            "offload_usage",
            *_each("vllm:", "kv_offload_cpu_cache_usage_perc", "kv_offload_cache_usage_perc"),
            "vllm:hisparse_host_cache_usage_perc",
            fold="max",
        ),
        *counter("iterations", "vllm:iteration_tokens_total_count"),
        *counter("diffusion_steps", "vllm:diffusion_num_denoising_steps_total"),
        *counter("diffusion_tokens", "vllm:diffusion_num_committed_tokens_total"),
        *counter("drafts", "vllm:spec_decode_num_drafts_total"),
        *counter("drafted", "vllm:spec_decode_num_draft_tokens_total"),
        *counter("accepted", "vllm:spec_decode_num_accepted_tokens_total"),
        *counter("accepted_at", "vllm:spec_decode_num_accepted_tokens_per_pos_total", by="position"),
        *counter(
            "transfer_failures", "vllm:nixl_num_failed_transfers_total", "vllm:mooncake_num_failed_transfers_total"
        ),
        *_born(*(f"vllm:{family}" for family in _FAMILIES)),
        *gauge("prefix_rate", "vllm:gpu_prefix_cache_hit_rate"),
        *histogram("ttft", "vllm:time_to_first_token_seconds"),
        *histogram("itl", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        *histogram("tpot", "vllm:request_time_per_output_token_seconds"),
        *histogram("e2e", "vllm:e2e_request_latency_seconds"),
        *histogram("queue", "vllm:request_queue_time_seconds"),
        MetricSource("sleep", "vllm:engine_sleep_state", Kind.SLEEP, by="sleep_state"),
        MetricSource("config", "vllm:cache_config_info", Kind.CONFIG),
        MetricSource("lora", "vllm:lora_requests_info", Kind.LORA),
        *counter("rejections", "vllm:admission_rejections_total"),
    ),
    row_labels=("engine",),
    late_gauges=True,
    null_block=True,
    owner="vllm",
    processes=(
        process(r"(^|/)vllm$", "serve"),
        process(r"vllm\.entrypoints\.cli\.main$", "serve"),
        process(r"vllm\.entrypoints\.(openai\.)?api_server$"),
    ),
    limit_options=("--max-num-seqs",),
    remedies=Remedies(
        users="raise --max-num-seqs (or --max-num-batched-tokens)",
        cache="fewer users, a shorter --max-model-len, --kv-cache-dtype fp8, or more --gpu-memory-utilization",
        memory="lower --gpu-memory-utilization or --max-num-seqs",
    ),
    without_metrics="started with --disable-log-stats?",
)

ROUTER = EngineEntry(
    "production-stack-router",
    "router",
    (
        *gauge("running", "vllm:num_requests_running"),
        *counter("generation", "vllm:output_tokens_total"),
        *counter("prompt", "vllm:input_tokens_total"),
        *counter("requests", "vllm:num_incoming_requests_total"),
        *histogram("e2e", "vllm:request_latency_seconds"),
    ),
    row_labels=("server",),
    processes=(process(r"(^|/)vllm-router$"), process(r"(^|\.)vllm_router\.app$")),
    port=8001,
    silent_on="waiting and KV cache: those of its servers",
)
