"""A headless Chromium, steered over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyte

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
PATIENCE_S = 40.0


def find() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A page: what it asks the network for, and the terminal that its websocket paints."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._news = asyncio.Event()
        self.requests: list[str] = []
        self.statuses: dict[str, int] = {}
        self.errors: list[str] = []
        self.ended = False
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)

    async def do(self, method: str, **values: Any) -> dict[str, Any]:
        """One command of the protocol."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": values})
        return await asyncio.wait_for(answer, PATIENCE_S)

    async def read(self) -> None:
        """Take what the browser tells until it ends."""
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told.get("result") or told)
            else:
                self._take(told["method"], told["params"])
            self._news.set()

    def _take(self, method: str, values: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])
            case "Network.webSocketCreated":
                self.requests.append(values["url"])
            case "Network.responseReceived":
                self.statuses[values["response"]["url"]] = values["response"]["status"]
            case "Network.webSocketFrameReceived" if values["response"]["opcode"] == 2:
                self._stream.feed(base64.b64decode(values["response"]["payloadData"]))
            case "Network.webSocketFrameSent" if values["response"]["payloadData"].startswith('["resize"'):
                size = json.loads(values["response"]["payloadData"])[1]
                self.screen.resize(size["height"], size["width"])
            case "Network.webSocketClosed":
                self.ended = True
            case "Log.entryAdded" if values["entry"]["level"] == "error":
                self.errors.append(values["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.errors.append(values["exceptionDetails"].get("text", "exception"))

    @property
    def text(self) -> str:
        """What the terminal shows."""
        return "\n".join(self.screen.display)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"never {what}; {self.errors}; the terminal shows\n{self.text}") from None

    async def open(self, url: str) -> int:
        """Open a page; the status of its document."""
        await self.do("Page.navigate", url=url)
        await self.until(lambda: url in self.statuses, f"an answer of {url}")
        return self.statuses[url]

    async def press(self, key: str) -> None:
        """Press a key with a character."""
        await self.do("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self.do("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def evaluate(self, code: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = await self.do("Runtime.evaluate", expression=code, returnByValue=True)
        return answer["result"].get("value")

    async def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode((await self.do("Page.captureScreenshot"))["data"])


class Browser:
    """The running browser."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []

    async def page(self) -> Page:
        """A new tab."""
        async with self._session.put(f"http://127.0.0.1:{self._port}/json/new?about:blank") as answer:
            address = (await answer.json(content_type=None))["webSocketDebuggerUrl"]
        page = Page(await self._session.ws_connect(address, max_msg_size=0))
        self._tasks.append(asyncio.create_task(page.read()))
        for domain in ("Network", "Page", "Runtime", "Log"):
            await page.do(f"{domain}.enable")
        return page

    def close(self) -> None:
        """Stop listening to the tabs."""
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def chromium(path: str, folder: Path) -> AsyncIterator[Browser]:
    """Run the browser with an empty profile in `folder`."""
    profile = folder / "profile"
    process = subprocess.Popen(
        [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        port = await _port(profile / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            browser = Browser(session, port)
            yield browser
            browser.close()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    """The port of the protocol, which the browser writes into its profile."""
    async with asyncio.timeout(PATIENCE_S):
        while not (file.exists() and file.read_text().strip()):
            assert process.poll() is None, "the browser ended at once"
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])
