"""The families of a vLLM 0.32 /metrics page in its order: names, HELP texts, and where each value comes
from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llmtop.demo.counters import FINISH_REASONS, Counters, Gauges, Histogram

Labels = tuple[tuple[str, str], ...]
Rows = Iterable[tuple[Labels, float]]

PROCESS: tuple[tuple[str, str, str, tuple[tuple[Labels, float], ...]], ...] = (
    (
        "python_gc_objects_collected_total",
        "counter",
        "Objects collected during gc",
        tuple(((("generation", g),), v) for g, v in (("0", 29199.0), ("1", 7580.0), ("2", 674.0))),
    ),
    (
        "python_gc_objects_uncollectable_total",
        "counter",
        "Uncollectable objects found during GC",
        tuple(((("generation", g),), 0.0) for g in "012"),
    ),
    (
        "python_gc_collections_total",
        "counter",
        "Number of times this generation was collected",
        tuple(((("generation", g),), v) for g, v in (("0", 1882.0), ("1", 172.0), ("2", 11.0))),
    ),
    (
        "python_info",
        "gauge",
        "Python platform information",
        (
            (
                (
                    ("implementation", "CPython"),
                    ("major", "3"),
                    ("minor", "12"),
                    ("patchlevel", "11"),
                    ("version", "3.12.11"),
                ),
                1.0,
            ),
        ),
    ),
    (
        "process_virtual_memory_bytes",
        "gauge",
        "Virtual memory size in bytes.",
        (((), 2004758528.0),),
    ),
    (
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory size in bytes.",
        (((), 625180672.0),),
    ),
    (
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
        (((), 0.0),),
    ),
    (
        "process_cpu_seconds_total",
        "counter",
        "Total user and system CPU time spent in seconds.",
        (((), 0.0),),
    ),
    (
        "process_open_fds",
        "gauge",
        "Number of open file descriptors.",
        (((), 50.0),),
    ),
    (
        "process_max_fds",
        "gauge",
        "Maximum number of open file descriptors.",
        (((), 20000.0),),
    ),
)


def _one(value: float) -> Rows:
    return (((), float(value)),)


def _reasons(gauges: Gauges) -> Rows:
    return ((("reason", "capacity"),), float(gauges.waiting)), ((("reason", "deferred"),), 0.0)


def _sleep(sleeping: bool) -> Rows:
    states = {"awake": not sleeping, "weights_offloaded": sleeping, "discard_all": False}
    return (((("sleep_state", name),), float(on)) for name, on in states.items())


def _by_source(counters: Counters) -> Rows:
    computed = counters.prompt_tokens - counters.cached_tokens
    sources = {
        "local_compute": computed,
        "local_cache_hit": counters.cached_tokens,
        "external_kv_transfer": 0,
    }
    return (((("source", name),), float(value)) for name, value in sources.items())


def _cached_by_source(counters: Counters) -> Rows:
    tiers = ("device", "host", "p2p", "disk", "external_unspecified")
    hits = float(counters.prefix_hits)
    return (((("source", tier),), hits if tier == "device" else 0.0) for tier in tiers)


def _finished(counters: Counters) -> Rows:
    return (((("finished_reason", why),), float(counters.finished[why])) for why in FINISH_REASONS)


ESTIMATES: tuple[tuple[str, str, Callable[[Counters], Rows]], ...] = (
    (
        "vllm:estimated_flops_per_gpu",
        ("Estimated number of floating point operations per GPU (for Model Flops Utilization calculations)."),
        lambda _: _one(0),
    ),
    (
        "vllm:estimated_read_bytes_per_gpu",
        ("Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations)."),
        lambda _: _one(0),
    ),
    (
        "vllm:estimated_write_bytes_per_gpu",
        ("Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations)."),
        lambda _: _one(0),
    ),
)

GAUGES: tuple[tuple[str, str, Callable[[Gauges, bool], Rows]], ...] = (
    (
        "vllm:num_requests_running",
        "Number of requests in model execution batches.",
        lambda g, _: _one(g.running),
    ),
    (
        "vllm:num_requests_waiting",
        "Number of requests waiting to be processed.",
        lambda g, _: _one(g.waiting),
    ),
    (
        "vllm:num_requests_waiting_by_reason",
        (
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling "
            "capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, "
            "blocked status). Sum of all reasons equals vllm:num_requests_waiting."
        ),
        lambda g, _: _reasons(g),
    ),
    (
        "vllm:engine_sleep_state",
        (
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2."
        ),
        lambda _, sleeping: _sleep(sleeping),
    ),
    (
        "vllm:kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        lambda g, _: _one(g.kv_usage),
    ),
)

COUNTERS: tuple[tuple[str, str, Callable[[Counters], Rows]], ...] = (
    (
        "vllm:prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        lambda c: _one(c.prefix_queries),
    ),
    (
        "vllm:prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        lambda c: _one(c.prefix_hits),
    ),
    (
        "vllm:external_prefix_cache_queries",
        (
            "External prefix cache queries from KV connector cross-instance cache sharing, in terms of "
            "number of queried tokens."
        ),
        lambda _: _one(0),
    ),
    (
        "vllm:external_prefix_cache_hits",
        (
            "External prefix cache hits from KV connector cross-instance cache sharing, in terms of "
            "number of cached tokens."
        ),
        lambda _: _one(0),
    ),
    (
        "vllm:mm_cache_queries",
        "Multi-modal cache queries, in terms of number of queried items.",
        lambda _: _one(0),
    ),
    (
        "vllm:mm_cache_hits",
        "Multi-modal cache hits, in terms of number of cached items.",
        lambda _: _one(0),
    ),
    (
        "vllm:num_preemptions",
        "Cumulative number of preemption from the engine.",
        lambda c: _one(c.preemptions),
    ),
    (
        "vllm:prompt_tokens",
        "Number of prefill tokens processed.",
        lambda c: _one(c.prompt_tokens),
    ),
    (
        "vllm:prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        _by_source,
    ),
    (
        "vllm:prompt_tokens_cached",
        "Number of cached prompt tokens (local + external).",
        lambda c: _one(c.cached_tokens),
    ),
    (
        "vllm:prompt_tokens_cached_by_source",
        (
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host "
            "(offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or "
            "external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + "
            "vllm:external_prefix_cache_hits."
        ),
        _cached_by_source,
    ),
    (
        "vllm:generation_tokens",
        "Number of generation tokens processed.",
        lambda c: _one(c.generation_tokens),
    ),
    (
        "vllm:request_success",
        "Count of successfully processed requests.",
        _finished,
    ),
)

DIFFUSION: tuple[tuple[str, str, Callable[[Counters], Rows]], ...] = (
    (
        "vllm:diffusion_num_denoising_steps",
        "Number of denoising steps of diffusion decoding.",
        lambda c: _one(c.denoising_steps),
    ),
    (
        "vllm:diffusion_num_canvas_positions",
        "Number of canvas positions processed by denoising steps.",
        lambda c: _one(c.canvas_positions),
    ),
    (
        "vllm:diffusion_num_committed_tokens",
        "Number of tokens committed from canvases.",
        lambda c: _one(c.committed_tokens),
    ),
)

REJECTIONS = (
    "vllm:admission_rejections",
    "Number of admission attempts rejected by a queue limit, by reason.",
    ("max_num_queued_reqs", "max_num_queued_tokens"),
)

HISTOGRAMS: tuple[tuple[str, str, Callable[[Counters], Histogram]], ...] = (
    (
        "vllm:request_prompt_tokens",
        "Number of prefill tokens processed.",
        lambda c: c.prompt_len,
    ),
    (
        "vllm:request_generation_tokens",
        "Number of generation tokens processed.",
        lambda c: c.generation_len,
    ),
    (
        "vllm:iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        lambda c: c.iteration,
    ),
    (
        "vllm:request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        lambda c: c.max_generation,
    ),
    (
        "vllm:request_params_n",
        "Histogram of the n request parameter.",
        lambda c: c.param_n,
    ),
    (
        "vllm:request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        lambda c: c.param_max_tokens,
    ),
    (
        "vllm:time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        lambda c: c.ttft,
    ),
    (
        "vllm:inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        lambda c: c.itl,
    ),
    (
        "vllm:request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        lambda c: c.tpot,
    ),
    (
        "vllm:e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        lambda c: c.e2e,
    ),
    (
        "vllm:request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        lambda c: c.queue,
    ),
    (
        "vllm:request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        lambda c: c.inference,
    ),
    (
        "vllm:request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        lambda c: c.prefill,
    ),
    (
        "vllm:request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        lambda c: c.decode,
    ),
    (
        "vllm:request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        lambda c: c.preempted,
    ),
    (
        "vllm:request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        lambda c: c.kv_computed,
    ),
)

HTTP = {
    "http_requests_total": "Total number of requests by method, status and handler.",
    "http_request_size_bytes": (
        "Content length of incoming requests by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile calculated. "
    ),
    "http_response_size_bytes": (
        "Content length of outgoing responses by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile calculated. "
    ),
    "http_request_duration_highr_seconds": (
        "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
    ),
    "http_request_duration_seconds": (
        "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "
    ),
}
