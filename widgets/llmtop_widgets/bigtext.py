"""Letters three rows high: larger than text, small enough for a headline. Larger ones are in `strokes`."""

from __future__ import annotations

from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span

HALF_ROWS = 3
# five rows of pixels a character, separated by slashes; two pixels, one above the other, share a cell
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
    "%": "# #/  #/ # /#  /# #",
    "-": "   /   /###/   /   ",
    "–": "   /   /###/   /   ",
    "+": "   / # /###/ # /   ",
    "<": "  #/ # /#  / # /  #",
    "e": "   /###/###/#  /###",
    "k": "#  /# #/## /# #/# #",
    " ": " / / / / ",
}


def half_lines(text: str, style: str = "bold") -> list[Line]:
    """Draw a text in letters of three rows; characters that the font lacks are drawn as blanks.

    Without half blocks (plain ASCII) the text stands in the middle row as it is.
    """
    glyph = glyphs.current()
    if not glyph.quadrants:
        return [(), (Span(text, style),), ()]
    rows = [" ".join(row) for row in zip(*(_FONT.get(sign, _FONT[" "]).split("/") for sign in text), strict=True)]
    pictures = {"  ": " ", "# ": glyph.quadrants[3], " #": glyph.quadrants[12], "##": glyph.bar_full}
    pairs = zip(rows[::2], [*rows[1::2], " " * len(rows[0])], strict=True) if rows else [("", "")] * HALF_ROWS
    return [(Span("".join(map(pictures.__getitem__, map("".join, zip(*pair, strict=True)))), style),) for pair in pairs]
