"""Sends a terminal only the cells that changed.

Textual draws whole spans of the screen again when anything inside them changed.  A `CellDiff` stands between it
and the terminal: it reads each frame into a grid of cells, compares the grid with what the terminal shows already,
and writes the difference with the shortest sequences it finds.  What it cannot read it passes on as it is; from
then on it takes the terminal's content as unknown, so the worst case costs bytes and never a wrong screen.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from itertools import compress
from operator import is_not
from typing import NamedTuple

from llmtop.ui.terminal import sgr
from llmtop.ui.terminal.cursor import move
from llmtop.ui.terminal.sgr import Style, StyleTable
from llmtop_widgets.text import cell_count

SYNC_START = "\x1b[?2026h"
SYNC_END = "\x1b[?2026l"

SHIFT_WORTH = 6
"""A scrolled stretch with more changed cells than this is moved by the terminal instead of drawn again."""
BRIDGE = 3
"""Unchanged cells between two runs are drawn again when a cursor move would cost as much."""
MAX_STYLES = 4096

_TOKEN = re.compile(
    # a segment as Textual writes it, in one piece because most of a frame is made of them
    r"\x1b\[(?P<paint>[\d;]+)m(?P<painted>[^\x00-\x1f\x7f-\x9f]+)\x1b\[0m"
    r"|\x1b\[(?P<row>\d+);(?P<column>\d+)H"
    r"|\x1b\[(?P<sgr>[\d;]*)m"
    r"|\x1b\]8;(?P<link>[^\x07\x1b]*)\x1b\\"
    r"|(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
)
_FRAME = re.compile(r"\x1b\[(\d+);\d+H")
_LAST_MOVE = re.compile(r"\x1b\[(\d+);(\d+)H")
# Writes that leave the cells as they are: modes (but not those that switch or clear the screen or move its
# origin), mode and cursor queries, keyboard protocol, clipboard, pointer shape, bell.
_HARMLESS = re.compile(
    r"(?:\x1b\[\?(?!(?:3|6|47|69|1047|1048|1049)[hl])\d+[hl]"
    r"|\x1b\[\?\d+\$p|\x1b\[6n|\x1b\[[<>=][\d;]*u|\x1b\](?:52|22);[^\x07\x1b]*(?:\x07|\x1b\\)|\x07)+"
)

Cell = tuple[str, int]
"""The text of a cell (empty for the right part of a wide character) and the number of its style."""
CellRow = list[Cell | None]
"""A row of the screen; None where nobody knows what the terminal shows."""


class _Unreadable(Exception):
    """A frame holds something that this module does not understand."""


class _Op(NamedTuple):
    """Text to draw at a place; with `shift_to`, first move the cells after it one to the left, up to there."""

    style: int
    y: int
    x: int
    text: str
    cells: int
    simple: bool
    shift_to: int = -1


class _CellTable(dict[str, Cell]):
    """The cells of one style by their text, so that equal cells are one object and compare by identity.

    Looking up a character that does not take one cell fails; `cell` gives those too.
    """

    def __init__(self, style: int, space_style: int) -> None:
        self._style = style
        self._odd: dict[str, Cell] = {}
        super().__init__({" ": (" ", space_style)})

    def __missing__(self, text: str) -> Cell:
        if cell_count(text) != 1:
            raise KeyError(text)
        cell = self[text] = (text, self._style)
        return cell

    def cell(self, text: str) -> Cell:
        """Return the cell of any text, also of a wide character and of its empty right part."""
        try:
            return self[text]
        except KeyError:
            return self._odd.setdefault(text, (text, self._style))


@lru_cache(maxsize=1024)
def split_cells(text: str) -> tuple[tuple[str, ...], bool]:
    """Split a text into cells: a wide character is followed by an empty cell, a combining one joins its base.

    The flag says whether the cells are certain.  A text whose width is not the sum of its characters (an
    emoji sequence) stays in one piece, because terminals differ on it.
    """
    widths = [cell_count(character) for character in text]
    total = cell_count(text)
    if sum(widths) != total:
        return (text, *[""] * (total - 1)), False
    cells: list[str] = []
    base = -1
    for character, width in zip(text, widths, strict=True):
        if width:
            base = len(cells)
            cells += [character, *[""] * (width - 1)]
        elif base >= 0:
            cells[base] += character
    return tuple(cells), True


class CellDiff:
    """The screen as the terminal shows it, and the writer of differences.

    Not thread-safe: all calls come from the thread that draws.
    """

    def __init__(self, *, shifts: bool = True) -> None:
        """`shifts` allows the VT102 sequences that delete and insert a character."""
        self._shifts = shifts
        self._held_sync = False
        self._uncertain: list[tuple[int, int, int]] = []
        self._start_over((0, 0))

    def mark_unknown(self) -> None:
        """Forget what the terminal shows; the next frame that covers a cell draws it again."""
        self._start_over(self._size)

    def _start_over(self, size: tuple[int, int]) -> None:
        width, height = self._size = size
        self._rows: list[CellRow] = [[None] * width for _ in range(height)]
        self._complex: set[int] = set()
        self._chunks: dict[int, str] = {}
        self._table = StyleTable()
        self._cells: dict[int, _CellTable] = {}
        self._parsed: dict[tuple[str, str], int] = {}
        self._style: int | None = None
        self._cursor: tuple[int, int] | None = None

    def feed(self, data: str, size: tuple[int, int]) -> str:
        """Take one write meant for a terminal of `size` (columns, rows); return what to send instead."""
        if size != self._size or len(self._table.styles) > MAX_STYLES:
            self._start_over(size)
        if data == SYNC_START:
            self._held_sync = True
            return ""
        if data == SYNC_END and self._held_sync:
            self._held_sync = False
            return ""
        output = self._frame(data) if _FRAME.match(data) else self._other(data)
        if output and self._held_sync:
            self._held_sync = False
            output = SYNC_START + output
        return output

    def _other(self, data: str) -> str:
        return data if _HARMLESS.fullmatch(data) else self._pass_on(data)

    def _pass_on(self, data: str) -> str:
        """Send data as it is, from default colours, because it counts on them and may leave the screen."""
        default = "" if self._style is None else self._table.change(self._style, self._table.number(Style()))
        self.mark_unknown()
        return default + data

    def _frame(self, data: str) -> str:
        try:
            pending, cursor = self._read(data)
        except _Unreadable:
            return self._pass_on(data)
        ops: list[_Op] = []
        for y, row in pending.items():
            if row != self._rows[y]:
                ops += self._row_ops(y, self._rows[y], row)
            self._rows[y] = row
        output = self._emit(ops)
        # At home the cursor is parked; anywhere else it shows an input method where to open its window.
        if cursor not in (None, (0, 0)) and cursor != self._cursor:
            output += move(self._cursor, cursor)
            self._cursor = cursor
        self._forget_uncertain(pending)
        return output

    # Reading -----------------------------------------------------------------------------------------------

    def _read(self, data: str) -> tuple[dict[int, CellRow], tuple[int, int] | None]:
        """Return the rows that a frame touches, as they will be, and where it leaves the cursor."""
        pending: dict[int, CellRow] = {}
        self._uncertain.clear()
        last = _LAST_MOVE.fullmatch(data, data.rfind("\x1b["))
        cursor = (int(last[2]) - 1, int(last[1]) - 1) if last else None
        for chunk in data[: last.start() if last else None].split("\n"):
            start = _FRAME.match(chunk)
            if start is None:
                if chunk:
                    raise _Unreadable
                continue
            y = int(start[1]) - 1
            if self._chunks.get(y) != chunk:
                self._chunks[y] = self._read_chunk(chunk, pending, y)
        return pending, cursor

    def _read_chunk(self, chunk: str, pending: dict[int, CellRow], only_row: int) -> str:
        """Read the spans between two newlines; return the chunk when it can be recognised next time.

        Textual repeats whole rows that did not change, and a row that was last written by the same chunk
        need not be read again.  That takes a chunk of one row, complete in itself and certain.
        """
        x = y = position = 0
        parameters = link = ""
        rows, uncertain = {only_row}, len(self._uncertain)
        for token in _TOKEN.finditer(chunk):
            if token.start() != position:
                raise _Unreadable
            position = token.end()
            kind = token.lastgroup
            if kind == "painted":
                x += self._put(pending, y, x, token["painted"], self._style_number(token["paint"], link))
                parameters = ""
            elif kind == "text":
                x += self._put(pending, y, x, token["text"], self._style_number(parameters, link))
            elif kind == "sgr":
                parameters = token["sgr"]
            elif kind == "link":
                link = token["link"] if token["link"] != ";" else ""
            else:
                y, x = int(token["row"]) - 1, int(token["column"]) - 1
                rows.add(y)
        if position != len(chunk) or parameters not in ("", "0") or link:
            raise _Unreadable
        if len(rows) > 1:
            self._chunks.clear()
        return chunk if len(rows) == 1 and len(self._uncertain) == uncertain else ""

    def _style_number(self, parameters: str, link: str) -> int:
        key = (parameters, link)
        number = self._parsed.get(key)
        if number is None:
            style = sgr.parse(parameters, link)
            if style is None:
                raise _Unreadable
            number = self._parsed[key] = self._table.number(style)
        return number

    def _cell_table(self, style: int) -> _CellTable:
        table = self._cells.get(style)
        if table is None:
            space = self._table.number(self._table.styles[style].of_space())
            table = self._cells[style] = _CellTable(style, space)
        return table

    def _put(self, pending: dict[int, CellRow], y: int, x: int, text: str, style: int) -> int:
        """Write text into the pending row, clipped to the screen; return how many cells it takes."""
        table = self._cell_table(style)
        cells: list[Cell | None]
        try:
            cells = list(map(table.__getitem__, text))
        except KeyError:
            parts, certain = split_cells(text)
            cells = [table.cell(part) for part in parts]
            self._complex.add(y)
            if not certain:
                self._uncertain.append((y, x, len(cells)))
        width, height = self._size
        if y < height:
            row = pending.get(y)
            if row is None:
                row = pending[y] = self._rows[y].copy()
            kept = max(0, width - x)
            row[x : x + len(cells)] = cells[:kept]
        return len(cells)

    def _forget_uncertain(self, pending: dict[int, CellRow]) -> None:
        for y, x, count in self._uncertain:
            if y in pending:
                end = min(x + count, self._size[0])
                pending[y][x:end] = [None] * (end - x)

    # Comparing ---------------------------------------------------------------------------------------------

    def _row_ops(self, y: int, old: CellRow, new: CellRow) -> Iterator[_Op]:
        if y in self._complex:
            self._mend(new)
            if all(cell is None or len(cell[0]) == 1 for row in (old, new) for cell in row):
                self._complex.discard(y)
        changed = list(compress(range(len(new)), map(is_not, old, new)))
        if self._shifts and len(changed) > SHIFT_WORTH and y not in self._complex and None not in old:
            changed = yield from self._shift_ops(y, old, new, changed)
        yield from self._runs(y, new, changed)

    def _mend(self, row: CellRow) -> None:
        """Turn halves of wide characters whose other half was overwritten into the blanks they leave."""
        x = 0
        while x < len(row):
            cell = row[x]
            size = 1 if cell is None else cell_count(cell[0])
            followers = row[x + 1 : x + size]
            whole = len(followers) == size - 1 and all(part and not part[0] for part in followers)
            if cell is not None and (size == 0 or not whole):
                row[x] = self._cell_table(cell[1])[" "]
                size = 1
            x += size

    def _shift_ops(self, y: int, old: CellRow, new: CellRow, changed: list[int]) -> Generator[_Op, None, list[int]]:
        """Yield an operation for every stretch that scrolled one cell to the left; return what is left."""
        rest: list[int] = []
        index, last = 0, len(new) - 1
        while index < len(changed):
            start = end = changed[index]
            while end < last and new[end] is old[end + 1]:
                end += 1
            after = bisect_right(changed, end)
            cell = new[end]
            if after - index > SHIFT_WORTH and cell is not None:
                yield _Op(cell[1], y, start, cell[0], 1, True, end)
            else:
                rest += changed[index:after]
            index = after
        return rest

    def _runs(self, y: int, new: CellRow, changed: Sequence[int]) -> Iterator[_Op]:
        """Group changed cells into runs that one style can draw."""
        start = end = -1
        style: int | None = None
        for x in changed:
            cell = new[x]
            if x != end or cell is None or cell[1] != style:
                joined = self._bridge(style, new, end, x)
                if joined is None:
                    if style is not None:
                        yield _run(style, y, start, new[start:end])
                    start, joined = x, None if cell is None else cell[1]
                style = joined
            end = x + 1
        if style is not None:
            yield _run(style, y, start, new[start:end])

    def _bridge(self, style: int | None, row: CellRow, end: int, x: int) -> int | None:
        """Return the style in which a run that stops before `end` can go on to `x`; None if it cannot."""
        if style is None or x - end > BRIDGE or any(cell is None or not cell[0].isascii() for cell in row[end:x]):
            return None
        joined: int | None = style
        for cell in row[end : x + 1]:
            if joined is None or cell is None:
                return None
            joined = self._table.joined(joined, cell[1])
        return joined

    # Writing -----------------------------------------------------------------------------------------------

    def _emit(self, ops: list[_Op]) -> str:
        """Write operations grouped by style, beginning with the style that is set already."""
        styles = self._table.styles
        now = Style() if self._style is None else styles[self._style]

        def rank(op: _Op) -> tuple[bool, bool, str, bool, int, int, int]:
            style = styles[op.style]
            other = style.background != now.background
            return op.style != self._style, other, style.background, style.blank, op.style, op.y, op.x

        parts: list[str] = []
        for op in sorted(ops, key=rank):
            if self._style is None or self._table.joined(self._style, op.style) != self._style:
                parts.append(self._table.change(self._style, op.style))
                self._style = op.style
            parts.append(move(self._cursor, (op.x, op.y)))
            x = op.x
            if op.shift_to >= 0:
                x = op.shift_to
                parts.append(f"\x1b[P{move((op.x, op.y), (x, op.y))}\x1b[@")
            parts.append(op.text)
            end = x + op.cells
            self._cursor = (end, op.y) if op.simple and end < self._size[0] else None
        return "".join(parts)


def _run(style: int, y: int, x: int, cells: CellRow) -> _Op:
    texts = [cell[0] for cell in cells if cell is not None]
    return _Op(style, y, x, "".join(texts), len(cells), set(map(len, texts)) == {1})
