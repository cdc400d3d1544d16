"""A horizontal gauge on a fixed scale from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, line

Thresholds = Sequence[tuple[float, str]]


def style_for(fraction: float, style: str, thresholds: Thresholds) -> str:
    """Return the style of the highest threshold that `fraction` has reached, else `style`."""
    reached = [limit for limit in thresholds if fraction >= limit[0]]
    return max(reached)[1] if reached else style


def gauge_line(
    fraction: float | None,
    width: int,
    style: str = "bar",
    *,
    thresholds: Thresholds = (),
    track: str = "track",
) -> Line:
    """Draw a gauge of `width` cells, filled from the left in eighths of a cell.

    `fraction` is clamped to 0..1; `None` and NaN draw the unknown pattern.  Anything above 0 shows at
    least the smallest step, and only 1 fills the bar.  `thresholds` are (fraction, style) pairs.
    """
    if width <= 0:
        return ()
    glyph = glyphs.current()
    if fraction is None or math.isnan(fraction):
        return (Span(glyph.bar_unknown * width, track),)
    fraction = min(1.0, max(0.0, fraction))
    steps_per_cell = len(glyph.bar_partials) + 1
    full, rest = divmod(_steps(fraction, width * steps_per_cell), steps_per_cell)
    filled = glyph.bar_full * full + (glyph.bar_partials[rest - 1] if rest else "")
    return line(
        Span(filled, style_for(fraction, style, thresholds)),
        Span(glyph.bar_empty * (width - len(filled)), track),
    )


def thin(gauge: Line) -> Line:
    """A gauge half a row high, in whole cells; as it is where the terminal has no half blocks.

    What is empty is a line at the foot: the gauge can be read where a row has one style.
    """
    glyph = glyphs.current()
    if not glyph.quadrants:
        return gauge
    half = {ord(sign): glyph.quadrants[12] for sign in (glyph.bar_full, *glyph.bar_partials)}
    return tuple(
        Span(span.text.translate(half | {ord(glyph.bar_empty): glyph.blocks[1]}), span.style) for span in gauge
    )


def _steps(fraction: float, steps: int) -> int:
    if fraction <= 0.0 or fraction >= 1.0:
        return steps if fraction else 0
    return min(steps - 1, max(1, round(fraction * steps)))
