"""The characters that widgets draw with: one set for Unicode terminals, one for plain ASCII."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Glyphs:
    """A set of drawing characters, each exactly one cell wide."""

    name: str
    bar_full: str
    bar_partials: tuple[str, ...]
    """Growing fractions of a cell, filled from the left; empty when the set has none."""
    bar_empty: str
    bar_unknown: str
    shades: tuple[str, ...]
    """Fills for the parts of a stacked bar, told apart without colour; the second also the upper of stacked series."""
    shade_free: str
    blocks: tuple[str, ...]
    """Nine levels of a chart cell, filled from the bottom: blank first, full last."""
    quadrants: str
    """A cell by the quarters that are full: upper left 1, upper right 2, lower left 4, lower right 8; or empty."""
    braille: bool
    """Whether cells of two by four dots can be drawn."""
    zero: str
    """The foot of a chart column whose value is a true zero."""
    mark: str
    threshold: str
    horizontal: str
    vertical: str
    corner_bottom_left: str
    tick_left: str
    dotted: str
    bullet: str
    dot: str
    star: str
    diamond: str
    check: str
    cross: str
    arrow_right: str
    sort_up: str
    sort_down: str
    cursor: str
    unknown: str
    """Stands for a value that nobody reported."""
    ellipsis: str
    approx: str
    times: str


UNICODE = Glyphs(
    name="unicode",
    bar_full="█",
    bar_partials=tuple("▏▎▍▌▋▊▉"),
    bar_empty="░",
    bar_unknown="╌",
    shades=tuple("█▒▓▚▞"),
    shade_free="░",
    blocks=tuple(" ▁▂▃▄▅▆▇█"),
    quadrants=" ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█",
    braille=True,
    zero="_",
    mark="│",
    threshold="┄",
    horizontal="─",
    vertical="│",
    corner_bottom_left="└",
    tick_left="┤",
    dotted="·",
    bullet="•",
    dot="●",
    star="★",
    diamond="◆",
    check="✓",
    cross="✗",
    arrow_right="→",
    sort_up="▲",
    sort_down="▼",
    cursor="▸",
    unknown="–",
    ellipsis="…",
    approx="≈",
    times="×",
)

ASCII = Glyphs(
    name="ascii",
    bar_full="#",
    bar_partials=(),
    bar_empty=".",
    bar_unknown="?",
    shades=tuple("#=%+o"),
    shade_free=".",
    blocks=tuple(" .:-=+*%#"),
    quadrants="",
    braille=False,
    zero="_",
    mark="|",
    threshold="'",
    horizontal="-",
    vertical="|",
    corner_bottom_left="+",
    tick_left="+",
    dotted=".",
    bullet="*",
    dot="o",
    star="*",
    diamond="+",
    check="y",
    cross="x",
    arrow_right=">",
    sort_up="^",
    sort_down="v",
    cursor=">",
    unknown="-",
    ellipsis="~",
    approx="~",
    times="x",
)

BRAILLE = 0x2800
ONE_CELL = frozenset(map(chr, (*range(0x20, 0x7F), *range(BRAILLE, BRAILLE + 256)))).union(
    *(
        value
        for glyphs in (UNICODE, ASCII)
        for field in fields(Glyphs)
        if field.name != "braille"
        for value in getattr(glyphs, field.name)
    )
)
"""Characters of which it is known without a table that they take one cell: ASCII and what the widgets draw with."""

_current = UNICODE
_colours = True


def current() -> Glyphs:
    """Return the set that everything draws with."""
    return _current


def colours() -> bool:
    """Whether colour tells things apart; where it does not, shades must."""
    return _colours


def use(glyphs: Glyphs, *, colours: bool = True) -> None:
    """Choose the set for the whole program; call it once, before anything is drawn."""
    global _current, _colours
    _current, _colours = glyphs, colours
