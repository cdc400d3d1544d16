"""What passed, in figures: one row a model, in the terms of an engine's metrics page.

Times are `time.perf_counter` seconds. Nothing of a prompt or an answer is kept but numbers and the model's name.
"""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from llmtop.contract.units import clean
from llmtop.proxy.answers import AnswerReader

End = Literal["stop", "abort", "error"]

ITL = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10)
TTFT = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1, 1.5, 2, 3, 5, 7.5, 10, 20, 40, 80, 160),
)
E2E = (0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960)
MOST_MODELS = 32
OTHERS = "other models"
SILENT_S = 5.0  # between tokens: longer is no step of an engine
WINDOW_S = 60.0  # for so long an answer says how the figures are to be read
_MODEL = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.){1,300}")')
_OVERLAP = 400
_ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate"),
    *("/completion", "/completions", "/chat/completions", "/infill", "/generate", "/generate_stream"),
)


def generates(method: bytes, path: str) -> bool:
    """Whether a request asks for tokens."""
    return method == b"POST" and path.rstrip("/").endswith(_ROUTES)


class Observations:
    """Observations by upper bound, not cumulative; the last count is of those above all bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """One observation in seconds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True)
class Figures:
    """What passed of one model."""

    running: int = 0
    generation: int = 0
    prompt: int | None = None  # as the answers say, when they end
    cached: int | None = None
    whole_at: float | None = None  # when an answer came as a whole, whose tokens all count at its end
    untold_at: float | None = None  # when an answer ended without the length of its prompt
    ended: Counter[End] = field(default_factory=Counter)
    ttft: Observations = field(default_factory=lambda: Observations(TTFT))
    itl: Observations = field(default_factory=lambda: Observations(ITL))
    tpot: Observations = field(default_factory=lambda: Observations(ITL))
    e2e: Observations = field(default_factory=lambda: Observations(E2E))

    writing: dict[Passage, float] = field(default_factory=dict)  # answers that have begun: when they last said a word

    def alive(self, now: float) -> float:
        """The last moment at which silence was no sign of a hang: long prompts are silent, answers are not."""
        last = max(self.writing.values(), default=now)
        return now if now - last < SILENT_S else last


class TrafficMeter:
    """Everything that is measured."""

    def __init__(self) -> None:
        self.started = time.time()
        self.models: dict[str, Figures] = {}
        self.statuses: Counter[str] = Counter()

    def model(self, name: str) -> Figures:
        """The row of a model."""
        if name not in self.models and len(self.models) >= MOST_MODELS:
            name = OTHERS
        return self.models.setdefault(name, Figures())


class Passage:
    """One request that asks for tokens, from its first byte to the last of its answer."""

    def __init__(self, meter: TrafficMeter, started: float) -> None:
        self._meter, self._started = meter, started
        self._figures: Figures | None = None
        self._seen = b""
        self._model = ""
        self._answer: AnswerReader | None = None
        self._status = 0
        self._first = self._last = 0.0
        self._pieces = self._counted = 0
        self._over = False

    def request(self, pieces: Iterable[bytes]) -> None:
        """Content of the request, of which only the model's name is looked at."""
        if self._figures is not None:
            return
        self._seen = self._seen[-_OVERLAP:] + b"".join(pieces)
        found = _MODEL.search(self._seen)
        if found is not None:
            self._model = _text(found.group(1))
            self.sent()

    def sent(self) -> None:
        """The request has been sent; without a name in it, it belongs to the nameless row."""
        if self._figures is None and not self._over:
            self._seen = b""
            self._figures = self._meter.model(self._model)
            self._figures.running += 1

    def head(self, status: int, content_type: bytes, encoding: bytes) -> None:
        """The answer begins."""
        self.sent()
        self._status = status
        self._meter.statuses[f"{status // 100}xx"] += 1
        self._answer = AnswerReader(content_type, encoding) if status == 200 else None

    def body(self, pieces: list[bytes], now: float) -> None:
        """Content of the answer that has just come."""
        if self._answer is not None and pieces:
            self._take(self._answer.feed(pieces), now)

    def _take(self, pieces: int, now: float) -> None:
        figures, answer = self._figures, self._answer
        assert figures is not None
        assert answer is not None
        for _ in range(pieces):
            if self._pieces:
                figures.itl.add(now - self._last)
            else:
                self._first = now
                figures.ttft.add(now - self._started)
            self._pieces += 1
            self._last = now
        if pieces:
            figures.writing[self] = now
        self._count(max(self._pieces, answer.counts.generated or 0))

    def _count(self, tokens: int) -> None:
        assert self._figures is not None
        self._figures.generation += max(0, tokens - self._counted)
        self._counted = max(self._counted, tokens)

    def end(self, how: End, now: float) -> None:
        """The exchange is over; called once more it changes nothing."""
        figures, answer = self._figures, self._answer
        if self._over or figures is None:  # what was never sent is of no model
            self._over = True
            return
        self._over = True
        figures.running -= 1
        if answer is not None:
            self._take(answer.end(), now)
            figures.writing.pop(self, None)
            self._numbers(figures, answer, now)
        if how != "stop" or answer is not None:  # what was refused is told by its status
            figures.ended[how] += 1
        if how == "stop" and answer is not None:
            figures.e2e.add(now - self._started)
            if answer.stream and self._counted > 1 and self._last > self._first:
                figures.tpot.add((self._last - self._first) / (self._counted - 1))

    def _numbers(self, figures: Figures, answer: AnswerReader, now: float) -> None:
        counts = answer.counts
        if counts.prompt is None:
            figures.untold_at = now
        else:
            figures.prompt = (figures.prompt or 0) + counts.prompt
        if counts.cached is not None:
            figures.cached = (figures.cached or 0) + counts.cached
        if not answer.stream and counts.generated:
            figures.whole_at = now

    def refused(self, status: int, now: float) -> None:
        """There is no answer but one of our own."""
        self._meter.statuses[f"{status // 100}xx"] += 1
        self.end("stop", now)


def _text(literal: bytes) -> str:
    try:
        return clean(str(json.loads(literal)))
    except ValueError:
        return ""
