"""What pages with a table share: an order that the keys and the header change, and a filter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.widget import Widget
from textual.widgets import Input

from llmtop.ui.panels.view import asciify
from llmtop.ui.screens.base import MOST_TYPED, ViewScreen
from llmtop_widgets import glyphs
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.linetable import Cell, Column, LineTable, Row
from llmtop_widgets.statusbar import KeyHint
from llmtop_widgets.text import Span, plain

if TYPE_CHECKING:
    from llmtop.ui.session import Session


class TableScreen(ViewScreen):
    """A verdict, a table, a line for the filter: o or a click sorts, / filters, Enter opens a row."""

    columns: ClassVar[tuple[Column, ...]]
    orders: ClassVar[tuple[str, ...]]  # the keys of the columns to sort by, as they follow on each other
    words: ClassVar[frozenset[str]]  # of those the ones that begin with the least
    empty: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.sort_key, self.descending = "", False
        self.needle = ""

    def body(self) -> Iterable[Widget]:
        """The verdict, the table and the line for the filter."""
        yield LinePanel(id="verdict")
        yield LineTable(self.columns, empty=self.empty, id="body")
        yield Input(placeholder="filter", id="filter", classes="hidden", compact=True, max_length=MOST_TYPED)

    def begin(self) -> None:
        """Keys go to the table."""
        self.query_one(LineTable).focus()

    def hints(self) -> list[KeyHint]:
        """What Enter does with a row, before the keys of every page."""
        return [KeyHint("Enter", "Open"), *super().hints()]

    @property
    def session(self) -> Session:
        """The app, as what it is."""
        return cast("Session", self.app)

    def matches(self, row: Row) -> bool:
        """Whether a row has in it what is filtered by."""
        words = (cell.text if isinstance(cell, Span) else plain(cell) for cell in row.cells)
        return self.needle in " ".join(words).casefold()

    def cycle_sort(self) -> None:
        """The next column."""
        place = self.orders.index(self.sort_key or self.orders[0]) + 1
        self.sort_key = self.orders[place % len(self.orders)]
        self.descending = self.sort_key not in self.words
        self.again()

    def open_filter(self) -> None:
        """Show the line for the filter."""
        field = self.query_one(Input)
        field.remove_class("hidden")
        field.focus()

    def leave(self) -> bool:
        """Escape: first out of the filter, which is forgotten."""
        field = self.query_one(Input)
        if field.has_class("hidden") and not self.needle:
            return True
        field.value = self.needle = ""
        field.add_class("hidden")
        self.query_one(LineTable).focus()
        self.again()
        return False

    @on(Input.Changed)
    def _filtered(self, event: Input.Changed) -> None:
        self.needle = event.value.casefold()
        self.again()

    @on(Input.Submitted)
    def _filter_done(self) -> None:
        self.query_one(LineTable).focus()

    @on(LineTable.SortRequested)
    def _sorted(self, event: LineTable.SortRequested) -> None:
        if event.key in self.orders:
            again = event.key == self.sort_key
            self.descending = not self.descending if again else event.key not in self.words
            self.sort_key = event.key
            self.again()

    def again(self) -> None:
        """Draw what is known anew."""
        if self.view is not None:
            self.draw(self.view)


def finished(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Cells as the terminal can show them."""
    if glyphs.current() is not glyphs.ASCII:
        return cells
    return tuple(asciify((cell,))[0] if isinstance(cell, Span) else asciify(cell) for cell in cells)
