"""Closed-loop load in virtual time: what a profile's engine would show a load test, without HTTP and
without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.demo.engine import Engine, Request
from llmtop.demo.profile import MachineProfile


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a sweep: how many in flight, how many requests, tokens in and out of each."""

    concurrency: int
    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What a load test would report of a level; times in seconds, one entry per request."""

    level: Level
    duration_s: float
    ttfts: tuple[float, ...]
    latencies: tuple[float, ...]

    @property
    def output_tok_s(self) -> float:
        """Output tokens of all requests over the whole duration."""
        return self.level.requests * self.level.output_tokens / self.duration_s

    @property
    def per_user_tok_s(self) -> float:
        """The share of one of the concurrent users."""
        return self.output_tok_s / self.level.concurrency

    @property
    def ttft_p99(self) -> float:
        """P99 of the time to the first token (linear interpolation, as numpy's default)."""
        return percentile(self.ttfts, 99)


def run_level(profile: MachineProfile, level: Level) -> LevelResult:
    """Runs a level on a fresh engine: `concurrency` requests at once, the next one as soon as one ends."""
    engine = Engine(profile)
    arrivals: dict[str, float] = {}
    first: dict[str, float] = {}
    latencies: list[float] = []
    now = 0.0

    def launch(at: float) -> None:
        number = len(arrivals)
        base = number * level.prompt_tokens
        prompt = range(base, base + level.prompt_tokens)
        engine.submit(Request(str(number), prompt, level.output_tokens, at))
        arrivals[str(number)] = at

    for _ in range(min(level.concurrency, level.requests)):
        launch(now)
    while (step := engine.begin(now)) is not None:
        now = step.end
        for output in engine.finish(step):
            first.setdefault(output.id, now - arrivals[output.id])
            if output.finish_reason is not None:
                latencies.append(now - arrivals[output.id])
                if len(arrivals) < level.requests:
                    launch(now)
    return LevelResult(level, now, tuple(first.values()), tuple(latencies))


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile with linear interpolation; raises ValueError on no values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = (len(ordered) - 1) * q / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
