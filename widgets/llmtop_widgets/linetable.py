"""A table of lines: sortable header, cursor that follows its row, columns that give way on narrow screens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from llmtop_widgets import glyphs
from llmtop_widgets.linewidget import LineWidget
from llmtop_widgets.text import EMPTY, Align, Line, Span, fit_text, join, plain, text_width

Cell = Span | Line
"""What a row shows in one column."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its width in cells, its share of spare width (`flex`), and how readily it gives way.

    Columns with the highest `priority` number are dropped first when the table is too narrow; none gets wider than
    `most` cells.
    """

    key: str
    title: str
    width: int
    flex: int = 0
    align: Align = "left"
    priority: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row: a key that stays the same while the row moves, and one cell per column."""

    key: str
    cells: tuple[Cell, ...]


def fit_columns(columns: Sequence[Column], width: int, gap: int = 1) -> list[tuple[int, int]]:
    """Return (index, width) of the columns that are shown in `width` cells, from left to right.

    The first of the most important columns always stays, cut to the width when it must be.
    """
    kept = list(range(len(columns)))
    while len(kept) > 1 and _needed(columns, kept, gap) > width:
        kept.remove(max(kept, key=lambda index: (columns[index].priority, index)))
    spare = max(0, width - _needed(columns, kept, gap))
    shares = sum(columns[index].flex for index in kept)
    sizes = []
    for index in kept:
        flex = columns[index].flex
        extra = spare * flex // shares if shares else 0
        most = columns[index].most
        extra = extra if most is None else min(extra, max(0, most - columns[index].width))
        spare, shares = spare - extra, shares - flex
        sizes.append((index, min(width, columns[index].width + extra)))
    return sizes


def _needed(columns: Sequence[Column], kept: Sequence[int], gap: int) -> int:
    return sum(columns[index].width for index in kept) + gap * (len(kept) - 1)


class LineTable(LineWidget, can_focus=True):
    """Rows under a header; the caller sorts, the table shows the order and asks for another one."""

    DEFAULT_CSS = """
    LineTable { height: 1fr; width: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "edge(-1)", "First", show=False),
        Binding("end", "edge(1)", "Last", show=False),
        Binding("enter", "select", "Open", show=False),
    ]

    class RowSelected(Message):
        """A row was chosen with Enter or a double click."""

        def __init__(self, table: LineTable, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> LineTable:
            """The table, for the `on` decorator."""
            return self.table

    class RowHighlighted(RowSelected):
        """The cursor came to a row."""

    class SortRequested(RowSelected):
        """The title of a column was clicked; `key` is the column's."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Row] = (),
        *,
        empty: str = "",
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._columns = tuple(columns)
        self._rows = tuple(rows)
        self.empty = empty
        self._sort: tuple[str | None, bool] = (None, False)
        self._cursor = 0
        self._top = 0

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows in the order shown."""
        return self._rows

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor; None when there are no rows."""
        return self._rows[self._cursor].key if self._rows else None

    @property
    def keys_in_sight(self) -> tuple[str, ...]:
        """The keys of the rows that are on screen."""
        return tuple(row.key for row in self._rows[self._top : self._top + self._visible])

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Replace the rows; the cursor stays on its key, or on its place when the key is gone."""
        rows = tuple(rows)
        if rows == self._rows:
            return
        key = self.cursor_key
        self._rows = rows
        places = {row.key: index for index, row in enumerate(rows)}
        self._move_to(places.get(key, self._cursor) if key is not None else self._cursor)
        self.refresh()

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Replace the columns; the rows that are set next have a cell for each."""
        if tuple(columns) != self._columns:
            self._columns, self._rows = tuple(columns), ()
            self.refresh()

    def set_sort(self, column_key: str | None, descending: bool = False) -> None:
        """Mark a column's title as the one the rows are sorted by."""
        if (column_key, descending) != self._sort:
            self._sort = (column_key, descending)
            self.refresh()

    def action_move(self, rows: int) -> None:
        """Move the cursor by so many rows."""
        self._move_to(self._cursor + rows)

    def action_page(self, direction: int) -> None:
        """Move the cursor by a screenful."""
        self._move_to(self._cursor + direction * self._visible)

    def action_edge(self, direction: int) -> None:
        """Move the cursor to the first or the last row."""
        self._move_to(0 if direction < 0 else len(self._rows) - 1)

    def action_select(self) -> None:
        """Choose the row under the cursor."""
        key = self.cursor_key
        if key is not None:
            self.post_message(self.RowSelected(self, key))

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self._move_to(self._cursor)

    def on_click(self, event: events.Click) -> None:
        """Move the cursor, choose a row (double click) or ask for another order (header)."""
        event.stop()
        if event.y == 0:
            self._request_sort(event.x)
        elif self._top + event.y - 1 < len(self._rows):
            self._move_to(self._top + event.y - 1)
            if event.chain == 2:
                self.action_select()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll with the wheel, the cursor with it."""
        event.stop()
        self._move_to(self._cursor + 1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll with the wheel, the cursor with it."""
        event.stop()
        self._move_to(self._cursor - 1)

    def line_at(self, y: int) -> tuple[Line, str]:
        """Return the header or a visible row."""
        if y == 0:
            return self._header(), "header"
        index = self._top + y - 1
        if index < len(self._rows):
            return self._row_line(index)
        return ((Span(self.empty, "dim"),) if y == 1 and not self._rows else EMPTY), ""

    @property
    def _visible(self) -> int:
        return max(1, self.size.height - 1)

    def _move_to(self, index: int) -> None:
        """Put the cursor on a row, clamped, and scroll as little as needed to show it."""
        before = (self._cursor, self._top)
        self._cursor = max(0, min(index, len(self._rows) - 1))
        last_top = max(0, len(self._rows) - self._visible)
        self._top = min(max(self._top, self._cursor - self._visible + 1), self._cursor, last_top)
        if (self._cursor, self._top) != before:
            self.refresh()
            key = self.cursor_key
            if key is not None and self._cursor != before[0]:
                self.post_message(self.RowHighlighted(self, key))

    def _request_sort(self, x: int) -> None:
        left = 0
        for index, size in fit_columns(self._columns, self.size.width):
            if left <= x < left + size:
                self.post_message(self.SortRequested(self, self._columns[index].key))
            left += size + 1

    def _header(self) -> Line:
        sizes = fit_columns(self._columns, self.size.width)
        titles = [(self._title(index), size, self._columns[index].align) for index, size in sizes]
        text, size, align = titles[0]
        where = f"{text}  {self._top + 1}-{self._top + self._visible}/{len(self._rows)}"
        if len(self._rows) > self._visible and text_width(where) <= size:
            titles[0] = (where, size, align)
        return (Span(plain(join(((Span(title),), size, align) for title, size, align in titles)), "header"),)

    def _title(self, index: int) -> str:
        column = self._columns[index]
        key, descending = self._sort
        if column.key != key:
            return column.title
        return column.title + (glyphs.current().sort_down if descending else glyphs.current().sort_up)

    def _row_line(self, index: int) -> tuple[Line, str]:
        cells = self._rows[index].cells
        parts = (
            (_as_line(cells[column]), size, self._columns[column].align)
            for column, size in fit_columns(self._columns, self.size.width)
        )
        content = join(parts)
        if index != self._cursor:
            return content, ""
        style = "selected" if self.has_focus else "cursor"
        return (Span(fit_text(plain(content), self.size.width), style),), style


def _as_line(cell: Cell) -> Line:
    return (cell,) if isinstance(cell, Span) else cell
