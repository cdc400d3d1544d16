"""The web server: a page behind a token, a websocket per tab, and a process of its own behind every websocket."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import textual_serve
from aiohttp import WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from llmtop.contract.secrets import own_environment
from llmtop.contract.settings import Settings, Target, UsageError
from llmtop.contract.snapshot import Snapshot
from llmtop.machine.source import MachineSource, MachineTee
from llmtop.session.poller import Poller
from llmtop.warmup.log_source import LineSource
from llmtop.web import page
from llmtop.web.gate import LOOPBACK, Gate, headers
from llmtop.web.hub import Hub
from llmtop.web.startups import SharedStartups

STATIC = Path(textual_serve.__file__).parent / "static"
MOST_CELLS = 500
MESSAGE_BYTES = 64 * 1024
GOODBYE_S = 3.0


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Where to listen, how many tabs at once, and whether the load button is there."""

    host: str = "127.0.0.1"
    port: int = 8090
    tabs: int = 8
    loads: bool = False


class Tab(AppService):
    """The process behind one websocket. It may draw and end; downloads and links do not exist."""

    def __init__(self, socket: Path, websocket: web.WebSocketResponse) -> None:
        super().__init__(
            "",
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=self._close,
            download_manager=DownloadManager(),
        )
        self._socket = socket
        self._websocket = websocket

    async def _close(self) -> None:
        await self._websocket.close()

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        """Start the process without a shell, and without what is secret in the environment."""
        command = (sys.executable, "-P", "-m", "llmtop.web.tab", str(self._socket))
        environment = own_environment(self._build_environment(width=width, height=height))
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
        )
        self._stdin = self._process.stdin
        return self._process

    async def on_meta(self, data: bytes) -> None:
        """The only thing that a tab's process can say beside what it draws: that it ends."""
        if b'"exit"' in data:
            await self.remote_close()

    async def on_packed(self, payload: bytes) -> None:
        """No file is ever delivered."""

    async def stop(self) -> None:
        """Ask the process to end, and see to it."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                await super().stop()
        except (TimeoutError, ConnectionError):
            if self._task is not None:
                self._task.cancel()
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()


class Site:
    """The routes of the server."""

    def __init__(self, gate: Gate, socket: Path, tabs: int) -> None:
        self._gate = gate
        self._socket = socket
        self._most = tabs
        self._open = 0
        self.app = web.Application(middlewares=[self._guard])
        self.app.router.add_get("/", self._page)
        self.app.router.add_get("/page.js", self._script)
        self.app.router.add_get("/ws", self._websocket)
        self.app.router.add_static("/static", STATIC)
        self.app.on_response_prepare.append(self._head)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Nothing is answered before it is clear who asks."""
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        if not self._gate.knows_host(host):
            raise web.HTTPForbidden(text="llmtop web does not answer to this host name\n")
        if (origin is not None or request.path == "/ws") and not self._gate.same_origin(origin, host):
            raise web.HTTPForbidden(text="llmtop web does not answer pages of others\n")
        if request.path == "/" and self._gate.right_token(request.query.get("token")):
            return self._welcome()
        if not self._gate.right_session(request.cookies.get(self._gate.cookie)):
            raise web.HTTPForbidden(text="open the URL with the token that `llmtop web` has printed\n")
        return await handler(request)

    async def _head(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(headers(request.host if self._gate.knows_host(request.host) else "127.0.0.1"))

    def _welcome(self) -> web.Response:
        """Swap the token for a cookie."""
        response = web.Response(text=page.WELCOME, content_type="text/html")
        response.set_cookie(self._gate.cookie, self._gate.session, httponly=True, samesite="Strict", path="/")
        return response

    async def _page(self, request: web.Request) -> web.Response:
        if self._open >= self._most:
            raise web.HTTPServiceUnavailable(text=f"all {self._most} tabs are in use\n")
        return web.Response(text=page.terminal(request.host), content_type="text/html")

    async def _script(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text=page.SCRIPT, content_type="text/javascript")

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        if self._open >= self._most:
            raise web.HTTPServiceUnavailable(text=f"all {self._most} tabs are in use\n")
        self._open += 1
        try:
            websocket = web.WebSocketResponse(heartbeat=15, max_msg_size=MESSAGE_BYTES)
            await websocket.prepare(request)
            await self._run(Tab(self._socket, websocket), websocket, request)
            return websocket
        finally:
            self._open -= 1

    async def _run(self, tab: Tab, websocket: web.WebSocketResponse, request: web.Request) -> None:
        try:
            await tab.start(_cells(request.query.get("width"), 80), _cells(request.query.get("height"), 24))
            async for message in websocket:
                if message.type is WSMsgType.TEXT:
                    await _pass_on(message, tab, websocket)
        except (ValueError, TypeError, KeyError, IndexError):
            await websocket.close(code=1008)  # not what the page says
        finally:
            await tab.stop()


def _cells(value: object, default: int) -> int:
    """A width or height, within reason."""
    try:
        cells = int(str(value))
    except ValueError:
        return default
    return min(max(cells, 1), MOST_CELLS)


async def _pass_on(message: Any, tab: Tab, websocket: web.WebSocketResponse) -> None:
    """A key, a new size or a ping of the page; raises ValueError and its like for anything else."""
    kind, *values = message.json()
    match kind:
        case "stdin":
            await tab.send_bytes(str(values[0]).encode("utf-8", "replace"))
        case "resize":
            await tab.set_terminal_size(_cells(values[0]["width"], 80), _cells(values[0]["height"], 24))
        case "ping":
            await websocket.send_json(["pong", str(values[0])[:40]])
        case "focus":
            await tab.focus()
        case "blur":
            await tab.blur()


def serve(settings: Settings, machine: MachineSource, options: WebOptions, startup: LineSource | None) -> int:
    """Serve until a signal comes; the exit code. Raises UsageError when the port cannot be had.

    `startup` is the log of a start-up to follow.
    """
    return asyncio.run(_serve(settings, machine, options, startup))


async def _serve(settings: Settings, machine: MachineSource, options: WebOptions, startup: LineSource | None) -> int:
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="llmtop-web-") as folder:  # mode 0700
        socket = Path(folder) / "tabs"
        hub = Hub(hello(settings, options), lambda: poller, notes=options.loads)
        tee = MachineTee(machine)
        poller = Poller(settings, tee.branch(), lambda snapshot: _soon(loop, publish, snapshot))
        startups = SharedStartups(hub, poller, tee, settings, startup)

        def publish(snapshot: Snapshot) -> None:
            hub.publish(snapshot)
            startups.look(snapshot)

        gate = Gate(names=(*LOOPBACK, _bracketed(options.host)))
        site = Site(gate, socket, options.tabs).app
        runner = web.AppRunner(site, access_log=None, logger=_log(), handle_signals=False)
        await hub.open(socket)
        await runner.setup()
        try:
            port = await _listen(runner, options)
            poller.start()
            startups.start()
            print(_welcome_lines(gate, options, port), flush=True)
            return await _until_end(lambda: poller.error or startups.error)
        finally:
            startups.stop()
            poller.stop()
            hub.close()
            await runner.cleanup()


