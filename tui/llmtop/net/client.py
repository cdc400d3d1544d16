"""Questions to one server over one connection that is kept, and the wait for its first healthy answer."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
import threading
import time
from collections.abc import Mapping

from llmtop.contract.secrets import KNOWN
from llmtop.contract.settings import Target, UsageError, basic
from llmtop.net.connection import (
    Answer,
    BadUrl,
    BrokenOff,
    CannotConnect,
    Connection,
    Connector,
    ForwardGone,
    Origin,
    Proxy,
    ask,
)

HEALTH_EVERY_S = 0.25
_HEALTH_S = 1.0
FIRST_S = 5.0
_HEALTH_BYTES = 2**16
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
REFUSED = "connection refused"


class Client:
    """Asks one server, one request at a time: straight, or through a proxy where the environment names one."""

    def __init__(self, target: Target, headers: Mapping[str, str] | None = None) -> None:
        origin = Origin.parse(target.url)
        more = {"Authorization": target.authorization} if target.authorization else {}
        self._headers = {**(headers or {}), **more}
        # a name is resolved for every connection: the server may come back elsewhere
        proxy = proxy_for(origin) if target.via is None else None
        self._connector = Connector(origin, 5.0, target.ca, target.insecure, proxy=proxy, pin=False, via=target.via)
        self._kept: Connection | None = None

    async def get(self, path: str, limit: int) -> Answer:
        """The answer to a path below the server's URL, of at most `limit` bytes.

        Raises CannotConnect, BrokenOff, TooLarge or TimeoutError; when cancelled, the connection is closed.
        """
        return await self._exchange(self._connector.request("GET", path, self._headers), limit)

    async def post(self, path: str, form: bytes, limit: int) -> Answer:
        """As `get`, with a form of what is asked: for questions, which may be sent twice."""
        headers = {**self._headers, "Content-Type": "application/x-www-form-urlencoded"}
        return await self._exchange(self._connector.request("POST", path, headers, form), limit)

    async def _exchange(self, request: bytes, limit: int) -> Answer:
        connection, self._kept = self._kept, None
        if connection is not None and connection.usable():
            try:
                return await self._ask(connection, request, limit)
            except BrokenOff:
                if connection.heard:
                    raise  # else it was closed while nobody looked: once more on a new one
        elif connection is not None:
            connection.abort()
        connection = await self._open()
        try:
            return await self._ask(connection, request, limit)
        except BrokenOff:
            if self._connector.via is None or connection.heard:
                raise
            (await self._open()).abort()  # a forward takes any connection, and closes it where nobody listens
            raise CannotConnect(REFUSED) from None

    async def _open(self) -> Connection:
        try:
            return await self._connector.open()
        except (TimeoutError, CannotConnect):
            raise
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if self._connector.via is not None:
                raise ForwardGone("the ssh connection is gone") from None
            raise CannotConnect(connect_words(error)) from None
        except (OSError, UnicodeError) as error:
            raise CannotConnect(connect_words(error)) from None

    async def _ask(self, connection: Connection, request: bytes, limit: int) -> Answer:
        answer = await ask(connection, request, limit, FIRST_S)
        self._kept = connection
        return answer

    async def close(self) -> None:
        """Close the connection."""
        if self._kept is not None:
            self._kept.abort()


class HealthProbe:
    """A daemon thread that polls /health; `answered_at` is the Unix time of the first 200.

    A port that answers before it was ever refused belongs to a server that was there before: `was_up` says so, and its
    answers count only once it has gone away.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._stop = threading.Event()
        self._refused = False
        self.was_up = False
        self.answered_at: float | None = None

    def start(self) -> None:
        """Begin polling."""
        threading.Thread(target=lambda: asyncio.run(self._run()), name="llmtop-health", daemon=True).start()

    def stop(self) -> None:
        """Stop polling."""
        self._stop.set()

    async def _run(self) -> None:
        client = Client(self._target)
        while not self._stop.is_set():
            healthy = await self._ask(client)
            if healthy and self._refused:
                self.answered_at = time.time()
                break
            self.was_up = self.was_up or bool(healthy)
            self._refused = self._refused or healthy is None
            await asyncio.sleep(HEALTH_EVERY_S)
        await client.close()

    async def _ask(self, client: Client) -> bool | None:
        """True for a 200, False for another answer, None when nobody is there to answer."""
        try:
            async with asyncio.timeout(_HEALTH_S):
                status = (await client.get("/health", _HEALTH_BYTES)).status
        except CannotConnect as error:
            return None if str(error) == REFUSED else False
        except OSError:
            return False
        # a gateway answers for a server that is away, and some engines while they load their model
        return None if status in (502, 503, 504) else status == 200


def proxy_for(origin: Origin) -> Proxy | None:
    """The proxy that the environment names for an origin; none for this machine and private networks."""
    if not any(name.lower() in _PROXY_VARIABLES and value for name, value in os.environ.items()):
        return None
    if origin.socket is not None or is_private(origin.host):
        return None
    from urllib.parse import unquote, urlsplit
    from urllib.request import getproxies_environment, proxy_bypass

    found = getproxies_environment()
    url = found.get(origin.scheme) or found.get("all")
    if not url or proxy_bypass(origin.authority, found):
        return None
    try:
        near = Origin.parse(url)
    except BadUrl:
        words = "a proxy of the environment is no http:// or https:// URL; unset it or add the host to NO_PROXY"
        raise UsageError(words) from None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    login = basic(unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    KNOWN.add_header(login)
    return Proxy(near, login)


def is_private(host: str) -> bool:
    """Whether a host is on this machine or a private network, where a proxy has no business."""
    if host == "localhost" or host.endswith((".localhost", ".local", ".lan", ".internal")):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host  # a bare name is resolved in the local domain
    return address.is_private or address.is_loopback or address.is_link_local


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
        return REFUSED
    if isinstance(error, FileNotFoundError):
        return "there is no such socket"
    return text or "cannot connect"
