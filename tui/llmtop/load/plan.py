"""What a load test will do, as data: target, levels, limits, caps; never a key.

A plan is made by `scenarios.build`, edited with `dataclasses.replace`, sent to the workers as JSON and kept
beside the results.
"""

from __future__ import annotations

import math
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
CHUNK = 2048  # prompt tokens that a step reads
STEP_GROWTH = 0.07  # of a step by each further user, where only one number of users is known
LONG = 100  # requests: a shorter plan is over before its length is of interest
SHORT_LEN = 16  # prompt tokens of a request that asks for nothing in particular
_MEASURED_USERS, MEASURED_TOKENS = 32, 12
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
    adaptive: bool = False  # stop climbing when the limits fail twice or gains end
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

    def requests(self) -> int:
        """Requests of all levels; an upper bound where a level is boxed in time."""
        return sum(level.num_prompts for level in self.levels)

    def tokens(self) -> tuple[int, int]:
        """Prompt and output tokens of all levels, an upper bound."""
        levels = self.levels
        prompt = sum(level.num_prompts * level.input_len for level in levels)
        return prompt, sum(level.num_prompts * level.output_len for level in levels)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the server is, for the estimate of time: prompt tokens/s, and seconds of a step by users at once."""

    prefill_tok_s: float
    steps: tuple[tuple[int, float], ...]  # by rising users, one at least
    most: int | None = None  # users that the server serves at once; None: all that were seen

    def step_s(self, users: int) -> float:
        """Seconds per token of each of so many users: straight between what is known, and on after it."""
        (low, first), *rest = self.steps
        if not rest:
            return first * (1 + STEP_GROWTH * (users - 1)) / (1 + STEP_GROWTH * (low - 1))
        for high, then in rest:
            slope = (then - first) / (high - low)
            if users <= high:
                break
            low, first = high, then
        return max(self.steps[0][1], first + slope * (users - low))


def measurement(plan: Plan) -> tuple[Level, ...]:
    """What an idle server is asked before a long plan, for the estimate of its time; empty where nothing is.

    One request with a long prompt, then several short ones at once: no more than the plan itself asks for.
    """
    longest = max((level.input_len + level.output_len for level in plan.levels), default=0)
    prompt = min(CHUNK, longest - MEASURED_TOKENS)
    if plan.requests() < LONG or plan.scenario == "soak" or prompt < 1:
        return ()
    users = min(_MEASURED_USERS, max(level.concurrency for level in plan.levels))
    several = (Level("together", users, users, min(SHORT_LEN, prompt), MEASURED_TOKENS),) if users > 2 else ()
    return (Level("alone", 1, 1, prompt, MEASURED_TOKENS), *several)


def measurement_words(plan: Plan) -> str | None:
    """What `measurement` sends, in words; None where it sends nothing."""
    sent = replace(plan, levels=measurement(plan))
    prompt, output = sent.tokens()
    size = f"{sent.requests()} requests, {prompt:,} prompt + {output:,} output tokens"
    return f"{size} before it time an idle server; they are in no figure" if sent.levels else None


def estimate_s(plan: Plan, pace: Pace | None) -> float | None:
    """About how long the plan takes, in seconds; None when the server's speed is unknown."""
    return None if pace is None else sum(level_s(level, pace, plan.warm_up) for level in plan.levels)


def level_s(level: Level, pace: Pace, warm_up: bool = False) -> float:
    """About how long one level takes, in seconds, by a small model of continuous batching.

    Prompts are read one after another; each step that reads a part of one also makes a token for every other user, and
    what is left of the answers takes steps of its own.
    """
    count = level.num_prompts
    users = min(level.concurrency, count, pace.most or count)
    read_s = level.input_len / pace.prefill_tok_s
    steps = count * (level.output_len - 1) / users
    beside = count * math.ceil(level.input_len / CHUNK) * (users - 1) / users
    busy_s = count * read_s + max(0.0, steps - beside) * pace.step_s(users)
    alone_s = read_s + level.output_len * pace.step_s(1)
    if level.request_rate is not None:
        busy_s = max(busy_s, count / level.request_rate + alone_s)
    if level.duration_s is not None:
        busy_s = min(busy_s, level.duration_s)
    return busy_s + (alone_s if warm_up else 0.0)
