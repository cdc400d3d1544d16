"""HTTP/1.1 for the load worker: an asyncio protocol over httptools, one connection for one slot.

Small on purpose. At 256 streams a shared httpx client reads a true TTFT of 300 ms as 4 s, this as 301 ms;
the time of a read is taken before anything is parsed. Proxy variables of the environment are ignored.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast
from urllib.parse import urlsplit

import httptools

IDLE_LIMIT_S = 4.0  # uvicorn closes an idle connection after 5 s
_SETTLE_S = 0.1  # for the end of the body that follows [DONE] in a packet of its own

End = Literal["complete", "cut"]


class Handler(Protocol):
    """What one exchange tells: the head once, body pieces with the time of their read, the end once."""

    def on_head(self, status: int, headers: Mapping[str, str], /) -> None: ...

    def on_body(self, data: bytes, now: float, /) -> None: ...

    def on_end(self, end: End, now: float, /) -> None: ...


class BadUrl(ValueError):
    """Not an http or https URL with a host."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server listens, and the path its routes begin with."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> Origin:
        """The origin of a URL such as `spark-a:8000` or `https://host/base/v1`; raises `BadUrl`."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadUrl(f"not an http or https URL: {parts.scheme}://{parts.hostname or ''}")
        try:
            port = parts.port
        except ValueError as error:
            raise BadUrl(str(error)) from None
        scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(scheme, parts.hostname, port or (443 if scheme == "https" else 80), path)

    @property
    def authority(self) -> str:
        """`host:port` as it stands in a URL and in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    def request(self, method: str, route: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
        """The bytes of one request; `route` begins with a slash and comes after the origin's path."""
        lines = [f"{method} {self.path}{route} HTTP/1.1", f"Host: {self.authority}"]
        lines += ["Accept-Encoding: identity", "User-Agent: llmtop"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self.closed = False
        self.last_used = self.last_read = time.perf_counter()
        self.busy = False  # the server still owes the end of a response
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._handler: Handler | None = None
        self._headers: dict[str, str] = {}
        self._in_body = False
        self._now = 0.0
        self._settled: asyncio.Future[None] | None = None

    # the client's side

    def send(self, request: bytes, handler: Handler) -> float:
        """Sends one request and returns the time just before it."""
        assert self._transport is not None
        self._handler, self.busy, self._headers = handler, True, {}
        now = time.perf_counter()
        self._transport.write(request)
        self.last_used = self.last_read = now
        return now

    def detach(self) -> None:
        """The handler has heard enough; what still comes belongs to nobody."""
        self._handler = None

    async def settle(self) -> bool:
        """Waits briefly for the end of the response; whether the connection can carry another."""
        if self.busy and not self.closed:
            self._settled = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._settled, _SETTLE_S)
            except TimeoutError:
                self.abort()
        return not self.closed

    def usable(self) -> bool:
        """Whether it is open, free, and not idle for so long that the server may be closing it."""
        fresh = time.perf_counter() - self.last_used < IDLE_LIMIT_S
        return not self.closed and not self.busy and fresh

    def abort(self) -> None:
        """Closes at once, without a farewell; the handler hears nothing more."""
        self._handler = None
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # the network's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = self.last_read = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # our own fault, not the server's
        except httptools.HttpParserError:
            self._in_body = False
            self._lost(self._now)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(time.perf_counter(), exc)

    def _lost(self, now: float, exc: Exception | None = None) -> None:
        self.closed = True
        chunked = "chunked" in self._headers.get("transfer-encoding", "")
        framed = chunked or "content-length" in self._headers
        ends_at_eof = self._in_body and not framed and exc is None
        self._finish("complete" if ends_at_eof else "cut", now)

    def _finish(self, end: End, now: float) -> None:
        handler, self._handler = self._handler, None
        self.busy = False
        self.last_used = now
        if handler is not None:
            handler.on_end(end, now)
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    # httptools calls these

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip().lower()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._in_body = status >= 200
        if self._handler is not None and status >= 200:
            self._handler.on_head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if self._handler is not None:
            self._handler.on_body(body, self._now)

    def on_message_complete(self) -> None:
        if not self._in_body:
            return  # 100 Continue and its like
        self._in_body = False
        if not self._parser.should_keep_alive():
            self.closed = True
        self._finish("complete", self._now)
        if self.closed and self._transport is not None:
            self._transport.abort()


def _tls(ca: Path | None, insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Connector:
    """Opens connections to one origin: the name is resolved and TLS prepared once."""

    def __init__(self, origin: Origin, timeout_s: float = 5.0, ca: Path | None = None, insecure: bool = False) -> None:
        self.origin = origin
        self._timeout_s = timeout_s
        self._ssl = _tls(ca, insecure) if origin.scheme == "https" else None
        self._address: str | None = None

    async def open(self) -> Connection:
        """A new connection; raises `OSError` (also for TLS) or `TimeoutError`."""
        loop = asyncio.get_running_loop()
        server_name = self.origin.host if self._ssl else None
        opening = loop.create_connection(
            Connection,
            self._address or self.origin.host,
            self.origin.port,
            ssl=self._ssl,
            server_hostname=server_name,
        )
        transport, connection = await asyncio.wait_for(opening, self._timeout_s)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if peer else None
        return connection


class _Gathered:
    """A handler that keeps a whole response."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.end: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def on_head(self, status: int, _headers: Mapping[str, str]) -> None:
        self.status = status

    def on_body(self, data: bytes, _now: float) -> None:
        self.body += data

    def on_end(self, end: End, _now: float) -> None:
        self.end.set_result(end)


async def fetch(
    connector: Connector,
    method: str,
    route: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    timeout_s: float = 10.0,
) -> tuple[int, bytes]:
    """One whole response on a connection of its own; raises `OSError` or `TimeoutError`."""
    connection = await connector.open()
    gathered = _Gathered()
    try:
        connection.send(connector.origin.request(method, route, headers, body), gathered)
        end = await asyncio.wait_for(gathered.end, timeout_s)
    finally:
        connection.abort()
    if end == "cut":
        raise ConnectionResetError(f"the server cut its answer to {method} {route}")
    return gathered.status, gathered.body
