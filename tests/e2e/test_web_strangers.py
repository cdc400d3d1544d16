"""`llmtop web` against pages that mean harm: other sites, other names, other files, too much of anything."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fakes.pages import Engine, PageServer
from llmtop.ui.app import LlmtopApp
from llmtop.ui.keys import ALL_KEYS
from llmtop.web.screens import MAY_DO, MAY_LOAD, kept_from
from web_program import PATIENCE_S, WebProgram, of_server, tab, visitor

PATHS = (
    "/static/../gate.py",
    "/static/../../../../../../../../etc/passwd",
    "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/static/..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2fetc/passwd",
    "/static/..\\..\\..\\etc\\passwd",
    "/static//etc/passwd",
    "/static/./js/../../server.py",
    "/static/js/%00",
    "/static/",
    "//etc/passwd",
    "/etc/passwd",
    "/ws/../../etc/passwd",
    "/download/x",
    "http://127.0.0.1/../etc/passwd",
    "file:///etc/passwd",
)


def exchange(web: WebProgram, head: str, body: bytes = b"", cookie: str = "") -> bytes:
    """Send raw bytes; what comes back until the server closes."""
    port = int(web.base.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        lines = [head, *([f"Cookie: {cookie}"] if cookie else []), "Connection: close", "", ""]
        connection.sendall("\r\n".join(lines).encode("latin-1") + body)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def status(answer: bytes) -> int:
    return int(answer.split(None, 2)[1])


def host(web: WebProgram) -> str:
    return web.base.removeprefix("http://")


def admitted(web: WebProgram) -> str:
    """The cookie of who had the token."""
    answer = exchange(web, f"GET /?token={web.token} HTTP/1.1\r\nHost: {host(web)}")
    found = re.search(rb"(?i)set-cookie: ([^;]+);", answer)
    assert found is not None
    return found[1].decode()


async def test_no_file_but_the_page_s_own(tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        cookie = admitted(web)
        for path in PATHS:
            answer = exchange(web, f"GET {path} HTTP/1.1\r\nHost: {host(web)}", cookie=cookie)
            assert status(answer) in (400, 403, 404), (path, answer[:200])
            assert b"root:" not in answer
            assert b"import" not in answer
        own = exchange(web, f"GET /static/js/textual.js HTTP/1.1\r\nHost: {host(web)}", cookie=cookie)
        assert status(own) == 200


@pytest.mark.parametrize(
    "name", ["evil.com", "127.0.0.1.evil.com", "127.0.0.1@evil.com", "0.0.0.0", "[::]", "127.1", ""]
)
async def test_a_name_that_was_made_to_point_here(name: str, tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        cookie = admitted(web)
        for head in ("GET / HTTP/1.1", f"GET /?token={web.token} HTTP/1.1", "GET /static/js/textual.js HTTP/1.1"):
            answer = exchange(web, f"{head}\r\nHost: {name}", cookie=cookie)
            assert status(answer) in (400, 403), answer[:200]
            assert b"Set-Cookie" not in answer
        # the page's name in the request line, the other one in the header, and both headers at once
        absolute = exchange(web, f"GET {web.base}/ HTTP/1.1\r\nHost: {name}", cookie=cookie)
        assert status(absolute) in (400, 403)
        twice = exchange(web, f"GET / HTTP/1.1\r\nHost: {host(web)}\r\nHost: {name or 'x'}", cookie=cookie)
        assert status(twice) in (400, 403), twice[:200]


async def test_a_token_that_is_wrong_in_any_way(tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        right = web.token
        for token in ("", right[:-1], right + "x", right.swapcase(), f"x&token={right}", "%00", "ü", "a" * 4000):
            answer = exchange(web, f"GET /?token={token} HTTP/1.1\r\nHost: {host(web)}")
            assert status(answer) in (400, 403), token
            assert b"Set-Cookie" not in answer
        for cookie in (f"token={right}", f"llmtop={right}", admitted(web)[:-1], admitted(web).partition("=")[0] + "="):
            answer = exchange(web, f"GET / HTTP/1.1\r\nHost: {host(web)}", cookie=cookie)
            assert status(answer) == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
async def test_only_reading_is_answered(method: str, tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        head = f"{method} / HTTP/1.1\r\nHost: {host(web)}\r\nContent-Length: 10"
        answer = exchange(web, head, b"x" * 10, admitted(web))
        assert status(answer) in (400, 403, 404, 405)
        assert b"Access-Control-Allow" not in answer


async def test_messages_that_are_too_large_close_the_tab(tmp_path: Path) -> None:
    with WebProgram(tmp_path, *of_server("127.0.0.1:1", tmp_path)) as web:
        async with visitor(web) as session:
            for size, codes in ((65_537, (1009,)), (4_000_000, (0, 1006, 1009))):
                async with tab(web, session) as one:
                    with suppress(ConnectionError):  # closed before the end of it
                        await one.say('["stdin","' + "x" * size + '"]')
                    assert await one.closed() in codes
            address = f"{web.base.replace('http', 'ws')}/ws"
            async with session.ws_connect(address, headers={"Origin": web.base}, compress=15) as socket_:
                with suppress(ConnectionError):
                    await socket_.send_str("x" * 50_000_000)  # 50 kB on the wire
                async with asyncio.timeout(PATIENCE_S):
                    while not socket_.closed:
                        await socket_.receive()
                assert socket_.close_code in (1006, 1009)
            async with tab(web, session) as one:
                await one.shows("DOWN")
        assert psutil.Process(web.process.pid).memory_info().rss < 200e6


def silent_tab(web: WebProgram, cookie: str, size: str = "width=500&height=300") -> socket.socket:
    """A websocket of a browser that reads nothing."""
    silent = socket.socket()
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    silent.connect(("127.0.0.1", int(web.base.rpartition(":")[2])))
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET /ws?{size} HTTP/1.1", f"Host: {host(web)}", f"Origin: {web.base}", f"Cookie: {cookie}"]
    lines += ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
    silent.sendall("\r\n".join([*lines, "", ""]).encode())
    return silent


def frame(text: str) -> bytes:
    """A text frame of up to 125 bytes, masked with zeros."""
    data = text.encode()
    return bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data


async def test_a_tab_that_stops_reading_costs_nothing(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as server, WebProgram(tmp_path, *of_server(server.url, tmp_path)) as web:
        cookie = admitted(web)
        async with visitor(web) as session, tab(web, session) as reader:
            await reader.shows("SERVING")
            program = psutil.Process(web.process.pid)
            before = program.memory_info().rss
            silent = silent_tab(web, cookie)
            silent.settimeout(0.2)
            sent = 0
            for number in range(20_000):  # each draws the whole screen anew, as far as somebody takes it
                try:
                    sent += silent.send(frame(f'["resize", {{"width": {300 + number % 200}, "height": 300}}]'))
                except TimeoutError:
                    break
            await reader.keys("?")
            await reader.shows("Keys")
            await reader.keys("\x1b")
            await reader.shows("KV cache")
            assert program.memory_info().rss - before < 30e6
            assert all(child.memory_info().rss < 250e6 for child in web.tabs)
            silent.close()
            async with asyncio.timeout(PATIENCE_S):
                while len(web.tabs) > 1:
                    await asyncio.sleep(0.05)


async def test_many_tabs_at_once_are_no_more_than_allowed(tmp_path: Path) -> None:
    with WebProgram(tmp_path, "--tabs", "2", *of_server("127.0.0.1:1", tmp_path)) as web:
        cookie = admitted(web)
        asking = [silent_tab(web, cookie, "width=80&height=24") for _ in range(40)]
        answers = [connection.recv(12) for connection in asking]
        assert sorted({answer.decode() for answer in answers}) == ["HTTP/1.1 101", "HTTP/1.1 503"]
        assert sum(answer.endswith(b"101") for answer in answers) == 2
        assert len(web.tabs) <= 2
        for connection in asking:
            connection.close()
        async with asyncio.timeout(PATIENCE_S):
            while web.tabs:
                await asyncio.sleep(0.05)


# --- what a browser may do -------------------------------------------------------------------------------------------


def test_what_a_browser_may_do_is_a_list() -> None:
    writes_or_starts = {"record", "save_screen", "screenshot", "suspend_process", "faster", "slower", "push_screen"}
    assert not writes_or_starts & MAY_DO
    assert MAY_DO | {"load"} == MAY_LOAD
    every = {name.removeprefix("action_") for name in dir(LlmtopApp) if name.startswith("action_")}
    assert kept_from(MAY_DO) == every - MAY_DO
    assert not MAY_DO - every
    shown = {row.name for row in ALL_KEYS} & every
    assert shown - MAY_DO == {"record", "save_screen", "faster", "slower", "load"}


async def test_the_command_palette_has_no_more_than_the_list(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as server, WebProgram(tmp_path, *of_server(server.url, tmp_path)) as web:
        async with visitor(web) as session, tab(web, session) as one:
            await one.shows("SERVING")
            await one.keys("\x10")
            await one.shows("All servers and their engines")
            for words in ("load", "record", "screenshot", "svg"):
                await one.keys(words)
                await one.shows("No matches found")
                await one.keys("\x7f" * len(words))
                await one.shows("All servers and their engines")
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
