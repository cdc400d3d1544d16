"""What a run tells while it goes on: frozen records, for a screen, a progress bar or a JSON line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmtop.load.counters import ServerCounters
from llmtop.load.plan import Level
from llmtop.load.prompts import Profile
from llmtop.load.records import RequestRecord
from llmtop.load.results import LevelResult, RunResult


@dataclass(frozen=True, slots=True)
class Preflighted:
    """The server answered; this is what it is and accepts. `counters` is its state before any load."""

    profile: Profile
    counters: ServerCounters | None
    estimate_s: float | None = None  # of the whole run


@dataclass(frozen=True, slots=True)
class Measuring:
    """So many requests and tokens go to the idle server now, for the estimate of time."""

    requests: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class LevelPreparing:
    """Prompts are made, connections opened, one request warms the server up."""

    index: int
    level: Level


@dataclass(frozen=True, slots=True)
class LevelStarted:
    """A level begins at `t0_s` (time.perf_counter)."""

    index: int
    level: Level
    t0_s: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One slot of the running level; `age_s` since its request was sent."""

    slot: int
    state: Literal["idle", "wait", "decode"]  # "wait": no token yet
    tokens: int
    age_s: float


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A TTFT as it was read; `at_s` is when the token came (time.perf_counter)."""

    at_s: float
    ttft_s: float
    first_wave: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """Four times a second: where the level and the run are. tok/s over the last second, client and server."""

    index: int
    level: Level
    now_s: float
    sent: int
    completed: int
    errors: int
    running: int
    tokens: int
    tok_s: float | None
    server_tok_s: float | None
    server: ServerCounters | None
    lanes: tuple[Lane, ...]
    first_tokens: tuple[FirstToken, ...]
    fraction: float
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class RequestDone:
    """A request ended."""

    index: int
    record: RequestRecord


@dataclass(frozen=True, slots=True)
class LevelDone:
    """A level ended."""

    index: int
    result: LevelResult


@dataclass(frozen=True, slots=True)
class Draining:
    """After a stop or the last level: what the server still runs, and how much it ran before."""

    running: int | None
    before: int | None
    drained: bool


@dataclass(frozen=True, slots=True)
class Warned:
    """Something a person should read."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end."""

    result: RunResult


Event = (
    Preflighted
    | Measuring
    | LevelPreparing
    | LevelStarted
    | Progress
    | RequestDone
    | LevelDone
    | Draining
    | Warned
    | Finished
)
