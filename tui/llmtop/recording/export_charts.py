"""Charts of a whole recording as inline SVG: series folded into columns of equal time, gaps left open."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from llmtop.contract.snapshot import Snapshot

WIDTH, HEIGHT = 720, 150
LEFT, TOP, BOTTOM = 56, 8, 20
COLUMNS = 600
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - 8, HEIGHT - TOP - BOTTOM
Fold = Literal["mean", "max", "min"]
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class Axis:
    """The time of a recording, cut into columns."""

    start: float
    end: float
    columns: int

    def column(self, when: float) -> int:
        """The column that a Unix time falls into."""
        span = self.end - self.start
        place = int((when - self.start) / span * self.columns) if span > 0 else 0
        return min(max(place, 0), self.columns - 1)

    def x(self, column: float) -> float:
        """Where a column is in the picture."""
        return LEFT + (column + 0.5) / self.columns * PLOT_WIDTH


@dataclass(slots=True)
class _Bin:
    least: float
    most: float
    total: float
    samples: int


@dataclass(slots=True)
class ChartSeries:
    """One figure over the whole recording."""

    name: str
    fold: Fold
    read: Callable[[Snapshot], float | None]
    bins: dict[int, _Bin] = field(default_factory=dict)

    def take(self, column: int, snapshot: Snapshot) -> None:
        """Add a snapshot; an unknown value is a gap."""
        value = self.read(snapshot)
        if value is None:
            return
        held = self.bins.get(column)
        if held is None:
            self.bins[column] = _Bin(value, value, value, 1)
        else:
            held.least, held.most = min(held.least, value), max(held.most, value)
            held.total, held.samples = held.total + value, held.samples + 1

    def points(self) -> list[tuple[int, float]]:
        """Column and value, in order."""
        pick: dict[Fold, Callable[[_Bin], float]] = {
            "mean": lambda b: b.total / b.samples,
            "max": lambda b: b.most,
            "min": lambda b: b.least,
        }
        return [(column, pick[self.fold](self.bins[column])) for column in sorted(self.bins)]

    def summary(self) -> tuple[float, float, float] | None:
        """Least, mean and most of all samples; None when there is none."""
        if not self.bins:
            return None
        bins = self.bins.values()
        mean = sum(b.total for b in bins) / sum(b.samples for b in bins)
        return min(b.least for b in bins), mean, max(b.most for b in bins)


@dataclass(frozen=True, slots=True)
class Chart:
    """Series on one scale; `text` writes a value, `top` fixes the scale's end."""

    title: str
    series: Sequence[ChartSeries]
    text: Callable[[float | None], str]
    top: float | None = None


def svg(chart: Chart, axis: Axis, marks: Sequence[tuple[float, str]], gap: int) -> str:
    """The picture; lines break where more than `gap` columns have no sample."""
    most = max((value for series in chart.series for _, value in series.points()), default=0.0)
    top = chart.top or nice_top(most)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">']
    parts += _frame(chart, axis, top)
    for when, text in marks:
        x = axis.x(axis.column(when))
        parts.append(
            f'<line class="mark" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + PLOT_HEIGHT}">'
            f"<title>{escape(text)}</title></line>"
        )
    for number, series in enumerate(chart.series, 1):
        for run in _runs(series.points(), gap):
            path = " ".join(f"{axis.x(column):.1f},{_y(value, top):.1f}" for column, value in run)
            shape = f'<polyline points="{path}"/>' if len(run) > 1 else _dot(path)
            parts.append(f'<g class="s{number}">{shape}</g>')
    return "".join([*parts, "</svg>"])


def _dot(point: str) -> str:
    x, _, y = point.partition(",")
    return f'<circle cx="{x}" cy="{y}" r="1.5"/>'


def _frame(chart: Chart, axis: Axis, top: float) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        y = _y(top * share, top)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 8}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(chart.text(top * share))}</text>'
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        clock = time.strftime("%H:%M:%S", time.localtime(axis.start + (axis.end - axis.start) * share))
        x = LEFT + PLOT_WIDTH * share
        yield f'<text x="{x:.1f}" y="{HEIGHT - 5}" text-anchor="{anchor}">{clock}</text>'


def _y(value: float, top: float) -> float:
    return TOP + PLOT_HEIGHT * (1 - min(max(value / top, 0.0), 1.0))


def _runs(points: Sequence[tuple[int, float]], gap: int) -> Iterator[list[tuple[int, float]]]:
    run: list[tuple[int, float]] = []
    for point in points:
        if run and point[0] - run[-1][0] > gap:
            yield run
            run = []
        run.append(point)
    if run:
        yield run


def nice_top(value: float) -> float:
    """A round number not below `value`, to end a scale with."""
    if value <= 0:
        return 1.0
    size = 1.0
    while size * 10 < value:
        size *= 10
    while size > value:
        size /= 10
    return next(step * size for step in STEPS if step * size >= value * (1 - 1e-12))
