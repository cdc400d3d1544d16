"""One table: for every engine, on which metric each signal lives.

Sources of a signal are tried in order and the first one present in a row wins: old and new names of the same
number are never added. `resolve` turns one series into the `Slot` that the page reader fills.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal

from llmtop.contract.units import clean
from llmtop.engines.page_record import CacheConfig, RowKey

Fold = Literal["sum", "max", "min"]
Rank = tuple[int, tuple[int, ...], bool]  # of the source, of the shard, whether one of several priorities
ANY = "*"
AT_END = 20  # the rank of a counter that moves only when a request ends


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
    """One place where a signal may live; `match` is a label and its value, or `ANY`."""

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
    rank: Rank
    bound: float = 0.0
    text: str = ""
    config: CacheConfig | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """An engine: its sources and the labels that name a row; of several engine labels the first one that is there.

    Shards of one engine repeat its figures, and the lowest is read; `digits` that it prints of a large counter.
    """

    name: str
    sources: tuple[Source, ...]
    model_label: str = "model_name"
    engine_labels: tuple[str, ...] = ("engine",)
    shard_labels: tuple[str, ...] = ()
    digits: int | None = None
    own_blocks: bool = False  # `num_gpu_blocks` is of one row, not of all


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


def _born(*metrics: str) -> Iterator[Source]:
    """When a process began; the oldest series of a row counts, because some are born with the first request."""
    for metric in metrics:
        yield Source("created", f"{metric}_created", Kind.GAUGE, "min")


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
        *_born(*(f"vllm:{family}" for family in _FAMILIES)),
        *_gauge("prefix_rate", "vllm:gpu_prefix_cache_hit_rate"),
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
        yield replace(source, metric=name)


RAY = Dialect(
    "vllm-ray",
    tuple(ray for source in VLLM.sources for ray in _through_ray(source)),
    engine_labels=("ReplicaId", "WorkerId", "engine"),
    own_blocks=True,
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
    engine_labels=("server",),
)


def _gateway_spelling(sources: tuple[Source, ...]) -> Iterator[Source]:
    """SGLang's metrics as gateways and Ray pass them on: `sglang_` instead of `sglang:`."""
    for source in sources:
        yield replace(source, metric=source.metric.replace("sglang:", "sglang_"))


_SGLANG = (
    *_gauge("running", "sglang:num_running_reqs"),
    *_gauge("waiting", "sglang:num_queue_reqs"),
    *_gauge("kv_usage", "sglang:token_usage", "sglang:full_token_usage", fold="max"),
    *_gauge("kv_capacity", "sglang:max_total_num_tokens", fold="max"),
    *_gauge("kv_blocks", "sglang:num_pages", fold="max"),
    *_gauge("kv_block_tokens", "sglang:page_size", fold="max"),
    Source("config", "sglang:cache_config_info", Kind.CONFIG),
    *_gauge("max_model_len", "sglang:context_len", fold="max"),
    # the plain counter moves only when a request ends
    *_counter("generation", "sglang:realtime_tokens_total", match=("mode", "decode")),
    *_gauge("generation_rate", "sglang:gen_throughput"),
    *_counter("generation", "sglang:generation_tokens_total", rank=AT_END),
    *_counter("prompt", "sglang:prompt_tokens_total"),
    *_counter("computed", "sglang:realtime_tokens_total", match=("mode", "prefill_compute")),
    *_counter("hits", "sglang:cached_tokens_total"),
    *_counter("queries", "sglang:prompt_tokens_total"),
    *_gauge("prefix_rate", "sglang:cache_hit_rate"),
    *_counter("preemptions", "sglang:num_retracted_requests_total"),
    *_counter("requests", "sglang:num_requests_total"),
    *_histogram("ttft", "sglang:time_to_first_token_seconds"),
    *_histogram("itl", "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    *_histogram("tpot", "sglang:request_time_per_output_token_seconds"),
    *_histogram("e2e", "sglang:e2e_request_latency_seconds"),
    *_histogram("queue", "sglang:queue_time_seconds"),
)
SGLANG = Dialect(
    "sglang",
    (*_SGLANG, *_gateway_spelling(_SGLANG)),
    engine_labels=("dp_rank",),
    shard_labels=("pp_rank", "tp_rank", "moe_ep_rank"),
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
        *_counter("hits", "llamacpp:prompt_tokens_cached_total"),
        *_counter("queries", "llamacpp:prompt_tokens_total"),  # those computed and
        *_counter("queries", "llamacpp:prompt_tokens_cached_total"),
        *_counter("iterations", "llamacpp:n_decode_total"),
        Source("itl", "llamacpp:tokens_predicted_seconds_total", Kind.SUM),
        Source("itl", "llamacpp:tokens_predicted_total", Kind.COUNT),
    ),
    digits=6,
)

