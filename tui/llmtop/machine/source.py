"""Where readings of the machine come from, and one source for several readers.

The real machine, the demo and a recording speak the same. A source hands a dip out only once; through `MachineTee`
every reader gets each of them.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Protocol

from llmtop.machine.sample import Dip, MachineSample


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


class MachineTee:
    """Shares a source among branches; it runs from the first `start` to the last `stop`."""

    def __init__(self, source: MachineSource) -> None:
        self._source = source
        self._branches: list[Branch] = []
        self._lock = threading.Lock()
        self._users = 0

    def branch(self) -> Branch:
        """Another reader of the source."""
        branch = Branch(self)
        with self._lock:
            self._branches.append(branch)
        return branch

    def start(self) -> None:
        """Start the source with its first user."""
        with self._lock:
            self._users += 1
            first = self._users == 1
        if first:  # outside the lock: a driver that hangs here must not keep `stop` waiting
            self._source.start()

    def stop(self) -> None:
        """Stop it with its last."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._source.stop()

    def ready(self) -> bool:
        """Whether the source has read everything once."""
        return self._source.ready()

    def set_fast_hz(self, hertz: float) -> None:
        """Sample memory faster or slower, where the source can."""
        change = getattr(self._source, "set_fast_hz", None)
        if change is not None:
            change(hertz)

    def read(self, reader: Branch) -> MachineSample:
        """The newest sample, with the dips since `reader` read last; the others keep theirs."""
        with self._lock:
            sample = self._source.sample()
            for branch in self._branches:
                branch.keep(sample.dips)
            return replace(sample, dips=reader.take())


class Branch:
    """A `MachineSource` that shares another one."""

    def __init__(self, tee: MachineTee) -> None:
        self._tee = tee
        self._dips: dict[str, Dip] = {}
        self._started = False

    def start(self) -> None:
        """Begin sampling, if nobody has."""
        if not self._started:
            self._started = True
            self._tee.start()

    def stop(self) -> None:
        """End sampling, if nobody else needs it."""
        if self._started:
            self._started = False
            self._tee.stop()

    def ready(self) -> bool:
        """Whether the source has read everything once."""
        return self._tee.ready()

    def sample(self) -> MachineSample:
        """The newest sample with the dips since the last call."""
        return self._tee.read(self)

    def keep(self, dips: dict[str, Dip]) -> None:
        """Remember dips until they are taken."""
        for key, dip in dips.items():
            held = self._dips.get(key)
            if held is None or dip.headroom_bytes < held.headroom_bytes:
                self._dips[key] = dip

    def take(self) -> dict[str, Dip]:
        """The dips remembered, which are forgotten."""
        dips, self._dips = self._dips, {}
        return dips
