"""A small HTTP/1.1 server side on asyncio and httptools: keep-alive, chunked streams, one exchange at a
time.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qs, unquote

import httptools

Handler = Callable[["ServedExchange"], None]
_MAX_BODY = 64 * 1024 * 1024


class ServedExchange:
    """One request and its answer; answering after the client has gone is a no-op."""

    __slots__ = (
        "_connection", "_started", "body", "headers", "keep_alive", "method", "on_close", "on_done", "on_gone",
        "path", "query", "sent", "status", "streaming",
    )  # fmt: skip

    def __init__(self, connection: PeerConnection, method: str, target: str, headers: dict[str, str]) -> None:
        path, _, query = target.partition("?")
        self.method = method
        self.path = unquote(path)
        self.query = parse_qs(query)
        self.headers = headers
        self.body = b""
        self.keep_alive = True
        self.streaming = False
        self.status = 0
        self.sent = 0
        self.on_close: Callable[[], None] | None = None
        self.on_done: Callable[[ServedExchange, float], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self._connection = connection
        self._started = time.monotonic()

    def json(self, value: object, status: int = 200) -> None:
        """Answers with compact JSON."""
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        self.reply(status, body, "application/json")

    def reply(self, status: int, body: bytes = b"", content_type: str | None = None, extra: Sequence[str] = ()) -> None:
        """Answers completely; `extra` are further header lines."""
        lines = [f"content-length: {len(body)}", *extra]
        if content_type is not None:
            lines.append(f"content-type: {content_type}")
        self._send(self._head(status, lines) + (b"" if self.method == "HEAD" else body))
        self._done()

    def stream(self, content_type: str) -> None:
        """Sends the header of a chunked answer."""
        self.streaming = True
        self._send(self._head(200, [f"content-type: {content_type}", "transfer-encoding: chunked"]))

    def write(self, payload: bytes) -> None:
        """Sends one chunk."""
        self._send(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end(self, last: bytes = b"") -> None:
        """Sends a last chunk and ends the stream."""
        tail = b"%x\r\n%b\r\n" % (len(last), last) if last else b""
        self._send(tail + b"0\r\n\r\n")
        self._done()

    def abandon(self) -> None:
        """Cuts the connection without answering."""
        self._connection.cut()

    def closed(self) -> None:
        """Called by the connection when the client goes before the answer is complete."""
        if self.on_close is not None:
            self.on_close()
            self.on_close = None
        self._gone()

    def _gone(self) -> None:
        """Whichever comes first, the answer's end or the client's."""
        if self.on_gone is not None:
            self.on_gone()
            self.on_gone = None

    def _head(self, status: int, lines: list[str]) -> bytes:
        self.status = status
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
        return "\r\n".join([start, f"date: {date}", "server: uvicorn", *lines, "", ""]).encode()

    def _send(self, data: bytes) -> None:
        self.sent += len(data)
        self._connection.send(self, data)

    def _done(self) -> None:
        self.on_close = None
        self._gone()
        if self.on_done is not None:
            self.on_done(self, time.monotonic() - self._started)
        self._connection.finished(self)


class PeerConnection(asyncio.Protocol):
    """One client connection; requests that arrive while one is being answered wait their turn."""

    def __init__(self, handler: Handler, connections: set[PeerConnection]) -> None:
        self._handler = handler
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._pending: list[ServedExchange] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # not isinstance: uvloop's transports are no subclass of asyncio's
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._connections.discard(self)
        self._transport = None
        pending, self._pending = self._pending, []
        for exchange in pending:
            exchange.closed()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse()

    def send(self, exchange: ServedExchange, data: bytes) -> None:
        """Writes for the exchange whose turn it is."""
        if self._transport is not None and self._pending and self._pending[0] is exchange:
            self._transport.write(data)

    def finished(self, exchange: ServedExchange) -> None:
        """The exchange is answered: the next one's turn."""
        if not self._pending or self._pending[0] is not exchange:
            return
        self._pending.pop(0)
        if not exchange.keep_alive and self._transport is not None:
            self._transport.close()
        elif self._pending:
            self._handler(self._pending[0])

    def _refuse(self) -> None:
        """Answer what is no HTTP, or another protocol's beginning, with one clean 400."""
        if self._transport is not None:
            if not self._pending:
                self._transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self._transport.close()

    def cut(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body, self._size = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > _MAX_BODY:
            self.cut()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        exchange = ServedExchange(self, method, self._url.decode("latin-1"), self._headers)
        exchange.body = b"".join(self._body)
        exchange.keep_alive = self._parser.should_keep_alive()
        self._pending.append(exchange)
        if len(self._pending) == 1:
            self._handler(exchange)


class Listener:
    """A loopback port that can be opened, closed and opened again; `open` raises OSError when the port is
    taken.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[PeerConnection] = set()
        self._server: asyncio.Server | None = None
        self._reserved: socket.socket | None = None
        self.port = 0

    def reserve(self, port: int = 0) -> int:
        """Binds the port without listening: connections are refused until `open`."""
        self._reserved = _bind(port)
        self.port = self._reserved.getsockname()[1]
        return self.port

    async def open(self) -> int:
        """Listens on the reserved port, or on the one it had before."""
        sock, self._reserved = self._reserved or _bind(self.port), None
        self.port = sock.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: PeerConnection(self._handler, self._connections), sock=sock, backlog=1024
        )
        return self.port

    @property
    def is_open(self) -> bool:
        """Whether the port accepts connections."""
        return self._server is not None

    def close(self) -> None:
        """Stops listening and cuts every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()

    def drop(self) -> None:
        """Cuts every connection."""
        for connection in list(self._connections):
            connection.cut()


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound
