"""`llmtop proxy`: any server, measured by the traffic that passes."""

from __future__ import annotations

from llmtop.engines.registry.entry import AT_END, EngineEntry, counter, gauge, histogram

PROXY = EngineEntry(
    "llmtop-proxy",
    "behind llmtop proxy",
    (
        *gauge("running", "llmtop_proxy_requests_running"),
        *counter("generation", "llmtop_proxy_generation_tokens_total"),
        *counter("generation", "llmtop_proxy_generation_tokens_at_end_total", rank=AT_END),
        *counter("prompt", "llmtop_proxy_prompt_tokens_total", rank=AT_END),
        *counter("hits", "llmtop_proxy_prompt_tokens_cached_total", rank=AT_END),
        *counter("queries", "llmtop_proxy_prompt_tokens_total", rank=AT_END),
        *counter("requests", "llmtop_proxy_requests_total"),
        *counter("finished", "llmtop_proxy_requests_total", by="finished_reason"),
        *gauge("pulse", "llmtop_proxy_alive_seconds"),
        *histogram("ttft", "llmtop_proxy_time_to_first_token_seconds"),
        *histogram("itl", "llmtop_proxy_inter_token_latency_seconds"),
        *histogram("tpot", "llmtop_proxy_time_per_output_token_seconds"),
        *histogram("e2e", "llmtop_proxy_request_duration_seconds"),
    ),
    prefix="llmtop_proxy_",
    without_metrics="nobody has asked for tokens through it yet",
    silent_on="waiting and KV cache; prompt tokens come with the end of an answer",
)
