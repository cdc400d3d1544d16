"""The app in a browser's tab: the same pages, fed by the web server's poller; it writes no file and starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual.messages import ExitApp

from llmtop.contract.settings import Settings
from llmtop.machine.source import MachineSource
from llmtop.ui.fed import FedApp, NoMachine
from llmtop.warmup.recorded import StartupView
from llmtop.web.link import Link
from llmtop_widgets import glyphs

OPERATOR_ACTIONS = frozenset(("record", "save_screen", "faster", "slower"))


class WebApp(FedApp):
    """What is shown in one tab."""

    def __init__(self, settings: Settings, link: Link, *, loads: bool) -> None:
        self._link = link
        self._off = OPERATOR_ACTIONS | (frozenset() if loads else {"load"})
        super().__init__(settings, NoMachine())
        link.connect(self._arrived, self._ended)
        for snapshot in link.past:
            self.latest = snapshot
            self.history.push(snapshot)
            self.notices.push(snapshot)  # known, and no news

    def open_feed(self, machine: MachineSource) -> Link:
        """Snapshots come from the poller of the web server."""
        del machine
        return self._link

    def _ended(self) -> None:
        """In the link's thread: the web server is gone."""
        self.post_message(ExitApp())

    @property
    def startup(self) -> StartupView | None:
        """What the web server sees of a start-up."""
        return self._link.startup

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What writes files, starts something or sets the pace is for whoever runs the web server."""
        return action not in self._off and super().check_action(action, parameters)


def run_tab(link: Link) -> int:
    """Run the screens of one tab until it is closed; the exit code."""
    hello = link.hello
    if hello["ascii"]:
        glyphs.use(glyphs.ASCII)
    app = WebApp(settings_of(hello), link, loads=bool(hello["loads"]))
    app.run(mouse=bool(hello["mouse"]))
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
