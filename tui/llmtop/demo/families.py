"""The families of a vLLM 0.32 page: heads, labels and order from a captured page, and where each value comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from llmtop.demo.engine import Engine

Labels = tuple[tuple[str, str], ...]
Values = float | Mapping[str, float]  # of a family without labels of its own, or by the value of its own label


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine on the page: its rank as the label says it, and whether it sleeps."""

    rank: str
    engine: Engine
    sleeping: bool = False


@cache
def captured() -> tuple[Metric, ...]:
    """Every family of the captured page, in its order; what is counted stands at zero."""
    text = (files("llmtop.demo") / "page.txt").read_text("utf-8")
    return tuple(text_string_to_metric_families(text))


def value_of(family: str, own: str | None, view: EngineView) -> float:
    """The value of a family for an engine, `own` being the value of its own label; 0 for what no demo does."""
    read = _GAUGES.get(family) or _COUNTERS.get(family)
    values = 0.0 if read is None else read(view)
    return float(values if isinstance(values, int | float) else values.get(own or "", 0.0))


def _sleep(view: EngineView) -> Values:
    return {"awake": not view.sleeping, "weights_offloaded": view.sleeping}


def _counted(name: str) -> Callable[[EngineView], float]:
    return lambda view: float(getattr(view.engine.counters, name))


_GAUGES: Mapping[str, Callable[[EngineView], Values]] = {
    "vllm:num_requests_running": lambda v: v.engine.gauges.running,
    "vllm:num_requests_waiting": lambda v: v.engine.gauges.waiting,
    "vllm:num_requests_waiting_by_reason": lambda v: {"capacity": v.engine.gauges.waiting},
    "vllm:engine_sleep_state": _sleep,
    "vllm:kv_cache_usage_perc": lambda v: v.engine.gauges.kv_usage,
}

_COUNTERS: Mapping[str, Callable[[EngineView], Any]] = {
    "vllm:prefix_cache_queries": _counted("prefix_queries"),
    "vllm:prefix_cache_hits": _counted("prefix_hits"),
    "vllm:num_preemptions": _counted("preemptions"),
    "vllm:prompt_tokens": _counted("prompt_tokens"),
    "vllm:prompt_tokens_by_source": lambda v: {
        "local_compute": v.engine.counters.prompt_tokens - v.engine.counters.cached_tokens,
        "local_cache_hit": v.engine.counters.cached_tokens,
    },
    "vllm:prompt_tokens_cached": _counted("cached_tokens"),
    "vllm:prompt_tokens_cached_by_source": lambda v: {"device": v.engine.counters.prefix_hits},
    "vllm:generation_tokens": _counted("generation_tokens"),
    "vllm:request_success": lambda v: v.engine.counters.finished,
    "vllm:diffusion_num_denoising_steps": _counted("denoising_steps"),
    "vllm:diffusion_num_canvas_positions": _counted("canvas_positions"),
    "vllm:diffusion_num_committed_tokens": _counted("committed_tokens"),
}

HISTOGRAMS: Mapping[str, str] = {
    "vllm:request_prompt_tokens": "prompt_len",
    "vllm:request_generation_tokens": "generation_len",
    "vllm:iteration_tokens_total": "iteration",
    "vllm:request_max_num_generation_tokens": "max_generation",
    "vllm:request_params_n": "param_n",
    "vllm:request_params_max_tokens": "param_max_tokens",
    "vllm:time_to_first_token_seconds": "ttft",
    "vllm:inter_token_latency_seconds": "itl",
    "vllm:request_time_per_output_token_seconds": "tpot",
    "vllm:e2e_request_latency_seconds": "e2e",
    "vllm:request_queue_time_seconds": "queue",
    "vllm:request_inference_time_seconds": "inference",
    "vllm:request_prefill_time_seconds": "prefill",
    "vllm:request_decode_time_seconds": "decode",
    "vllm:request_num_preemptions": "preempted",
    "vllm:request_prefill_kv_computed_tokens": "kv_computed",
}
"""Which of an engine's counters a histogram family shows."""
