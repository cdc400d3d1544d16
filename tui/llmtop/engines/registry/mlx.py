"""Servers on Apple's MLX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmtop.contract.units import clean
from llmtop.engines.command_line import process
from llmtop.engines.numbers import plain_number
from llmtop.engines.page_record import Page, RowSample
from llmtop.engines.registry.entry import AT_END, Door, EngineEntry, counter, gauge, histogram

VLLM_MLX = EngineEntry(
    "vllm-mlx",
    "vllm-mlx",
    (
        *gauge("running", "vllm_mlx_scheduler_running_requests"),
        *gauge("waiting", "vllm_mlx_scheduler_waiting_requests"),
        *counter("prompt", "vllm_mlx_prompt_tokens_total", rank=AT_END),
        *counter("generation", "vllm_mlx_completion_tokens_total", rank=AT_END),
        *gauge("prefix_rate", "vllm_mlx_cache_hit_rate"),
        *histogram("ttft", "vllm_mlx_inference_ttft_seconds"),
        *histogram("e2e", "vllm_mlx_inference_request_duration_seconds"),
    ),
    door=Door("/v1/status", model=(("model",),)),
    processes=(process(r"(^|/)vllm-mlx$", "serve"), process(r"(^|\.)vllm_mlx\.server$")),
    limit_options=("--max-num-seqs",),
    without_metrics="start it with --enable-metrics",
    silent_on="KV cache; its counters move when a request ends",
)


def _mlx_vlm(body: bytes, t: float) -> Page | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    summary, server = (answer.get(name) for name in ("summary", "server")) if isinstance(answer, dict) else (None, None)
    if not isinstance(summary, dict) or "in_flight" not in summary:
        return None
    server = server if isinstance(server, dict) else {}
    gauges = {"running": summary.get("in_flight"), "max_model_len": server.get("effective_context_limit")}
    counters = {
        "prompt": summary.get("prompt_tokens_total"),
        "generation": summary.get("completion_tokens_total"),
        "requests": summary.get("requests_completed"),
    }
    model = server.get("loaded_model")
    name, ended = clean(model) if isinstance(model, str) else "", frozenset({"prompt", "generation"})
    row = RowSample((name, "0"), _numbers(gauges), _numbers(counters), at_end=ended)
    return Page(t, MLX_VLM.name, (row,))


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: number for name, value in values.items() if (number := plain_number(value)) is not None}


MLX_VLM = EngineEntry(
    "mlx-vlm",
    "mlx-vlm",
    read_json=_mlx_vlm,
    paths=("/v1/metrics",),
    processes=(process(r"(^|/)mlx_vlm\.server$"),),
    port=8080,
    silent_on="waiting, KV cache, latencies; its counters move when a request ends",
)
MLX_LM = EngineEntry(
    "mlx-lm",
    "MLX",
    processes=(process(r"(^|/)mlx_lm\.server$"), process(r"(^|/)mlx_lm$", "server")),
    port=8080,
    without_metrics="it has no metrics: only a load test measures it",
    silent_on="everything but its name",
)
