"""A terminal in memory that a test can compare cell by cell."""

from __future__ import annotations

from typing import Any

import pyte

Cells = list[list[tuple[Any, ...]]]
DISABLE_WRAP = "\x1b[?7l"


class Terminal:
    """A pyte terminal that starts out full of rubbish."""

    def __init__(self, width: int, height: int, rubbish: str = "#") -> None:
        self.screen = pyte.Screen(width, height)
        self.stream = pyte.Stream(self.screen)
        for row in range(height):
            self.stream.feed(f"\x1b[{row + 1};1H\x1b[1;31m{rubbish * (width - 1)}")
        self.stream.feed("\x1b[m" + DISABLE_WRAP)
        self.sent = 0

    def feed(self, data: str) -> None:
        self.sent += len(data.encode())
        self.stream.feed(data)

    def cells(self) -> Cells:
        """Everything visible: characters, colours, attributes; a plain blank has no foreground."""
        screen = self.screen
        return [[_visible(screen.buffer[y][x]) for x in range(screen.columns)] for y in range(screen.lines)]

    def text(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]


def _visible(char: pyte.screens.Char) -> tuple[Any, ...]:
    plain = not (char.underscore or char.reverse or char.strikethrough)
    if char.data == " " and plain:
        return " ", char.bg
    return tuple(char)
