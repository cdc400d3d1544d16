"""What all screens share: a header, a body, the key bar, and `show`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget

from llmtop.ui.keys import ALL_KEYS, Key
from llmtop.ui.panels.frame import header
from llmtop.ui.panels.view import View, asciify
from llmtop_widgets import glyphs
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.statusbar import KeyBar, KeyHint
from llmtop_widgets.text import Line

if TYPE_CHECKING:
    from llmtop.ui.session import Session

NODES_RANK = 2
WITH_PANELS = ("dashboard", "help")
MOST_TYPED = 1000  # characters in a field: what each key does takes as long as what stands there


def finish(lines: Iterable[Line]) -> list[Line]:
    """Lines as the terminal can show them."""
    return [asciify(content) for content in lines] if glyphs.current() is glyphs.ASCII else list(lines)


class ViewScreen(Screen[None]):
    """A screen that shows views; it is handed one with every snapshot and on every change."""

    name_in_keys = ""

    def __init__(self) -> None:
        super().__init__()
        self.view: View | None = None

    def compose(self) -> ComposeResult:
        """Header, body, key bar."""
        yield LinePanel(id="header")
        yield from self.body()
        yield KeyBar(self.hints())

    def on_mount(self) -> None:
        """Begin, unless it has been left already: then it never gets its widgets."""
        if self.query("#header"):
            self.begin()

    def begin(self) -> None:
        """What is to be done as soon as its widgets are there."""

    def body(self) -> Iterable[Widget]:
        """The widgets between header and key bar."""
        raise NotImplementedError

    def hints(self) -> list[KeyHint]:
        """The keys of the footer, the most important kept longest."""
        return [
            KeyHint(row.shown or row.keys[0], row.label, 0 if row.screens or row.action == "back" else self._rank(row))
            for row in ALL_KEYS
            if self._in_footer(row)
        ]

    def refresh_hints(self) -> None:
        """Bring the footer up to date."""
        self.query_one(KeyBar).set_hints(self.hints())

    def _in_footer(self, row: Key) -> bool:
        if not self.app.check_action(row.name, ()):
            return False
        if row.action == "back":
            return self.name_in_keys != "dashboard"
        if row.name == "panel":
            return self.name_in_keys in WITH_PANELS
        return self.name_in_keys in row.screens or (bool(self._rank(row)) and row.action != self.name_in_keys)

    def _rank(self, row: Key) -> int:
        """The place of a key in the footer; of other machines one needs to know only where there are some."""
        return NODES_RANK if row.action == "nodes" and cast("Session", self.app).settings.nodes else row.footer

    def show(self, view: View) -> None:
        """Take a view and draw it."""
        self.view = view
        if self.is_mounted and self.size.width and self.query("#header"):  # on the way out the widgets go first
            self.query_one("#header", LinePanel).set_lines(finish([self.head(view)]))
            self.draw(view)

    def head(self, view: View) -> Line:
        """The first row: the selected server."""
        return header(view, self.size.width)

    def draw(self, view: View) -> None:
        """Bring the body up to date."""
        raise NotImplementedError

    def open_panel(self, key: str) -> None:
        """A panel was asked for by its key, or the next one by Enter: nothing where there are none."""

    def leave(self) -> bool:
        """Escape: whether the page is to be left; False when there was something in it to leave first."""
        return True

    def on_resize(self) -> None:
        """Lay the view out anew; the terminal may show anything after a resize."""
        if self.view is not None:
            self.show(self.view)
        self.refresh()

    def on_screen_resume(self) -> None:
        """Show what has come in while another screen was in front."""
        if self.view is not None:
            self.call_after_refresh(self.show, self.view)
