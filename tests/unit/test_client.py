"""The client of the poller against a server that answers byte by byte what a test tells it."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llmtop.contract.settings import Target, parse_target
from llmtop.net import client as client_module
from llmtop.net import connection as module
from llmtop.net.client import Client, HealthProbe, connect_words, is_private, proxy_for
from llmtop.net.connection import Answer, BrokenOff, CannotConnect, Origin, TooLarge

LIMIT = 1000
TLS = Path(__file__).parent.parent / "fixtures" / "tls"
OK = b"HTTP/1.1 200 OK\r\n"


def framed(body: bytes, *headers: bytes) -> bytes:
    """An answer with its length."""
    lines = [*headers, b"Content-Length: %d" % len(body)]
    return OK + b"\r\n".join(lines) + b"\r\n\r\n" + body


@dataclass(slots=True)
class Script:
    """Raw answers in order; None closes the connection without one. Keeps what it was asked, per connection."""

    answers: list[bytes | None]
    close_after: Callable[[int], bool] = lambda _: False
    pause_s: float = 0.0
    port: int = 0
    asked: list[tuple[int, bytes]] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        number = self.connections
        try:
            while True:
                self.asked.append((number, await reader.readuntil(b"\r\n\r\n")))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                head, blank, body = answer.partition(b"\r\n\r\n")
                writer.write(head + blank)
                await writer.drain()
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
                writer.write(body)
                await writer.drain()
                if self.close_after(len(self.asked)):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(script: Script) -> AsyncIterator[Script]:
    """Serve the script on a free port."""
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    yield script
    server.close()


def client_for(script: Script, path: str = "", **options: object) -> Client:
    """A client for the server of the script."""
    return Client(Target(f"http://127.0.0.1:{script.port}{path}", **options), {"User-Agent": "u"})  # type: ignore[arg-type]


async def ask(*answers: bytes | None, **options: object) -> Answer:
    """The first answer of a script."""
    async with served(Script(list(answers), **options)) as script:  # type: ignore[arg-type]
        client = client_for(script)
        try:
            return await client.get("/metrics", LIMIT)
        finally:
            await client.close()


async def test_an_answer_with_its_length() -> None:
    answer = await ask(framed(b"body", b"X-Odd: Yes"))
    assert (answer.status, answer.body, answer.headers["x-odd"]) == (200, b"body", "Yes")


async def test_chunks_are_joined() -> None:
    answer = await ask(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert answer.body == b"abcde"


async def test_a_body_without_length_ends_with_the_connection() -> None:
    answer = await ask(OK + b"\r\nall of it", close_after=lambda _: True)
    assert answer.body == b"all of it"


async def test_100_continue_is_no_answer() -> None:
    assert (await ask(b"HTTP/1.1 100 Continue\r\n\r\n" + framed(b"real"))).body == b"real"


async def test_what_was_zipped_unasked_is_unzipped() -> None:
    assert (await ask(framed(gzip.compress(b"x" * 900), b"Content-Encoding: gzip"))).body == b"x" * 900
    with pytest.raises(TooLarge):
        await ask(framed(gzip.compress(b"x" * 2000), b"Content-Encoding: gzip"))


async def test_the_time_is_that_of_the_first_body_byte() -> None:
    began = time.monotonic()
    answer = await ask(framed(b"late"), pause_s=0.2)
    assert 0.2 <= answer.t - began < 1.0


@pytest.mark.parametrize(
    "broken",
    [
        None,
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        OK + b"Content-Length: 99\r\n\r\nhalf",
        OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nhalf",
        OK + b"X: y\r\n" * 60_000,
    ],
    ids=["nothing", "no HTTP", "cut by length", "cut by chunks", "a head without end"],
)
async def test_what_is_no_whole_answer_is_broken_off(broken: bytes | None) -> None:
    with pytest.raises(BrokenOff):
        await ask(broken, close_after=lambda _: True)


async def test_too_much_is_not_read() -> None:
    with pytest.raises(TooLarge):
        await ask(framed(b"x" * (LIMIT + 1)))
    assert len((await ask(framed(b"x" * LIMIT))).body) == LIMIT


async def test_one_connection_carries_many_requests() -> None:
    async with served(Script([framed(b"1"), framed(b"2"), framed(b"3")])) as script:
        client = client_for(script, "/prefix")
        assert [(await client.get(path, LIMIT)).body for path in ("/metrics", "/health", "/version")] == [
            b"1",
            b"2",
            b"3",
        ]
        await client.close()
    assert script.connections == 1
    lines = [request.split(b"\r\n") for _, request in script.asked]
    assert [line[0] for line in lines] == [
        b"GET /prefix/metrics HTTP/1.1",
        b"GET /prefix/health HTTP/1.1",
        b"GET /prefix/version HTTP/1.1",
    ]
    assert b"Host: 127.0.0.1:%d" % script.port in lines[0]


async def test_a_server_that_closes_after_each_answer_is_asked_anew() -> None:
    async with served(Script([framed(b"1", b"Connection: close"), framed(b"2", b"Connection: close")])) as script:
        client = client_for(script)
        assert [(await client.get("/m", LIMIT)).body for _ in range(2)] == [b"1", b"2"]
        await client.close()
    assert [number for number, _ in script.asked] == [1, 2]


async def test_a_connection_closed_while_idle_is_replaced_once() -> None:
    script = Script([framed(b"1"), None, framed(b"2"), None, None])
    async with served(script):
        client = client_for(script)
        assert (await client.get("/m", LIMIT)).body == b"1"
        assert (await client.get("/m", LIMIT)).body == b"2"  # asked on the old one, answered on a new one
        assert [number for number, _ in script.asked] == [1, 1, 2]
        with pytest.raises(BrokenOff):
            await client.get("/m", LIMIT)
        await client.close()
    assert [number for number, _ in script.asked] == [1, 1, 2, 2, 3]


async def test_a_connection_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_LIMIT_S", 0.0)
    async with served(Script([framed(b"1"), framed(b"2")])) as script:
        client = client_for(script)
        assert [(await client.get("/m", LIMIT)).body for _ in range(2)] == [b"1", b"2"]
        await client.close()
    assert script.connections == 2


async def test_silence_is_a_timeout_and_leaves_no_request_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_S", 0.1)
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client(Target(f"http://127.0.0.1:{port}"), {})
    with pytest.raises(TimeoutError):
        await client.get("/m", LIMIT)
    await asyncio.wait_for(gone.wait(), 5.0)
    server.close()


async def test_nobody_there_is_said_in_words() -> None:
    async with served(Script([])) as script:
        port = script.port
    with pytest.raises(CannotConnect, match="connection refused"):
        await Client(Target(f"http://127.0.0.1:{port}"), {}).get("/m", LIMIT)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0)"), "connection refused"),
        (OSError(113, "No route to host"), "the host is not reachable"),
        (OSError(-2, "Name or service not known"), "the host name is not known"),
        (OSError("odd\x1b[31m"), "odd[31m"),
        (OSError(), "cannot connect"),
    ],
)
def test_why_there_is_no_connection(error: Exception, words: str) -> None:
    assert connect_words(error) == words


async def test_a_login_is_sent_as_basic_and_beats_a_key() -> None:
    async with served(Script([framed(b"")])) as script:
        target = Target(f"http://127.0.0.1:{script.port}", key="key", login=("ann", "pass:word"))
        client = Client(target)
        await client.get("/m", LIMIT)
        await client.close()
    (_, request) = script.asked[0]
    assert b"Authorization: Basic YW5uOnBhc3M6d29yZA==" in request
    assert b"Bearer" not in request


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("localhost", True),
        ("spark-a", True),
        ("box.local", True),
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("fe80::1", True),
        ("8.8.8.8", False),
        ("vllm.example.org", False),
    ],
)
def test_what_is_private(host: str, private: bool) -> None:
    assert is_private(host) is private


@pytest.mark.parametrize(("host", "direct"), [("10.0.0.1", True), ("vllm.example.org", False)])
def test_a_proxy_is_for_far_hosts(host: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = Origin.parse(f"http://{host}")
    assert proxy_for(origin) is None
    monkeypatch.setenv("HTTP_PROXY", "http://ann:word@127.0.0.1:9")
    found = proxy_for(origin)
    assert (found is None) is direct
    if found is not None:
        assert (found.origin.port, found.login) == (9, "Basic YW5uOndvcmQ=")
    monkeypatch.setenv("NO_PROXY", host)
    assert proxy_for(origin) is None


async def test_a_far_host_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(
        Script([framed(b"through"), None, None, OK + b"Content-Length: 9999\r\n\r\n" + b"x" * 9999])
    ) as script:
        monkeypatch.setenv("HTTP_PROXY", f"http://ann:word@127.0.0.1:{script.port}")
        client = Client(Target("http://vllm.example.org/base"))
        assert (await client.get("/metrics", LIMIT)).body == b"through"
        with pytest.raises(BrokenOff):
            await client.get("/metrics", LIMIT)
        with pytest.raises(TooLarge):
            await client.get("/metrics", LIMIT)
        await client.close()
    assert script.asked[0][1].startswith(b"GET http://vllm.example.org/base/metrics HTTP/1.1")
    assert b"Proxy-Authorization: Basic YW5uOndvcmQ=" in script.asked[0][1]


async def test_https_goes_through_a_tunnel_that_never_hears_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy sees where to, and what is said to the server only as TLS."""
    asked: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(framed(b"secret"))
        await writer.drain()
        writer.close()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port_of(behind))
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    behind = await asyncio.start_server(server, "127.0.0.1", 0, ssl=context)
    front = await asyncio.start_server(proxy, "127.0.0.1", 0)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port_of(front)}")
    client = Client(Target("https://vllm.example.org", key="abc", insecure=True))
    assert (await client.get("/metrics", LIMIT)).body == b"secret"
    await client.close()
    assert asked[0].startswith(b"CONNECT vllm.example.org:443 HTTP/1.1")
    assert b"abc" not in asked[0]
    assert b"Authorization: Bearer abc" in asked[1]
    front.close()
    behind.close()


