"""Watches memory and power of this host while `llmtop load` loads a server on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from llmtop.contract.settings import Settings, Target
from llmtop.contract.snapshot import Snapshot
from llmtop.engines.discover import is_here

INTERVAL_S = 2.0  # memory has a faster sampler of its own, and every page asked for costs the loaded server time


@contextmanager
def watched(target: Target, settings: Settings) -> Iterator[Callable[[], Snapshot | None]]:
    """Yields a way to get the latest snapshot; always None for a server on another host.

    `settings` says where to look for this host's memory.
    """
    latest: list[Snapshot | None] = [None]
    if not is_here(settings.procfs, target.host):
        yield lambda: None
        return
    from llmtop.machine.live import LiveMachine
    from llmtop.session.poller import Poller

    def take(snapshot: Snapshot) -> None:
        latest[0] = snapshot

    machine = LiveMachine(settings.procfs, settings.sysfs, settings.memory)
    poller = Poller(replace(settings, targets=(target,), interval_s=INTERVAL_S), machine, take)
    poller.start()
    try:
        yield lambda: latest[0]
    finally:
        poller.stop()
