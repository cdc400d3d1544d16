"""A Textual driver that sends only changed cells, and the application base that keeps it truthful.

Everything that depends on Textual's drivers is here, by the contract in this package's docstring.
"""

from __future__ import annotations

import os
import signal
import sys
from queue import Full
from threading import RLock, Thread
from types import FrameType
from typing import Any

from textual.app import App, ReturnType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Resize
from textual.message import Message

from llmtop.ui.terminal.celldiff import CellDiff

LOOK_S = 0.2


def driver_class_for(base: type[Driver]) -> type[Driver]:
    """Return the driver to use in place of `base`: ours for the Linux driver unless switched off."""
    if base is LinuxDriver and os.environ.get("LLMTOP_DIFF") != "0":
        return CellDiffDriver
    return base


class CellDiffDriver(LinuxDriver):
    """The Linux driver with a `CellDiff` between the application and the terminal."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        # until the first Resize the app lays out for this, and without it for an exported COLUMNS
        self._size = self._size or self._get_terminal_size()
        self._diff = CellDiff(shifts=os.environ.get("LLMTOP_SHIFT") != "0")
        # Set by signals and by the input thread, read by `write`: they must not touch the grid themselves.
        self._unknown = True
        # The input thread writes too (it answers the terminal), and a signal handler may interrupt a write.
        self._lock = RLock()

    def mark_unknown(self) -> None:
        """Take the terminal's content as unknown from the next write on."""
        self._unknown = True

    def write(self, data: str) -> None:
        """Send what the terminal does not show yet."""
        with self._lock:
            if self._unknown:
                self._unknown = False
                self._diff.mark_unknown()
            output = self._diff.feed(data, self._get_terminal_size())
        if output:
            self._send(output)

    def _send(self, output: str) -> None:
        """Hand it to the writer; to one that has died with its terminal nobody could hand anything."""
        writer = self._writer_thread
        while writer is not None and writer.is_alive():
            try:
                writer._queue.put(output, timeout=LOOK_S)
                return
            except Full:
                continue

    def close(self) -> None:
        """Let the writer write what is left, as long as it lives."""
        writer = self._writer_thread
        if writer is None:
            return
        stopping = Thread(target=writer.stop, daemon=True)
        stopping.start()
        while stopping.is_alive() and writer.is_alive():
            stopping.join(LOOK_S)

    def start_application_mode(self) -> None:
        """Enter application mode; from then on a changed window size makes the content unknown."""
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual leaves it untyped
        chained = signal.getsignal(signal.SIGWINCH)

        def on_window_change(signum: int, frame: FrameType | None) -> None:
            self._unknown = True
            if callable(chained):
                chained(signum, frame)

        signal.signal(signal.SIGWINCH, on_window_change)

    def process_message(self, message: Message) -> None:
        """Notice sizes that the terminal reports in its input (runs in the input thread)."""
        if isinstance(message, Resize):
            self._unknown = True
        super().process_message(message)

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
