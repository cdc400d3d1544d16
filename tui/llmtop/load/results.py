"""What levels and runs found, as frozen records; times in milliseconds where the name says so, else in seconds.

`values_of` and the two `*_from` functions are the only way to JSON and back. There, and nowhere else, the figures have
the names that `vllm bench serve` gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from llmtop.contract.codec import NotGiven, plain, rebuild

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Spread:
    """A latency over the requests of a level, in milliseconds; of no request there is none."""

    mean_ms: float
    median_ms: float
    std_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Flag:
    """A doubt about a level, and what gave rise to it."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Totals:
    """What one side counted over a level; None = not counted."""

    generation: int | None = None
    prompt: int | None = None
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """What was sent and answered beside the levels, and is in none of their figures; None = not known."""

    preflight: Totals = Totals()
    measurement: Totals = Totals(0, 0, 0)  # of an idle server's speed, before a long plan
    warm_up: Totals = Totals(0, 0, 0)


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Our totals beside the server's; `checked` is False without its counters."""

    checked: bool = False
    client: Totals = Totals()
    server: Totals = Totals()


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One level as it went; None = unknown. Speeds are per second of the level, ramp and drain included."""

    level: str
    concurrency: int = 1  # as asked; `users` is what ran
    request_rate: float | None = None  # asked requests/s; None: a closed loop
    burstiness: float = 1.0
    num_prompts: int = 0
    input_len: int = 0
    output_len: int = 0
    backend: str = "openai"
    model: str | None = None
    date: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    # how it ended
    interrupted: bool = False
    stopped: str | None = None  # why it ended before its time
    refused: bool = False  # the server refused load (429, 503): no word about how fast it is
    errors: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # the words of each class of failure
    failed: int = 0
    retried: int = 0
    # by vLLM's arithmetic
    completed: int = 0
    duration: float = 0.0
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    requests_s: float = 0.0
    goodput_s: float | None = None
    goodput_share: float | None = None  # of all requests, failed ones included
    tok_s: float = 0.0
    total_tok_s: float = 0.0
    peak_tok_s: float = 0.0  # chunks in the fullest whole second
    peak_requests: int = 0  # requests that touch the fullest whole second
    ttft: Spread | None = None
    tpot: Spread | None = None
    itl: Spread | None = None
    e2el: Spread | None = None
    latencies: tuple[float, ...] = ()
    queue_times: tuple[float, ...] = ()
    # llmtop's own
    user_tok_s: float | None = None
    decode_tok_s: float | None = None
    ttft_burst: float | None = None
    ttft_burst_mean: float | None = None
    ttft_steady: float | None = None
    ttft_steady_mean: float | None = None
    ttft_steady_n: int = 0
    steady_tok_s: float | None = None
    server_ttft_s: float | None = None  # mean, by the server's own clock
    attainment: float | None = None
    reasoning_hidden: int = 0  # output tokens that were reasoning and not sent
    tokens_per_chunk: float | None = None
    times_one_user: float | None = None  # tok/s over that of one user with requests of the same size
    times_decode_alone: float | None = None  # and over what that user decodes, prompts not counted
    drift_tok_s: float | None = None
    drift_ttft: float | None = None
    peak_concurrency: int = 0
    kv_max: float | None = None
    waiting_max: int | None = None
    running_max: int | None = None
    headroom_min_bytes: int | None = None
    power_w: float | None = None
    joules_per_token: float | None = None
    late_max_s: float | None = None
    offered_req_s: float | None = None  # of an open loop: as scheduled
    achieved_req_s: float | None = None  # and as done
    saturated: bool | None = None  # whether the server fell ever further behind
    flags: tuple[Flag, ...] = ()
    counters: CrossCheck = CrossCheck()

    @property
    def users(self) -> int:
        """Users that really ran at once: fewer than asked where requests were too few."""
        return min(self.concurrency, self.peak_concurrency or self.concurrency)

    @property
    def failures(self) -> str | None:
        """How requests failed, by class and with the words of the server; None when none did."""
        said = (f"{number} {name}" + self._said(name) for name, number in self.errors.items())
        return ", ".join(said) or None

    def _said(self, name: str) -> str:
        return f" ({self.reasons[name]})" if name in self.reasons else ""

    @property
    def load(self) -> float:
        """Where the level stands on the axis of its sweep: users at once, or asked requests per second."""
        return self.users if self.request_rate is None else self.request_rate

    @property
    def whole(self) -> bool:
        """Whether it ran to its end with a request that succeeded."""
        return bool(self.completed) and not self.interrupted and self.stopped is None


@dataclass(frozen=True, slots=True)
class FirstFail:
    """The first level that breaks a limit, the limit, and the value that broke it."""

    level: str
    concurrency: int
    criterion: str
    value: float | None
    limit: float
    reason: str | None = None  # in the server's words, where requests failed
    burst_only: bool = False  # only the first wave failed: the steady TTFT would pass


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run as it ended: its levels and the answer; `sweet_spot` and `knee` are loads (see `LevelResult.load`).

    With `at_least`, no level broke a limit: the heaviest that ran is no more than a lower bound.
    """

    scenario: str
    words: str
    schema: int = SCHEMA
    interrupted: bool = False
    ended: str | None = None  # why it ended before its plan
    levels: tuple[LevelResult, ...] = ()
    sweet_spot: float | None = None
    at_least: bool = False
    first_fail: FirstFail | None = None
    knee: float | None = None
    met: bool = False
    monotone: bool = True  # no level passes after one that failed
    slo: Mapping[str, float] = field(default_factory=dict)
    goodput_ms: Mapping[str, float] = field(default_factory=dict)  # limits of each request, as in vLLM
    url: str = ""
    model: str | None = None
    api: str = "completions"
    prompts: str = "ids"
    refused: tuple[str, ...] = ()
    outside: Outside = Outside()
    notes: tuple[str, ...] = ()  # what a person should read beside the answer
    directory: str | None = None
    error: str | None = None
    engine: str | None = None  # as people call it, with its version


