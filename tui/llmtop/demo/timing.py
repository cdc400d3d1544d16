"""How long one engine step takes: the only place where a profile's speeds become seconds."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from llmtop.demo.profile import Points, StepTiming


@dataclass(frozen=True, slots=True)
class Curve:
    """Straight lines through points with rising x; flat before the first, after the last straight on or `flat_end`."""

    points: Points
    flat_end: bool = False

    def __call__(self, x: float) -> float:
        """The value at `x`."""
        points = self.points
        if x <= points[0][0] or len(points) == 1:
            return points[0][1]
        if self.flat_end and x >= points[-1][0]:
            return points[-1][1]
        i = min(max(bisect_right(points, (x, float("inf"))), 1), len(points) - 1)
        (x0, y0), (x1, y1) = points[i - 1], points[i]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Work:
    """What one step computes: prompt chunks as (tokens before, tokens new), sequences decoded and their
    context.
    """

    chunks: tuple[tuple[int, int], ...]
    decodes: int
    context_tokens: int
    kv_usage: float


class StepModel:
    """Step time in seconds; `speed` > 1 makes the machine that much faster.

    A prompt of L tokens alone takes T(L) = a·L + b·L²/2 (linear layers and attention), fitted through the
    profile's two points; a chunk costs T(end) − T(start). The weights are read once a step, so a step never
    takes less than a decode step of as many sequences; beside a prompt chunk, which reads all of them
    anyway, decodes add only the context they read.
    """

    __slots__ = ("_context_s", "_decode_s", "_linear", "_quadratic", "_slow_down", "_speed", "wake_s")

    def __init__(self, timing: StepTiming, speed: float = 1.0) -> None:
        wake = timing.wake_ms / 1000
        self._linear, self._quadratic = _fit(tuple((n, n / (n / v - wake)) for n, v in timing.prefill))
        self.wake_s = wake / speed
        """Seconds from an arrival at an idle engine to its first step."""
        self._decode_s = Curve(tuple((n, ms / 1000) for n, ms in timing.decode_ms))
        self._context_s = timing.context_us / 1e6
        self._slow_down = Curve(timing.slow_down, flat_end=True)
        self._speed = speed

    def prompt_seconds(self, tokens: int) -> float:
        """Seconds that steps need to read a prompt of `tokens` tokens alone, at speed 1."""
        return self._linear * tokens + self._quadratic * tokens * tokens / 2

    def seconds(self, work: Work) -> float:
        """Seconds of one step."""
        prefill = sum(self.prompt_seconds(before + new) - self.prompt_seconds(before) for before, new in work.chunks)
        reading = self._context_s * work.context_tokens
        step = max(self._decode_s(max(work.decodes, 1)), prefill) + reading
        return step * self._slow_down(work.kv_usage) / self._speed


def _fit(points: Points) -> tuple[float, float]:
    """(a, b) of T(L) = a·L + b·L²/2 through one (b = 0) or two points of (L, L/T)."""
    if len(points) == 1:
        return 1 / points[0][1], 0.0
    (l0, v0), (l1, v1) = points
    quadratic = 2 * (1 / v1 - 1 / v0) / (l1 - l0)
    return 1 / v0 - quadratic * l0 / 2, quadratic
