"""Starts the screen: chooses glyphs and colours by the terminal, runs the app, reports how it ended."""

from __future__ import annotations

import os
import re
import sys

from llmtop.config import Settings, UsageError
from llmtop.sources.base import MachineSource
from llmtop.sources.startup_log import LineSource

# terminals that print what they do not understand of the kitty keyboard protocol
_SIMPLE_TERMS = re.compile(r"^(linux|vt\d+|ansi|dumb|cons\d+|screen(\.|$))")


def run_ui(
    settings: Settings,
    machine: MachineSource,
    startup: LineSource | None = None,
    startup_url: str | None = None,
) -> int:
    """Run the screen until it is left; the exit code. A crash is raised once the terminal is restored.

    `startup` is the log of a start-up to follow on the warm-up page, `startup_url` the server it brings up.
    """
    if _SIMPLE_TERMS.match(os.environ.get("TERM", "")):
        os.environ.setdefault("TEXTUAL_DISABLE_KITTY_KEY", "1")
    from llmtop.ui.app import LlmtopApp
    from llmtop_widgets import glyphs

    if settings.ascii or needs_ascii():
        glyphs.use(glyphs.ASCII)
    app = LlmtopApp(settings, machine, ansi=bool(os.environ.get("NO_COLOR")), startup=startup, startup_url=startup_url)
    if settings.theme and settings.theme not in app.available_themes:
        raise UsageError(f"there is no theme {settings.theme!r}; there are {', '.join(sorted(app.available_themes))}")
    app.run(mouse=settings.mouse)
    error = app._exception
    if error is not None:
        raise error
    return app.return_code or 0


def needs_ascii() -> bool:
    """Whether the terminal cannot show block characters."""
    encoding = getattr(sys.__stderr__, "encoding", None) or "ascii"
    return os.environ.get("TERM") == "linux" or "utf" not in encoding.lower()
