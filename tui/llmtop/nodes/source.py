"""What a session asks of another machine, however that is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llmtop.contract.settings import Target
from llmtop.contract.snapshot import Device
from llmtop.engines.discover import ServerProcess
from llmtop.nodes.reading import NodeReading


class NodeSource(Protocol):
    """A machine and the servers on it; all of it runs in the poller's loop, and nothing blocks."""

    name: str

    def start(self) -> None:
        """Begin to connect; what fails is in the readings."""

    def check(self) -> None:
        """Raise what went wrong in our own code: it must not go unseen."""

    async def stop(self) -> None:
        """End the connection and what came with it."""

    @property
    def up(self) -> bool:
        """Whether it is connected."""

    @property
    def settled(self) -> bool:
        """Whether it was read in full once, or has failed."""

    @property
    def targets(self) -> Sequence[Target]:
        """The servers that were found there and can be asked; more may come."""

    def process(self, url: str) -> ServerProcess | None:
        """The process that serves a target there, as far as it is seen."""

    def reading(self, t: float) -> NodeReading:
        """What is known at monotonic `t`, old or not, and what is wrong."""

    def devices_of(self, url: str, reading: NodeReading) -> Sequence[Device]:
        """The devices of a reading that a server there uses."""
