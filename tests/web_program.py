"""`llmtop web` as a child process, and a browser's side of it without a browser: cookies, websockets, a terminal."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import psutil
import pyte

from program import COMMAND, bare, environment

PATIENCE_S = 40.0


class WebProgram:
    """The running command; `url` is what it printed, `base` the same without the token."""

    def __init__(self, folder: Path, *args: str, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self._folder = folder
        self._said: list[str] = []
        self._news = threading.Condition()
        temp = folder / "tmp"
        temp.mkdir()
        self.temp = temp
        self.process = subprocess.Popen(
            [COMMAND, "web", "--port", "0", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.folder,
            env=environment(folder, {"TMPDIR": str(temp), **(env or {})}),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        with self._news:
            came = self._news.wait_for(lambda: bool(self._said) or self.process.poll() is not None, PATIENCE_S)
        assert came, "said nothing"
        assert self.said.startswith("http://127.0.0.1:"), self.said
        self.url = self._said[0].strip()
        self.base, _, self.token = self.url.partition("/?token=")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._said.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def said(self) -> str:
        """Everything that was printed."""
        return "".join(self._said)

    @property
    def tabs(self) -> list[psutil.Process]:
        """The processes of the tabs."""
        return [child for child in psutil.Process(self.process.pid).children() if _is_tab(child)]

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(20)
        self._reader.join(5)
        return code

    def __enter__(self) -> WebProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        self._reader.join(5)
        if kind is None:
            assert "Traceback" not in self.said, self.said


def _is_tab(process: psutil.Process) -> bool:
    """Whether a process is that of a tab; it is until the server has seen its end."""
    try:
        return "llmtop.web.tab" in process.cmdline()
    except psutil.ZombieProcess:
        return True
    except psutil.NoSuchProcess:
        return False


def of_server(url: str, folder: Path) -> tuple[str, ...]:
    """Arguments that watch one server and nothing of this machine."""
    return (url, "-d", "0.5", *bare(folder))


class TabClient:
    """One open tab; it reads all the time, as a browser does."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._screen = pyte.Screen(100, 30)
        self._stream = pyte.ByteStream(self._screen)
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                self._stream.feed(message.data)
                self._news.set()
        self._news.set()

    @property
    def text(self) -> str:
        """What the terminal shows."""
        return "\n".join(self._screen.display)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    assert not self._reading.done(), f"closed before {what}:\n{self.text}"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"never {what}:\n{self.text}") from None

    async def shows(self, words: str) -> None:
        """Wait until the terminal shows these words."""
        await self.until(lambda: words in self.text, words)

    async def keys(self, text: str) -> None:
        """Type."""
        await self._socket.send_str(json.dumps(["stdin", text]))

    async def say(self, message: str) -> None:
        """Send any text."""
        await self._socket.send_str(message)

    async def closed(self) -> int:
        """Wait until the server closes; the close code."""
        await asyncio.wait_for(self._reading, PATIENCE_S)
        return self._socket.close_code or 0


@asynccontextmanager
async def visitor(web: WebProgram, *, admitted: bool = True) -> AsyncIterator[aiohttp.ClientSession]:
    """A browser's cookie jar; admitted ones have opened the URL with the token."""
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address without a name
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        if admitted:
            async with session.get(web.url) as answer:
                assert answer.status == 200
        yield session


@asynccontextmanager
async def tab(web: WebProgram, session: aiohttp.ClientSession, **headers: Any) -> AsyncIterator[TabClient]:
    """Open a tab's websocket as the page does."""
    address = f"{web.base.replace('http', 'ws')}/ws?width=100&height=30"
    async with session.ws_connect(address, headers={"Origin": web.base, **headers}) as socket:
        yield TabClient(socket)
