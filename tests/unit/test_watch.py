"""When a server is polled: one poll at a time, at the pace in force."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from fakes.pages import Engine, PageServer
from llmtop.contract.settings import Settings, Target
from llmtop.engines.server import PAGE_LIMIT
from llmtop.session.server_watch import ServerWatch


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(procfs=tmp_path, sysfs=tmp_path)


async def due(watch: ServerWatch, interval_s: float) -> asyncio.Future[None]:
    """The next poll, as soon as it is due; at most two seconds from now."""
    async with asyncio.timeout(2.0):
        while (poll := watch.begin(interval_s)) is None:
            await asyncio.sleep(0.01)
    return poll


async def test_a_shorter_interval_counts_from_the_last_poll(settings: Settings) -> None:
    with PageServer([Engine().page]) as server:
        watch = ServerWatch(Target(server.url), settings)
        await watch.prepare()
        await (await due(watch, 60.0))
        with pytest.raises(TimeoutError):
            await due(watch, 60.0)
        await (await due(watch, 1.0))  # two seconds after the last one: due at once
        assert watch.begin(0.9) is None  # and no burst for every change
        assert len(server.scrapes()) == 2


async def test_one_poll_at_a_time(settings: Settings) -> None:
    engine = Engine()
    engine.delay = lambda: 0.4
    with PageServer([engine.page]) as server:
        watch = ServerWatch(Target(server.url), settings)
        await watch.prepare()
        first = await due(watch, 0.2)
        while not first.done():
            assert watch.begin(0.2) is None
            await asyncio.sleep(0.01)
        assert (server.most_in_flight, len(server.scrapes())) == (1, 1)


async def test_a_page_that_is_too_large_is_not_asked_for_at_full_pace(settings: Settings) -> None:
    with PageServer([b"x" * (PAGE_LIMIT + 2**20)]) as server:
        watch = ServerWatch(Target(server.url), settings)
        await watch.prepare()
        for _ in range(4):
            await (await due(watch, 0.2))
    assert watch.interval_s > 0.2


async def test_a_resolver_that_hangs_does_not_hold_up_the_first_frame(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    real = socket.getaddrinfo

    def slow(host: str, *args: object) -> object:
        if threading.current_thread() is not threading.main_thread() and host == "127.0.0.1" and args == (None,):
            answered.wait(10.0)
        return real(host, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with PageServer([Engine().page]) as server:
        watch = ServerWatch(Target(server.url), settings)
        await watch.prepare()
        for _ in range(2):
            await (await due(watch, 0.2))
        assert not watch.local
        assert not watch.settled  # `--once` waits until it is known whose memory may stand beside it
        answered.set()
        async with asyncio.timeout(5.0):
            while not (watch.local and watch.settled):
                await asyncio.sleep(0.01)
