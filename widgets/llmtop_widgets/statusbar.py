"""A footer of keys and what they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from llmtop_widgets.linewidget import LineWidget
from llmtop_widgets.text import Line, Span, text_width

GAP = 2


@dataclass(frozen=True, slots=True)
class KeyHint:
    """A key as it is written, its label, and its rank: hints with the highest `priority` go first."""

    key: str
    label: str
    priority: int = 0
    style: str = ""

    @property
    def width(self) -> int:
        """Cells of `key label`."""
        return text_width(self.key) + 1 + text_width(self.label)


def fit_hints(hints: Sequence[KeyHint], width: int) -> list[KeyHint]:
    """Return the hints that fit into `width` cells, in the order given."""
    kept = list(hints)
    while kept and sum(hint.width + GAP for hint in kept) > width + 1:
        least = max(range(len(kept)), key=lambda index: (kept[index].priority, index))
        del kept[least]
    return kept


class KeyBar(LineWidget):
    """One row of hints; a click on one posts its key."""

    DEFAULT_CSS = """
    KeyBar { height: 1; width: 1fr; dock: bottom; }
    """

    class Pressed(Message):
        """A hint was clicked."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(
        self,
        hints: Sequence[KeyHint] = (),
        *,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._hints = tuple(hints)

    def set_hints(self, hints: Sequence[KeyHint]) -> None:
        """Replace the hints."""
        if tuple(hints) != self._hints:
            self._hints = tuple(hints)
            self.refresh()

    def line_at(self, y: int) -> tuple[Line, str]:
        """Return the row of hints."""
        spans: list[Span] = []
        for hint in fit_hints(self._hints, self.size.width) if y == 0 else ():
            spans += (
                Span(" "),
                Span(hint.key, "key"),
                Span(f" {hint.label}", hint.style),
                Span(" " * (GAP - 1)),
            )
        return tuple(spans), ""

    def on_click(self, event: events.Click) -> None:
        """Post the key of the hint under the pointer."""
        left = 0
        for hint in fit_hints(self._hints, self.size.width):
            if left <= event.x < left + hint.width + GAP:
                event.stop()
                self.post_message(self.Pressed(hint.key))
            left += hint.width + GAP
