"""One table: for every engine, on which metric each signal lives.

Sources of a signal are tried in order and the first one present in a row wins: old and new names of the same
number are never added. `resolve` turns one series into the `Slot` that the page reader fills.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from llmtop.model.page import CacheConfig, RowKey
from llmtop.model.units import clean

Fold = Literal["sum", "max"]


class Kind(Enum):
    """How the value of a series is folded into its row."""

    GAUGE = auto()
    COUNTER = auto()
    BUCKET = auto()
    SUM = auto()
    COUNT = auto()
    REASON = auto()
    SLEEP = auto()
    CONFIG = auto()
    LORA = auto()
    PAGE = auto()


@dataclass(frozen=True, slots=True)
class Source:
    """One place where a signal may live."""

    signal: str
    metric: str
    kind: Kind
    fold: Fold = "sum"
    match: tuple[str, str] | None = None
    rank: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A series, resolved once: where its value goes. Compared by identity, so that a series counts once."""

    dialect: str
    source: Source
    row: RowKey
    rank: int
    bound: float = 0.0
    text: str = ""
    config: CacheConfig | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """An engine: its sources and the labels that name a row."""

    name: str
    sources: tuple[Source, ...]
    model_label: str = "model_name"
    engine_label: str = "engine"
    keep: tuple[tuple[str, str], ...] = ()  # series with another value of these labels are left out


def _gauge(signal: str, *metrics: str, fold: Fold = "sum", match: tuple[str, str] | None = None) -> Iterator[Source]:
    for rank, metric in enumerate(metrics):
        yield Source(signal, metric, Kind.GAUGE, fold, match, rank * 10)


def _counter(signal: str, *metrics: str, match: tuple[str, str] | None = None, rank: int = 0) -> Iterator[Source]:
    """A counter by its exposed names; the spelling without `_total` is accepted after them."""
    for place, metric in enumerate(metrics):
        yield Source(signal, metric, Kind.COUNTER, "sum", match, rank + place * 10)
        if metric.endswith("_total"):
            yield Source(signal, metric.removesuffix("_total"), Kind.COUNTER, "sum", match, rank + place * 10 + 5)


def _histogram(signal: str, *metrics: str, match: tuple[str, str] | None = None) -> Iterator[Source]:
    for place, metric in enumerate(metrics):
        for suffix, kind in (("_bucket", Kind.BUCKET), ("_sum", Kind.SUM), ("_count", Kind.COUNT)):
            yield Source(signal, metric + suffix, kind, "sum", match, place * 10)


