"""Lines of styled text, the only thing that the widgets of this package draw.

A `Line` is a tuple of `Span`s.  A span's style is the *name* of a style, or several names separated by spaces
("bold ok"); a theme gives the names their colours.  Text is data: nothing in it is ever read as markup, and
characters that a terminal could take for a command never leave this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple
from unicodedata import category

from rich.cells import cell_len

from llmtop_widgets import glyphs

Align = Literal["left", "right", "center"]


class Span(NamedTuple):
    """A run of text in one style; `style` names semantic styles separated by spaces."""

    text: str
    style: str = ""


Line = tuple[Span, ...]
"""One row of text; its width is the sum of the cells of its spans."""

EMPTY: Line = ()


def clean(text: str) -> str:
    """Replace everything that a terminal would not simply print.

    Separators become spaces, invisible format characters (joiners, direction marks) vanish, and control
    characters, surrogates and unassigned code points become `?`.
    """
    return text if text.isprintable() else "".join(map(_clean_character, text))


def _clean_character(character: str) -> str:
    if character.isprintable():
        return character
    if character.isspace():
        return " "
    return "" if category(character) == "Cf" else "?"


def line(*parts: str | Span) -> Line:
    """Build a line from spans and plain strings, leaving out the empty ones."""
    spans = [part if isinstance(part, Span) else Span(part) for part in parts]
    return tuple([span for span in spans if span.text])


def plain(content: Line) -> str:
    """Return the text of a line without its styles."""
    return "".join(span.text for span in content)


def text_width(text: str) -> int:
    """Return the number of cells that a text occupies once cleaned; wide characters take two."""
    return len(text) if text.isascii() else _wide_text_width(text)


@lru_cache(maxsize=4096)
def _wide_text_width(text: str) -> int:
    return cell_count(clean(text))


def cell_count(text: str) -> int:
    """Return the number of cells of printable text; the table of all characters is only loaded for foreign text."""
    return len(text) if glyphs.ONE_CELL.issuperset(text) else cell_len(text)


def width(content: Line) -> int:
    """Return the number of cells that a line occupies."""
    cells = 0
    for text, _ in content:  # the innermost loop of every frame: written out
        cells += len(text) if text.isascii() else _wide_text_width(text)
    return cells


def _cut(text: str, cells: int) -> str:
    """Return the longest prefix of a clean text that fits into `cells`."""
    if text.isascii():
        return text[:cells]
    used = 0
    for index, character in enumerate(text):
        used += cell_count(character)
        if used > cells:
            return text[:index]
    return text


def fit_text(text: str, cells: int, align: Align = "left") -> str:
    """Pad or truncate a text to exactly `cells`; a truncated text ends with an ellipsis."""
    text = clean(text)
    missing = cells - text_width(text)
    if missing < 0:
        text = _cut(text, cells - 1) + glyphs.current().ellipsis if cells > 0 else ""
        missing = max(0, cells) - text_width(text)
    if align == "right":
        return " " * missing + text
    if align == "center":
        return " " * (missing // 2) + text + " " * (missing - missing // 2)
    return text + " " * missing


def crop(content: Line, cells: int) -> Line:
    """Cut a line to at most `cells`; a line that loses more than blanks ends with an ellipsis."""
    if width(content) <= cells:
        return content
    content = _without_trailing_blanks(content)
    if width(content) <= cells:
        return fit(content, cells)
    kept: list[Span] = []
    room = cells
    for span in content:
        size = text_width(span.text)
        if size >= room:
            kept.append(Span(fit_text(span.text + " ", room), span.style))
            break
        kept.append(span)
        room -= size
    return tuple(span for span in kept if span.text)


def _without_trailing_blanks(content: Line) -> Line:
    kept = list(content)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    return (*kept[:-1], kept[-1]._replace(text=kept[-1].text.rstrip(" "))) if kept else EMPTY


def fit(content: Line, cells: int, align: Align = "left", style: str = "") -> Line:
    """Pad (in `style`) or cut a line to exactly `cells`."""
    missing = cells - width(content)
    if missing < 0:
        content = crop(content, cells)
        missing = cells - width(content)
    if missing <= 0:
        return content
    if align == "left":
        return (*content, Span(" " * missing, style))
    left = missing if align == "right" else missing // 2
    return line(Span(" " * left, style), *content, Span(" " * (missing - left), style))


def spread(left: Line, right: Line, cells: int) -> Line:
    """Put one line at the left edge and one at the right edge of `cells`; the left one gives way."""
    right = crop(right, cells)
    right_width = width(right)
    room = max(0, cells - right_width - (1 if right_width else 0))
    return (*fit(left, room), *line(" " * (cells - room - right_width)), *right)


def join(columns: Iterable[tuple[Line, int, Align]], gap: int = 1) -> Line:
    """Set lines side by side, each in its own width and alignment, `gap` blanks between."""
    spans: list[Span] = []
    for content, cells, align in columns:
        if spans and gap:
            spans.append(Span(" " * gap))
        spans.extend(fit(content, cells, align))
    return tuple(spans)


def beside(blocks: Sequence[tuple[Sequence[Line], int]], gap: int = 1) -> list[Line]:
    """Set blocks of lines side by side, each in its own width; shorter blocks are filled with blanks."""
    rows = max((len(lines) for lines, _ in blocks), default=0)
    return [
        join(
            ((lines[row] if row < len(lines) else EMPTY, cells, "left") for lines, cells in blocks),
            gap,
        )
        for row in range(rows)
    ]


def flow(items: Iterable[Line], cells: int, gap: int = 2) -> Line:
    """Append items while they fit into `cells`, `gap` blanks between; what does not fit is left out."""
    spans: list[Span] = []
    used = 0
    for item in items:
        size = width(item) + (gap if spans else 0)
        if used + size > cells:
            continue
        if spans:
            spans.append(Span(" " * gap))
        spans.extend(item)
        used += size
    return tuple(spans)


def wrap(text: str, cells: int) -> list[str]:
    """A text in lines of at most `cells`, broken at blanks; a longer word has a line of its own."""
    return pack(text.split(), cells, " ")


def pack(words: Iterable[str], cells: int, gap: str) -> list[str]:
    """Words in lines of at most `cells`, `gap` between them."""
    lines: list[str] = []
    for word in words:
        if lines and text_width(lines[-1]) + len(gap) + text_width(word) <= cells:
            lines[-1] += gap + word
        else:
            lines.append(word)
    return lines
