"""One series of a metrics page, resolved once: which signal of which engine its value is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmtop.contract.units import clean
from llmtop.engines import registry
from llmtop.engines.page_record import CacheConfig
from llmtop.engines.registry.entry import ANY, EngineEntry, Kind, Match, MetricSource

Rank = tuple[int, tuple[int, ...], bool]  # of the source and its spelling, of the shard, whether one of priorities
Labels = tuple[tuple[str, str], ...]
MODEL = ""  # stands for the label that names the model, which has other names with other engines
# what tells series of one engine apart, and never engines; shards of one engine are ranked, not rows
_INSIDE = frozenset(
    {
        *("le", "quantile", "pid", "priority", "reason", "source", "mode", "status", "code", "method", "handler"),
        *("endpoint", "path", "position", "stage", "finished_reason", "is_streaming", "sleep_state", "transfer_type"),
        *("request_type", "error_type", "version", "Version", "moe_dp_rank", "dynamo_endpoint"),
    }
)
_STATUS = ("status", "status_code")
_ROLES = ("engine_type", "role", "disaggregation_mode", "worker_type")


@dataclass(frozen=True, slots=True, eq=False)
class SampleSlot:
    """A series, resolved once: where its value goes. Compared by identity, so that a series counts once.

    `labels` are those that may tell its row from others, the model among them.
    """

    engine: EngineEntry
    source: MetricSource
    signal: str
    labels: Labels
    rank: Rank
    bound: float = 0.0
    text: str = ""
    config: CacheConfig | None = None
    role: str | None = None


def resolve(name: str, labels: Mapping[str, str]) -> tuple[SampleSlot, ...]:
    """The slots that one series fills; empty for a series that nothing here reads."""
    found = (_slot(name, engine, source, labels) for engine, source in registry.sources(name, labels))
    return tuple(slot for slot in found if slot)


def _slot(name: str, engine: EngineEntry, source: MetricSource, labels: Mapping[str, str]) -> SampleSlot | None:
    if source.match and not _matches(source.match, labels):
        return None
    signal, text = source.signal, ""
    if source.by is not None:
        text = clean(labels.get(source.by, ""))
        if source.kind is Kind.COUNTER:
            signal = f"{signal}:{_status(text) if source.by in _STATUS else text}"
    elif source.kind is Kind.REASON:
        text = signal.partition(":")[2]
    elif source.kind is Kind.LORA:
        # both lists hold every adapter with requests (vLLM writes each into both)
        text = clean(f"{labels.get('running_lora_adapters', '')},{labels.get('waiting_lora_adapters', '')}")
    bound = _number(labels.get("le")) if source.kind is Kind.BUCKET else 0.0
    if bound is None:
        return None
    shard = tuple(_whole(labels.get(label)) or 0 for label in engine.shard_labels)
    spelling = not registry.spelled_as(name, source)
    rank = (source.rank + spelling, shard, bool(labels.get("priority")))  # SGLang: priority="" is the total
    config = (
        replace(_config(labels), summed=not engine.own_blocks, null_block=engine.null_block)
        if source.kind is Kind.CONFIG
        else None
    )
    return SampleSlot(
        engine,
        source,
        signal,
        _telling(engine, source, labels),
        rank,
        bound * source.scale,
        text,
        config,
        _role(labels),
    )


def _telling(engine: EngineEntry, source: MetricSource, labels: Mapping[str, str]) -> Labels:
    """The labels that may tell rows apart: all but those that are known to say something else."""
    inside = {source.by, source.match[0] if source.match else None, engine.model_label, *engine.shard_labels}
    found = [
        (label, clean(value))
        for label, value in labels.items()
        if value and label not in inside and label not in _INSIDE
    ]
    model = labels.get(engine.model_label, "")
    if model and model != "undefined":  # what TensorRT-LLM says of a nameless one
        found.append((MODEL, clean(model)))
    return tuple(sorted(found))


def _role(labels: Mapping[str, str]) -> str | None:
    """Which side of disaggregated serving an engine is."""
    return next((role for label in _ROLES if (role := labels.get(label)) in ("prefill", "decode")), None)


def _status(text: str) -> str:
    """The class of an HTTP status, `4xx`; what is no status is what it was."""
    return f"{text[0]}xx" if len(text) == 3 and text[0].isdecimal() else text


def _matches(match: Match, labels: Mapping[str, str]) -> bool:
    label, value = match
    if isinstance(value, re.Pattern):
        return value.fullmatch(labels.get(label, "")) is not None
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
