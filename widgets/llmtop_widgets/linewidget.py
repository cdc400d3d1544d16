"""The base of the widgets: draws `Line`s with styles taken from CSS, cheaply."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from llmtop_widgets.text import Line, clean, fit

STYLE_NAMES = (
    "dim",
    "bold",
    "ok",
    "low",
    "critical",
    "alarm",
    "info",
    "accent",
    "label",
    "value",
    "title",
    "header",
    "selected",
    "cursor",
    "key",
    "bar",
    "track",
    "mark",
    "threshold",
    "axis",
    "series1",
    "series2",
    "series3",
    "series4",
    "series5",
    "series6",
)


@lru_cache(maxsize=1024)
def _blank_alike(one: Style, other: Style) -> bool:
    """Whether a blank looks the same in two styles."""
    drawn = any(style.underline or style.reverse or style.strike or style.link for style in (one, other))
    return not drawn and one.bgcolor == other.bgcolor


class LineWidget(Widget):
    """A widget that draws lines; a span's style `ok` is the component class `line--ok`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"line--{name}" for name in STYLE_NAMES}
    ALLOW_SELECT: ClassVar[bool] = False
    DEFAULT_CSS = """
    LineWidget {
        & > .line--dim { color: $text-muted; }
        & > .line--bold { text-style: bold; }
        & > .line--ok { color: $text-success; }
        & > .line--low { color: $text-warning; text-style: bold; }
        & > .line--critical { color: $text-error; text-style: bold reverse; }
        & > .line--alarm { color: $text-error; text-style: bold; }
        & > .line--info { color: $text-accent; }
        & > .line--accent { color: $text-accent; text-style: bold; }
        & > .line--label { color: $text-muted; }
        & > .line--title { color: $text-primary; text-style: bold; }
        & > .line--header { color: $text-muted; text-style: underline; }
        & > .line--selected { background: $block-cursor-background; color: $block-cursor-foreground; }
        & > .line--cursor { background: $boost; text-style: bold; }
        & > .line--key { color: $text-accent; text-style: bold; }
        & > .line--bar { color: $primary; }
        & > .line--track { color: $text-disabled; }
        & > .line--mark { color: $text-accent; }
        & > .line--threshold { color: $text-warning; }
        & > .line--axis { color: $text-disabled; }
        & > .line--series1 { color: $primary; }
        & > .line--series2 { color: $primary; }
        & > .line--series3 { color: $secondary; }
        & > .line--series4 { color: $accent; }
        & > .line--series5 { color: $secondary; }
        & > .line--series6 { color: $text-error; }
    }
    LineWidget:ansi {
        & > .line--dim, & > .line--label, & > .line--track, & > .line--axis { text-style: dim; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._rich_styles: dict[str, Style] = {}
        self._strips: dict[tuple[Line, str, int], Strip] = {}

    def line_at(self, y: int) -> tuple[Line, str]:
        """Return the line of row `y` and the style of the blanks that fill it."""
        raise NotImplementedError

    def notify_style_update(self) -> None:
        """Forget resolved styles, because the theme, the classes or the state have changed."""
        super().notify_style_update()
        self._rich_styles.clear()
        self._strips.clear()

    def rich_style_of(self, names: str) -> Style:
        """Resolve a span's style, filters included; a name without a component class raises `KeyError`."""
        style = self._rich_styles.get(names)
        if style is None:
            classes = [f"line--{name}" for name in names.split()]
            style = self.get_component_rich_style(*classes) if classes else self.rich_style
            style = self._rich_styles[names] = self._filtered(style)
        return style

    def _filtered(self, style: Style) -> Style:
        """Apply the filters for NO_COLOR and ANSI themes once per style instead of once per row."""
        segments = [Segment("x", style)]
        for line_filter in self.get_line_filters():
            segments = line_filter.apply(segments, self.background_colors[1])
        return segments[0].style or style

    def render_line(self, y: int) -> Strip:
        """Return the strip of row `y`, from the cache when the same line was drawn before."""
        return self._strip(*self.line_at(y), self.size.width)

    def _strip(self, content: Line, fill: str, width: int) -> Strip:
        key = (content, fill, width)
        strip = self._strips.get(key)
        if strip is None:
            if len(self._strips) > 4 * self.size.height + 64:
                self._strips.clear()
            strip = self._strips[key] = Strip(self._segments(fit(content, width, style=fill)), width)
        return strip

    def _segments(self, spans: Line) -> list[Segment]:
        """The segments of a row, as few as possible: blanks join what is before them where that shows nothing."""
        segments: list[Segment] = []
        text, style = "", None
        for span in spans:
            own = self.rich_style_of(span.style)
            if style is not None and (own is style or (span.text.isspace() and _blank_alike(style, own))):
                text += span.text
                continue
            if style is not None:
                segments.append(Segment(clean(text), style))
            text, style = span.text, own
        if style is not None:
            segments.append(Segment(clean(text), style))
        return segments

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw rows without Textual's styles cache when nothing surrounds or tints the content.

        The cache costs more than the drawing itself, and the terminal driver compares cells anyway.
        """
        if self.styles.gutter or self.styles.tint.a or self.opacity != 1.0:
            return super().render_lines(crop)
        width = self.size.width
        strips = [self._strip(*self.line_at(y), width) for y in crop.line_range]
        if crop.column_span != (0, width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips
