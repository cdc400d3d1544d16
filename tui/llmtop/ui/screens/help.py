"""The help: keys from the table, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import VerticalScroll
from textual.widget import Widget

from llmtop import __version__
from llmtop.engines.registry import ENGINES
from llmtop.ui.keys import ALL_KEYS, LOAD_KEYS
from llmtop.ui.panels.view import View
from llmtop.ui.screens.base import ViewScreen, finish
from llmtop_widgets import glyphs
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.text import Line, Span, line, width, wrap

MEANINGS = (
    ("KV cache", "share of the KV blocks that live requests hold; of several engines the fullest, never a sum"),
    ("room for", "requests of the full model length that still fit into the fullest engine"),
    ("headroom", "memory left before the next OOM; the formula is its basis in --json"),
    ("CUDA sees", "MemFree: what a CUDA allocation finds on unified memory without giving back page cache"),
    ("low-water", "least headroom since the start or the last mark, sampled ten times a second"),
    ("tok/s", "counter delta over the window beside the title, divided by its real length"),
    ("cached", "prompt tokens that came from the prefix cache and were not computed"),
    (
        "TTFT, ITL",
        "bucket deltas over the window; <x: within the first bucket, >x: beyond the last, ≈x: within a wide one,"
        " ~: too few samples",
    ),
    ("E2EL, queue", "of requests that ended in the window"),
    ("J/token", "energy counter over the same window as the tokens; module: GPU, CPU and memory of a GH200"),
    ("limited by", "what holds the server back, with the share of the last 30 s as evidence"),
    (UNKNOWN_SIGN := "–", "the source did not say; 0 means that it said 0"),
)


KEYS, LABEL = 24, 12  # cells
SCROLLBAR = 2
NARROWEST = 20


class HelpScreen(ViewScreen):
    """Keys and meanings."""

    name_in_keys = "help"
    _cells = 0  # that the page is laid out for

    def body(self) -> Iterable[Widget]:
        """A page that scrolls."""
        yield VerticalScroll(LinePanel(id="body"), classes="scroll")

    def on_mount(self) -> None:
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
        lines = page(self._cells - SCROLLBAR)
        body = self.query_one("#body", LinePanel)
        body.styles.height = len(lines)
        body.set_lines(finish(lines))


def page(cells: int) -> list[Line]:
    """The lines of the help."""
    lines = [line(), line(Span(" Keys", "title"))]
    for row in (*ALL_KEYS, *LOAD_KEYS):
        more = (key.title() if len(key) > 1 else key for key in row.keys[1:] if len(key) <= 6)
        keys = "  ".join([row.shown or row.keys[0], *more])
        lines += _entry(line(Span(f"  {keys:<{KEYS}}", "key"), Span(f"{row.label:<{LABEL}}", "bold")), row.text, cells)
    lines += [line(), line(Span(" What the numbers mean", "title"))]
    for name, text in MEANINGS:
        lines += _entry(line(Span(f"  {name:<{KEYS}}", "bold")), text, cells)
    lines += [line(), line(Span(f" What an engine never tells ({UNKNOWN_SIGN})", "title"))]
    for engine in ENGINES:
        if engine.silent_on:
            lines += _entry(line(Span(f"  {engine.title:<{KEYS}}", "bold")), engine.silent_on, cells)
    lines += [line(), line(Span(f" llmtop {__version__}", "dim"))]
    return lines


def _entry(head: Line, text: str, cells: int) -> list[Line]:
    """A text beside its head, below it where there is no room, in as many lines as it takes."""
    if cells - width(head) < NARROWEST:
        return [head, *(line(Span(f"    {part}")) for part in wrap(text, cells - 4))]
    first, *more = wrap(text, cells - width(head))
    return [(*head, Span(first)), *(line(Span(" " * width(head) + rest)) for rest in more)]
