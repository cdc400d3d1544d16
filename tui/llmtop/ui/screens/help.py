"""The help: keys from the table, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import VerticalScroll
from textual.widget import Widget

from llmtop import __version__
from llmtop.ui.keys import ALL_KEYS, LOAD_KEYS
from llmtop.ui.panels.view import View
from llmtop.ui.screens.base import ViewScreen, finish
from llmtop_widgets import glyphs
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.text import Line, Span, line

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
        "bucket deltas over the window; <x: within the first bucket, >x: beyond the last, ~: too few samples",
    ),
    ("E2EL, queue", "of requests that ended in the window"),
    ("J/token", "energy counter over the same window as the tokens; module: GPU, CPU and memory of a GH200"),
    ("limited by", "what holds the server back, with the share of the last 30 s as evidence"),
    (UNKNOWN_SIGN := "–", "the source did not say; 0 means that it said 0"),
)


class HelpScreen(ViewScreen):
    """Keys and meanings."""

    name_in_keys = "help"

    def body(self) -> Iterable[Widget]:
        """A page that scrolls."""
        yield VerticalScroll(LinePanel("", finish(page()), id="body"), classes="scroll")

    def on_mount(self) -> None:
        """As high as the page is."""
        self.query_one("#body").styles.height = len(page())
        scroll = self.query_one(VerticalScroll)
        if glyphs.current() is glyphs.ASCII:
            scroll.styles.scrollbar_size_vertical = 0  # its ends are drawn with block characters
        scroll.focus()

    def draw(self, view: View) -> None:
        """Nothing here changes."""


def page() -> list[Line]:
    """The lines of the help."""
    lines = [line(), line(Span(" Keys", "title"))]
    for row in (*ALL_KEYS, *LOAD_KEYS):
        keys = "  ".join([row.shown or row.keys[0], *(key for key in row.keys[1:] if len(key) <= 6)])
        lines.append(line(Span(f"  {keys:<22}", "key"), Span(f"{row.label:<12}", "bold"), Span(row.text)))
    lines += [line(), line(Span(" What the numbers mean", "title"))]
    lines += [line(Span(f"  {name:<22}", "bold"), Span(text)) for name, text in MEANINGS]
    lines += [line(), line(Span(f" llmtop {__version__}", "dim"))]
    return lines
