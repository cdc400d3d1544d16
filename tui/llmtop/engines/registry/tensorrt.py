"""TensorRT-LLM, served by its own server or by Triton.

`trtllm-serve`: its /metrics is a JSON list of iterations, its Prometheus page lies at /prometheus/metrics. Reading the
list drains it for everybody, so it is only read as long as the Prometheus page has no gauges.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from llmtop.engines.command_line import process
from llmtop.engines.numbers import plain_number
from llmtop.engines.page_record import Page, RowSample
from llmtop.engines.registry.entry import (
    ANY,
    AT_END,
    EngineEntry,
    Kind,
    MetricSource,
    Remedies,
    counter,
    gauge,
    histogram,
)

PROMETHEUS = "/prometheus/metrics"


def read_iterations(body: bytes) -> dict[str, float] | None:
    """The gauges of the newest iteration, none of an empty list; None when the body is no list of iterations."""
    if not body.lstrip().startswith(b"["):
        return None
    try:
        listed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if any(not isinstance(item, dict) or "iter" not in item for item in listed):
        return None
    return _gauges(listed[-1]) if listed else {}


def as_page(page: Page | None, gauges: dict[str, float], t: float) -> Page:
    """The Prometheus page, if there is one, with the gauges of the list where it has none of its own."""
    if page is None or not page.rows:
        # an empty list is all that an idle engine says
        return Page(t, TRTLLM.name, (RowSample(("", "0"), gauges or {"running": 0.0, "waiting": 0.0}),))
    first, *others = page.rows
    return replace(page, rows=(replace(first, gauges={**gauges, **first.gauges}), *others))


def has_gauges(page: Page | None) -> bool:
    """Whether the Prometheus page says all that the list would."""
    return page is not None and any({"running", "kv_usage"} <= set(row.gauges) for row in page.rows)


def _gauges(newest: dict[str, Any]) -> dict[str, float]:
    cache = newest.get("kvCacheStats")
    cache = cache if isinstance(cache, dict) else {}
    used, blocks = plain_number(cache.get("usedNumBlocks")), plain_number(cache.get("maxNumBlocks"))
    size = plain_number(cache.get("tokensPerBlock"))
    found = {
        "running": plain_number(newest.get("numActiveRequests")),
        "waiting": plain_number(newest.get("numQueuedRequests")),
        "kv_usage": used / blocks if used is not None and blocks else None,
        "kv_capacity": blocks * size if blocks and size else None,
        "pulse": plain_number(newest.get("iter")),
    }
    return {name: value for name, value in found.items() if value is not None}


TRTLLM = EngineEntry(
    "trtllm-serve",
    "TensorRT-LLM",
    (
        *gauge("running", "trtllm_num_requests_running"),
        *gauge("waiting", "trtllm_num_requests_waiting"),
        *gauge("kv_usage", "trtllm_kv_cache_utilization", fold="max"),
        *gauge("kv_used", "trtllm_kv_cache_used_blocks"),
        *gauge("kv_total", "trtllm_kv_cache_max_blocks"),
        *gauge("kv_blocks", "trtllm_kv_cache_max_blocks"),
        *gauge("kv_block_tokens", "trtllm_kv_cache_tokens_per_block"),
        *counter("generation", "trtllm_generation_tokens_total", rank=AT_END),
        *counter("prompt", "trtllm_prompt_tokens_total", rank=AT_END),
        *counter("requests", "trtllm_request_success_total"),
        *counter("finished", "trtllm_request_success_total", by="finished_reason"),
        *counter("hits", "trtllm_prompt_cached_tokens_total", rank=AT_END),
        *counter("queries", "trtllm_prompt_tokens_total", rank=AT_END),
        *gauge("prefix_rate", "trtllm_kv_cache_hit_rate"),
        *counter("drafted", "trtllm_spec_decode_num_draft_tokens_total"),
        *counter("accepted", "trtllm_spec_decode_num_accepted_tokens_total"),
        *histogram("ttft", "trtllm_time_to_first_token_seconds"),
        *histogram("tpot", "trtllm_time_per_output_token_seconds"),
        *histogram("e2e", "trtllm_e2e_request_latency_seconds"),
        *histogram("queue", "trtllm_request_queue_time_seconds"),
        *gauge("pulse", "trtllm_iteration_latency_seconds"),
        # 1.1 has no prefix; what tells its families from those of others is this label
        *counter("requests", "request_success_total", match=("engine_type", ANY)),
        *histogram("ttft", "time_to_first_token_seconds", match=("engine_type", ANY)),
        *histogram("tpot", "time_per_output_token_seconds", match=("engine_type", ANY)),
        *histogram("e2e", "e2e_request_latency_seconds", match=("engine_type", ANY)),
        *histogram("queue", "request_queue_time_seconds", match=("engine_type", ANY)),
    ),
    paths=(PROMETHEUS,),
    processes=(process(r"(^|/)trtllm-serve$"), process(r"tensorrt_llm\.commands\.serve$")),
    limit_options=("--max-batch-size",),
    remedies=Remedies(
        users="raise --max_batch_size (or --max_num_tokens)",
        cache="fewer users, a shorter --max_seq_len, or more --kv_cache_free_gpu_memory_fraction",
        memory="lower --kv_cache_free_gpu_memory_fraction",
    ),
    without_metrics="set return_perf_metrics and enable_iter_perf_stats in its configuration",
)


def _blocks(signal: str, kind: str) -> MetricSource:
    return MetricSource(signal, "nv_trt_llm_kv_cache_block_metrics", Kind.GAUGE, "sum", ("kv_cache_block_type", kind))


def _mean(signal: str, microseconds: str) -> tuple[MetricSource, MetricSource]:
    """A latency that is a sum of microseconds over the requests that succeeded."""
    return (
        MetricSource(signal, microseconds, Kind.SUM, scale=1e-6),
        MetricSource(signal, "nv_inference_request_success", Kind.COUNT),
    )


TRITON = EngineEntry(
    "triton",
    "Triton",
    (
        *gauge("running", "nv_trt_llm_request_metrics", match=("request_type", "scheduled")),
        *gauge("running", "nv_trt_llm_request_metrics", match=("request_type", "active"), rank=10),
        *gauge("waiting", "nv_trt_llm_request_metrics", match=("request_type", "waiting")),
        *gauge("waiting", "nv_inference_pending_request_count", rank=10),
        _blocks("kv_usage", "fraction"),
        _blocks("kv_used", "used"),
        _blocks("kv_total", "max"),
        _blocks("kv_blocks", "max"),
        _blocks("kv_block_tokens", "tokens_per"),
        *counter("requests", "nv_inference_request_success"),
        *counter("finished:error", "nv_inference_request_failure"),
        *_mean("e2e", "nv_inference_request_duration_us"),
        *_mean("queue", "nv_inference_queue_duration_us"),
    ),
    model_label="model",
    processes=(process(r"(^|/)tritonserver$"),),
    port=8002,
    port_options=("--metrics-port",),
    prefix="nv_inference_",
    without_metrics="no language model has been asked yet",
    silent_on="tokens: only requests are counted, so tok/s and time to first token stay –",
)
