"""What is known of one start-up: its phases, figures, progress and failure, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llmtop.warmup.failure import StartFailure
from llmtop.warmup.phrases import EngineName, PhaseName

StartState = Literal["starting", "ready", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: when it began (seconds since the first log line), how long it took, and the least headroom in it.

    `began` and `ended` are Unix times by this machine's clock, known only for lines that were seen as they came.
    """

    name: PhaseName
    start_s: float | None
    seconds: float | None
    min_headroom_bytes: int | None = None
    inferred: bool = False
    min_headroom_time: float | None = None
    pools: Mapping[str, int] = field(default_factory=dict)  # the least headroom of every pool, bytes
    began: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What one process said about itself; sizes in GiB."""

    name: str | None
    pid: int | None
    weights_gib: float | None = None
    weights_seconds: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    graph_gib: float | None = None
    graph_seconds: float | None = None
    init_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far a step with a progress bar is."""

    phase: PhaseName
    label: str
    done: int
    total: int
    percent: float
    took_s: float | None = None  # how long the phase had run when that was said


@dataclass(frozen=True, slots=True)
class Startup:
    """One start-up so far; sizes in GiB (2^30), None where the log does not say."""

    state: StartState = "starting"  # "stopped": it has ended after it was ready, or was told to before
    phase: PhaseName | None = "start"  # None: the log says nothing of a start-up
    phases: tuple[Phase, ...] = ()
    version: str | None = None
    model: str | None = None
    url: str | None = None
    weights_gib: float | None = None
    weights_seconds: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    graph_gib: float | None = None
    graph_seconds: float | None = None
    init_seconds: float | None = None
    ready_seconds: float | None = None
    failure: StartFailure | None = None
    workers: tuple[WorkerFigures, ...] = ()
    progress: StepProgress | None = None
    figures: Mapping[str, float] = field(default_factory=dict)  # the other numbers of the log, by name
    notices: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    ready_at: float | None = None  # Unix time
    engine: EngineName | None = None
    foreign: str | None = None  # whose log it is, when it is of another program
    waits: str | None = None  # what the start-up waits for, and for how long
    served_s: float | None = None  # how long it served before it ended, as far as the log says
    ended_by: str | None = None  # the line that said that it ends

    def figure(self, name: str) -> float | None:
        """Another number of the log, such as `utilization`, `total_gib` or `checkpoint_gib`."""
        return self.figures.get(name)
