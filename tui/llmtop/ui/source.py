"""What an app shows, passed in and never overridden: a feed of snapshots, and the start-ups watched beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from llmtop.contract.settings import Settings
from llmtop.contract.snapshot import ServerView
from llmtop.machine.source import MachineSource, MachineTee
from llmtop.session.poller import Feed, Poller, Sink
from llmtop.warmup.control import WarmupControl

if TYPE_CHECKING:
    from llmtop.warmup.log_source import LineSource
    from llmtop.warmup.recorded import StartupView


class Startups(Protocol):
    """The start-ups of the selected server: watched from here, or told by whoever watched them."""

    @property
    def seen(self) -> StartupView | None:
        """What is known of the start-up that is watched, or was last."""

    @property
    def wanted(self) -> bool:
        """Whether one is to be watched from the first moment on."""

    @property
    def active(self) -> bool:
        """Whether there is something to `step`."""

    def begin(self, url: str | None = None) -> None:
        """Watch from now on."""

    def notice(self, server: ServerView | None) -> bool:
        """Look at the selected server; whether a start-up has just begun."""

    def step(self) -> bool:
        """Take what has come; True when the start-up has just ended."""

    def end(self) -> None:
        """Stop watching."""


class Source(Protocol):
    """Where an app gets what it shows."""

    def open(self, sink: Sink) -> tuple[Feed, Startups]:
        """The feed that will call `sink` from its own thread once started, and its start-ups."""


@dataclass(frozen=True, slots=True)
class Live:
    """Servers polled over HTTP beside this machine; `lines` is the log of a start-up."""

    settings: Settings
    machine: MachineSource
    lines: LineSource | None = None

    def open(self, sink: Sink) -> tuple[Feed, Startups]:
        """A poller, and the watch of start-ups on the same readings of the machine."""
        tee = MachineTee(self.machine)
        poller = Poller(self.settings, tee.branch(), sink)
        return poller, WarmupControl(tee, poller, self.settings, self.lines)


class ToldStartups:
    """Start-ups as others have watched them: a recording, a web server."""

    wanted = active = False

    def __init__(self, told: Callable[[], StartupView | None]) -> None:
        self._told = told
        self._opened_for = -1.0  # when the start-up began that was new last

    @property
    def seen(self) -> StartupView | None:
        """What was last told."""
        return self._told()

    def notice(self, server: ServerView | None) -> bool:
        """Whether one is told of that is new; not one that was left and is seen again, as in a recording."""
        del server
        seen = self.seen
        if seen is None or not seen.active:
            return False
        began = next((phase.began for phase in seen.report.startup.phases if phase.began is not None), 0.0)
        begins = began > self._opened_for
        self._opened_for = max(began, self._opened_for)
        return begins

    def begin(self, url: str | None = None) -> None:
        """Nothing is watched from here."""

    def step(self) -> bool:
        """There is nothing to take."""
        return False

    def end(self) -> None:
        """There is nothing to stop."""
