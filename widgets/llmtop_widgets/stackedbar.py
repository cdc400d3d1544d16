"""A horizontal bar whose parts add up to a total."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, line


def shade(index: int) -> str:
    """Return the fill of the part with this index, for a legend beside the bar."""
    shades = glyphs.current().shades
    return shades[index % len(shades)]


def apportion(weights: Sequence[float], cells: int) -> list[int]:
    """Share `cells` among non-negative weights by largest remainder; the shares add up to `cells`.

    A weight above zero gets at least one cell, taken from the largest share, while there are cells enough.
    """
    total = sum(weights)
    if total <= 0 or cells <= 0:
        return [0] * len(weights)
    exact = [weight * cells / total for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for index in by_remainder[: cells - sum(shares)]:
        shares[index] += 1
    for index, weight in enumerate(weights):
        largest = max(range(len(shares)), key=shares.__getitem__)
        if weight > 0 and not shares[index] and shares[largest] > 1:
            shares[index] += 1
            shares[largest] -= 1
    return shares


def stacked_line(
    parts: Sequence[tuple[float, str]],
    total: float | None,
    width: int,
    *,
    track: str = "track",
) -> Line:
    """Draw (amount, style) parts of `total` as a bar of exactly `width` cells, the rest of the total free.

    Amounts below zero count as zero; when the parts exceed the total, the bar shows their proportions.  An
    unknown total draws the unknown pattern, a total of zero an empty bar.
    """
    if width <= 0:
        return ()
    glyph = glyphs.current()
    if total is None:
        return (Span(glyph.bar_unknown * width, track),)
    amounts = [max(0.0, amount) for amount, _ in parts]
    amounts.append(max(0.0, total - sum(amounts)))
    shares = apportion(amounts, width)
    free = width - sum(shares[:-1])
    spans = [Span(shade(i) * shares[i], style) for i, (_, style) in enumerate(parts)]
    return line(*spans, Span(glyph.shade_free * free, track))