def _log() -> logging.Logger:
    """Where aiohttp tells what went wrong; a request that is no HTTP was answered with 400, and may hold the token."""
    log = logging.getLogger("llmtop.web")
    log.addFilter(lambda record: not isinstance((record.exc_info or (None, None))[1], HttpProcessingError))
    return log


def _soon(loop: asyncio.AbstractEventLoop, publish: Callable[[Snapshot], None], snapshot: Snapshot) -> None:
    """In the poller's thread."""
    try:
        loop.call_soon_threadsafe(publish, snapshot)
    except RuntimeError:
        pass  # the loop has ended


async def _listen(runner: web.AppRunner, options: WebOptions) -> int:
    """Open the port; its number."""
    try:
        await web.TCPSite(runner, options.host, options.port, shutdown_timeout=1.0).start()
    except OSError as error:
        raise UsageError(
            f"cannot listen on {options.host}:{options.port}: {error.strerror}; --port 0 takes a free port"
        ) from None
    port: int = runner.addresses[0][1]
    return port


async def _until_end(error: Callable[[], BaseException | None]) -> int:
    """Wait for a signal; raises what the poller or the watching of a start-up died of."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        asyncio.get_running_loop().add_signal_handler(number, end, code)
    while not ended.done():
        await asyncio.wait([ended], timeout=1.0)
        if (died := error()) is not None:
            raise died
    return ended.result()


def _welcome_lines(gate: Gate, options: WebOptions, port: int) -> str:
    lines = [f"http://{_bracketed(options.host)}:{port}/?token={gate.token}"]
    if _bracketed(options.host) not in LOOPBACK:
        lines.append("not on loopback: who can read the network can read this page, and its token")
    load = "the load button is there" if options.loads else "no load button (--allow-load)"
    lines.append(f"up to {options.tabs} tabs, {load}; Ctrl+C ends it")
    return "\n".join(lines)


def _bracketed(host: str) -> str:
    """A host as URLs have it."""
    return f"[{host}]" if ":" in host else host.lower()


def hello(settings: Settings, options: WebOptions) -> dict[str, Any]:
    """What the processes of tabs have to know; keys only when tabs may load."""
    return {
        "interval_s": settings.interval_s,
        "theme": settings.theme,
        "ascii": settings.ascii,
        "mouse": settings.mouse,
        "loads": options.loads,
        "allow_remote_load": settings.allow_remote_load,
        "targets": [_target(target) for target in settings.targets] if options.loads else [],
    }


def _target(target: Target) -> dict[str, Any]:
    return {
        "url": target.url,
        "name": target.name,
        "key": target.key,
        "login": target.login,
        "ca": str(target.ca) if target.ca else None,
        "insecure": target.insecure,
        "max_num_seqs": target.max_num_seqs,
    }
