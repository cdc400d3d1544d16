"""Watches memory and power of this host while `llmtop load` loads a server on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from llmtop.config import Settings, Target
from llmtop.model.snapshot import Snapshot
from llmtop.sources.discover import is_local


@contextmanager
def watched(target: Target, settings: Settings) -> Iterator[Callable[[], Snapshot | None]]:
    """Yields a way to get the latest snapshot; always None for a server on another host.

    `settings` says where to look for this host's memory.
    """
    latest: list[Snapshot | None] = [None]
    if not is_local(target.host):
        yield lambda: None
        return
    from llmtop.collect import Poller
    from llmtop.sources.machine import LiveMachine

    def take(snapshot: Snapshot) -> None:
        latest[0] = snapshot

    machine = LiveMachine(settings.procfs, settings.sysfs, settings.memory)
    poller = Poller(replace(settings, targets=(target,)), machine, take)
    poller.start()
    try:
        yield lambda: latest[0]
    finally:
        poller.stop()
