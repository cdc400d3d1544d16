"""The dashboard: one panel of lines, arranged by size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from llmtop.ui.panels.frame import body
from llmtop.ui.panels.view import View
from llmtop.ui.screens.base import ViewScreen, finish
from llmtop_widgets.linepanel import LinePanel


class DashboardScreen(ViewScreen):
    """How full, how much memory is left, how deep the queue, how fast."""

    name_in_keys = "dashboard"
    # there is nothing to focus here: Textual's own use of Tab would hide that of the table of keys
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.next_server", show=False),
        Binding("shift+tab", "app.previous_server", show=False),
    ]

    def body(self) -> Iterable[Widget]:
        """One panel: the terminal driver sends what changes."""
        yield LinePanel(id="body")

    def draw(self, view: View) -> None:
        """Arrange the panels for the size there is."""
        panel = self.query_one("#body", LinePanel)
        panel.set_lines(finish(body(view, self.size.width, self.size.height - 2)))
