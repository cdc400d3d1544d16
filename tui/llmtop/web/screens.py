"""The app in a browser's tab: the same pages, fed by the web server's poller; it writes no file and starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual.messages import ExitApp

from llmtop.contract.settings import Settings
from llmtop.session.poller import Sink
from llmtop.ui.app import LlmtopApp
from llmtop.ui.source import ToldStartups
from llmtop.web.link import Link
from llmtop_widgets import glyphs

# The whole of what a browser may do. What writes files, starts something, reaches into the app or sets the pace is for
# who runs the web server.
MAY_DO = frozenset(
    (
        *(
            "mark",
            "engines",
            "gpus",
            "nodes",
            "dashboard",
            "panel",
            "stage",
            "warmup",
            "pause",
            "next_server",
            "previous_server",
            "zoom",
        ),
        *("theme", "sort", "filter", "repaint", "help", "back", "command_palette", "leave"),
        *("focus_next", "focus_previous"),
    )
)
MAY_LOAD = MAY_DO | {"load"}


class TabSource:
    """What the hub of the web server tells a tab."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def open(self, sink: Sink) -> tuple[Link, ToldStartups]:
        """The link as a feed; start-ups as the web server sees them."""
        self._link.connect(sink)
        return self._link, ToldStartups(lambda: self._link.startup)


def kept_from(allowed: frozenset[str]) -> frozenset[str]:
    """Every action of the app, also those that Textual brings, but the allowed ones."""
    every = {name.removeprefix("action_") for name in dir(LlmtopApp) if name.startswith("action_")}
    return frozenset(every - allowed)


def app_of(link: Link) -> LlmtopApp:
    """The app of one tab."""
    off = kept_from(MAY_LOAD if link.hello["loads"] else MAY_DO)
    app = LlmtopApp(settings_of(link.hello), TabSource(link), off=off)
    link.on_end = lambda: app.post_message(ExitApp())
    app.know(link.past)
    return app


def run_tab(link: Link) -> int:
    """Run the screens of one tab until it is closed; the exit code."""
    if link.hello["ascii"]:
        glyphs.use(glyphs.ASCII)
    app = app_of(link)
    app.run(mouse=bool(link.hello["mouse"]))
    return app.return_code or 0


def settings_of(hello: Mapping[str, Any]) -> Settings:
    """What a tab has to know of the settings of the web server."""
    nowhere = Path("/nonexistent")  # a tab reads nothing of the machine
    return Settings(
        interval_s=float(hello["interval_s"]),
        theme=hello["theme"],
        ascii=bool(hello["ascii"]),
        mouse=bool(hello["mouse"]),
        allow_remote_load=bool(hello["allow_remote_load"]),
        procfs=nowhere,
        sysfs=nowhere,
    )
