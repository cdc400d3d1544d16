"""The help: keys from the table, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from textual.containers import VerticalScroll
from textual.widget import Widget

from llmtop import __version__
from llmtop.contract.units import UNKNOWN
from llmtop.engines.registry import ENGINES
from llmtop.ui.keys import ALL_KEYS, LOAD_KEYS, Key
from llmtop.ui.panels import glossary
from llmtop.ui.panels.board import PANELS
from llmtop.ui.panels.glossary import entry, explained
from llmtop.ui.panels.view import View
from llmtop.ui.screens.base import ViewScreen, finish
from llmtop_widgets import glyphs
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.text import Line, Span, line

KEYS, NARROW_KEYS, LABEL = 24, 15, 12  # cells
ROOMY = 100  # cells from which every key of an action is named
SCROLLBAR = 2


class HelpScreen(ViewScreen):
    """Keys and meanings."""

    name_in_keys = "help"
    _cells = 0  # that the page is laid out for
    _tops: Mapping[str, int] = MappingProxyType({})  # of the words of each panel

    def body(self) -> Iterable[Widget]:
        """A page that scrolls."""
        yield VerticalScroll(LinePanel(id="body"), classes="scroll")

    def begin(self) -> None:
        """Keys scroll the page."""
        scroll = self.query_one(VerticalScroll)
        if glyphs.current() is glyphs.ASCII:
            scroll.styles.scrollbar_size_vertical = 0  # its ends are drawn with block characters
        scroll.focus()

    def draw(self, view: View) -> None:
        """As wide as the screen, as high as that makes it."""
        del view  # but for the width nothing here changes
        if self._cells == self.size.width:
            return
        self._cells = self.size.width
        lines, self._tops = page(self._cells - SCROLLBAR)
        body = self.query_one("#body", LinePanel)
        body.styles.height = len(lines)
        body.set_lines(finish(lines))

    def open_panel(self, key: str) -> None:
        """Go to the words of a panel; Enter leads to the first."""
        self.query_one(VerticalScroll).scroll_to(y=self._tops.get(key, self._tops[PANELS[0].key]), animate=False)


def _keys(row: Key, room: int) -> str:
    """The keys of an action as far as there is room; digits as a span."""
    more = [key.title() if len(key) > 1 else key for key in row.keys[1:] if len(key) <= 6]
    if row.action != row.call:
        more = [f"{PANELS[0].key} to {PANELS[-1].key}"]
    keys = [row.shown or row.keys[0], *more]
    while len("  ".join(keys)) >= room:
        keys.pop()
    return "  ".join(keys)


def page(cells: int) -> tuple[list[Line], dict[str, int]]:
    """The lines of the help, and the row at which the words of each panel begin, by its key."""
    lines, tops = [line(), line(Span(" Keys", "title"))], dict[str, int]()
    room = KEYS if cells >= ROOMY else NARROW_KEYS
    for row in (*ALL_KEYS, *LOAD_KEYS):
        head = line(Span(f"  {_keys(row, room):<{room}}", "key"), Span(f"{row.label:<{LABEL}}", "bold"))
        lines += entry(head, row.text, cells)
    for panel in PANELS:
        tops[panel.key] = len(lines) + 1
        lines += [line(), line(Span(f" {panel.name}", "title"), Span(f"  {panel.key}", "key"))]
        lines += explained(panel.terms, cells, KEYS, "  ")
    for title, terms in (("Load test", glossary.LOAD), ("The line at the top", glossary.VERDICT)):
        lines += [line(), line(Span(f" {title}", "title")), *explained(terms, cells, KEYS, "  ")]
    lines += [line(), line(Span(f" What an engine never tells ({UNKNOWN})", "title"))]
    for engine in ENGINES:
        if engine.silent_on:
            lines += entry(line(Span(f"  {engine.title:<{KEYS}}", "bold")), engine.silent_on, cells)
    return [*lines, line(), line(Span(f" llmtop {__version__}", "dim"))], tops
