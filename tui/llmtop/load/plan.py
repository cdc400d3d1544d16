"""What a load test will do, as data: target, levels, limits, caps; never a key.

A plan is made by `scenarios.build`, edited with `dataclasses.replace`, sent to the workers as JSON and kept
beside the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Route = Literal["completions", "chat"]
Api = Literal["auto", "completions", "chat"]  # auto: what preflight finds
PromptMode = Literal["ids", "text"]

ROUTES: Mapping[Api, str] = {
    "auto": "/v1/completions",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}
DEFAULT_SLO: Mapping[str, float] = {"user_tok_s": 6.0, "ttft_p99": 4.0}


@dataclass(frozen=True, slots=True)
class Level:
    """One level: how many requests, of which size, how many at once or how many a second.

    `request_rate` None is a closed loop of `concurrency` users; otherwise requests start at that rate
    (requests/s, gamma-distributed gaps of shape `burstiness`, 1 = Poisson) and `concurrency` caps how many
    are outstanding. `duration_s` ends the level early. Lengths are tokens.
    """

    name: str
    concurrency: int
    num_prompts: int
    input_len: int
    output_len: int
    request_rate: float | None = None
    burstiness: float = 1.0
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; `ttft_s` grows by the prompt tokens in flight / 1000, for slow prefills."""

    connect_s: float = 5.0
    ttft_s: float = 120.0
    idle_s: float = 60.0

    def first_token_s(self, level: Level) -> float:
        """How long to wait for a first token on `level`."""
        return self.ttft_s + level.concurrency * level.input_len / 1000


@dataclass(frozen=True, slots=True)
class Caps:
    """What no plan may exceed; enforced inside the worker. Tokens are prompt + asked output, of the run."""

    concurrency: int = 512
    requests_per_level: int = 20_000
    tokens: int = 50_000_000
    level_s: float = 3600.0
    run_s: float = 4 * 3600.0
    error_share: float = 0.2
    error_minimum: int = 10
    connect_errors: int = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run against one server; `url` is the origin and base path, without user, query or `/v1`."""

    url: str
    levels: tuple[Level, ...]
    scenario: str = "sweep"
    model: str | None = None
    api: Api = "auto"
    prompt_mode: PromptMode = "ids"
    seed: int = 0
    adaptive: bool = False  # stop climbing as `pace.Climb` says
    refine: int = 0  # levels to try between the last that kept the limits and the first that did not, at most
    slo: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_SLO))
    goodput_ms: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = True
    warm_up: bool = True
    timeouts: Timeouts = Timeouts()
    caps: Caps = Caps()

    def problems(self) -> list[str]:
        """Why this plan cannot run, in words; empty when it can."""
        caps, out = self.caps, []
        if not self.levels:
            out.append("no level")
        for level in self.levels:
            if not 1 <= level.concurrency <= caps.concurrency:
                out.append(f"{level.name}: concurrency {level.concurrency} is not within 1..{caps.concurrency}")
            if not 1 <= level.num_prompts <= caps.requests_per_level:
                out.append(f"{level.name}: {level.num_prompts} requests, not within 1..{caps.requests_per_level}")
            if min(level.input_len, level.output_len) < 1:
                out.append(f"{level.name}: lengths must be at least 1 token")
            if level.request_rate is not None and not 0 < level.request_rate < 100_000:
                out.append(f"{level.name}: request rate {level.request_rate:g}")
        if (tokens := self.tokens()[0] + self.tokens()[1]) > caps.tokens:
            out.append(f"{tokens:,} tokens, more than {caps.tokens:,}")
        return out

    def going_on(self, done: int, level: Level) -> Plan:
        """The plan with a level after the first `done` ones that was not in it, and none after that."""
        return replace(self, levels=(*self.levels[:done], level))

    def with_level(self, index: int, level: Level) -> Plan:
        """The plan as a run tells it by the level that it plays next: one between ends it."""
        told = self.levels[index].concurrency if index < len(self.levels) else None
        return self if not self.refine or told == level.concurrency else self.going_on(index, level)

    def requests(self) -> int:
        """Requests of all levels; an upper bound where a level is boxed in time."""
        return sum(level.num_prompts for level in self.levels)

    def tokens(self) -> tuple[int, int]:
        """Prompt and output tokens of all levels, an upper bound."""
        levels = self.levels
        prompt = sum(level.num_prompts * level.input_len for level in levels)
        return prompt, sum(level.num_prompts * level.output_len for level in levels)
