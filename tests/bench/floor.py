"""The least that a Textual program does: one line that changes once a second."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.widgets import Static


class Floor(App[None]):
    """One line a second."""

    ticks = 0

    def compose(self) -> ComposeResult:
        """The line."""
        yield Static("tick 0")

    def on_mount(self) -> None:
        """Begin to count."""
        self.set_interval(1.0, self._tick)

    def _tick(self) -> None:
        self.ticks += 1
        self.query_one(Static).update(f"tick {self.ticks}")


if __name__ == "__main__":
    Floor().run()
