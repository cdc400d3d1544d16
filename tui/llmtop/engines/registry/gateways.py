"""Routers and gateways in front of engines: what passes through them, and nothing of the engines' insides."""

from __future__ import annotations

from llmtop.engines.command_line import process
from llmtop.engines.registry.entry import EngineEntry, counter, gauge, histogram


def _rust(prefix: str) -> EngineEntry:
    """The router in Rust, which has been given three names so far."""
    return EngineEntry(
        "vllm-router",
        "vllm-router",
        (
            *gauge("running", f"{prefix}running_requests"),
            *counter("requests", f"{prefix}requests_total"),
            *histogram("e2e", f"{prefix}request_duration_seconds"),
        ),
        row_labels=("worker",),
        processes=(process(r"(^|\.)sglang_router\.launch_(router|server)$"), process(r"(^|/)(sglang-router|smg)$")),
        port=29000,
        port_options=("--prometheus-port",),
        silent_on="waiting, tokens and KV cache: those of its workers",
    )


VLLM_ROUTER = _rust("vllm_router_")
SGL_ROUTER = _rust("sgl_router_")
SMG = _rust("smg_")

LLM_D = EngineEntry(
    "llm-d",
    "llm-d",
    (
        # the pool's own gauges are means over its pods, and a mean of queues is no queue
        *gauge("running", "inference_objective_running_requests", "inference_model_running_requests"),
        *gauge("waiting", "inference_extension_flow_control_queue_size"),
        *counter("prompt", "inference_objective_input_tokens_sum", "inference_model_input_tokens_sum"),
        *counter("generation", "inference_objective_output_tokens_sum", "inference_model_output_tokens_sum"),
        *counter("requests", "inference_objective_request_total", "inference_model_request_total"),
        *counter("finished:error", "inference_objective_request_error_total", "inference_model_request_error_total"),
        *histogram("ttft", "inference_objective_request_ttft_seconds"),
        *histogram("tpot", "inference_objective_normalized_time_per_output_token_seconds"),
        *histogram("e2e", "inference_objective_request_duration_seconds", "inference_model_request_duration_seconds"),
    ),
    port=9090,
    prefix="inference_",
    without_metrics="only means over its pods are on it: nothing has been routed yet",
    silent_on="KV cache: only a mean over its pods",
)
