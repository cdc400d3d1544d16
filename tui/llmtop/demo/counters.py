"""What a vLLM engine counts: plain counters and histograms with vLLM 0.32's bounds."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_LATENCY_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_LATENCY_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
ITERATION_BOUNDS = tuple(float(n) for n in (1, *(2**k for k in range(3, 15))))
PARAM_N_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def length_bounds(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to `longest` tokens: vLLM's bounds for request lengths."""
    decades = (m * 10**e for e in range(len(str(longest))) for m in (1, 2, 5))
    return tuple(float(n) for n in decades if n <= longest)


class BucketCounter:
    """Counts per bucket (upper bound included, one more for +Inf) and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """All observations."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Observations at or below each bound, +Inf last."""
        total = 0
        return [total := total + n for n in self.counts]


@dataclass(slots=True)
class Gauges:
    """What the engine reported with its last step; frozen while no step runs."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


class Counters:
    """Everything one engine counts since its start; with vLLM's meaning of each."""

    __slots__ = (
        "cached_tokens", "canvas_positions", "committed_tokens", "decode", "denoising_steps", "e2e",
        "finished", "generation_len", "generation_tokens", "inference", "iteration", "itl", "kv_computed",
        "max_generation", "param_max_tokens", "param_n", "preempted", "preemptions", "prefill",
        "prefix_hits", "prefix_queries", "prompt_len", "prompt_tokens", "queue", "tpot", "ttft",
    )  # fmt: skip

    def __init__(self, max_model_len: int) -> None:
        lengths = length_bounds(max_model_len)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.preemptions = 0
        self.denoising_steps = 0
        self.canvas_positions = 0
        self.committed_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.ttft = BucketCounter(TTFT_BOUNDS)
        self.itl, self.tpot = BucketCounter(TOKEN_LATENCY_BOUNDS), BucketCounter(TOKEN_LATENCY_BOUNDS)
        self.e2e, self.queue = BucketCounter(REQUEST_LATENCY_BOUNDS), BucketCounter(REQUEST_LATENCY_BOUNDS)
        self.prefill, self.decode = BucketCounter(REQUEST_LATENCY_BOUNDS), BucketCounter(REQUEST_LATENCY_BOUNDS)
        self.inference = BucketCounter(REQUEST_LATENCY_BOUNDS)
        self.iteration = BucketCounter(ITERATION_BOUNDS)
        self.prompt_len, self.generation_len = BucketCounter(lengths), BucketCounter(lengths)
        self.max_generation, self.param_max_tokens = BucketCounter(lengths), BucketCounter(lengths)
        self.kv_computed = BucketCounter(lengths)
        self.param_n = BucketCounter(PARAM_N_BOUNDS)
        self.preempted = BucketCounter(PREEMPTION_BOUNDS)


@dataclass(slots=True)
class Effort:
    """How the engine spent its time since its start, in seconds of its own clock: what the simulated GPU
    follows.
    """

    busy_s: float = 0.0
    prefill_s: float = 0.0
    steps: int = 0
