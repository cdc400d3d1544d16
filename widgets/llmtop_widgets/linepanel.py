"""A panel of lines, the work horse of a dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from textual.geometry import Region, Size

from llmtop_widgets.linewidget import LineWidget
from llmtop_widgets.text import EMPTY, Line, Span, line, width


class LinePanel(LineWidget):
    """Shows a title line (when there is one) and lines below it; draws again only when they change."""

    DEFAULT_CSS = """
    LinePanel { height: 1fr; width: 1fr; }
    """

    def __init__(
        self,
        title: str | Line = "",
        lines: Sequence[Line] = (),
        *,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._title = _title_line(title)
        self._lines = tuple(lines)

    @property
    def shown(self) -> tuple[Line, ...]:
        """The title and the lines as they are drawn."""
        return (self._title, *self._lines) if self._title else self._lines

    def set_title(self, title: str | Line) -> None:
        """Replace the title; an empty one gives its row to the lines."""
        self._show(_title_line(title), self._lines)

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Replace the lines; lines beyond the height are not drawn."""
        self._show(self._title, tuple(lines))

    def _show(self, title: Line, lines: tuple[Line, ...]) -> None:
        if title == self._title and lines == self._lines:
            return
        before, extent = self.shown, self._extent() if self.styles.auto_dimensions else None
        self._title, self._lines = title, lines
        if extent is not None and extent != self._extent():
            self.refresh(layout=True)
            return
        pairs = enumerate(zip_longest(before, self.shown, fillvalue=EMPTY))
        rows = [y for y, (old, new) in pairs if old != new and y < self.size.height]
        if 2 * len(rows) > self.size.height:
            self.refresh()
        elif rows:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in rows))

    def _extent(self) -> tuple[int, int]:
        shown = self.shown
        return max(map(width, shown), default=0), len(shown)

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002
        """Return the width of the longest line, for `width: auto`."""
        return self._extent()[0]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        """Return the number of rows, for `height: auto`."""
        return self._extent()[1]

    def line_at(self, y: int) -> tuple[Line, str]:
        """Return row `y`; rows without a line are blank."""
        shown = self.shown
        return (shown[y] if y < len(shown) else EMPTY), ""


def _title_line(title: str | Line) -> Line:
    return line(Span(title, "title")) if isinstance(title, str) else title
