"""Watches memory and power of a machine while `llmtop load` loads a server on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from llmtop.contract.settings import NodeAddress, Settings, Target, UsageError
from llmtop.contract.snapshot import Snapshot
from llmtop.engines.discover import is_here

if TYPE_CHECKING:
    from llmtop.session.poller import Poller

FINDING_S = 0.5
FOUND_S = 30.0  # in which a machine must have been read by ssh
STEP_S, STOP_S = 0.05, 1.0
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
    with _polled(replace(settings, targets=(target,), interval_s=INTERVAL_S), latest):
        yield lambda: latest[0]


@contextmanager
def by_ssh(address: NodeAddress, settings: Settings) -> Iterator[tuple[Target, Callable[[], Snapshot | None]]]:
    """Yields the one server on a machine that is read by ssh, and a way to get the latest snapshot of both.

    The connection, and with it the way to the server, lasts as long as the context. Raises `UsageError`.
    """
    latest: list[Snapshot | None] = [None]
    asked = replace(settings, targets=(), found=False, nodes=(address,), interval_s=FINDING_S)
    with _polled(asked, latest) as poller:
        deadline = time.monotonic() + FOUND_S
        _wait(poller, lambda: poller.settled, deadline)
        latest[0] = None  # what came before tells less
        _wait(poller, lambda: latest[0] is not None, deadline)
        poller.set_interval(INTERVAL_S)
        yield poller.target(_only_server(latest[0], address.name)), lambda: latest[0]


def _wait(poller: Poller, done: Callable[[], bool], deadline: float) -> None:
    while not done() and time.monotonic() < deadline:
        if poller.error is not None:
            raise poller.error
        time.sleep(STEP_S)


def _only_server(snapshot: Snapshot | None, node: str) -> str:
    """The URL of the server on a node; raises `UsageError` where there is none, or not only one."""
    urls = [server.url for server in snapshot.servers if server.node == node] if snapshot is not None else []
    if len(urls) == 1:
        return urls[0]
    if urls:
        raise UsageError(f"several servers on {node}: {', '.join(urls)}; llmtop ssh://{node} loads the selected one")
    known = next((known for known in snapshot.nodes if known.name == node), None) if snapshot is not None else None
    reason = (known.reason if known is not None else None) or "no model server was found there"
    raise UsageError(f"{node}: {reason}")


@contextmanager
def _polled(settings: Settings, latest: list[Snapshot | None]) -> Iterator[Poller]:
    """A poller that keeps the newest snapshot."""
    from llmtop.machine.live import LiveMachine
    from llmtop.session.poller import Poller

    def take(snapshot: Snapshot) -> None:
        latest[0] = snapshot

    poller = Poller(settings, LiveMachine(settings.procfs, settings.sysfs, settings.memory), take)
    poller.start()
    try:
        yield poller
    finally:
        poller.stop(STOP_S)
