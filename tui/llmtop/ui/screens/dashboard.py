"""The dashboard: one panel of lines, arranged by size."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from llmtop.ui.panels.frame import body
from llmtop.ui.panels.view import View
from llmtop.ui.screens.base import ViewScreen, finish
from llmtop_widgets.linepanel import LinePanel


class DashboardScreen(ViewScreen):
    """How full, how much memory is left, how deep the queue, how fast."""

    name_in_keys = "dashboard"

    def body(self) -> Iterable[Widget]:
        """One panel: the terminal driver sends what changes."""
        yield LinePanel(id="body")

    def draw(self, view: View) -> None:
        """Arrange the panels for the size there is."""
        panel = self.query_one("#body", LinePanel)
        panel.set_lines(finish(body(view, self.size.width, self.size.height - 2)))
