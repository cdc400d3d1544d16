"""What the load screen knows of a run: the events of the load thread, folded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from llmtop.load import recorded
from llmtop.load.counters import ServerCounters
from llmtop.load.events import (
    Draining,
    Event,
    Finished,
    FirstToken,
    LevelDone,
    LevelPreparing,
    LevelStarted,
    Measuring,
    Preflighted,
    Progress,
    RequestDone,
    Warned,
)
from llmtop.load.plan import Plan
from llmtop.load.results import LevelResult, RunResult
from llmtop.load.runner import LoadThread, RunOptions
from llmtop.session.poller import Feed

TREND = 240


@dataclass(slots=True)
class LoadState:
    """One run from its start to its result."""

    plan: Plan
    phase: str = "preflight"  # preflight, measuring, preparing, level, stopping, draining, finished, failed
    before: ServerCounters | None = None  # what the server counted before any load
    progress: Progress | None = None
    done: list[LevelResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    first_tokens: list[FirstToken] = field(default_factory=list)
    client: deque[float | None] = field(default_factory=lambda: deque(maxlen=TREND))
    server: deque[float | None] = field(default_factory=lambda: deque(maxlen=TREND))
    drain: Draining | None = None
    result: RunResult | None = None
    error: str | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def active(self) -> bool:
        """Whether load may still be on the server."""
        return self.phase not in ("finished", "failed")

    def take(self, event: Event) -> str | None:
        """Fold an event in; returns the text of a mark for the charts when one is due."""
        match event:
            case Preflighted(_, counters):
                self.before = counters
            case Measuring():
                self._enter("measuring")
            case LevelPreparing(index, level):
                self._enter("preparing")
                self.plan = self.plan.with_level(index, level)
            case LevelStarted(_, level, _):
                self._enter("level")
                self.first_tokens = []
                return f"load {level.name}"
            case Progress():
                self._progress(event)
            case LevelDone(_, result):
                self.done.append(result)
            case Draining():
                self.phase, self.drain = "draining", event
            case Warned(text):
                self.warnings = [*self.warnings[-4:], text]
            case Finished(result):
                self.phase, self.result = "finished", result
                return "load ends"
            case RequestDone():
                pass
        return None

    def _enter(self, phase: str) -> None:
        """The next phase, unless a stop is under way: events that were sent before it still come in."""
        if self.phase != "stopping":
            self.phase = phase

    def _progress(self, event: Progress) -> None:
        self.progress = event
        self.first_tokens.extend(event.first_tokens)
        self.client.append(event.tok_s)
        self.server.append(event.server_tok_s)


def recording_to(feed: Feed) -> Callable[[Plan | Event], None]:
    """What puts a run into the recording, if there is one; its end goes to whoever keeps it."""

    def tell(item: Plan | Event) -> None:
        wanted = feed.recording is not None or isinstance(item, Finished)
        values = recorded.to_values(item) if wanted else None
        if values is not None:
            feed.event(recorded.KIND, values)

    return tell


class LoadControl:
    """Owns the run: starts it, stops it, and takes its events from the load thread through an inbox."""

    def __init__(self, wake: Callable[[], object], tell: Callable[[Plan | Event], object] = lambda _: None) -> None:
        self.state: LoadState | None = None
        self._thread: LoadThread | None = None
        self._inbox: deque[Event] = deque()
        self._wake = wake
        self._tell = tell  # of the plan and every event, in the thread they come from

    @property
    def running(self) -> bool:
        """Whether a run goes on."""
        return self._thread is not None and self._thread.running

    def start(self, plan: Plan, options: RunOptions) -> None:
        """Start a run; there is one at a time."""
        if self.running:
            return
        self._inbox.clear()
        self.state = LoadState(plan)
        self._tell(plan)
        self._thread = LoadThread(plan, options, self._arrived)
        self._thread.start()

    def stop(self) -> None:
        """No new requests from now on, open ones are closed."""
        if self._thread is not None and self.running:
            self._thread.stop()
            if self.state is not None and self.state.active:
                self.state.phase = "stopping"

    def leave(self, timeout_s: float) -> None:
        """Stop and wait a moment: the worker dies with this process in any case."""
        self.stop()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _arrived(self, event: Event) -> None:
        """In the load thread."""
        self._inbox.append(event)
        self._tell(event)
        self._wake()

    def drain(self) -> list[str]:
        """Fold what has come in; the marks that are due."""
        state = self.state
        if state is None:
            return []
        ended = self._thread is not None and not self._thread.running  # asked first: its last events are in by now
        marks = []
        while self._inbox:
            mark = state.take(self._inbox.popleft())
            marks += [mark] if mark else []
        if ended and state.active and self._thread is not None:
            state.phase, state.error = "failed", str(self._thread.error or "the load worker ended without a result")
        return marks
