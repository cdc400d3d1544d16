"""Big digits for a number that must be read from across a room."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, plain

FONT_ROWS = 5

# Each character is five rows of pixels, separated by slashes.  Strokes lie on rows 0, 2, 4 and on the outer
# columns, so that repeating rows 1 and 3 and the columns between makes a taller letter of the same shape.
_FONT = {
    "0": "###/# #/# #/# #/###",
    "1": " # /## / # / # /###",
    "2": "###/  #/###/#  /###",
    "3": "###/  #/###/  #/###",
    "4": "# #/# #/###/  #/  #",
    "5": "###/#  /###/  #/###",
    "6": "###/#  /###/# #/###",
    "7": "###/  #/  #/  #/  #",
    "8": "###/# #/###/# #/###",
    "9": "###/# #/###/  #/###",
    ".": " / / / /#",
    ",": " / / /#/#",
    ":": " /#/ /#/ ",
    "%": "# #/  #/ # /#  /# #",
    "-": "   /   /###/   /   ",
    "–": "   /   /###/   /   ",
    "+": "   / # /###/ # /   ",
    "/": "  #/  #/ # /#  /#  ",
    "<": "  #/ # /#  / # /  #",
    ">": "#  / # /  #/ # /#  ",
    "~": "   /## /# #/ ##/   ",
    "≈": "## / ##/   /## / ##",
    "k": "#  /# #/## /# #/# #",
    "M": "# #/###/# #/# #/# #",
    "G": "###/#  /# #/# #/###",
    "T": "###/ # / # / # / # ",
    "i": "#/ /#/#/#",
    "B": "## /# #/## /# #/## ",
    "t": " # /###/ # / # / ##",
    "o": "   /   /###/# #/###",
    "s": "   / ##/## / ##/## ",
    "m": "   /   /###/###/# #",
    "h": "#  /#  /###/# #/# #",
    "J": "  #/  #/  #/# #/###",
    "W": "# #/# #/# #/###/# #",
    "C": "###/#  /#  /#  /###",
    "x": "   /# #/ # /# #/   ",
    " ": " / / / / ",
}


def big_lines(text: str, *, height: int = FONT_ROWS, style: str = "value", narrow: bool = False) -> list[Line]:
    """Draw a text in letters of `height` rows (rounded down to 5, 7, 9, ...).

    Strokes are two cells wide, one when `narrow`; letters are one stroke apart.  Characters that the font
    lacks are drawn as blanks.
    """
    stretch = max(0, height - FONT_ROWS) // 2
    stroke = 1 if narrow else 2
    rows = ["" for _ in range(FONT_ROWS + 2 * stretch)]
    for index, character in enumerate(text):
        bitmap = _stretched(_FONT.get(character, _FONT[" "]).split("/"), stretch, stroke)
        gap = " " * stroke if index else ""
        rows = [row + gap + pixels for row, pixels in zip(rows, bitmap, strict=True)]
    full = glyphs.current().bar_full
    return [(Span(row.replace("#", full), style),) for row in rows]


HALF_ROWS = 3


def half_lines(text: str, style: str = "bold") -> list[Line]:
    """Draw a text in letters of three rows, two pixels of the font to a cell (one above the other).

    Without half blocks (plain ASCII) the text stands in the middle row as it is.
    """
    glyph = glyphs.current()
    if not glyph.halves:
        return [(), (Span(text, style),), ()]
    rows = [plain(content).replace(glyph.bar_full, "#") for content in big_lines(text, narrow=True)]
    pairs = zip([*rows[::2]], [*rows[1::2], " " * len(rows[0])], strict=True)
    pictures = {" " + " ": " ", "# ": glyph.halves[0], " #": glyph.halves[1], "##": glyph.bar_full}
    return [
        (Span("".join(pictures[a + b] for a, b in zip(upper, lower, strict=True)), style),) for upper, lower in pairs
    ]


def rounded(rows: Sequence[str]) -> list[str]:
    """Take a quarter of a cell off the outer corners of what is drawn with full blocks."""
    glyph = glyphs.current()
    if not glyph.corners:
        return list(rows)
    grid = [" " * (len(rows[0]) + 2), *(f" {row} " for row in rows), " " * (len(rows[0]) + 2)]
    return ["".join(_corner(grid, y, x) for x in range(1, len(grid[y]) - 1)) for y in range(1, len(grid) - 1)]


def _corner(grid: Sequence[str], y: int, x: int) -> str:
    """The cell with its corner off, where two of its sides that meet are free and the other two are not."""
    full, corners = glyphs.current().bar_full, glyphs.current().corners
    if grid[y][x] != full:
        return grid[y][x]
    up, down, left, right = (grid[y - 1][x], grid[y + 1][x], grid[y][x - 1], grid[y][x + 1])
    free = "".join(" " if side == " " else "#" for side in (up, down, left, right))
    return dict(zip((" # #", " ## ", "#  #", "# # "), corners, strict=True)).get(free, full)


def big_width(text: str, *, height: int = FONT_ROWS, narrow: bool = False) -> int:
    """Return the cells that `big_lines` of the same arguments occupies."""
    return len(big_lines(text, height=height, narrow=narrow)[0][0].text)


def _stretched(bitmap: list[str], stretch: int, stroke: int) -> list[str]:
    widened = [_widened(row, stretch, stroke) for row in bitmap]
    repeats = (1, 1 + stretch, 1, 1 + stretch, 1)
    return [row for row, times in zip(widened, repeats, strict=True) for _ in range(times)]


def _widened(row: str, stretch: int, stroke: int) -> str:
    last = len(row) - 1
    return "".join(pixel * (stroke + (stretch if 0 < column < last else 0)) for column, pixel in enumerate(row))
