"""Large digits drawn with round strokes, four dots to a cell, for a number that must be read from across a room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import hypot

from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span

Place = tuple[float, float]
Path = tuple[Place, ...]

# the middle lines of each character on a grid of 2 x 4, (0, 0) at the upper left; corners are rounded where it is drawn
_PATHS: dict[str, tuple[Path, ...]] = {
    "0": (((1, 0), (2, 0), (2, 4), (0, 4), (0, 0), (1, 0)),),
    "1": (((0.3, 0.9), (1.2, 0), (1.2, 4)),),
    "2": (((0, 1), (0, 0), (2, 0), (2, 1.8), (0, 4)), ((0, 4), (2, 4))),
    "3": (((0, 0), (2, 0), (2, 2), (0.8, 2)), ((0.8, 2), (2, 2), (2, 4), (0, 4))),
    "4": (((0, 0), (0, 2.3), (2, 2.3)), ((2, 0), (2, 4))),
    "5": (((2, 0), (0, 0)), ((0, 0), (0, 1.7)), ((0, 1.7), (2, 1.7), (2, 4), (0, 4))),
    "6": (((2, 0), (0, 0), (0, 4), (2, 4), (2, 1.8), (0, 1.8)),),
    "7": (((0, 0), (2, 0)), ((2, 0), (0.7, 4))),
    "8": (
        ((1, 0), (2, 0), (2, 1.9), (0, 1.9), (0, 0), (1, 0)),
        ((1, 1.9), (2, 1.9), (2, 4), (0, 4), (0, 1.9), (1, 1.9)),
    ),
    "9": (((0, 4), (2, 4), (2, 0), (0, 0), (0, 2.2), (2, 2.2)),),
    "%": (((2, 0), (0, 4)), ((0, 0.3), (0, 0.3)), ((2, 3.7), (2, 3.7))),
    "–": (((0, 2), (2, 2)),),
    "<": (((2, 0.8), (0, 2)), ((0, 2), (2, 3.2))),
    "k": (((0, 0), (0, 4)), ((2, 1.4), (0, 2.8)), ((0.9, 2.4), (2, 4))),
    ".": (((0, 4), (0, 4)),),
}
BENDS = 6  # straight pieces of a rounded corner


def stroke_lines(text: str, rows: int, style: str = "value") -> list[Line]:
    """Draw a text `rows` high; characters without a picture are blank. Plain ASCII has whole cells only."""
    pictures = [_picture(character, rows, glyphs.current().quadrants) for character in text]
    gap = " " * _gap(rows)
    return [(Span(gap.join(picture[row] for picture in pictures), style),) for row in range(rows)]


def stroke_width(text: str, rows: int) -> int:
    """The cells that `stroke_lines` of the same arguments takes."""
    return sum(_cells(character, rows) for character in text) + _gap(rows) * max(0, len(text) - 1)


def _thickness(rows: int) -> int:
    """Of a stroke, in cell widths; a cell is twice as high as wide."""
    return max(1, round(rows * 0.32))


def _gap(rows: int) -> int:
    return max(1, round(_thickness(rows) * 0.8))


def _cells(character: str, rows: int) -> int:
    return _thickness(rows) if character == "." else max(3, round(rows * 1.15))


@lru_cache(maxsize=256)
def _picture(character: str, rows: int, quadrants: str) -> tuple[str, ...]:
    """The rows of one character; without `quadrants` a cell is full or blank."""
    cells, thick = _cells(character, rows), _thickness(rows)
    dots: set[Place] = set()
    for path in _PATHS.get(character, ()):
        placed = [(_place(x / 2, cells, thick, 0.5), _place(y / 4, 2 * rows, thick, 1.0)) for x, y in path]
        for start, end in pairwise(_rounded(placed, 0.45 * (cells - thick))):
            dots.update(_capsule(start, end, thick / 2))
    full = glyphs.current().bar_full
    bits = [
        [sum(bit for bit, dot in zip((1, 2, 4, 8), _dots_of(x, y), strict=True) if dot in dots) for x in range(cells)]
        for y in range(rows)
    ]
    signs = quadrants or "".join(full if bits.bit_count() >= 2 else " " for bits in range(16))
    return tuple("".join(signs[cell] for cell in row) for row in bits)


def _dots_of(x: int, y: int) -> Sequence[Place]:
    """The middles of the four quarters of a cell."""
    return [(x + right, 2 * y + low) for low in (0.5, 1.5) for right in (0.25, 0.75)]


def _place(share: float, size: float, thick: float, step: float) -> float:
    """Where the middle of a stroke lies so that its edges fall between dots."""
    return round(share * (size - thick) / step) * step + thick / 2


def _rounded(path: Sequence[Place], radius: float) -> list[Place]:
    """A path whose corners are curves."""
    places = [path[0]]
    for before, corner, after in zip(path, path[1:], path[2:], strict=False):
        start, end = _towards(corner, before, radius), _towards(corner, after, radius)
        for step in range(BENDS + 1):
            share = step / BENDS
            a, b, c = (1 - share) ** 2, 2 * share * (1 - share), share**2
            places.append(tuple(a * s + b * m + c * e for s, m, e in zip(start, corner, end, strict=True)))  # type: ignore[arg-type]
    return [*places, path[-1]]


def _towards(start: Place, end: Place, distance: float) -> Place:
    """A place so far from `start`, but not beyond the middle of the way to `end`."""
    length = hypot(end[0] - start[0], end[1] - start[1])
    share = min(0.5, distance / length) if length else 0.0
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _capsule(start: Place, end: Place, radius: float) -> Iterator[Place]:
    """The dots nearer than `radius` to a straight line."""
    (x0, y0), (x1, y1) = start, end
    length = (x1 - x0) ** 2 + (y1 - y0) ** 2
    for row in range(int(max(0.0, min(y0, y1) - radius)), int(max(y0, y1) + radius) + 1):
        for column in range(int(max(0.0, min(x0, x1) - radius) * 2), int((max(x0, x1) + radius) * 2) + 1):
            x, y = column / 2 + 0.25, row + 0.5
            along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length if length else 0.0
            along = min(1.0, max(0.0, along))
            if hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0)) < radius + 1e-6:
                yield x, y
