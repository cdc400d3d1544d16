"""llama.cpp's server: its counters wait for the end of a request, /slots tells the tokens of running ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmtop.engines.command_line import process
from llmtop.engines.numbers import plain_number
from llmtop.engines.page_record import Page
from llmtop.engines.registry.entry import Door, EngineEntry, Kind, MetricSource, Remedies, counter, gauge


class Slots:
    """Turns finished tokens plus those of running slots into one counter that never runs back."""

    path = "/slots"

    def __init__(self) -> None:
        self._finished = self._live = 0.0

    def fill(self, page: Page, answer: Any) -> Page:
        """The page with a live generation counter, KV usage and capacity; unchanged when /slots said nothing."""
        slots = [slot for slot in answer if isinstance(slot, dict)] if isinstance(answer, list) else []
        if not slots or len(page.rows) != 1:
            return page
        row = page.rows[0]
        counters = {name: value for name, value in row.counters.items() if name != "generation_busy_s"}
        counters["generation"] = self._counter(counters.get("generation", 0.0), sum(map(_decoded, slots)))
        gauges = {**row.gauges, **_cache(slots)}
        return replace(page, rows=(replace(row, counters=counters, gauges=gauges),))

    def _counter(self, finished: float, running: float) -> float:
        if finished < self._finished:  # the server restarted
            self._live = 0.0
        self._finished = finished
        # a request may end between the two answers: its tokens are then missing for a moment
        self._live = max(self._live, finished + running)
        return self._live


def _decoded(slot: dict[str, Any]) -> float:
    if not slot.get("is_processing"):
        return 0.0
    following = slot.get("next_token")
    first = following[0] if isinstance(following, list) and following else following
    return _number(first.get("n_decoded")) if isinstance(first, dict) else 0.0


def _cache(slots: list[dict[str, Any]]) -> dict[str, float]:
    capacity = sum(_number(slot.get("n_ctx")) for slot in slots)
    if capacity <= 0:
        return {}
    if not any("n_prompt_tokens" in slot for slot in slots):
        return {"kv_capacity": capacity}
    used = sum(_number(slot.get("n_prompt_tokens")) for slot in slots if slot.get("is_processing"))
    return {"kv_usage": min(1.0, used / capacity), "kv_capacity": capacity}


def _number(value: Any) -> float:
    return plain_number(value) or 0.0


LLAMACPP = EngineEntry(
    "llamacpp",
    "llama.cpp",
    (
        # predicted_tokens_seconds and prompt_tokens_seconds are reset by every scrape of anyone: never read
        *gauge("running", "llamacpp:requests_processing"),
        *gauge("waiting", "llamacpp:requests_deferred"),
        *gauge("kv_usage", "llamacpp:kv_cache_usage_ratio", fold="max"),
        *counter("generation", "llamacpp:tokens_predicted_total"),
        *counter("generation_busy_s", "llamacpp:tokens_predicted_seconds_total"),
        *counter("prompt", "llamacpp:prompt_tokens_total"),
        *counter("computed", "llamacpp:prompt_tokens_total"),
        *counter("cached", "llamacpp:prompt_tokens_cached_total"),
        *counter("hits", "llamacpp:prompt_tokens_cached_total"),
        *counter("queries", "llamacpp:prompt_tokens_total"),  # those computed and
        *counter("queries", "llamacpp:prompt_tokens_cached_total"),
        *counter("iterations", "llamacpp:n_decode_total"),
        *counter("drafts", "llamacpp:spec_decode_num_drafts_total"),
        *counter("drafted", "llamacpp:spec_decode_num_draft_tokens_total"),
        *counter("accepted", "llamacpp:spec_decode_num_accepted_tokens_total"),
        MetricSource("itl", "llamacpp:tokens_predicted_seconds_total", Kind.SUM),
        MetricSource("itl", "llamacpp:tokens_predicted_total", Kind.COUNT),
    ),
    digits=6,
    door=Door(
        "/props",
        model=(("model_alias",),),
        model_file=("model_path",),
        version=(("build_info",),),
        max_model_len=(("default_generation_settings", "n_ctx"),),
        max_num_seqs=(("total_slots",),),
    ),
    beside=Slots,
    owner="llamacpp",
    processes=(process(r"(^|/)llama-server$"),),
    port=8080,
    port_elsewhere=True,
    limit_options=("--parallel", "-np", "--n-parallel"),
    has_slots=True,
    remedies=Remedies(
        users="more slots with -np (--parallel); they share the context of -c",
        cache="fewer users, more context in all with -c (--ctx-size), or -ctk q8_0 -ctv q8_0",
        memory="less context with -c (--ctx-size), or fewer layers on the GPU with -ngl",
    ),
    without_metrics="start it with --metrics",
    silent_on="time to first token",
)
