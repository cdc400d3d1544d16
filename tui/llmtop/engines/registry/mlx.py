"""Servers on Apple's MLX."""

from __future__ import annotations

from llmtop.engines.registry.entry import Door, Engine, counter, gauge, histogram, process

VLLM_MLX = Engine(
    "vllm-mlx",
    "vllm-mlx",
    (
        *gauge("running", "vllm_mlx_scheduler_running_requests"),
        *gauge("waiting", "vllm_mlx_scheduler_waiting_requests"),
        *counter("prompt", "vllm_mlx_prompt_tokens_total"),
        *counter("generation", "vllm_mlx_completion_tokens_total"),
        *gauge("prefix_rate", "vllm_mlx_cache_hit_rate"),
        *histogram("ttft", "vllm_mlx_inference_ttft_seconds"),
        *histogram("e2e", "vllm_mlx_inference_request_duration_seconds"),
    ),
    door=Door("/v1/status", model=(("model",),)),
    processes=(process(r"(^|/)vllm-mlx$", "serve"),),
    without_metrics="start it with --enable-metrics",
    silent_on="KV cache; its counters move when a request ends",
)
