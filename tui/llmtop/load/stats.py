"""The arithmetic of `vllm bench serve`, and what llmtop adds to it.

The first half gives the same numbers under the same names as `vllm bench serve --save-result` (0.33.0):
numpy's linear percentiles, population standard deviation, peaks per whole second; milliseconds out. The
second half is llmtop's own: exact concurrency, the steady window, tokens weighted by chunk.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmtop.load.completion import Outcome
from llmtop.load.records import RequestRecord
from llmtop.load.results import LevelResult, Spread

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
BEHIND = 0.05


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of ascending values by numpy's `linear` method; `ordered` must not be empty."""
    position = (len(ordered) - 1) * percent / 100
    low = min(int(position), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    step, share = ordered[high] - ordered[low], position - low
    return ordered[high] - step * (1 - share) if share >= 0.5 else ordered[low] + step * share


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean; None without values."""
    return math.fsum(values) / len(values) if values else None


def spread(values: Sequence[float]) -> Spread | None:
    """Mean, median, deviation and percentiles of values in seconds; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    average = math.fsum(ordered) / len(ordered)
    percents = (percentile(ordered, percent) for percent in (50, *PERCENTILES))
    deviation = math.sqrt(_variance(ordered))
    return Spread(average * 1000, next(percents) * 1000, deviation * 1000, *(p * 1000 for p in percents))


@dataclass(frozen=True, slots=True)
class Timing:
    """One successful request as vLLM's statistics see it: seconds and token counts."""

    start_s: float
    ttft_s: float
    itls_s: Sequence[float]
    latency_s: float
    input_tokens: int
    output_tokens: int
    first_tokens: int = 1

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first chunk, whose tokens came at once; None when nothing came later.

        Where that chunk is one token, it is vLLM's (latency - TTFT)/(tokens - 1).
        """
        later = self.output_tokens - max(self.first_tokens, 1)
        return (self.latency_s - self.ttft_s) / later if later > 0 and self.itls_s else None


def timing(record: RequestRecord) -> Timing | None:
    """The timing of a successful request, else None."""
    if not record.ok or record.ttft_s is None:
        return None
    return Timing(
        start_s=record.start_s,
        ttft_s=record.ttft_s,
        itls_s=record.itls_s,
        latency_s=record.latency_s,
        input_tokens=record.asked_prompt if record.prompt_tokens is None else record.prompt_tokens,
        output_tokens=record.output,
        first_tokens=record.first_tokens or 1,
    )


def measured(timings: Sequence[Timing], duration_s: float) -> LevelResult:
    """What `vllm bench serve` computes, of a level without a name; `duration_s` runs to the last answer."""
    tokens_in = sum(t.input_tokens for t in timings)
    tokens_out = sum(t.output_tokens for t in timings)
    tokens_per_s, requests = peaks_per_second(timings)
    return LevelResult(
        "",
        duration=duration_s,
        completed=len(timings),
        total_input_tokens=tokens_in,
        total_output_tokens=tokens_out,
        requests_s=len(timings) / duration_s,
        tok_s=tokens_out / duration_s,
        total_tok_s=(tokens_in + tokens_out) / duration_s,
        peak_tok_s=tokens_per_s,
        peak_requests=requests,
        ttft=spread([t.ttft_s for t in timings]),
        tpot=spread([tpot for t in timings if (tpot := t.tpot_s) is not None]),
        itl=spread([gap for t in timings for gap in t.itls_s]),
        e2el=spread([t.latency_s for t in timings]),
    )


def peaks_per_second(timings: Sequence[Timing]) -> tuple[float, int]:
    """vLLM's peaks: chunks in the fullest whole second, and requests that touch the fullest whole second.

    The first counts chunks as tokens, the second counts a request in every second it touches, so that "peak
    concurrent" can exceed the concurrency; `peak_concurrency` is the exact one.
    """
    if not timings:
        return 0.0, 0
    begin = min(t.start_s for t in timings)
    end = max(t.start_s + t.latency_s for t in timings)
    chunks = [0] * (math.ceil(end - begin) + 1)
    requests = list(chunks)
    for t in timings:
        now = t.start_s + t.ttft_s
        for gap in (0.0, *t.itls_s):
            now += gap
            if 0 <= (second := int(now - begin)) < len(chunks):
                chunks[second] += 1
        for second in range(int(t.start_s - begin), int(t.start_s + t.latency_s - begin) + 1):
            requests[second] += 1
    return float(max(chunks)), max(requests)


def good_requests(timings: Sequence[Timing], limits_ms: Mapping[str, float]) -> int:
    """Requests within every limit of `--goodput` (`ttft`, `tpot`, `e2el`, in milliseconds)."""

    def good(t: Timing) -> bool:
        seconds = {"ttft": t.ttft_s, "tpot": t.tpot_s, "e2el": t.latency_s}
        return all((value := seconds[name]) is not None and value * 1000 <= limit for name, limit in limits_ms.items())

    return sum(map(good, timings))


def peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """The most requests in flight at one instant, exactly."""
    steps = [(r.start_s, 1) for r in records] + [(r.end_s, -1) for r in records]
    peak = now = 0
    for _, step in sorted(steps):  # at equal times the end (-1) comes first
        now += step
        peak = max(peak, now)
    return peak


def steady_window(records: Sequence[RequestRecord]) -> tuple[float, float] | None:
    """From the last first token of the first wave to the launch of the last request; None if empty."""
    firsts = [r.start_s + r.ttft_s for r in records if r.first_wave and r.ttft_s is not None]
    if not firsts:
        return None
    begin, end = max(firsts), max(r.start_s for r in records)
    return (begin, end) if end > begin else None


def tokens_between(timings: Sequence[Timing], begin_s: float, end_s: float) -> float:
    """Output tokens in a span; a request's tokens are spread evenly over its chunks."""
    total = 0.0
    for t in timings:
        weight = t.output_tokens / (1 + len(t.itls_s))
        now = t.start_s + t.ttft_s
        for gap in (0.0, *t.itls_s):
            now += gap
            total += weight if begin_s <= now < end_s else 0.0
    return total


@dataclass(frozen=True, slots=True)
class Pacing:
    """How an open loop went: requests/s as scheduled and as done, and whether the server fell ever further behind."""

    offered_s: float | None = None
    achieved_s: float | None = None
    saturated: bool | None = None


def pacing(records: Sequence[RequestRecord]) -> Pacing:
    """The pacing of requests with scheduled starts.

    Done per second counts from the first end to the last, so that the time of one answer drops out; where answers end
    in a heap after the last arrival, over the whole time. A server that keeps up has times to the first and to the last
    token that stay; a rate at which one of them grows, or arrivals had to wait for a free slot, is not sustained.
    """
    sent = sorted((r for r in records if r.outcome is not Outcome.CANCELLED), key=lambda r: r.start_s)
    done = [r for r in sent if r.ok]
    ends = sorted(r.end_s for r in done)
    offered, achieved, behind = _per_second([r.start_s for r in sent]), _per_second(ends), _behind(done)
    if achieved is not None and offered is not None and achieved > offered:
        achieved = len(ends) / (ends[-1] - sent[0].start_s) if behind else offered
    return Pacing(offered, achieved, behind)


def _per_second(times: Sequence[float]) -> float | None:
    span = times[-1] - times[0] if len(times) > 1 else 0.0
    return (len(times) - 1) / span if span > 0 else None


def _behind(done: Sequence[RequestRecord]) -> bool | None:
    quarter = len(done) // 4
    if quarter < 3:
        return None
    last = done[-quarter:]
    if sum(r.late_s > max(0.05, 0.05 * r.latency_s) for r in last) > 0.2 * quarter:
        return True
    starts = [r.start_s for r in done]
    times = ([r.end_s - r.start_s for r in done], [r.ttft_s or 0.0 for r in done])
    return any(_grows(starts, values, quarter) for values in times)


def _grows(starts: Sequence[float], values: Sequence[float], quarter: int) -> bool:
    """Whether a time grows by more than `BEHIND` of the time that passes, in the second half and still in its end."""
    cuts = [slice(k * quarter, (k + 1) * quarter) for k in (1, 2)] + [slice(len(values) - quarter, len(values))]
    at = [math.fsum(starts[cut]) / quarter for cut in cuts]
    mean = [math.fsum(values[cut]) / quarter for cut in cuts]
    middle = [statistics.median(values[cut]) for cut in cuts]  # a few that waited long are no growth
    noise = math.sqrt(sum(_variance(values[cuts[k]]) / quarter for k in (0, 2)))
    grows = all(m[2] - m[k] > BEHIND * (at[2] - at[k]) for m in (mean, middle) for k in (0, 1))
    return grows and mean[2] - mean[0] > 3 * noise


def _variance(values: Sequence[float]) -> float:
    average = math.fsum(values) / len(values)
    return math.fsum((value - average) ** 2 for value in values) / len(values)