async def test_a_proxy_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(Script([b"HTTP/1.1 403 Forbidden\r\n\r\n"])) as script:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{script.port}")
        with pytest.raises(CannotConnect, match="the proxy says 403 Forbidden"):
            await Client(Target("https://vllm.example.org")).get("/metrics", LIMIT)


async def test_a_unix_socket_is_a_server(tmp_path: Path) -> None:
    script = Script([framed(b"local")])
    server = await asyncio.start_unix_server(script.serve, tmp_path / "vllm.sock")
    target = parse_target(f"unix:{tmp_path}/vllm.sock")
    assert target.host == "localhost"
    client = Client(target)
    assert (await client.get("/metrics", LIMIT)).body == b"local"
    await client.close()
    server.close()
    assert b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" in script.asked[0][1]


async def test_health_is_asked_behind_the_prefix_with_key_and_own_certificate() -> None:
    """A gateway says 502 until the server behind it is there; only then the start-up is over."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    script = Script([b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", framed(b"")])
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=context)
    probe = HealthProbe(Target(f"https://127.0.0.1:{port_of(server)}/spark", key="abc", insecure=True))
    probe.start()
    async with asyncio.timeout(20):
        while probe.answered_at is None:
            await asyncio.sleep(0.02)
    server.close()
    assert not probe.was_up
    assert [b"GET /spark/health HTTP/1.1" in request for _, request in script.asked] == [True, True]
    assert b"Authorization: Bearer abc" in script.asked[0][1]


def port_of(server: asyncio.Server) -> int:
    """Where a server listens."""
    port: int = server.sockets[0].getsockname()[1]
    return port


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction to its end."""
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
