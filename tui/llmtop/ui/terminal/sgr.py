"""Text attributes and colours of terminal cells, and the shortest sequences that change them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

RESET = "\x1b[m"
LINK_END = "\x1b]8;;\x1b\\"

# The code that switches an attribute off; several attributes share one.
_OFF = {
    "1": "22",
    "2": "22",
    "3": "23",
    "4": "24",
    "5": "25",
    "6": "25",
    "7": "27",
    "8": "28",
    "9": "29",
    "21": "24",
    "51": "54",
    "52": "54",
    "53": "55",
}
_SHOWS_ON_BLANKS = frozenset({"4", "7", "9", "21", "51", "52", "53"})
_COLOUR_ARGUMENTS = {"2": 4, "5": 2}


@dataclass(frozen=True)
class Style:
    """How a cell is drawn: attributes as SGR codes, colours as SGR parameters (empty: default), a link.

    `blank` marks the style of a cell that shows nothing but its background.
    """

    attributes: frozenset[str] = frozenset()
    foreground: str = ""
    background: str = ""
    link: str = ""
    blank: bool = False

    @cached_property
    def plain(self) -> bool:
        """Whether a space in this style shows nothing but its background."""
        return not self.link and not self.attributes & _SHOWS_ON_BLANKS

    @cached_property
    def full(self) -> str:
        """The sequence that sets this style whatever was set before."""
        colours = (self.foreground, self.background)
        codes = [*sorted(self.attributes), *(colour for colour in colours if colour)]
        return f"\x1b[;{';'.join(codes)}m" if codes else RESET

    def of_space(self) -> Style:
        """Return the style to remember for a space drawn in this style."""
        return Style(background=self.background, blank=True) if self.plain else self


def parse(parameters: str, link: str) -> Style | None:
    """Read the parameters of an SGR sequence that starts from a reset; None when a code is not known."""
    attributes: set[str] = set()
    foreground = background = ""
    codes = parameters.split(";")
    while codes:
        code = codes.pop(0).lstrip("0")
        if code in ("38", "48"):
            size = _COLOUR_ARGUMENTS.get(codes[0] if codes else "", 0)
            arguments, codes = codes[:size], codes[size:]
            if not size or len(arguments) != size:
                return None
            colour = ";".join((code, *arguments))
            foreground, background = (colour, background) if code == "38" else (foreground, colour)
        elif code in _OFF:
            attributes.add(code)
        elif not code:
            attributes, foreground, background = set(), "", ""
        elif code in ("39", "49") or _is_colour(code):
            value = "" if code in ("39", "49") else code
            is_foreground = code[:-1] in ("3", "9")
            foreground, background = (value, background) if is_foreground else (foreground, value)
        else:
            return None
    return Style(frozenset(attributes), foreground, background, link)


def _is_colour(code: str) -> bool:
    return code.isdigit() and (30 <= int(code) <= 47 or 90 <= int(code) <= 107) and int(code) % 10 < 8


def change(old: Style | None, new: Style) -> str:
    """Return the shortest sequence that leads from one style to another; `None` is an unknown style."""
    if old is None:
        return (LINK_END if not new.link else "") + _link_start(new) + new.full
    link = "" if old.link == new.link else (_link_start(new) or LINK_END)
    return link + min(_difference(old, new), new.full, key=len)


def _link_start(style: Style) -> str:
    return f"\x1b]8;{style.link}\x1b\\" if style.link else ""


def _difference(old: Style, new: Style) -> str:
    off = {_OFF[attribute] for attribute in old.attributes - new.attributes}
    lost = {attribute for attribute in old.attributes if _OFF[attribute] in off}
    codes = [*sorted(off), *sorted(new.attributes - (old.attributes - lost))]
    if old.foreground != new.foreground:
        codes.append(new.foreground or "39")
    if old.background != new.background:
        codes.append(new.background or "49")
    return f"\x1b[{';'.join(codes)}m" if codes else ""


class StyleTable:
    """Gives every style a small number, and remembers what was worked out about pairs of them."""

    def __init__(self) -> None:
        self.styles: list[Style] = []
        self._numbers: dict[Style, int] = {}
        self._changes: dict[tuple[int | None, int], str] = {}
        self._joined: dict[tuple[int, int], int | None] = {}

    def number(self, style: Style) -> int:
        """Return the number of a style."""
        number = self._numbers.get(style)
        if number is None:
            number = self._numbers[style] = len(self.styles)
            self.styles.append(style)
        return number

    def change(self, old: int | None, new: int) -> str:
        """Return the shortest sequence from one numbered style to another."""
        key = (old, new)
        if key not in self._changes:
            old_style = None if old is None else self.styles[old]
            self._changes[key] = change(old_style, self.styles[new])
        return self._changes[key]

    def joined(self, first: int, second: int) -> int | None:
        """Return the one style that draws cells of both: a blank may be drawn in any plain style."""
        if first == second:
            return first
        key = (first, second)
        if key not in self._joined:
            one, two = self.styles[first], self.styles[second]
            same = one.background == two.background
            result = first if two.blank and one.plain else second if one.blank and two.plain else None
            self._joined[key] = result if same else None
        return self._joined[key]
