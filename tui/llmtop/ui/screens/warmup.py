"""The warm-up screen: how close a start-up comes to an OOM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from textual.widget import Widget

from llmtop.ui.panels.view import View
from llmtop.ui.panels.warmup import warmup_page
from llmtop.ui.screens.base import ViewScreen, finish
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.text import Line, Span

if TYPE_CHECKING:
    from llmtop.ui.app import LlmtopApp


class WarmupScreen(ViewScreen):
    """Phases, memory, ledger and advice of the start-up that is watched, or was."""

    name_in_keys = "warmup"

    def body(self) -> Iterable[Widget]:
        """One panel."""
        yield LinePanel(id="body")

    def draw(self, view: View) -> None:
        """The newest report."""
        lines = self.page(view, self.size.width - 2, self.size.height - 2)
        self.query_one("#body", LinePanel).set_lines(finish((Span(" "), *content) for content in lines))

    def page(self, view: View, cells: int, rows: int) -> list[Line]:
        """The lines of the page."""
        return warmup_page(cast("LlmtopApp", self.app).startup, view, cells, rows)
