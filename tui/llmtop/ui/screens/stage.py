"""The stage: the figures that an audience must see, and nothing to distract from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from llmtop.ui.panels.stage import stage_page
from llmtop.ui.panels.view import View
from llmtop.ui.screens.base import ViewScreen, finish
from llmtop_widgets.linepanel import LinePanel

if TYPE_CHECKING:
    from llmtop.ui.app import LlmtopApp


class StageScreen(ViewScreen):
    """Large digits and one chart from edge to edge; Escape leads back."""

    name_in_keys = "stage"
    # there is nothing to focus here: Textual's own use of Tab would hide that of the table of keys
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.next_server", show=False),
        Binding("shift+tab", "app.previous_server", show=False),
    ]

    def compose(self) -> ComposeResult:
        """One panel: a header or a key bar would be clutter here."""
        yield LinePanel(id="body")

    def show(self, view: View) -> None:
        """Take a view and draw it."""
        self.view = view
        if self.is_mounted and self.size.width:
            self.draw(view)

    def draw(self, view: View) -> None:
        """The page for the size there is, with the moment that is being announced."""
        moment = cast("LlmtopApp", self.app).moment
        lines = stage_page(view, moment, self.size.width, self.size.height)
        self.query_one("#body", LinePanel).set_lines(finish(lines))
