"""What llama.cpp's server says instead of vLLM's page: a dozen counters, some moving only when a request
ends, and /slots.

Numbers have six significant digits, as a C++ stream prints them. The two throughput gauges of the real
server are reset by every reader; here they are the mean of the last finished requests.
"""

from __future__ import annotations

from llmtop.demo.engine import Engine
from llmtop.demo.profile import MachineProfile

CONTENT_TYPE = "text/plain; version=0.0.4"
BUILD = "b11434-simulated"


def page(engine: Engine) -> str:
    """The /metrics page."""
    counters, effort = engine.counters, engine.effort
    computed = counters.prompt_tokens - counters.cached_tokens
    predicted, decoding = counters.generation_len.sum, counters.decode.sum
    rows = (
        ("prompt_tokens_total", "counter", "Number of prompt tokens processed.", computed),
        ("prompt_seconds_total", "counter", "Prompt process time", effort.prefill_s),
        ("prompt_tokens_cached_total", "counter", "Prompt tokens reused from the cache.", counters.cached_tokens),
        ("tokens_predicted_total", "counter", "Number of generation tokens processed.", predicted),
        ("tokens_predicted_seconds_total", "counter", "Predict process time", decoding),
        ("n_decode_total", "counter", "Total number of llama_decode() calls", effort.steps),
        ("n_busy_slots_per_decode", "counter", "Average number of busy slots per llama_decode() call", _busy(engine)),
        ("prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s.", _rate(computed, effort.prefill_s)),
        ("predicted_tokens_seconds", "gauge", "Average generation throughput in tokens/s.", _rate(predicted, decoding)),
        ("requests_processing", "gauge", "Number of requests processing.", engine.running),
        ("requests_deferred", "gauge", "Number of requests deferred.", engine.waiting),
    )
    return "".join(
        f"# HELP llamacpp:{name} {text}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {float(value):.6g}\n"
        for name, kind, text, value in rows
    )


def slots(engine: Engine) -> list[dict[str, object]]:
    """The /slots answer: every slot, its context and what it is generating."""
    places = engine.config.max_num_seqs
    context = engine.config.kv_tokens // places
    busy = engine.in_batch()
    answer: list[dict[str, object]] = []
    for number in range(places):
        slot: dict[str, object] = {"id": number, "n_ctx": context, "is_processing": number < len(busy)}
        if number < len(busy):
            item = busy[number]
            decoded = {"n_decoded": item.generated, "n_remain": item.wanted - item.generated, "has_next_token": True}
            slot |= {"id_task": int(item.id[1:]), "n_prompt_tokens": item.held, "next_token": [decoded]}
        answer.append(slot)
    return answer


def props(profile: MachineProfile, model: str) -> dict[str, object]:
    """The /props answer."""
    places = profile.engine.max_num_seqs
    settings = {"n_ctx": profile.engine.kv_tokens // places}
    return {
        "default_generation_settings": settings,
        "total_slots": places,
        "model_alias": model,
        "model_path": f"/models/{model}.gguf",
        "build_info": BUILD,
    }


def _busy(engine: Engine) -> float:
    """Mean sequences a step, from the tokens it put out."""
    return engine.counters.generation_tokens / engine.effort.steps if engine.effort.steps else 0.0


def _rate(tokens: float, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
