"""Start-ups in the browser: watched once, beside the poller, and told to every tab."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llmtop.contract.settings import Settings
from llmtop.contract.snapshot import Snapshot, State
from llmtop.machine.source import MachineTee
from llmtop.session.poller import Poller
from llmtop.warmup.control import WarmupControl
from llmtop.warmup.recorded import StartupView
from llmtop.web.hub import Hub

if TYPE_CHECKING:
    from llmtop.warmup.log_source import LineSource

STEP_S = 0.2


class SharedStartups:
    """Watches the first server that starts up, or the one that is asked for; everything in the hub's loop."""

    def __init__(
        self, hub: Hub, poller: Poller, tee: MachineTee, settings: Settings, lines: LineSource | None = None
    ) -> None:
        self._hub = hub
        self._control = WarmupControl(tee, poller, settings, lines)
        self._told: StartupView | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with the log that is to be followed, if there is one."""
        if self._control.wanted:
            self._control.begin()
            self._follow()

    def stop(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()
        self._control.end()

    @property
    def error(self) -> BaseException | None:
        """What the watching died of."""
        task = self._task
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    def look(self, snapshot: Snapshot) -> None:
        """Watch a server that has begun to start up."""
        servers = snapshot.servers
        starting = next((server for server in servers if server.state is State.STARTING), None)
        if self._control.notice(starting):
            self._follow()

    def _follow(self) -> None:
        self._task = asyncio.create_task(self._steps())

    async def _steps(self) -> None:
        while self._control.active:
            self._control.step()
            if self._control.seen is not None and self._control.seen is not self._told:
                self._told = self._control.seen
                self._hub.startup(self._told)
            await asyncio.sleep(STEP_S)