TGI = Dialect(
    "tgi",
    (
        *_gauge("running", "tgi_batch_current_size"),
        *_gauge("waiting", "tgi_queue_size"),
        *_gauge("kv_capacity", "tgi_batch_max_total_tokens", fold="max"),
        *_gauge("kv_used", "tgi_batch_current_max_tokens"),
        *_gauge("kv_total", "tgi_batch_max_total_tokens", fold="max"),
        *_counter("generation", "tgi_request_generated_tokens_sum"),
        *_counter("prompt", "tgi_request_input_length_sum"),
        *_counter("requests", "tgi_request_success"),
        *_counter("iterations", "tgi_batch_inference_count", match=("method", "decode")),
        # the time of a prefill batch, which a first token waits for
        *_histogram("ttft", "tgi_batch_inference_duration", match=("method", "prefill")),
        *_histogram("itl", "tgi_batch_inference_duration", match=("method", "decode")),
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
        *_gauge("kv_used", "trtllm_kv_cache_used_blocks"),
        *_gauge("kv_total", "trtllm_kv_cache_max_blocks"),
        *_gauge("kv_blocks", "trtllm_kv_cache_max_blocks"),
        *_gauge("kv_block_tokens", "trtllm_kv_cache_tokens_per_block"),
        *_counter("generation", "trtllm_generation_tokens_total"),
        *_counter("prompt", "trtllm_prompt_tokens_total"),
        *_counter("requests", "trtllm_request_success_total"),
        *_counter("hits", "trtllm_prompt_cached_tokens_total"),
        *_counter("queries", "trtllm_prompt_tokens_total"),
        *_gauge("prefix_rate", "trtllm_kv_cache_hit_rate"),
        *_histogram("ttft", "trtllm_time_to_first_token_seconds"),
        *_histogram("tpot", "trtllm_time_per_output_token_seconds"),
        *_histogram("e2e", "trtllm_e2e_request_latency_seconds"),
        *_histogram("queue", "trtllm_request_queue_time_seconds"),
        *_gauge("pulse", "trtllm_iteration_latency_seconds"),
        # 1.1 has no prefix; what tells its families from those of others is this label
        *_counter("requests", "request_success_total", match=("engine_type", ANY)),
        *_histogram("ttft", "time_to_first_token_seconds", match=("engine_type", ANY)),
        *_histogram("tpot", "time_per_output_token_seconds", match=("engine_type", ANY)),
        *_histogram("e2e", "e2e_request_latency_seconds", match=("engine_type", ANY)),
        *_histogram("queue", "request_queue_time_seconds", match=("engine_type", ANY)),
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
        *_counter("hits", "lmdeploy:cached_tokens_total"),
        *_counter("queries", "lmdeploy:prompt_tokens_total"),
        *_gauge("prefix_rate", "lmdeploy:prefix_cache_hit_rate"),
        *_counter("requests", "lmdeploy:request_success_total", "lmdeploy:num_requests_succeeded"),
        *_histogram("ttft", "lmdeploy:time_to_first_token_seconds"),
        *_histogram("itl", "lmdeploy:iter_token_latency"),
        *_histogram("tpot", "lmdeploy:time_per_output_token_seconds"),
        *_histogram("e2e", "lmdeploy:e2e_request_latency_seconds"),
        *_histogram("queue", "lmdeploy:request_queue_time_seconds"),
    ),
)

PROCESS = Dialect("", (Source("start_time", "process_start_time_seconds", Kind.PAGE),))

DIALECTS = (VLLM, RAY, SGLANG, LLAMACPP, TGI, TRTLLM, LMDEPLOY, PROCESS)
DIGITS = {dialect.name: dialect.digits for dialect in DIALECTS if dialect.digits}


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
    if source.match and not _matches(source.match, labels):
        return None
    engine = next((name for label in dialect.engine_labels if (name := labels.get(label))), "0")
    engine = "" if source.kind in (Kind.PAGE, Kind.LORA) else clean(engine)
    model = labels.get(dialect.model_label, "")
    row = ("" if model == "undefined" else clean(model), engine)  # what TensorRT-LLM says of a nameless one
    shard = tuple(_whole(labels.get(label)) or 0 for label in dialect.shard_labels)
    rank = (source.rank, shard, bool(labels.get("priority")))  # SGLang: priority="" is the total
    match source.kind:
        case Kind.BUCKET:
            bound = _number(labels.get("le"))
            return None if bound is None else Slot(dialect.name, source, row, rank, bound)
        case Kind.CONFIG:
            return Slot(dialect.name, source, row, rank, config=replace(_config(labels), summed=not dialect.own_blocks))
        case Kind.REASON:
            return Slot(dialect.name, source, row, rank, text=clean(labels.get("reason", "")))
        case Kind.SLEEP:
            return Slot(dialect.name, source, row, rank, text=labels.get("sleep_state", ""))
        case Kind.LORA:
            # both lists hold every adapter with requests (vLLM writes each into both)
            both = f"{labels.get('running_lora_adapters', '')},{labels.get('waiting_lora_adapters', '')}"
            return Slot(dialect.name, source, row, rank, text=clean(both))
    return Slot(dialect.name, source, row, rank)


def _matches(match: tuple[str, str], labels: Mapping[str, str]) -> bool:
    label, value = match
    return label in labels if value is ANY else labels.get(label) == value


def _config(labels: Mapping[str, str]) -> CacheConfig:
    pages, page_tokens = _whole(labels.get("num_pages")), _whole(labels.get("page_size"))  # SGLang, of one engine
    return CacheConfig(
        _whole(labels.get("num_gpu_blocks")),
        _whole(labels.get("block_size")),
        _whole(labels.get("kv_cache_size_tokens")) or (pages * page_tokens if pages and page_tokens else None),
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
