"""GET requests to one server, over one connection that is kept.

Written on asyncio and httptools, because a poll through httpx costs five times the CPU of this, and a watcher must
not hurt the watched. Only where a proxy of the environment is in the way `proxied` does it with httpx.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import ssl
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import quote, urlsplit

import httptools

from llmtop.contract.settings import Target

CONNECT_S = FIRST_BYTE_S = 5.0
KEPT_S = 4.0  # uvicorn closes an idle connection after 5 s: never send on one that is about to go
HEAD_LIMIT = 2**18
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; `t` is the monotonic time of its first body byte, header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    t: float


class CannotConnect(Exception):
    """There is no connection; the words say why."""


class BrokenOff(Exception):
    """What came is no HTTP, or ends before it is complete."""


class TooLarge(Exception):
    """The answer is larger than allowed."""


class Client(Protocol):
    """Asks one server, one request at a time."""

    async def get(self, path: str, limit: int) -> Answer:
        """The answer to a path below the server's URL, of at most `limit` bytes.

        Raises CannotConnect, BrokenOff, TooLarge or TimeoutError; when cancelled, the connection is closed.
        """

    async def close(self) -> None:
        """Close the connection."""


def open_client(target: Target, headers: Mapping[str, str]) -> Client:
    """The client for a server: straight to it, unless it is far away and the environment names a proxy."""
    proxy = any(value for name, value in os.environ.items() if name.lower() in _PROXY_VARIABLES)
    if proxy and not is_private(target.host):
        from llmtop.net.proxied import ProxiedClient

        return ProxiedClient(target, headers)
    return DirectClient(target, headers)


def is_private(host: str) -> bool:
    """Whether a host is on this machine or a private network, where a proxy has no business."""
    if host == "localhost" or host.endswith((".localhost", ".local", ".lan", ".internal")):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host  # a bare name is resolved in the local domain
    return address.is_private or address.is_loopback or address.is_link_local


def tls(target: Target) -> ssl.SSLContext | None:
    """How certificates are checked; None for plain HTTP."""
    if not target.url.startswith("https:"):
        return None
    context = ssl.create_default_context()
    if target.ca is not None:
        context.load_verify_locations(cafile=target.ca)
    if target.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class DirectClient:
    """A `Client` without a proxy."""

    def __init__(self, target: Target, headers: Mapping[str, str]) -> None:
        parts = urlsplit(target.url)
        self._target, self._path, self._tls = target, quote(parts.path, safe="/%:@!$&'()*+,;=~"), tls(target)
        lines = [f"Host: {parts.netloc}", *(f"{name}: {value}" for name, value in headers.items())]
        if target.login is not None:
            word = base64.b64encode(":".join(target.login).encode()).decode()
            lines = [*(line for line in lines if not line.startswith("Authorization:")), f"Authorization: Basic {word}"]
        self._head = "\r\n".join([*lines, "", ""])
        self._kept: _Connection | None = None

    async def get(self, path: str, limit: int) -> Answer:
        """See `Client`."""
        connection, self._kept = self._kept, None
        request = f"GET {self._path}{path} HTTP/1.1\r\n{self._head}".encode()
        if connection is not None and connection.usable():
            try:
                return await self._ask(connection, request, limit)
            except BrokenOff:
                if connection.heard:
                    raise  # else it was closed while nobody looked: once more on a new one
        elif connection is not None:
            connection.abort()
        return await self._ask(await self._connect(), request, limit)

    async def _connect(self) -> _Connection:
        loop, host = asyncio.get_running_loop(), self._target.host
        name = host if self._tls is not None else None
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    _Connection, host, self._target.port, ssl=self._tls, server_hostname=name
                )
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:
            raise CannotConnect(connect_words(error)) from None
        return connection

    async def _ask(self, connection: _Connection, request: bytes, limit: int) -> Answer:
        try:
            answer = await connection.ask(request, limit)
        except BaseException:
            connection.abort()
            raise
        self._kept = connection
        return answer

    async def close(self) -> None:
        """See `Client`."""
        if self._kept is not None:
            self._kept.abort()


class _Connection(asyncio.Protocol):
    """One connection; one answer at a time."""

    def __init__(self) -> None:
        self.heard = False  # whether anything came since the last request
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._open, self._used = True, time.monotonic()
        self._limit = self._size = self._head_size = 0
        self._first: asyncio.Future[None] | None = None
        self._whole: asyncio.Future[Answer] | None = None
        self._begin()

    def usable(self) -> bool:
        """Whether another request can be sent on it."""
        return self._open and time.monotonic() - self._used < KEPT_S

    async def ask(self, request: bytes, limit: int) -> Answer:
        """Send a request and wait for the whole answer."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._first, self._whole = loop.create_future(), loop.create_future()
        self.heard, self._limit = False, limit
        self._transport.write(request)
        async with asyncio.timeout(FIRST_BYTE_S):
            await self._first
        return await self._whole

    def abort(self) -> None:
        """Close at once."""
        self._open = False
        if self._transport is not None:
            self._transport.abort()

    # the network's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now, self.heard = time.monotonic(), True
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            inner = error.__context__
            self._fail(inner if isinstance(inner, TooLarge | BrokenOff) else BrokenOff("what came is no HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        framed = "content-length" in self._headers or "chunked" in self._headers.get("transfer-encoding", "").lower()
        if self._in_body and not framed and exc is None:
            self._done()
        else:
            self._fail(BrokenOff(str(exc) if exc else "the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)  # the wait for the whole answer tells
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(error)
        self.abort()

    # httptools calls these

    def on_message_begin(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._size = self._head_size = 0
        self._in_body = False
        self._now = self._body_t = 0.0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > HEAD_LIMIT:
            raise BrokenOff("its head has no end")
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        self._in_body = self._parser.get_status_code() >= 200

    def on_body(self, body: bytes) -> None:
        self._body_t = self._body_t or self._now
        self._size += len(body)
        if self._size > self._limit:
            raise TooLarge
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._in_body:  # else 100 Continue and its like
            self._open = self._open and self._parser.should_keep_alive()
            self._done()

    def _done(self) -> None:
        self._in_body, self._used = False, time.monotonic()
        if self._whole is None or self._whole.done():
            return
        body = b"".join(self._chunks)
        try:
            if self._headers.get("content-encoding", "").lower() == "gzip":
                body = _unzip(body, self._limit)
        except (TooLarge, zlib.error) as error:
            self._fail(error if isinstance(error, TooLarge) else BrokenOff(str(error)))
            return
        status = self._parser.get_status_code()
        self._whole.set_result(Answer(status, self._headers, body, self._body_t or self._used))


def _unzip(body: bytes, limit: int) -> bytes:
    """A body that was compressed although nobody asked for it."""
    whole = zlib.decompressobj(31).decompress(body, limit + 1)
    if len(whole) > limit:
        raise TooLarge
    return whole


def connect_words(error: Exception) -> str:
    """Why there is no connection."""
    text = "".join(char for char in str(error) if char.isprintable())[:160]
    lower = text.lower()
    if isinstance(error, ssl.SSLError) or "certificate" in lower:
        return f"TLS: {text}"
    if isinstance(error, UnicodeError) or any(
        word in lower for word in ("name or service", "resolution", "no address")
    ):
        return "the host name is not known"
    if "unreachable" in lower or "no route" in lower:
        return "the host is not reachable"
    if isinstance(error, ConnectionRefusedError) or "connect call failed" in lower or "refused" in lower:
        return "connection refused"
    return text or "cannot connect"
