"""A session whose source is cranked by hand: the test pushes snapshots, the app shows them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from textual.pilot import Pilot

from fakes.snapshots import SilentMachine
from llmtop.contract.settings import Settings
from llmtop.contract.snapshot import Snapshot
from llmtop.ui.app import LlmtopApp
from llmtop.ui.messages import SnapshotReady
from llmtop.ui.screens.base import ViewScreen
from llmtop.ui.source import Live


@dataclass(slots=True)
class Session:
    """A running app, the pilot that presses its keys, and the clock of its snapshots."""

    app: LlmtopApp
    pilot: Pilot[None]

    async def push(self, *snapshots: Snapshot) -> None:
        """Deliver snapshots as the poller does, and wait until they are drawn."""
        for snapshot in snapshots:
            self.app.inbox.append(snapshot)
            self.app.post_message(SnapshotReady())
        await self.pilot.pause()

    async def run(self, snapshot: Snapshot, seconds: int) -> None:
        """The same snapshot once a second, as one burst."""
        await self.push(*(replace(snapshot, time=snapshot.time + second) for second in range(seconds)))

    async def press(self, *keys: str) -> None:
        """Press keys and wait for what they do."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    @property
    def rows(self) -> list[str]:
        """The rows of the screen as the terminal gets them."""
        strips = self.app.screen._compositor.render_strips(self.app.size)
        return [strip.text for strip in strips]

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(self.rows)

    @property
    def page(self) -> str:
        """The name of the page in front."""
        screen = self.app.screen
        return screen.name_in_keys if isinstance(screen, ViewScreen) else type(screen).__name__


@asynccontextmanager
async def session(size: tuple[int, int] = (80, 24), **settings: object) -> AsyncIterator[Session]:
    """Run the app without a network and without a poll."""
    chosen = replace(Settings(), **settings)  # type: ignore[arg-type]
    app = LlmtopApp(chosen, Live(chosen, SilentMachine()))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Session(app, pilot)
