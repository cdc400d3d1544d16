"""Starts the screen: chooses glyphs and colours by the terminal, runs the app, reports how it ended."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from llmtop.contract.settings import Settings, UsageError
from llmtop.machine.source import MachineSource

if TYPE_CHECKING:
    from llmtop.recording.read import Recording
    from llmtop.ui.app import LlmtopApp
    from llmtop.warmup.log_source import LineSource

# terminals that print what they do not understand of the kitty keyboard protocol
_SIMPLE_TERMS = re.compile(r"^(linux|vt\d+|ansi|dumb|cons\d+|screen(\.|$))")


def run_ui(settings: Settings, machine: MachineSource, startup: LineSource | None = None) -> int:
    """Run the screen until it is left; the exit code. `startup` is the log of a start-up, for the warm-up page."""
    _prepare(settings)
    from llmtop.ui.app import LlmtopApp
    from llmtop.ui.source import Live

    ansi = bool(os.environ.get("NO_COLOR"))
    return _run(LlmtopApp(settings, Live(settings, machine, startup), ansi=ansi))


def run_replay(settings: Settings, recording: Recording, at: int, speed: float) -> int:
    """Run the screen on a recording from snapshot `at` on; the exit code."""
    _prepare(settings)
    from llmtop.ui.replay import ReplayApp

    return _run(ReplayApp(settings, recording, at=at, speed=speed, ansi=bool(os.environ.get("NO_COLOR"))))


def _prepare(settings: Settings) -> None:
    """What has to be decided before Textual is imported."""
    if _SIMPLE_TERMS.match(os.environ.get("TERM", "")):
        os.environ.setdefault("TEXTUAL_DISABLE_KITTY_KEY", "1")
    from llmtop_widgets import glyphs

    plain = settings.ascii or needs_ascii()
    glyphs.use(glyphs.ASCII if plain else glyphs.UNICODE, colours=not os.environ.get("NO_COLOR"))


def _run(app: LlmtopApp) -> int:
    """Run the app; a crash is raised once the terminal is restored."""
    from llmtop.ui.themes import PALETTE

    theme = app.settings.theme
    if theme and theme not in app.available_themes:
        raise UsageError(f"there is no theme {theme!r}; there are {', '.join(sorted(app.available_themes))}")
    if not theme and _SIMPLE_TERMS.match(os.environ.get("TERM", "")) and "COLORTERM" not in os.environ:
        app.theme = PALETTE.name
    app.run(mouse=app.settings.mouse)
    error = app._exception
    if error is not None:
        raise error
    return app.return_code or 0


def needs_ascii() -> bool:
    """Whether the terminal cannot show block characters."""
    encoding = getattr(sys.__stderr__, "encoding", None) or "ascii"
    return os.environ.get("TERM") == "linux" or "utf" not in encoding.lower()
