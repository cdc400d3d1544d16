"""A block chart of the recent past: one sample per column, the newest at the right, on a fixed scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby

from llmtop_widgets import glyphs
from llmtop_widgets.glyphs import BRAILLE, Glyphs
from llmtop_widgets.text import Line, Span, line, plain

Bands = Sequence[tuple[float, str]]

AXIS_LABEL_ROOM = 9
LEAST_BANDED = 4
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
    labels: Sequence[str] = (),
    bands: Bands = (),
) -> list[Line]:
    """Draw the last `width` values as `height` lines of `width` cells, lo at the bottom and hi at the top.

    `None` and NaN are gaps (blank); a value at or below `lo` shows the zero glyph, anything above it at
    least the lowest block; values beyond `hi` are cut off.  `marks` are indices into `values` where a
    vertical line fills the blank cells, `labels` their names where the top row has room; `threshold` draws a
    dotted line through blank cells.  `bands` are (value, style) pairs: rows from that value up have that
    style.  A line has at most three spans: only the newest mark has a style of its own.  Without room there are none.
    """
    if width < 1 or height < 1:
        return []
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
    if labels and height > 2:
        names = (text for index, text in zip(marks, labels, strict=True) if start <= index < len(values))
        rows[-1] = _named(rows[-1], marked, names)
    styles = row_styles(height, lo, hi, style, bands)
    return [_with_marks(rows[y], marked, styles[y], mark_style) for y in reversed(range(height))]


def row_styles(height: int, lo: float, hi: float, style: str, bands: Bands) -> list[str]:
    """The style of each row from the bottom up: that of the highest band whose value lies in the row or below it.

    In fewer than `LEAST_BANDED` rows a band would hold values far below its own.
    """
    styles = [style] * height
    bands = bands if height >= LEAST_BANDED else ()
    for value, own in sorted(bands):
        first = max(0, int((value - lo) / (hi - lo) * height)) if hi > lo else height
        styles[first:] = [own] * (height - min(first, height))
    return styles


def _named(row: str, marks: Sequence[int], names: Iterable[str]) -> str:
    """A row with the name of each mark beside it, where nothing else stands."""
    blank = (" ", glyphs.current().threshold)
    cells = list(row)
    for place, name in zip(marks, names, strict=True):
        room = cells[place + 1 : place + 2 + len(name)]
        if len(room) > len(name) and all(cell in blank for cell in room):
            cells[place + 1 : place + 1 + len(name)] = name
    return "".join(cells)


def stacked_chart_lines(
    lower: Sequence[float | None],
    upper: Sequence[float | None],
    *,
    width: int,
    height: int,
    hi: float,
    styles: tuple[str, str],
) -> list[Line]:
    """Draw two series on top of each other: `lower` in the first style, `upper` above it in the second.

    Both are as long as the chart is wide; a cell in which both meet belongs to the one that fills more of it.
    Without colours the cells of `upper` are shaded, whole ones.
    """
    glyph = glyphs.current()
    shaded = dict.fromkeys(map(ord, glyph.blocks[1:]), glyph.shades[1]) if not glyphs.colours() else {}
    total = [None if a is None else a + (b or 0.0) for a, b in zip(lower, upper, strict=True)]
    drawn = [plain(row) for row in chart_lines(total, width=width, height=height, hi=hi)]
    levels = [0.0 if a is None or hi <= 0 else min(a, hi) / hi * height for a in lower]
    above = [bool(b) for b in upper]
    lines: list[Line] = []
    for y, text in enumerate(drawn):
        bottom = height - 1 - y
        if not any(above):
            lines.append((Span(text, styles[0]),))
            continue
        runs = groupby(range(len(text)), key=lambda x: above[x] and levels[x] < bottom + 0.5)
        places = [(own, list(run)) for own, run in runs]
        parts = ((text[run[0] : run[-1] + 1], own) for own, run in places)
        lines.append(tuple(Span(part.translate(shaded) if own else part, styles[own]) for part, own in parts))
    return lines


def braille_lines(
    series: Sequence[tuple[Sequence[float | None], str]], *, width: int, height: int, hi: float
) -> list[Line]:
    """Draw (values, style) series as lines of dots, a value to a column, on a scale from 0 to `hi`.

    Where two lines meet in a cell, the later one gives it its style; a terminal without dots gets one sign a value.
    """
    glyph = glyphs.current()
    bits: dict[tuple[int, int], int] = {}
    owners: dict[tuple[int, int], str] = {}
    for values, style in series:
        before: int | None = None
        for x, value in enumerate(values[-width:], max(0, width - len(values))):
            level = None if value is None else min(4 * height - 1, int(max(0.0, value) / hi * (4 * height - 1) + 0.5))
            if level is not None:
                for dot, column in _dots(level if before is None else before, level):
                    place = (height - 1 - dot // 4, x)
                    bits[place] = bits.get(place, 0) | _DOTS[3 - dot % 4][column]
                    owners[place] = style
            before = level
    lines: list[Line] = []
    for y in range(height):
        cells = [(_dot_sign(bits[y, x], glyph), owners[y, x]) if (y, x) in bits else (" ", "") for x in range(width)]
        runs = groupby(cells, key=lambda cell: cell[1])
        lines.append(tuple(Span("".join(text for text, _ in run), style) for style, run in runs))
    return lines


_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row from the top, left and right


def _dots(start: int, end: int) -> list[tuple[int, int]]:
    """(level, left or right) of the dots that lead from one level to the next within a column."""
    middle = (start + end) // 2
    left = range(min(start, middle), max(start, middle) + 1)
    right = range(min(middle, end), max(middle, end) + 1)
    return [*((dot, 0) for dot in left), *((dot, 1) for dot in right)]


def _dot_sign(bits: int, glyph: Glyphs) -> str:
    return chr(BRAILLE + bits) if glyph.braille else glyph.bullet


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
