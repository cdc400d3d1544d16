"""The dashboard: one panel of lines, arranged by size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click
from textual.widget import Widget

from llmtop.ui.panels.board import BY_KEY, PANELS, Panel
from llmtop.ui.panels.frame import LaidOut, page
from llmtop.ui.panels.view import View
from llmtop.ui.screens.base import ViewScreen, finish
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.statusbar import KeyHint


class DashboardScreen(ViewScreen):
    """How full, how much memory is left, how deep the queue, how fast."""

    name_in_keys = "dashboard"
    # there is nothing to focus here: Textual's own use of Tab would hide that of the table of keys
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.next_server", show=False),
        Binding("shift+tab", "app.previous_server", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.zoomed: Panel | None = None  # what has the whole screen
        self._last: Panel = PANELS[0]
        self._page = LaidOut([])

    def body(self) -> Iterable[Widget]:
        """One panel: the terminal driver sends what changes."""
        yield LinePanel(id="body")

    def draw(self, view: View) -> None:
        """Arrange the panels for the size there is."""
        self._page = page(view, self.size.width, self.size.height - 2, self.zoomed)
        self.query_one("#body", LinePanel).set_lines(finish(self._page.lines))

    def hints(self) -> list[KeyHint]:
        """The way back from a panel that has the whole screen."""
        back = [KeyHint("Esc", "Back")] if self.zoomed is not None else []
        return [*back, *super().hints()]

    def open_panel(self, key: str) -> None:
        """That panel on the whole screen; Enter shows the one that was there last, then the next."""
        if key in BY_KEY:
            self._zoom(BY_KEY[key])
        elif self.zoomed is None:
            self._zoom(self._last)
        else:
            self._zoom(PANELS[(PANELS.index(self.zoomed) + 1) % len(PANELS)])

    def leave(self) -> bool:
        """Escape: first out of a panel that has the whole screen."""
        was = self.zoomed
        self._zoom(None)
        return was is None

    def on_click(self, event: Click) -> None:
        """A panel that is clicked has the whole screen, and the next click gives it back."""
        if event.screen_y in (0, self.size.height - 1):
            return
        self._zoom(None if self.zoomed is not None else self._page.at(event.screen_x - 1, event.screen_y - 1))

    def _zoom(self, panel: Panel | None) -> None:
        self.zoomed, self._last = panel, panel or self._last
        self.refresh_hints()
        if self.view is not None:
            self.draw(self.view)