# JSON and back

_RENAMED = {  # our field: vLLM's key
    "model": "model_id",
    "requests_s": "request_throughput",
    "goodput_s": "request_goodput",
    "tok_s": "output_throughput",
    "total_tok_s": "total_token_throughput",
    "peak_tok_s": "max_output_tokens_per_s",
    "peak_requests": "max_concurrent_requests",
    "request_rate": "request_rate_value",
}
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_KINDS = tuple(part.name.removesuffix("_ms") for part in fields(Spread))
_VLLM_KEYS = (
    "date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency "
    "duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput "
    "output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests rtfx latencies "
    "queue_times"
)
_AS_NAMED = frozenset(_VLLM_KEYS.split())
_OWN_KEYS = _AS_NAMED | {part.name for part in fields(LevelResult)}  # what else is text is metadata


def values_of(result: LevelResult | RunResult) -> dict[str, Any]:
    """The JSON object of a level or a run."""
    if isinstance(result, LevelResult):
        return _level_values(result)
    values: dict[str, Any] = plain(result)
    return values | {"levels": [_level_values(level) for level in result.levels]}


def _level_values(level: LevelResult) -> dict[str, Any]:
    values: dict[str, Any] = plain(level)
    for name in _LATENCIES:
        spread = values.pop(name) or {}
        values |= {f"{kind}_{name}_ms": spread.get(f"{kind}_ms") for kind in _KINDS}
    metadata, flags = values.pop("metadata"), values["flags"]
    values = {_RENAMED.get(name, name): value for name, value in values.items()}
    values |= {
        "flags": [flag["name"] for flag in flags],
        "flag_reasons": {flag["name"]: flag["reason"] for flag in flags},
        "endpoint_type": level.backend,
        "label": None,
        "tokenizer_id": level.model,
        "request_rate": "inf" if level.request_rate is None else level.request_rate,
        "max_concurrency": level.concurrency,
        "rtfx": 0.0,
        "users": level.users,
    }
    return {**metadata, **values}


def bench_keys(level: LevelResult) -> dict[str, Any]:
    """A level as `vllm bench serve` writes it: its keys as they are, ours as flat `llmtop_*` scalars.

    Latencies of no request are 0 there, as vLLM's own tools expect.
    """
    out: dict[str, Any] = {}
    for key, value in _level_values(level).items():
        if key.endswith("_ms"):
            out[key] = 0.0 if value is None else value
        elif key in _AS_NAMED or key in level.metadata:
            out[key] = value
        else:
            out |= _flat(f"llmtop_{key}", value)
    return out


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Nested objects as one scalar per leaf, lists as one text."""
    if isinstance(value, Mapping):
        return {k: v for key, item in value.items() for k, v in _flat(f"{name}_{key}", item).items()}
    return {name: "; ".join(map(str, value)) if isinstance(value, list | tuple) else value}


def level_from(values: object) -> LevelResult:
    """The level of an object made by `values_of`, of any version; raises NotGiven."""
    if not isinstance(values, dict):
        raise NotGiven
    own = {name: values[key] for name, key in _RENAMED.items() if key in values}
    reasons = values.get("flag_reasons")
    given = {key: value for key, value in values.items() if key not in ("request_rate", "flags")} | own
    given["flags"] = [{"name": k, "reason": v} for k, v in reasons.items()] if isinstance(reasons, dict) else []
    given["metadata"] = {k: v for k, v in values.items() if isinstance(v, str) and k not in _OWN_KEYS}
    for name in _LATENCIES if values.get("completed") else ():
        given[name] = {f"{kind}_ms": values.get(f"{kind}_{name}_ms") for kind in _KINDS}
    level: LevelResult = rebuild(LevelResult, given)
    return level


def run_from(values: object) -> RunResult:
    """The run of an object made by `values_of`, of any version; raises NotGiven."""
    if not isinstance(values, dict) or not isinstance(values.get("levels"), list):
        raise NotGiven
    levels = tuple(level_from(level) for level in values["levels"])
    run: RunResult = rebuild(RunResult, {key: value for key, value in values.items() if key != "levels"})
    return replace(run, levels=levels)
