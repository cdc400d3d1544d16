"""An x/y plot with axes: labelled points, the line between them, and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, clean, fit_text, text_width
from llmtop_widgets.timechart import nice_ceiling

GUTTER = 7
"""Cells left of the plot: six for a number, one for the axis."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point at (x, y) with a short label; `glyph` replaces the dot."""

    x: float
    y: float
    label: str = ""
    style: str = "series1"
    glyph: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """A dotted line across the plot where `axis` has `value`."""

    axis: Literal["x", "y"]
    value: float
    label: str = ""
    style: str = "threshold"


@dataclass(frozen=True, slots=True)
class _Canvas:
    """Cells of the plot area; row 0 is at the top."""

    width: int
    height: int
    x_top: float
    y_top: float
    cells: dict[tuple[int, int], Span] = field(default_factory=dict)

    def place(self, x: float, y: float) -> tuple[int, int]:
        """Return (column, row) of a value, clamped to the plot."""
        column = round(x / self.x_top * (self.width - 1))
        row = self.height - 1 - round(y / self.y_top * (self.height - 1))
        return min(max(column, 0), self.width - 1), min(max(row, 0), self.height - 1)

    def write(self, column: int, row: int, text: str, style: str) -> bool:
        """Write text where it fits and covers nothing; say whether it was written."""
        places = [(column + i, row) for i in range(len(text))]
        inside = 0 <= row < self.height and column >= 0 and column + len(text) <= self.width
        if not inside or any(place in self.cells for place in places):
            return False
        self.cells.update((place, Span(char, style)) for place, char in zip(places, text, strict=True))
        return True


def scatter_lines(
    points: Sequence[Point],
    width: int,
    height: int,
    *,
    x_label: str = "",
    y_label: str = "",
    marks: Sequence[Limit] = (),
    connect: bool = True,
    x_least: float = 0.0,
) -> list[Line]:
    """Draw points on axes from zero to a round number, as `height` lines of `width` cells.

    `connect` joins the points with a dotted line in the order given; the x axis reaches `x_least`.
    A label that finds no free place beside its point is left out.  Blank where there is no room for axes.
    """
    if width < GUTTER + 4 or height < 4:
        return [(Span(" " * max(0, width)),)] * max(0, height)
    canvas = _Canvas(width - GUTTER, height - 3, *_tops(points, marks, x_least))
    _draw_points(canvas, points)
    _draw_labels(canvas, points)
    _draw_limits(canvas, marks)
    if connect:
        _draw_connections(canvas, points)
    title = (Span(fit_text(y_label, width), "axis"),)
    return [title, *_plot_rows(canvas), *_x_axis(canvas, x_label)]


def _tops(points: Sequence[Point], marks: Sequence[Limit], x_least: float) -> tuple[float, float]:
    """Return the ends of both axes, high enough for every point and limit."""
    x_values = [x_least] * (x_least > 0) + [p.x for p in points] + [m.value for m in marks if m.axis == "x"]
    y_values = [p.y for p in points] + [m.value for m in marks if m.axis == "y"]
    return _axis_top(max(x_values, default=1.0)), _axis_top(max(y_values, default=1.0))


def _axis_top(value: float) -> float:
    """Return a round number above `value` that leaves little of the axis empty."""
    top = nice_ceiling(value)
    finer = next((top * share for share in (0.3, 0.4, 0.6, 0.8) if value <= top * share), top)
    return finer if finer > 0 else 1.0


def _draw_points(canvas: _Canvas, points: Sequence[Point]) -> None:
    for point in points:
        glyph = point.glyph or glyphs.current().dot
        canvas.cells[canvas.place(point.x, point.y)] = Span(glyph, point.style)


def _draw_labels(canvas: _Canvas, points: Sequence[Point]) -> None:
    for point in points:
        label = clean(point.label)
        size = len(label)
        if not size or text_width(label) != size:
            continue
        column, row = canvas.place(point.x, point.y)
        places = ((column + 2, row), (column - size - 1, row), (column - size // 2, row - 1))
        for left, at in (*places, (column - size // 2, row + 1)):
            if canvas.write(left, at, label, point.style):
                break


def _draw_limits(canvas: _Canvas, marks: Sequence[Limit]) -> None:
    glyph = glyphs.current()
    for mark in marks:
        column, row = canvas.place(mark.value, mark.value)
        if mark.axis == "y":
            canvas.write(1, max(0, row - 1), clean(mark.label), mark.style)
            cells = [(x, row) for x in range(canvas.width)]
        else:
            canvas.write(column + 2, 0, clean(mark.label), mark.style)
            cells = [(column, y) for y in range(canvas.height)]
        for place in cells:
            canvas.cells.setdefault(place, Span(glyph.threshold if mark.axis == "y" else glyph.mark, mark.style))


def _draw_connections(canvas: _Canvas, points: Sequence[Point]) -> None:
    dotted = Span(glyphs.current().dotted, "axis")
    for start, end in pairwise(points):
        for place in _between(canvas.place(start.x, start.y), canvas.place(end.x, end.y)):
            canvas.cells.setdefault(place, dotted)


def _between(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the cells on a straight line between two cells."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    for step in range(1, steps):
        share = step / steps
        yield round(start[0] + (end[0] - start[0]) * share), round(start[1] + (end[1] - start[1]) * share)


def _plot_rows(canvas: _Canvas) -> Iterator[Line]:
    glyph = glyphs.current()
    labelled = (0, (canvas.height - 1) // 2, canvas.height - 1)
    for row in range(canvas.height):
        value = canvas.y_top * (canvas.height - 1 - row) / max(1, canvas.height - 1)
        number = short_number(value) if row in labelled else ""
        axis = glyph.tick_left if row in labelled else glyph.vertical
        cells = [canvas.cells.get((column, row), Span(" ")) for column in range(canvas.width)]
        yield (Span(fit_text(number, GUTTER - 1, "right") + axis, "axis"), *_runs(cells))


def _x_axis(canvas: _Canvas, x_label: str) -> Iterator[Line]:
    glyph = glyphs.current()
    corner = " " * (GUTTER - 1) + glyph.corner_bottom_left
    yield (Span(corner + glyph.horizontal * canvas.width, "axis"),)
    zero, top = "0", short_number(canvas.x_top)
    middle = fit_text(x_label, max(0, canvas.width - len(zero) - len(top)), "center")
    yield (Span(fit_text(" " * GUTTER + zero + middle + top, GUTTER + canvas.width), "axis"),)


def _runs(cells: Sequence[Span]) -> Iterator[Span]:
    """Merge neighbouring cells of one style into spans."""
    text, style = "", ""
    for cell in cells:
        if text and cell.style != style:
            yield Span(text, style)
            text = ""
        text, style = text + cell.text, cell.style
    if text:
        yield Span(text, style)


def short_number(value: float) -> str:
    """Write a number in at most six characters: 1234 is `1.23k`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
