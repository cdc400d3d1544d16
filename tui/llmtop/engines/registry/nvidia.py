"""NVIDIA's NIM, which has vLLM's families without a prefix, and Dynamo's front end and workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmtop.engines.command_line import process
from llmtop.engines.registry.entry import AT_END, EngineEntry, MetricSource, counter, gauge, histogram

NIM = EngineEntry(
    "nim",
    "NIM",
    (
        *gauge("running", "num_requests_running"),
        *gauge("waiting", "num_requests_waiting"),
        *gauge("max_num_seqs", "num_request_max"),
        *gauge("kv_usage", "gpu_cache_usage_perc", "kv_cache_usage_perc", fold="max"),
        *counter("generation", "generation_tokens_total"),
        *counter("prompt", "prompt_tokens_total"),
        *counter("preemptions", "num_preemptions_total"),
        *counter("requests", "request_success_total", "request_finish_total"),
        *counter("finished", "request_finish_total", "request_success_total", by="finished_reason"),
        *counter("hits", "prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
        *counter("queries", "prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
        *counter("iterations", "iteration_tokens_total_count"),
        *histogram("ttft", "time_to_first_token_seconds"),
        *histogram("itl", "inter_token_latency_seconds"),
        *histogram("tpot", "time_per_output_token_seconds", "request_time_per_output_token_seconds"),
        *histogram("e2e", "e2e_request_latency_seconds"),
        *histogram("queue", "request_queue_time_seconds"),
    ),
    needs=frozenset({"running"}),  # bare names are anybody's
    row_labels=("engine",),
    paths=("/v1/metrics",),
    processes=(process(r"vllm_nvext\.entrypoints\.[\w.]*api_server$"), process(r"nim_llm\w*\.[\w.]*(launch|server)$")),
    port_elsewhere=True,
)

# what `DYN_METRICS_PREFIX` may rename the front end's prefix to, and what it was before
_FRONT_PREFIXES = ("dynamo_frontend_", "nv_llm_http_service_")


def _front(*sources: MetricSource) -> Iterator[MetricSource]:
    for prefix in _FRONT_PREFIXES:
        for source in sources:
            yield replace(source, metric=prefix + source.metric)


DYNAMO = EngineEntry(
    "dynamo",
    "Dynamo",
    (
        *_front(
            *gauge("running", "inflight_requests"),
            *gauge("waiting", "queued_requests", fold="max"),
            *gauge("waiting", "router_queue_pending_requests", fold="max"),  # is most often a part of the other
            *gauge("kv_blocks", "model_total_kv_blocks", fold="max"),
            *gauge("kv_block_tokens", "model_kv_cache_block_size", fold="max"),
            *gauge("max_model_len", "model_context_length", fold="max"),
            *gauge("max_num_seqs", "model_max_num_seqs", fold="max"),
            *counter("generation", "output_tokens_total"),
            *counter("generation", "output_sequence_tokens_sum", rank=AT_END),
            *counter("prompt", "input_tokens_total", "input_sequence_tokens_sum"),
            *counter("hits", "cached_tokens_sum"),
            *counter("queries", "input_sequence_tokens_sum"),
            *counter("requests", "requests_total"),
            *counter("finished", "requests_total", by="status"),
            *histogram("ttft", "time_to_first_token_seconds"),
            *histogram("itl", "inter_token_latency_seconds"),
            *histogram("e2e", "request_duration_seconds"),
        ),
        # a worker's own page; its engine's families stand beside these and are read instead where they do
        *gauge(
            "kv_usage",
            "dynamo_component_gpu_cache_usage_percent",
            "dynamo_component_kvstats_gpu_cache_usage_percent",
            fold="max",
        ),
        *gauge("kv_used", "dynamo_component_kvstats_active_blocks"),
        *gauge("kv_total", "dynamo_component_total_blocks", "dynamo_component_kvstats_total_blocks"),
        *gauge("running", "dynamo_component_inflight_requests", rank=10),
        *counter("requests", "dynamo_component_requests_total", rank=20),
        *histogram("e2e", "dynamo_component_request_duration_seconds"),
    ),
    model_label="model",
    row_labels=("dp_rank",),
    processes=(process(r"(^|/)dynamo-run$"), process(r"(^|\.)dynamo\.frontend(\.main)?$")),
    port_options=("--http-port", "--port"),
    port_elsewhere=True,
    prefix="dynamo_",
    without_metrics="the engines of Dynamo answer on their own ports (DYN_SYSTEM_PORT)",
    silent_on="KV cache: its workers', on their own ports (DYN_SYSTEM_PORT)",
)
