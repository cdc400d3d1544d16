"""What flowed through a server over its windows, all rows together: rates, latencies, caches, speculation, errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from llmtop.contract.snapshot import Latency, LatencySet, Rates
from llmtop.engines.quantiles import latency
from llmtop.engines.rates import RowWindow

Windows = Collection[RowWindow]
QUERY_SLACK = 1.02  # queries are counted when a request is admitted, prompts at its first token


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """Shares (0..1) of the prompt tokens that were looked up: found in the engine's own cache, in one outside it.

    `scope` is "local" where there is a cache outside.
    """

    rate: float | None = None
    external: float | None = None
    scope: Literal["local", "all"] | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """Accepted of the drafted tokens (0..1), also by place in the draft (per draft), and tokens per draft and step."""

    acceptance: float | None = None
    length: float | None = None
    by_position: tuple[float, ...] = ()
    tokens_per_step: float | None = None


def rates(windows: Windows) -> Rates:
    """Counter deltas per second."""
    spans = [span for window in windows if (span := window.span()) is not None]
    prompt = _rate(windows, "prompt")
    computed, cached = _prompt_parts(windows, prompt)
    finished, answers = per_second(windows, "finished"), per_second(windows, "http")
    return Rates(
        max(spans, default=None),
        _sum(windows, generation_rate),
        prompt,
        computed,
        cached,
        _rate(windows, "requests"),
        _rate(windows, "preemptions"),
        finished.get("error", 0.0) if finished else None,
        answers.get("4xx", 0.0) if answers else None,
        answers.get("5xx", 0.0) if answers else None,
        _rate(windows, "rejections"),
    )


def latencies(windows: Windows) -> LatencySet:
    """Bucket deltas of every latency, added over the rows."""
    spans = [span for window in windows if (span := window.span(window.spans.latency_s)) is not None]

    def of(signal: str) -> Latency:
        parts = (window.histogram(signal) for window in windows)
        return latency(part for part in parts if part is not None)

    return LatencySet(max(spans, default=None), of("ttft"), of("itl"), of("tpot"), of("e2e"), of("queue"))


def generation_rate(window: RowWindow) -> float | None:
    """Generated tokens per second; where the counter moves only when a request ends, what the engine says of its
    speed while something runs (SGLang), or over its busy time (llama.cpp)."""
    running = window.gauge("running")
    said = window.gauge("generation_rate")
    if said is not None:
        if said < 0 or window.stalled:  # the last word of an engine that hangs
            return None
        return said if running else 0.0
    span = window.span_for("generation")
    busy, generated = window.delta("generation_busy_s", span), window.delta("generation", span)
    if busy is None:
        return window.rate("generation")
    if window.too_coarse("generation", generated, worked=busy > 0):
        return None
    if busy > 0 and generated is not None:
        return generated / busy
    return None if running else 0.0


def prefix_hits(windows: Windows) -> PrefixHits:
    """Hit rates over the window; where nothing is counted, what the only engine says of itself."""
    queries = _delta(windows, "queries")
    external = _ratio(_delta(windows, "external_hits"), queries)
    outside = any(window.has("external_queries") or window.has("external_hits") for window in windows)
    if any(window.has("queries") for window in windows):
        rate = _ratio(_delta(windows, "hits"), queries)
    else:
        rate = _only(windows, "prefix_rate", most=1.0)
    scope: Literal["local", "all"] | None = None if rate is None else "local" if outside else "all"
    return PrefixHits(rate, external, scope)


def speculation(windows: Windows) -> Speculation:
    """How well drafts are accepted; SGLang says it, the others count it."""
    drafts, drafted, accepted = (_delta(windows, name) for name in ("drafts", "drafted", "accepted"))
    busy = [window for window in windows if window.gauge("running")]
    length = None if accepted is None or not drafts else 1.0 + accepted / drafts
    said = _only(busy, "spec_length")  # it keeps its last value when nothing runs
    counted = sorted(_by(windows, "accepted_at").items(), key=lambda item: (len(item[0]), item[0]))
    by_position = tuple(min(1.0, count / drafts) for _, count in counted) if drafts else ()
    acceptance = _ratio(accepted, drafted)
    return Speculation(
        _only(busy, "spec_rate", most=1.0) if acceptance is None else acceptance,
        said if length is None else length,
        by_position,
        _tokens_per_step(windows) if said is None else said,
    )


def per_second(windows: Windows, signal: str) -> Mapping[str, float]:
    """The rates of a counter by what it is told apart by: a finish reason, an HTTP status."""
    spans = [span for window in windows if (span := window.span())]
    if not spans:
        return {}
    return {name: count / max(spans) for name, count in sorted(_by(windows, signal).items())}


def _prompt_parts(windows: Windows, prompt: float | None) -> tuple[float | None, float | None]:
    """Computed and cached prompt tokens per second; before vLLM 0.16 the cached ones are what caches hit.

    Where more was looked up than was prompted, hits are of something else too, and neither part is known.
    """
    computed, cached = _rate(windows, "computed"), _rate(windows, "cached")
    if cached is not None:
        cached += _rate(windows, "transferred") or 0.0
    else:
        found = [rate for name in ("hits", "external_hits") if (rate := _rate(windows, name)) is not None]
        cached = sum(found) if found else None
        queries, prompted = _delta(windows, "queries"), _delta(windows, "prompt")
        if computed is None and queries is not None and prompted is not None and queries > QUERY_SLACK * prompted:
            return None, None
    if computed is None and prompt is not None and cached is not None:
        computed = max(0.0, prompt - cached)
    return computed, cached


def _tokens_per_step(windows: Windows) -> float | None:
    """Tokens that one engine step gives a request: above 1 with speculation or diffusion.

    vLLM observes ITL once per step and TTFT once per request, so steps = ΔITL count + ΔTTFT count.
    """
    steps, committed = _delta(windows, "diffusion_steps"), _delta(windows, "diffusion_tokens")
    if steps and committed is not None:
        return committed / steps
    generated = _delta(windows, "generation")
    itl, ttft = (_sum(windows, lambda w, name=name: _observed(w, name)) for name in ("itl", "ttft"))  # type: ignore[misc]
    if any(window.waits_for_ends("generation") for window in windows):
        return None
    if generated is None or itl is None or ttft is None or itl + ttft <= 0:
        return None
    return generated / (itl + ttft)


def _observed(window: RowWindow, signal: str) -> float | None:
    histogram = window.histogram(signal, window.spans.rate_s)
    return None if histogram is None else histogram.counts[-1]


def _sum(windows: Windows, figure: Callable[[RowWindow], float | None]) -> float | None:
    """A figure added over the rows that know it."""
    known = [value for window in windows if (value := figure(window)) is not None]
    return sum(known) if known else None


def _rate(windows: Windows, signal: str) -> float | None:
    return _sum(windows, lambda window: window.rate(signal))


def _delta(windows: Windows, signal: str) -> float | None:
    return _sum(windows, lambda window: window.delta(signal))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return min(1.0, part / whole) if part is not None and whole else None


def _only(windows: Windows, signal: str, most: float = 1e6) -> float | None:
    """A gauge of the only engine that has it; of several there is no right mean."""
    known = [value for window in windows if (value := window.gauge(signal)) is not None]
    return known[0] if len(known) == 1 and 0.0 <= known[0] <= most else None


def _by(windows: Windows, signal: str) -> dict[str, float]:
    """How much the parts of a counter rose: `signal:part`."""
    found: dict[str, float] = {}
    for window in windows:
        for name in window.counter_names():
            kind, _, part = name.partition(":")
            if kind == signal and part and (change := window.delta(name)) is not None:
                found[part] = found.get(part, 0.0) + change
    return found
