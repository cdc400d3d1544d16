"""Text Generation Inference."""

from __future__ import annotations

from llmtop.engines.command_line import process
from llmtop.engines.registry.entry import AT_END, Door, EngineEntry, Remedies, counter, gauge, histogram

TGI = EngineEntry(
    "tgi",
    "TGI",
    (
        *gauge("running", "tgi_batch_current_size"),
        *gauge("waiting", "tgi_queue_size"),
        *gauge("kv_capacity", "tgi_batch_max_total_tokens", fold="max"),
        *gauge("kv_used", "tgi_batch_current_max_tokens"),
        *gauge("kv_total", "tgi_batch_max_total_tokens", fold="max"),
        *counter("generation", "tgi_request_generated_tokens_sum", rank=AT_END),
        *counter("prompt", "tgi_request_input_length_sum", rank=AT_END),
        *counter("requests", "tgi_request_success"),
        *counter("finished:error", "tgi_request_failure"),
        *counter("iterations", "tgi_batch_inference_count", match=("method", "decode")),
        # the time of a prefill batch, which a first token waits for
        *histogram("ttft", "tgi_batch_inference_duration", match=("method", "prefill")),
        *histogram("itl", "tgi_batch_inference_duration", match=("method", "decode")),
        *histogram("tpot", "tgi_request_mean_time_per_token_duration"),
        *histogram("e2e", "tgi_request_duration"),
        *histogram("queue", "tgi_request_queue_duration"),
    ),
    door=Door("/info", model=(("model_id",),), version=(("version",),), max_model_len=(("max_total_tokens",),)),
    processes=(process(r"(^|/)text-generation-launcher$"), process(r"(^|/)text-generation-router$")),
    port=3000,
    port_options=("--port", "-p"),
    port_elsewhere=True,
    limit_options=("--max-concurrent-requests",),
    remedies=Remedies(
        users="raise --max-batch-total-tokens (or --max-batch-size)",
        cache="fewer users, less --max-total-tokens, --kv-cache-dtype fp8_e5m2, or more --cuda-memory-fraction",
        memory="lower --cuda-memory-fraction",
    ),
)
