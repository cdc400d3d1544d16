"""The screen as an SVG file that stands alone: no fonts or links from elsewhere, blocks drawn as shapes.

Rich's own export asks a CDN for its font, and rows of block characters show gaps in most browsers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color

CELL_X, CELL_Y, FONT_SIZE, BASELINE, MARGIN = 10, 20, 16, 15, 10
FONTS = "'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace"
_WORDS = re.compile(r"\S+(?: \S+)*")
WHOLE = (0.0, 0.0, 1.0, 1.0)
Box = tuple[float, float, float, float]  # x, y, width, height as parts of a cell

_SHAPES: dict[str, tuple[Box, ...]] = {
    "▀": ((0, 0, 1, 0.5),),
    "▐": ((0.5, 0, 0.5, 1),),
    "▔": ((0, 0, 1, 0.125),),
    "▕": ((0.875, 0, 0.125, 1),),
    "▚": ((0, 0, 0.5, 0.5), (0.5, 0.5, 0.5, 0.5)),
    "▞": ((0.5, 0, 0.5, 0.5), (0, 0.5, 0.5, 0.5)),
    "─": ((0, 0.475, 1, 0.05),),
    "│": ((0.45, 0, 0.1, 1),),
    **{chr(0x2580 + part): ((0, 1 - part / 8, 1, part / 8),) for part in range(1, 9)},
    **{chr(0x2590 - part): ((0, 0, part / 8, 1),) for part in range(1, 8)},
    "▘": ((0, 0, 0.5, 0.5),),
    "▝": ((0.5, 0, 0.5, 0.5),),
    "▖": ((0, 0.5, 0.5, 0.5),),
    "▗": ((0.5, 0.5, 0.5, 0.5),),
    "▟": ((0.5, 0, 0.5, 0.5), (0, 0.5, 1, 0.5)),
    "▙": ((0, 0, 0.5, 0.5), (0, 0.5, 1, 0.5)),
    "▜": ((0, 0, 1, 0.5), (0.5, 0.5, 0.5, 0.5)),
    "▛": ((0, 0, 1, 0.5), (0, 0.5, 0.5, 0.5)),
    **dict.fromkeys("░▒▓", (WHOLE,)),
}
_BRAILLE = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))  # column and row of each bit
_SHADES = {"░": 0.25, "▒": 0.5, "▓": 0.75}


def picture(app: App[None], title: str) -> str:
    """The screen in front as SVG."""
    strips = app.screen._compositor.render_strips(app.size)
    background = app.screen.background_colors[1]
    return svg([list(strip) for strip in strips], app.size.width, title, background.hex6)


def svg(rows: Sequence[Iterable[Segment]], cells: int, title: str, background: str = "#000000") -> str:
    """Rows of styled text of `cells` cells as SVG; colours that a style lacks are the terminal's own."""
    papers: defaultdict[str, list[str]] = defaultdict(list)  # beneath all shapes
    shapes: defaultdict[str, list[str]] = defaultdict(list)
    texts: list[str] = []
    for y, row in enumerate(rows):
        x = 0
        for segment in row:
            ink, paper = _colours(segment.style or Style.null(), background)
            if paper != background:
                papers[paper].append(_path(x, y, segment.cell_length, WHOLE))
            _draw(segment, x, y, ink, paper, shapes, texts)
            x += segment.cell_length
    width, height = cells * CELL_X + 2 * MARGIN, len(rows) * CELL_Y + 2 * MARGIN
    paths = [f'<path fill="{fill}" d="{"".join(parts)}"/>' for fill, parts in (*papers.items(), *shapes.items())]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            f"<title>{escape(title)}</title>",
            f"<style>text{{font:{FONT_SIZE}px {FONTS};white-space:pre}}.b{{font-weight:bold}}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{background}"/>',
            f'<g transform="translate({MARGIN} {MARGIN})">',
            f'<g shape-rendering="crispEdges">{"".join(paths)}</g>',
            *texts,
            "</g></svg>\n",
        ]
    )


def _draw(
    segment: Segment, x: int, y: int, ink: str, paper: str, shapes: defaultdict[str, list[str]], texts: list[str]
) -> None:
    """A run of one style: its blocks, its words."""
    words = list(segment.text)
    for start, character, times in _runs(segment.text):
        boxes = _SHAPES.get(character) or _dots(character)
        if boxes is not None:
            left = x + Segment(segment.text[:start]).cell_length
            shade = _blend(paper, ink, _SHADES[character]) if character in _SHADES else ink
            shapes[shade] += [_path(left, y, times, box) for box in boxes]
            words[start : start + times] = " " * times
    bold = ' class="b"' if segment.style is not None and segment.style.bold else ""
    for found in _WORDS.finditer("".join(words)):
        left = x + Segment(segment.text[: found.start()]).cell_length
        size = Segment(found.group()).cell_length * CELL_X
        place = f'x="{left * CELL_X}" y="{y * CELL_Y + BASELINE}" textLength="{size}"'
        texts.append(
            f'<text{bold} {place} lengthAdjust="spacingAndGlyphs" fill="{ink}">{escape(found.group(), False)}</text>'
        )


def _dots(character: str) -> tuple[Box, ...] | None:
    """The dots of a braille cell; fonts draw them too small for a line."""
    bits = ord(character) - 0x2800
    if not 0 <= bits < 256:
        return None
    return tuple((x / 2 + 0.1, y / 4 + 0.05, 0.3, 0.15) for bit, (x, y) in enumerate(_BRAILLE) if bits >> bit & 1)


def _runs(text: str) -> Iterator[tuple[int, str, int]]:
    """(start, character, times) of every run of one character."""
    for run in re.finditer(r"(.)\1*", text, re.DOTALL):
        yield run.start(), run.group(1), len(run.group())


def _path(x: int, y: int, times: int, box: Box) -> str:
    """The box in `times` cells side by side; boxes that touch are one."""
    left, top, width, height = box
    if width < 1 and times > 1:
        return "".join(_path(x + place, y, 1, box) for place in range(times))
    wide = times * width * CELL_X
    return f"M{(x + left) * CELL_X:g} {(y + top) * CELL_Y:g}h{wide:g}v{height * CELL_Y:g}h{-wide:g}z"


def _colours(style: Style, background: str) -> tuple[str, str]:
    """Ink and paper as the terminal shows them."""
    paper = _hex(style, False) or background
    ink = _hex(style, True) or Color.parse(background).get_contrast_text(1.0).hex6
    if style.reverse:
        ink, paper = paper, ink
    return (_blend(paper, ink, 0.6) if style.dim else ink), paper


def _hex(style: Style, ink: bool) -> str | None:
    colour = style.color if ink else style.bgcolor
    return None if colour is None or colour.is_default else colour.get_truecolor(foreground=ink).hex


def _blend(paper: str, ink: str, share: float) -> str:
    return Color.parse(paper).blend(Color.parse(ink), share).hex6
