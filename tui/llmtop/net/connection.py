"""One HTTP/1.1 connection: an asyncio protocol over httptools, for the poller and for the load worker.

Small on purpose: a poll through httpx costs five times the CPU, and at 256 streams a shared httpx client reads a true
TTFT of 300 ms as 4 s, this as 301 ms. The time of a read is taken before anything is parsed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit

import httptools

from llmtop import __version__
from llmtop.contract.secrets import KNOWN

IDLE_LIMIT_S = 4.0  # uvicorn closes an idle connection after 5 s: never send on one that is about to go
HEAD_LIMIT = 2**18
FETCH_LIMIT = 2**25
_SETTLE_S = 0.1  # for the end of the body that follows [DONE] in a packet of its own

End = Literal["complete", "cut"]
_P = TypeVar("_P", bound=asyncio.Protocol)


class Handler(Protocol):
    """What one exchange tells: the head once, body pieces with the time of their read, the end once."""

    def on_head(self, status: int, headers: Mapping[str, str], /) -> None: ...

    def on_body(self, data: bytes, now: float, /) -> None: ...

    def on_end(self, end: End, now: float, /) -> None: ...


class BadUrl(ValueError):
    """Not an http or https URL with a host."""


class CannotConnect(OSError):
    """There is no connection; the words say why."""


class ForwardGone(CannotConnect):
    """What leads to the server is gone; of the server itself nothing is known."""


class BrokenOff(ConnectionError):
    """What came is no HTTP, or ends before it is complete."""


class TooLarge(OSError):
    """The answer is larger than allowed."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server listens, and the path its routes begin with; `socket` is that of `unix:/path/of/a.sock`."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    path: str = ""
    socket: str | None = None

    @classmethod
    def parse(cls, url: str) -> Origin:
        """The origin of a URL such as `spark-a:8000` or `https://host/base/v1`; raises `BadUrl`."""
        if url.startswith("unix:"):
            return cls("http", "localhost", 80, socket=unquote(url.removeprefix("unix:")))
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadUrl(f"not an http or https URL: {parts.scheme}://{parts.hostname or ''}")
        try:
            port = parts.port
        except ValueError as error:
            raise BadUrl(str(error)) from None
        scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
        path = quote(parts.path.rstrip("/").removesuffix("/v1"), safe="/%:@!$&'()*+,;=~")
        return cls(scheme, parts.hostname, port or (443 if scheme == "https" else 80), path)

    @property
    def place(self) -> str:
        """`host:port`, also where the port is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host.encode("idna").decode()
        return f"{host}:{self.port}"

    @property
    def authority(self) -> str:
        """`host:port` as it stands in a URL and in the Host header."""
        return self.place.removesuffix(":443" if self.scheme == "https" else ":80")

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else f"{self.scheme}://{self.authority}{self.path}"

    def request(
        self, method: str, route: str, headers: Mapping[str, str], body: bytes = b"", *, to_proxy: bool = False
    ) -> bytes:
        """The bytes of one request; `route` begins with a slash and comes after the origin's path."""
        before = str(self) if to_proxy else self.path
        lines = [f"{method} {before}{route} HTTP/1.1", f"Host: {self.authority}"]
        lines += ["Accept-Encoding: identity", f"User-Agent: llmtop/{__version__}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines += [] if "Content-Type" in headers else ["Content-Type: application/json"]
            lines += [f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass(frozen=True, slots=True)
class Proxy:
    """What stands between us and an origin; `login` is the value of `Proxy-Authorization`."""

    origin: Origin
    login: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What the proxy alone is told."""
        return {"Proxy-Authorization": self.login} if self.login else {}


class Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self.closed = False
        self.last_used = self.last_read = time.perf_counter()
        self.busy = False  # the server still owes the end of a response
        self.heard = False  # whether anything came since the last request
        self.trouble = "the server closed the connection"
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._handler: Handler | None = None
        self._headers: dict[str, str] = {}
        self._head_size = 0
        self._in_body = False
        self._now = 0.0
        self._settled: asyncio.Future[None] | None = None

    # the client's side

    def send(self, request: bytes, handler: Handler) -> float:
        """Sends one request and returns the time just before it."""
        assert self._transport is not None
        self._handler, self.busy, self._headers = handler, True, {}
        self.heard = False
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
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # our own fault, not the server's
        except httptools.HttpParserError:
            self._break_off("what came is no HTTP")

    def _break_off(self, why: str) -> None:
        self._in_body, self.trouble = False, why
        self._lost(self._now)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(time.perf_counter(), exc)

    def _lost(self, now: float, exc: Exception | None = None) -> None:
        self.closed = True
        self.trouble = str(exc or "") or self.trouble
        chunked = "chunked" in self._headers.get("transfer-encoding", "").lower()
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
        self._headers, self._head_size = {}, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > HEAD_LIMIT:
            self._break_off("its head has no end")
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

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


class _Tunnel(asyncio.Protocol):
    """What a proxy answers to CONNECT."""

    def __init__(self) -> None:
        self.head = b""
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.head += data
        if b"\r\n\r\n" in self.head or len(self.head) > HEAD_LIMIT:
            self.connection_lost(None)

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_result(None)


def tls_context(ca: Path | None, insecure: bool) -> ssl.SSLContext:
    """How certificates are checked: against the system's authorities and `ca`, or not at all."""
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(cafile=ca)
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def tls_words(error: ssl.SSLError) -> str:
    """Why there is no trusted connection, and which flag would make one."""
    text = getattr(error, "verify_message", "") or (error.strerror or str(error)).split("] ")[-1].split(" (_ssl")[0]
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return f"TLS: the server does not speak it ({text}): http:// instead of https://?"
    return f"TLS: {text}; --ca FILE trusts the authority of the server's certificate, --insecure any certificate"


class Connector:
    """Opens connections to one origin; TLS is prepared once, with `pin` the name is resolved once too.

    `via`: a Unix socket that leads to the origin from here.
    """

    def __init__(
        self,
        origin: Origin,
        timeout_s: float = 5.0,
        ca: Path | None = None,
        insecure: bool = False,
        *,
        proxy: Proxy | None = None,
        pin: bool = True,
        via: str | None = None,
    ) -> None:
        self.origin, self.via = origin, via
        self._timeout_s, self._pin, self._proxy = timeout_s, pin, proxy
        self._ssl = tls_context(ca, insecure) if origin.scheme == "https" else None
        self._address: str | None = None

    def request(self, method: str, route: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
        """The bytes of one request, as they are sent on a connection of this connector."""
        to_proxy = self._proxy is not None and self._ssl is None
        more = self._proxy.headers if self._proxy is not None and to_proxy else {}
        return self.origin.request(method, route, {**headers, **more}, body, to_proxy=to_proxy)

    async def open(self) -> Connection:
        """A new connection; raises `OSError` (also for TLS) or `TimeoutError`."""
        async with asyncio.timeout(self._timeout_s):
            if self._proxy is not None:
                return await self._through(self._proxy)
            return await self._straight(Connection)

    async def dial(self, protocol: Callable[[], _P]) -> _P:
        """A new connection, not through a proxy, for another protocol than ours; raises as `open` does."""
        async with asyncio.timeout(self._timeout_s):
            return await self._straight(protocol)

    async def _straight(self, protocol: Callable[[], _P]) -> _P:
        loop, origin = asyncio.get_running_loop(), self.origin
        name = origin.host if self._ssl else None
        if (socket := origin.socket or self.via) is not None:
            found = await loop.create_unix_connection(protocol, socket, ssl=self._ssl, server_hostname=name)
            return found[1]
        host = self._address or origin.host
        transport, connection = await loop.create_connection(
            protocol, host, origin.port, ssl=self._ssl, server_hostname=name
        )
        peer = transport.get_extra_info("peername") if self._pin else None
        self._address = peer[0] if peer else None
        return connection

    async def _through(self, proxy: Proxy) -> Connection:
        loop, near = asyncio.get_running_loop(), proxy.origin
        secure = tls_context(None, False) if near.scheme == "https" else None
        if self._ssl is None:
            return (await loop.create_connection(Connection, near.host, near.port, ssl=secure))[1]
        transport, tunnel = await loop.create_connection(_Tunnel, near.host, near.port, ssl=secure)
        place = f"{self.origin.authority.removesuffix(f':{self.origin.port}')}:{self.origin.port}"
        lines = [
            f"CONNECT {place} HTTP/1.1",
            f"Host: {place}",
            *(f"{k}: {v}" for k, v in proxy.headers.items()),
            "",
            "",
        ]
        transport.write("\r\n".join(lines).encode("latin-1"))
        await tunnel.answered
        words = tunnel.head.partition(b"\r\n")[0].decode("latin-1").split(maxsplit=2)
        if words[1:2] != ["200"]:
            transport.abort()
            raise CannotConnect(f"the proxy says {KNOWN.hide(' '.join(words[1:])) or 'nothing'}")
        connection = Connection()
        inner = await loop.start_tls(transport, connection, self._ssl, server_hostname=self.origin.host)
        if inner is None:
            raise CannotConnect("the proxy closed the connection")
        connection.connection_made(inner)
        return connection


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, without the secrets of this run that a server may repeat.

    `t` is the monotonic time of its first body byte, header names are in lower case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    t: float


class _Gathered:
    """A handler that keeps a whole response of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._chunks: list[bytes] = []
        self.status, self.t = 0, 0.0
        self.headers: Mapping[str, str] = {}
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[End | None] = loop.create_future()  # None: too large

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers
        self._settle(self.begun, None)

    def on_body(self, data: bytes, now: float) -> None:
        self.t = self.t or now
        self._size += len(data)
        if self._size <= self._limit:
            self._chunks.append(data)
        else:
            self._settle(self.ended, None)

    def on_end(self, end: End, now: float) -> None:
        self.t = self.t or now
        self._settle(self.begun, None)
        self._settle(self.ended, end)

    def _settle(self, future: asyncio.Future[Any], value: End | None) -> None:
        if not future.done():
            future.set_result(value)

    def answer(self) -> Answer:
        body = b"".join(self._chunks)
        if self.headers.get("content-encoding", "").lower() == "gzip":
            body = _unzip(body, self._limit)
        headers = {name: KNOWN.hide(value) for name, value in self.headers.items()}
        return Answer(self.status, headers, KNOWN.hide_bytes(body), self.t)


def _unzip(body: bytes, limit: int) -> bytes:
    """A body that was compressed although nobody asked for it."""
    try:
        whole = zlib.decompressobj(31).decompress(body, limit + 1)
    except zlib.error as error:
        raise BrokenOff(str(error)) from None
    if len(whole) > limit:
        raise TooLarge(f"larger than {limit} bytes")
    return whole


async def ask(connection: Connection, request: bytes, limit: int, first_s: float) -> Answer:
    """One whole answer, whose head must come within `first_s`; what fails closes the connection.

    Raises BrokenOff, TooLarge or TimeoutError.
    """
    gathered = _Gathered(limit)
    try:
        connection.send(request, gathered)
        async with asyncio.timeout(first_s):
            await gathered.begun
        end = await gathered.ended
        if end is None:
            raise TooLarge(f"larger than {limit} bytes")
        if end == "cut":
            raise BrokenOff(connection.trouble)
        return gathered.answer()
    except BaseException:
        connection.abort()
        raise


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
    try:
        async with asyncio.timeout(timeout_s):
            answer = await ask(connection, connector.request(method, route, headers, body), FETCH_LIMIT, timeout_s)
    finally:
        connection.abort()
    return answer.status, answer.body
