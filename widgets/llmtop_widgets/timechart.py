"""A block chart of the recent past: one sample per column, the newest at the right, on a fixed scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from llmtop_widgets import glyphs
from llmtop_widgets.glyphs import Glyphs
from llmtop_widgets.text import Line, Span, line

AXIS_LABEL_ROOM = 9
AXIS_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def chart_lines(
    values: Sequence[float | None],
    *,
    width: int,
    height: int,
    lo: float = 0.0,
    hi: float,
    style: str = "series1",
    marks: Sequence[int] = (),
    threshold: float | None = None,
    mark_style: str = "mark",
) -> list[Line]:
    """Draw the last `width` values as `height` lines of `width` cells, lo at the bottom and hi at the top.

    `None` and NaN are gaps (blank); a value at or below `lo` shows the zero glyph, anything above it at
    least the lowest block; values beyond `hi` are cut off.  `marks` are indices into `values` where a
    vertical line fills the blank cells; `threshold` draws a dotted line through blank cells.  A line has
    at most three spans: only the newest mark has a style of its own.
    """
    glyph = glyphs.current()
    start = max(0, len(values) - width)
    steps = height * (len(glyph.blocks) - 1)
    pictures, gap = _column_pictures(glyph, height), " " * height
    columns = [gap] * (width - len(values) + start)
    # written out, because it is done for every cell of every chart of every frame
    scale = steps / (hi - lo) if hi > lo else 0.0
    columns += [
        gap
        if value is None or value != value
        else pictures[0 if value <= lo else steps if value >= hi else round((value - lo) * scale) or 1]
        for value in values[start:]
    ]
    rows = ["".join(row) for row in zip(*columns, strict=True)]
    if threshold is not None and lo <= threshold <= hi > lo:
        row = min(height - 1, int((threshold - lo) / (hi - lo) * height))
        rows[row] = rows[row].replace(" ", glyph.threshold)
    left = width - len(values)
    marked = sorted(left + index for index in marks if start <= index < len(values))
    return [_with_marks(row, marked, style, mark_style) for row in reversed(rows)]


@lru_cache(maxsize=32)
def _column_pictures(glyph: Glyphs, height: int) -> list[str]:
    """Return the characters of a column, from the bottom up, for every level that it can have."""
    per_cell = len(glyph.blocks) - 1
    pictures = [glyph.zero.ljust(height)]
    for level in range(1, per_cell * height + 1):
        full, rest = divmod(level, per_cell)
        top = glyph.blocks[rest] if rest else ""
        pictures.append((glyph.blocks[-1] * full + top).ljust(height))
    return pictures


def _with_marks(text: str, marks: Sequence[int], style: str, mark_style: str) -> Line:
    """Draw marks through the cells of a row that hold no data."""
    glyph = glyphs.current()
    drawn = [column for column in marks if text[column] in (" ", glyph.threshold)]
    if not drawn:
        return (Span(text, style),)
    cells = list(text)
    for column in drawn:
        cells[column] = glyph.mark
    newest = drawn[-1]
    return line(
        Span("".join(cells[:newest]), style),
        Span(glyph.mark, mark_style),
        Span("".join(cells[newest + 1 :]), style),
    )


def time_axis_line(width: int, seconds_per_column: float, *, style: str = "axis") -> Line:
    """Label the columns of a chart by age: `-2m  -1m  now`; the text depends on the size alone.

    Each label ends under the column of that age.
    """
    if width < 3 or seconds_per_column <= 0:
        return (Span(" " * max(0, width), style),)
    cells = [" "] * width
    _place(cells, width, "now")
    room = AXIS_LABEL_ROOM * seconds_per_column
    step = next((step for step in AXIS_STEPS_S if step >= room), AXIS_STEPS_S[-1])
    size, unit = _unit(step)  # one unit for all labels, so that they read as one scale
    age = step
    while (end := width - round(age / seconds_per_column)) > 0:
        _place(cells, end, f"-{age // size}{unit}")
        age += step
    return (Span("".join(cells), style),)


def _place(cells: list[str], end: int, label: str) -> None:
    """Write a label that ends before `end`, unless it is cut by the edge or meets another label."""
    start = end - len(label)
    if start >= 0 and all(cell == " " for cell in cells[start : end + 1]):
        cells[start:end] = label


def _unit(seconds: int) -> tuple[int, str]:
    """The largest unit of which `seconds` is a whole number, and its letter."""
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return size, letter
    return 1, "s"


def nice_ceiling(value: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below `value`; 1 for zero or less."""
    if not value > 0 or math.isinf(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for factor in (1.0, 2.0, 5.0, 10.0):
        if value <= factor * power * (1 + 1e-9):
            return factor * power
    return 10.0 * power


class ScaleKeeper:
    """Chooses the top of a chart's scale and keeps it steady.

    It grows at once.  It shrinks only after the largest value has stayed below `shrink_below` of the top for
    `patience` updates in a row, so that a chart does not jump between two scales.
    """

    def __init__(self, minimum: float = 1.0, *, shrink_below: float = 0.4, patience: int = 30) -> None:
        self._minimum = minimum
        self._shrink_below = shrink_below
        self._patience = patience
        self._quiet = 0
        self.top = nice_ceiling(minimum)

    def update(self, largest: float | None) -> float:
        """Take the largest value now visible (None: nothing is) and return the top of the scale."""
        if largest is None or not math.isfinite(largest):
            return self.top
        wanted = nice_ceiling(max(largest, self._minimum))
        if wanted > self.top:
            self.top, self._quiet = wanted, 0
        elif wanted < self.top and largest < self._shrink_below * self.top:
            self._quiet += 1
            if self._quiet >= self._patience:
                self.top, self._quiet = wanted, 0
        else:
            self._quiet = 0
        return self.top
