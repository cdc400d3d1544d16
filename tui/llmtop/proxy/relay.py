"""Passes requests on to one server and its answers back, byte by byte, and measures what passes.

Every client's connection has one of its own to the server. Neither side is read faster than the other takes it, so what
is held of an answer is bounded. A client that goes takes its request with it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

from llmtop.net.client import connect_words
from llmtop.net.connection import IDLE_LIMIT_S, Origin, tls_words
from llmtop.proxy.meter import End, Passage, TrafficMeter, generates
from llmtop.proxy.page import CONTENT_TYPE, page
from llmtop.proxy.wire import (
    HEAD_LIMIT,
    BadMessage,
    Body,
    Chunked,
    Head,
    UntilClosed,
    parse_head,
    request_body,
    response_body,
)

METRICS = b"/metrics"
HIGH = 2**16  # bytes that may wait for one side before the other is not read any more
MOST_CLIENTS = 1024
Dial = Callable[[Callable[[], "ServerSide"]], Awaitable["ServerSide"]]


class Relay:
    """What all connections share: where requests go, and the figures."""

    def __init__(self, origin: Origin, dial: Dial) -> None:
        self.origin, self.dial = origin, dial
        self.meter = TrafficMeter()
        self.clients: set[ClientSide] = set()

    def close(self) -> None:
        """End every connection."""
        for client in tuple(self.clients):
            client.abort()


class Errand:
    """One request and its answer."""

    def __init__(self, head: Head, started: float, meter: TrafficMeter) -> None:
        self.method, target, self.version = head.first
        self.path = _path(target)
        self.body = request_body(head)
        self.keeps = self.version == b"HTTP/1.1" and b"close" not in head.words(b"connection")
        self.measured = None
        if generates(self.method, self.path.partition("?")[0]):
            self.measured = Passage(meter, started)

    def end(self, how: End) -> None:
        """It is over."""
        if self.measured is not None:
            self.measured.end(how, time.perf_counter())


class ClientSide(asyncio.Protocol):
    """A client's side."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._transport: asyncio.Transport | None = None
        self._arrived = bytearray()  # and not yet passed on
        self._began = 0.0  # when the first byte of what waits came
        self._exchange: Errand | None = None
        self._upstream: ServerSide | None = None
        self._opening: asyncio.Task[None] | None = None
        self._ending = False  # after what is being written
        self._full = self._held = False  # why it is not read: enough waits here, the server takes no more
        self._choked = False  # it does not read what it gets

    # the network's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH)
        self._relay.clients.add(self)
        if len(self._relay.clients) > MOST_CLIENTS:
            self._refuse(503, f"more than {MOST_CLIENTS} connections")

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        if not self._arrived:
            self._began = time.perf_counter()
        self._arrived += data
        self._advance()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._relay.clients.discard(self)
        self._ending = True
        self._over("abort")
        if self._opening is not None:
            self._opening.cancel()
        if self._upstream is not None:
            self._upstream.abort()

    def pause_writing(self) -> None:
        self._choked = True
        if self._upstream is not None:
            self._upstream.read(False)

    def resume_writing(self) -> None:
        self._choked = False
        if self._upstream is not None:
            self._upstream.read(True)

    # what was asked

    def _advance(self) -> None:
        """Take what has arrived as far as it goes."""
        try:
            while self._arrived and not self._ending:
                if self._exchange is None:
                    if not self._begin():
                        break
                elif self._exchange.body.done or self._upstream is None or self._opening is not None:
                    break  # the next request waits for the end of this one, and this one for its connection
                else:
                    self._pass_body(self._exchange, self._upstream)
        except ValueError as error:  # also of an address that is none
            self._refuse(400, str(error))
        self._full = len(self._arrived) > HIGH
        self._flow()

    def hold(self, held: bool) -> None:
        """The server takes no more of the request for now, or does again."""
        self._held = held
        self._flow()

    def _flow(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._full or self._held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _begin(self) -> bool:
        """Begin with the next request; whether its head is there."""
        while self._arrived.startswith(b"\r\n"):
            del self._arrived[:2]
        end = self._arrived.find(b"\r\n\r\n")
        if end < 0 or end > HEAD_LIMIT:
            if len(self._arrived) > HEAD_LIMIT:
                self._refuse(431, "its head has no end")
            return False
        head = parse_head(bytes(self._arrived[:end]))
        del self._arrived[: end + 4]
        if not head.first[2].startswith(b"HTTP/"):
            self._refuse(400, "what came is no HTTP")
        elif head.first[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            self._refuse(505, "it speaks HTTP/1.1 only")
        elif head.first[0] == b"CONNECT" or b"upgrade" in head.words(b"connection"):
            self._refuse(501, "no tunnels, no WebSockets: connect to the server itself")
        else:
            self._pass(head)
        return True

    def _pass(self, head: Head) -> None:
        exchange = self._exchange = Errand(head, self._began, self._relay.meter)
        if exchange.path.partition("?")[0].encode() == METRICS and exchange.method in (b"GET", b"HEAD"):
            self._own_page(exchange)
            return
        origin = self._relay.origin
        first = (exchange.method, f"{origin.path}{exchange.path}".encode("latin-1"), b"HTTP/1.1")
        host = (b"Host", origin.authority.encode())
        request = Head(first, head.headers).bytes(drop=(b"host",), more=(host,))
        if exchange.measured is not None and exchange.body.done:
            exchange.measured.sent()
        if self._upstream is not None and self._upstream.usable():
            self._upstream.send(exchange, request)
        else:
            self._opening = asyncio.get_running_loop().create_task(self._open(exchange, request))

    async def _open(self, exchange: Errand, request: bytes) -> None:
        try:
            upstream = await self._relay.dial(lambda: ServerSide(self))
        except (OSError, UnicodeError) as error:
            self._opening = None
            self.fail(f"cannot connect to {self._relay.origin}: {_why(error)}")
            return
        self._opening, self._upstream = None, upstream
        upstream.read(not self._choked)
        upstream.send(exchange, request)
        self._advance()

    def _pass_body(self, exchange: Errand, upstream: ServerSide) -> None:
        data = bytes(self._arrived)
        end, pieces = exchange.body.feed(data, 0)
        del self._arrived[:end]
        upstream.write(data[:end])
        if exchange.measured is not None:
            exchange.measured.request(pieces)
            if exchange.body.done:
                exchange.measured.sent()

    # what is answered

    def write(self, data: bytes) -> None:
        """Bytes of the answer."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def answered(self, exchange: Errand, keeps: bool) -> None:
        """The answer has ended; `keeps`: the client has been told that the connection stays."""
        self._over("stop")
        if not keeps or not exchange.body.done:
            self._end()
            return
        self._began = time.perf_counter()
        self._advance()

    def cut(self) -> None:
        """The server went in the middle of its answer: the client must see that it is not whole."""
        self._over("error")
        self._end()

    def fail(self, words: str) -> None:
        """There is no answer from the server, for this reason."""
        self._refuse(502, words)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def forget(self, upstream: ServerSide) -> None:
        """The connection to the server is no more."""
        if self._upstream is upstream:
            self._upstream, self._held = None, False

    def _own_page(self, exchange: Errand) -> None:
        body = page(self._relay.meter, time.perf_counter())
        keeps = exchange.keeps and exchange.body.done
        head = _reply_head(200, CONTENT_TYPE, len(body), keeps)
        self.write(head + (b"" if exchange.method == b"HEAD" else body))
        self._exchange = None
        if not keeps:
            self._end()

    def _refuse(self, status: int, words: str) -> None:
        """Answer in place of the server, and close; one that has begun to answer is cut off instead."""
        upstream = self._upstream
        if upstream is not None:
            begun = upstream.answers
            upstream.abort()
            if begun:
                self.cut()
                return
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.measured is not None:
            exchange.measured.refused(status, time.perf_counter())
        kind = HTTPStatus(status).phrase.lower().replace(" ", "_")
        error = {"message": f"llmtop proxy: {words}", "type": kind, "code": status}
        body = json.dumps({"error": error}, ensure_ascii=False).encode() + b"\n"
        self.write(_reply_head(status, b"application/json", len(body), False) + body)
        self._end()

    def _over(self, how: End) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end(how)

    def _end(self) -> None:
        """Close when what is written has gone."""
        self._ending = True
        self._arrived.clear()
        if self._transport is not None:
            self._transport.close()


class ServerSide(asyncio.Protocol):
    """The server's side of one client."""

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._exchange: Errand | None = None
        self._head = b""
        self._body: Body | None = None  # of the answer, once its head has come
        self._keeps = self._client_keeps = self._unpacks = False
        self._used = time.perf_counter()
        self._closed = False

    def usable(self) -> bool:
        """Whether it can carry another request: open, and not idle for so long that the server may be closing it."""
        return not self._closed and time.perf_counter() - self._used < IDLE_LIMIT_S

    @property
    def answers(self) -> bool:
        """Whether it is in the middle of an answer."""
        return self._exchange is not None and self._body is not None

    def send(self, exchange: Errand, request: bytes) -> None:
        """Begin with a request."""
        self._exchange, self._head, self._body = exchange, b"", None
        self.write(request)

    def write(self, data: bytes) -> None:
        """Bytes of the request."""
        if self._transport is not None and not self._closed:
            self._transport.write(data)

    def read(self, on: bool) -> None:
        """Read on, or no more for a while."""
        if self._transport is not None and not self._closed:
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def abort(self) -> None:
        """Close at once; what still comes belongs to nobody."""
        self._closed, self._exchange = True, None
        self._client.forget(self)
        if self._transport is not None:
            self._transport.abort()

    # the network's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH)

    def pause_writing(self) -> None:
        self._client.hold(True)

    def resume_writing(self) -> None:
        self._client.hold(False)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        try:
            while data and self._exchange is not None:
                data = self._take(self._exchange, data, now)
        except ValueError as error:
            self._broken(f"what the server answers is not passed on: {error}")
            return
        if data:  # an answer that nobody asked for
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._closed = self._exchange, True
        self._client.forget(self)
        if exchange is None:
            return
        if isinstance(self._body, UntilClosed) and exc is None:
            self._ended(exchange)
        else:
            self._broken(f"the server closed the connection without an answer{f': {exc}' if exc else ''}")

    def _broken(self, words: str) -> None:
        """The answer will not come, or not to its end."""
        begun = self._body is not None
        self.abort()
        if begun:
            self._client.cut()
        else:
            self._client.fail(words)

    # the answer

    def _take(self, exchange: Errand, data: bytes, now: float) -> bytes:
        """Pass on what belongs to the answer; the rest."""
        start, head = 0, b""
        if self._body is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > HEAD_LIMIT:
                    raise BadMessage("its head has no end")
                return b""
            data, start = self._head, end + 4
            self._head = b""
            head = self._begin(exchange, parse_head(data[:end]))
            if self._body is None:  # 100 Continue and its like
                self._client.write(head)
                return data[start:]
        end, pieces = self._body.feed(data, start)
        content = b"".join(pieces) if self._unpacks else data[start:end]
        if head or content:
            self._client.write(head + content)
        if exchange.measured is not None:
            exchange.measured.body(pieces, now)
        if self._body.done:
            self._ended(exchange)
        return data[end:]

    def _begin(self, exchange: Errand, head: Head) -> bytes:
        """The head of the answer as the client gets it."""
        status = int(head.first[1])
        if not head.first[0].startswith(b"HTTP/1.") or not 100 <= status <= 599 or status == 101:
            raise BadMessage("its first line is no answer")
        if status < 200:
            return head.bytes() if exchange.version == b"HTTP/1.1" else b""
        self._body = response_body(head, exchange.method)
        words = head.words(b"connection")
        self._keeps = head.first[0] == b"HTTP/1.1" and b"close" not in words
        self._client_keeps = exchange.keeps and exchange.body.done and not isinstance(self._body, UntilClosed)
        self._unpacks = isinstance(self._body, Chunked) and exchange.version == b"HTTP/1.0"
        drop = {b"transfer-encoding"} if self._unpacks else set()
        if isinstance(self._body, Chunked):
            drop.add(b"content-length")
        more = () if self._client_keeps else ((b"Connection", b"close"),)
        if exchange.measured is not None:
            kinds = (head.all(name) for name in (b"content-type", b"content-encoding"))
            exchange.measured.head(status, *((values or [b""])[0].lower() for values in kinds))
        return Head((b"HTTP/1.1", *head.first[1:]), head.headers).bytes(drop, more)

    def _ended(self, exchange: Errand) -> None:
        self._exchange, self._used = None, time.perf_counter()
        if not self._keeps or not exchange.body.done:
            self.abort()
        self._client.answered(exchange, self._client_keeps)


def _path(target: bytes) -> str:
    """What is asked for, without scheme and host."""
    text = target.decode("latin-1")
    if text.startswith("/") or text == "*":
        return text
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https"):
        raise BadMessage("it asks for no path")
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _why(error: OSError | UnicodeError) -> str:
    if isinstance(error, ssl.SSLError):
        return tls_words(error)
    return "no answer in time" if isinstance(error, TimeoutError) else connect_words(error)


def _reply_head(status: int, content_type: bytes, length: int, keeps: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), b"Content-Type: " + content_type]
    lines += [b"Content-Length: %d" % length, *(() if keeps else (b"Connection: close",))]
    return b"\r\n".join([*lines, b"", b""])
