"""The load page of a running app beside a real or simulated server, and what tests do to it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from textual.widgets import Input

from cranked_app import Session
from fakes.demo_client import metrics
from fakes.snapshots import SilentMachine
from llmtop.contract.settings import Settings, Target
from llmtop.demo.child import DemoProcess
from llmtop.machine.source import MachineSource
from llmtop.ui.app import LlmtopApp
from llmtop.ui.source import Live

PATIENCE_S = 40.0


@asynccontextmanager
async def watching(
    url: str, folder: Path, machine: MachineSource | None = None, size: tuple[int, int] = (100, 30)
) -> AsyncIterator[Session]:
    """The app beside a server, with its first page on the screen and the load page open."""
    settings = Settings(targets=(Target(url, max_num_seqs=32),), interval_s=0.5, procfs=folder, sysfs=folder)
    app = LlmtopApp(settings, Live(settings, machine or SilentButReady()))
    async with app.run_test(size=size) as pilot:
        s = Session(app, pilot)
        await until(s, lambda: app.server is not None and app.server.model is not None, "a server with a model")
        await s.press("l")
        yield s


class SilentButReady(SilentMachine):
    """A machine of which nothing is known, and whose driver opens at once."""

    def start(self) -> None:
        pass


async def until(s: Session, holds: Callable[[], object], what: str) -> None:
    """Let the app work until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never {what}:\n{s.text}"
        await s.pilot.pause(0.02)


async def shows(s: Session, *words: str) -> None:
    await until(s, lambda: all(word in s.text for word in words), f"showed {words}")


async def fill(s: Session, **fields: str) -> None:
    """Type into the fields of the plan."""
    for name, text in fields.items():
        s.app.screen.query_one(f"#field-{name}", Input).value = text
    await s.pilot.pause()


async def begin(s: Session, **fields: str) -> None:
    """Start a run of this size, with one yes."""
    await fill(s, **fields)
    await s.press("f5")
    await shows(s, "y yes")
    await s.press("y")
    assert s.app.load.state is not None


def phase(s: Session) -> str:
    assert s.app.load.state is not None
    return s.app.load.state.phase


def asked(demo: DemoProcess) -> float:
    """How many requests have reached the routes that make tokens."""
    found = metrics(demo.url)
    return sum(n for key, n in found.items() if key.startswith("http_requests_total") and "completions" in key)
