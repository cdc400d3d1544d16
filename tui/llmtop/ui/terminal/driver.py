"""A Textual driver that sends only changed cells, and the application base that keeps it truthful.

The contract with Textual's drivers is in this package's docstring.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

from textual.app import App, ReturnType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver

from llmtop.ui.terminal.celldiff import CellDiff
from llmtop.ui.terminal.sturdy import SturdyDriver


def driver_class_for(base: type[Driver]) -> type[Driver]:
    """Return the driver to use in place of `base`: ours for the Linux driver, without the differences if so asked."""
    if base is LinuxDriver:
        return SturdyDriver if os.environ.get("LLMTOP_DIFF") == "0" else CellDiffDriver
    return base


class CellDiffDriver(SturdyDriver):
    """That driver with a `CellDiff` between the application and the terminal."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        # until the first Resize the app lays out for this, and without it for an exported COLUMNS
        self._size = self._size or self._get_terminal_size()
        self._diff = CellDiff(shifts=os.environ.get("LLMTOP_SHIFT") != "0")
        # Set by signals, read by `write`: they must not touch the grid themselves.
        self._unknown = True

    def mark_unknown(self) -> None:
        """Take the terminal's content as unknown from the next write on."""
        self._unknown = True

    def write(self, data: str) -> None:
        """Send what the terminal does not show yet."""
        if self._unknown:
            self._unknown = False
            self._diff.mark_unknown()
        output = self._diff.feed(data, self._get_terminal_size())
        if output:
            super().write(output)

    def start_application_mode(self) -> None:
        """Enter application mode; from then on a changed window size makes the content unknown."""
        super().start_application_mode()
        chained = signal.getsignal(signal.SIGWINCH)

        def on_window_change(signum: int, frame: FrameType | None) -> None:
            self._unknown = True
            if callable(chained):
                chained(signum, frame)

        signal.signal(signal.SIGWINCH, on_window_change)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the size of the terminal itself: an exported COLUMNS is that of another time or place."""
        try:
            columns, rows = os.get_terminal_size(sys.__stderr__.fileno() if sys.__stderr__ else self.fileno)
        except (OSError, ValueError):
            columns = rows = 0
        return (columns, rows) if columns and rows else super()._get_terminal_size()


class RepaintingApp(App[ReturnType]):
    """An application on the cell-diff driver.

    Textual does not draw again when it comes back from a suspension at an unchanged size, nor when a window
    was resized there and back; this class does.
    """

    def get_driver_class(self) -> type[Driver]:
        """Choose the driver; `TEXTUAL_DRIVER` and web drivers keep their own."""
        return driver_class_for(super().get_driver_class())

    def on_mount(self) -> None:
        """Draw everything after a suspension."""
        self.app_resume_signal.subscribe(self, lambda _: self.action_repaint())

    def on_resize(self) -> None:
        """Draw everything after a resize."""
        self.screen.refresh()

    def action_repaint(self) -> None:
        """Draw everything, also where another program has written over the screen."""
        if isinstance(self._driver, CellDiffDriver):
            self._driver.mark_unknown()
        self.screen.refresh()