VLLM = Dialect(
    "vllm",
    (
        *_gauge("running", "vllm:num_requests_running"),
        *_gauge("waiting", "vllm:num_requests_waiting"),
        Source("waiting", "vllm:num_requests_waiting_by_reason", Kind.REASON, rank=10),
        # up to 0.11.0 every API server process exported its own copy of the gauge, all but one at 0
        *_gauge("kv_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", fold="max"),
        *_counter("generation", "vllm:generation_tokens_total"),
        *_counter("prompt", "vllm:prompt_tokens_total"),
        *_counter("computed", "vllm:prompt_tokens_by_source_total", match=("source", "local_compute")),
        *_counter("cached", "vllm:prompt_tokens_by_source_total", match=("source", "local_cache_hit")),
        *_counter("transferred", "vllm:prompt_tokens_by_source_total", match=("source", "external_kv_transfer")),
        *_counter("cached", "vllm:prompt_tokens_cached_total", rank=20),
        *_counter("preemptions", "vllm:num_preemptions_total"),
        *_counter("requests", "vllm:request_success_total"),
        *_counter("hits", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        *_counter("queries", "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        *_counter("iterations", "vllm:iteration_tokens_total_count"),
        *_counter("diffusion_steps", "vllm:diffusion_num_denoising_steps_total"),
        *_counter("diffusion_tokens", "vllm:diffusion_num_committed_tokens_total"),
        *_gauge("created", "vllm:generation_tokens_created", "vllm:prompt_tokens_created", fold="max"),
        *_histogram("ttft", "vllm:time_to_first_token_seconds"),
        *_histogram("itl", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        *_histogram("tpot", "vllm:request_time_per_output_token_seconds"),
        *_histogram("e2e", "vllm:e2e_request_latency_seconds"),
        *_histogram("queue", "vllm:request_queue_time_seconds"),
        Source("sleep", "vllm:engine_sleep_state", Kind.SLEEP),
        Source("config", "vllm:cache_config_info", Kind.CONFIG),
        Source("lora", "vllm:lora_requests_info", Kind.LORA),
        Source("rejections", "vllm:admission_rejections_total", Kind.PAGE),
        Source("rejections", "vllm:admission_rejections", Kind.PAGE),
    ),
)


def _through_ray(source: Source) -> Iterator[Source]:
    """Ray exports vLLM's metrics under `ray_` names, sanitised since vLLM 0.11."""
    for name in (f"ray_{source.metric}", f"ray_{source.metric.replace(':', '_')}"):
        yield Source(source.signal, name, source.kind, source.fold, source.match, source.rank)


RAY = Dialect(
    "vllm-ray",
    tuple(ray for source in VLLM.sources for ray in _through_ray(source)),
    engine_label="ReplicaId",
)

ROUTER = Dialect(
    "production-stack-router",
    (
        *_gauge("running", "vllm:num_requests_running"),
        *_counter("generation", "vllm:output_tokens_total"),
        *_counter("prompt", "vllm:input_tokens_total"),
        *_counter("requests", "vllm:num_incoming_requests_total"),
        *_histogram("e2e", "vllm:request_latency_seconds"),
    ),
    engine_label="server",
)

SGLANG = Dialect(
    "sglang",
    (
        *_gauge("running", "sglang:num_running_reqs"),
        *_gauge("waiting", "sglang:num_queue_reqs"),
        *_gauge("kv_usage", "sglang:token_usage", "sglang:full_token_usage", fold="max"),
        *_gauge("kv_capacity", "sglang:max_total_num_tokens", fold="max"),
        *_gauge("max_model_len", "sglang:context_len", fold="max"),
        # the plain counter moves only when a request ends
        *_counter("generation", "sglang:realtime_tokens_total", match=("mode", "decode")),
        *_gauge("generation_rate", "sglang:gen_throughput"),
        *_counter("generation", "sglang:generation_tokens_total", rank=20),
        *_counter("prompt", "sglang:prompt_tokens_total"),
        *_counter("computed", "sglang:realtime_tokens_total", match=("mode", "prefill_compute")),
        *_counter("hits", "sglang:cached_tokens_total"),
        *_counter("queries", "sglang:prompt_tokens_total"),
        *_counter("preemptions", "sglang:num_retracted_requests_total"),
        *_counter("requests", "sglang:num_requests_total"),
        *_histogram("ttft", "sglang:time_to_first_token_seconds"),
        *_histogram("itl", "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        *_histogram("tpot", "sglang:request_time_per_output_token_seconds"),
        *_histogram("e2e", "sglang:e2e_request_latency_seconds"),
        *_histogram("queue", "sglang:queue_time_seconds"),
    ),
    engine_label="dp_rank",
    keep=(("tp_rank", "0"), ("pp_rank", "0"), ("moe_ep_rank", "0")),
)

LLAMACPP = Dialect(
    "llamacpp",
    (
        # predicted_tokens_seconds and prompt_tokens_seconds are reset by every scrape of anyone: never read
        *_gauge("running", "llamacpp:requests_processing"),
        *_gauge("waiting", "llamacpp:requests_deferred"),
        *_gauge("kv_usage", "llamacpp:kv_cache_usage_ratio", fold="max"),
        *_counter("generation", "llamacpp:tokens_predicted_total"),
        *_counter("generation_busy_s", "llamacpp:tokens_predicted_seconds_total"),
        *_counter("prompt", "llamacpp:prompt_tokens_total"),
        *_counter("computed", "llamacpp:prompt_tokens_total"),
        *_counter("cached", "llamacpp:prompt_tokens_cached_total"),
    ),
)

TGI = Dialect(
    "tgi",
    (
        *_gauge("running", "tgi_batch_current_size"),
        *_gauge("waiting", "tgi_queue_size"),
        *_gauge("kv_capacity", "tgi_batch_max_total_tokens", fold="max"),
        *_counter("generation", "tgi_request_generated_tokens_sum"),
        *_counter("prompt", "tgi_request_input_length_sum"),
        *_counter("requests", "tgi_request_success"),
        *_histogram("tpot", "tgi_request_mean_time_per_token_duration"),
        *_histogram("e2e", "tgi_request_duration"),
        *_histogram("queue", "tgi_request_queue_duration"),
    ),
)

TRTLLM = Dialect(
    "trtllm-serve",
    (
        *_gauge("running", "trtllm_num_requests_running"),
        *_gauge("waiting", "trtllm_num_requests_waiting"),
        *_gauge("kv_usage", "trtllm_kv_cache_utilization", fold="max"),
        *_counter("generation", "trtllm_generation_tokens_total"),
        *_counter("prompt", "trtllm_prompt_tokens_total"),
        *_counter("requests", "trtllm_request_success_total"),
        *_histogram("ttft", "trtllm_time_to_first_token_seconds"),
        *_histogram("tpot", "trtllm_time_per_output_token_seconds"),
        *_histogram("e2e", "trtllm_e2e_request_latency_seconds"),
        *_histogram("queue", "trtllm_request_queue_time_seconds"),
    ),
)

LMDEPLOY = Dialect(
    "lmdeploy",
    (
        *_gauge("running", "lmdeploy:num_requests_running"),
        *_gauge("waiting", "lmdeploy:num_requests_waiting", "lmdeploy:num_api_requests_waiting"),
        *_gauge("kv_usage", "lmdeploy:gpu_cache_usage_perc", fold="max"),
        *_counter("generation", "lmdeploy:generation_tokens_total"),
        *_counter("prompt", "lmdeploy:prompt_tokens_total"),
        *_counter("cached", "lmdeploy:cached_tokens_total"),
        *_counter("requests", "lmdeploy:request_success_total"),
        *_histogram("ttft", "lmdeploy:time_to_first_token_seconds"),
        *_histogram("itl", "lmdeploy:iter_token_latency"),
        *_histogram("tpot", "lmdeploy:time_per_output_token_seconds"),
        *_histogram("e2e", "lmdeploy:e2e_request_latency_seconds"),
        *_histogram("queue", "lmdeploy:request_queue_time_seconds"),
    ),
)

PROCESS = Dialect("", (Source("start_time", "process_start_time_seconds", Kind.PAGE),))

DIALECTS = (VLLM, RAY, SGLANG, LLAMACPP, TGI, TRTLLM, LMDEPLOY, PROCESS)


def _index(*dialects: Dialect) -> dict[str, list[tuple[Dialect, Source]]]:
    index: dict[str, list[tuple[Dialect, Source]]] = {}
    for dialect in dialects:
        for source in dialect.sources:
            index.setdefault(source.metric, []).append((dialect, source))
    return index


_BY_METRIC = _index(*DIALECTS)
_ROUTER_BY_METRIC = _index(ROUTER)


def reads(name: str) -> bool:
    """Whether any engine has a signal on a metric of this name."""
    return name in _BY_METRIC or name in _ROUTER_BY_METRIC


def resolve(name: str, labels: Mapping[str, str]) -> tuple[Slot, ...]:
    """The slots that one series fills; empty for a series that nothing here reads."""
    routed = "server" in labels and "model_name" not in labels and "engine" not in labels
    index = _ROUTER_BY_METRIC if routed and name.startswith("vllm:") else _BY_METRIC
    found = (_slot(dialect, source, labels) for dialect, source in index.get(name, ()))
    return tuple(slot for slot in found if slot)


def _slot(dialect: Dialect, source: Source, labels: Mapping[str, str]) -> Slot | None:
    if source.match and labels.get(source.match[0]) != source.match[1]:
        return None
    if any(labels.get(label, value) != value for label, value in dialect.keep):
        return None
    engine = "" if source.kind in (Kind.PAGE, Kind.LORA) else clean(labels.get(dialect.engine_label) or "0")
    row = (clean(labels.get(dialect.model_label, "")), engine)
    rank = source.rank + (1 if labels.get("priority") else 0)  # SGLang: priority="" is the total
    match source.kind:
        case Kind.BUCKET:
            bound = _number(labels.get("le"))
            return None if bound is None else Slot(dialect.name, source, row, rank, bound)
        case Kind.CONFIG:
            return Slot(dialect.name, source, row, rank, config=_config(labels))
        case Kind.REASON:
            return Slot(dialect.name, source, row, rank, text=clean(labels.get("reason", "")))
        case Kind.SLEEP:
            return Slot(dialect.name, source, row, rank, text=labels.get("sleep_state", ""))
        case Kind.LORA:
            # both lists hold every adapter with requests (vLLM writes each into both)
            both = f"{labels.get('running_lora_adapters', '')},{labels.get('waiting_lora_adapters', '')}"
            return Slot(dialect.name, source, row, rank, text=clean(both))
    return Slot(dialect.name, source, row, rank)


def _config(labels: Mapping[str, str]) -> CacheConfig:
    return CacheConfig(
        _whole(labels.get("num_gpu_blocks")),
        _whole(labels.get("block_size")),
        _whole(labels.get("kv_cache_size_tokens")),
        _number(labels.get("kv_cache_max_concurrency")),
        _number(labels.get("gpu_memory_utilization")),
    )


def _number(text: str | None) -> float | None:
    """A label's number; None for "None", "" and anything that is not one."""
    try:
        number = float(text or "nan")
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return int(number) if number is not None and 0 < number < 1e15 else None
