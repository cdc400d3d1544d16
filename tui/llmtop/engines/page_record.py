"""What one metrics page said, in the same terms for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_REQUESTS, MOST_TOKENS = 1e9, 1e15  # more is no number of requests, or tokens
RowKey = tuple[str, str]  # (model, engine); model "" where the page does not name it
NO_ENGINE = ""  # the engine of a row that holds what is of the page and of none of its engines


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts by ascending upper bound (seconds), the last bound being +Inf."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float | None
    count: float


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The labels of `vllm:cache_config_info` that say how large the KV cache is; None where it says "None".

    `summed`: the blocks are those of all data-parallel engines together, as vLLM counts them, which are `sharers`.
    `null_block`: one of each engine's is never used.
    """

    num_gpu_blocks: int | None = None
    block_size: int | None = None
    size_tokens: int | None = None
    max_concurrency: float | None = None
    gpu_memory_utilization: float | None = None
    summed: bool = True
    sharers: int = 1
    null_block: bool = False


@dataclass(frozen=True, slots=True)
class RowSample:
    """One engine of a page: gauges, counters and histograms by signal name (see `registry`)."""

    key: RowKey
    gauges: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict)
    config: CacheConfig | None = None
    sleep_level: int | None = None  # None = the page does not say, 0 = awake
    role: str | None = None  # "prefill" or "decode" where the two are done by different engines
    unread: frozenset[str] = frozenset()  # gauges and counters that are there, as NaN or Inf
    late_gauges: bool = False  # an engine that counts and has none has not stepped yet
    at_end: frozenset[str] = frozenset()  # counters that move only when a request ends

    @property
    def is_engine(self) -> bool:
        """Whether it is an engine, and not what a page says of none of its engines."""
        return self.key[1] != NO_ENGINE


@dataclass(frozen=True, slots=True)
class Page:
    """One metrics page; `t` is the monotonic time of its first body byte, `partial` a body cut inside a line."""

    t: float
    dialect: str
    rows: tuple[RowSample, ...]
    start_time: float | None = None
    lora: tuple[str, ...] = ()
    partial: bool = False
    bad_lines: int = 0
    digits: int | None = None  # of a large counter that the engine prints; None = all
    clock: float | None = None  # Unix time when it came
    words: str | None = None  # what such a page cannot say
