"""Where readings of the machine come from: the real one, the demo and a recording speak the same."""

from __future__ import annotations

from typing import Protocol

from llmtop.machine.sample import MachineSample


class MachineSource(Protocol):
    """Reads the machine; `sample` never blocks longer than a copy of what its threads have read."""

    def start(self) -> None:
        """Begin sampling in daemon threads."""

    def sample(self) -> MachineSample:
        """The newest reading, with its age in the records."""

    def ready(self) -> bool:
        """Whether the first full round of every part is done (or has failed)."""

    def stop(self) -> None:
        """Ask the threads to end; never waits for a driver call."""
