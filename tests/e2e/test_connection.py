"""The transport over real sockets: every stream vector, framings, keep-alive and its end."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llmtop.load.completion import Outcome, Reply
from llmtop.load.exchange import Exchange, Meter
from llmtop.net.connection import BadUrl, BrokenOff, Connection, Connector, Origin, fetch

VECTORS = sorted((Path(__file__).parent.parent / "fixtures" / "sse").glob("*.json"))
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
GOOD = [
    b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"text":"b","finish_reason":"length"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}\n\n',
    b"data: [DONE]\n\n",
]
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def request(reader: asyncio.StreamReader) -> bytes:
    """The head of one request; its body is read too."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.split(b":")[1]))
    return head


@asynccontextmanager
async def served(answer: Answer, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that answers every connection with `answer`."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    scheme = "https" if context else "http"
    yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def exchange(connector: Connector, connection: Connection, chat: bool = False) -> Exchange:
    done = Exchange(Reply(chat, asked_tokens=2, keep_text=True), Meter(), 0.0)
    done.start_s = connection.send(connector.origin.request("POST", "/v1/completions", {}, b"{}"), done)
    await asyncio.wait_for(done.finished, 5.0)
    connection.detach()
    return done


async def once(url: str, chat: bool = False) -> Exchange:
    connector = Connector(Origin.parse(url))
    connection = await connector.open()
    try:
        return await exchange(connector, connection, chat)
    finally:
        connection.abort()


def playing(vector: dict[str, Any]) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        head = f"HTTP/1.1 {vector['status']} OK\r\n{vector['extra_headers']}Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for piece in vector["pieces"]:
            if "wait_s" in piece:
                await asyncio.sleep(piece["wait_s"])
            else:
                data = base64.b64decode(piece["b64"]) if "b64" in piece else piece["text"].encode()
                writer.write(chunk(data))
            await writer.drain()
        if vector["close"] == "abort":
            no_linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
            await asyncio.sleep(0.05)  # a reset would overtake data that the client has not read
        elif vector["close"] == "linger":
            await reader.read()
        else:
            writer.write(b"0\r\n\r\n")

    return answer


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
async def test_vector(path: Path) -> None:
    vector = json.loads(path.read_text())
    expect = vector["expect"]
    async with served(playing(vector)) as url:
        got = await once(url, vector["chat"])
    assert (got.outcome is Outcome.OK) == expect["ok"]
    if expect["ok"]:
        reply = got.reply
        assert (reply.text(), len(reply.times), reply.completion_tokens) == (
            expect["text"],
            expect["events"],
            expect["tokens"],
        )
        ttft_ms = (reply.times[0] - got.start_s) * 1000
        assert expect.get("ttft_min", 0) <= ttft_ms <= expect.get("ttft_max", 1e9)


async def test_every_event_cut_in_every_place_by_the_framing() -> None:
    """Chunk boundaries at every byte of a stream, all in one connection each."""
    whole = b"".join(GOOD)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for cut in range(1, len(whole)):
            await request(reader)
            writer.write(STREAM + chunk(whole[:cut]) + chunk(whole[cut:]) + b"0\r\n\r\n")

    async with served(answer) as url:
        connector = Connector(Origin.parse(url))
        connection = await connector.open()
        for _ in range(1, len(whole)):
            got = await exchange(connector, connection)
            assert (got.outcome, got.reply.text(), got.reply.completion_tokens) == ("ok", "ab", 2)
            assert await connection.settle()
        connection.abort()


@pytest.mark.parametrize(
    ("head", "tail", "outcome"),
    [
        (b"Content-Length: %d\r\n" % len(b"".join(GOOD)), b"", "ok"),
        (b"Content-Length: 9999\r\n", b"", "ok"),  # complete at [DONE], whatever the framing claims
        (b"Connection: close\r\n", b"", "ok"),
    ],
)
async def test_framings_other_than_chunks(head: bytes, tail: bytes, outcome: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + b"".join(GOOD) + tail)

    async with served(answer) as url:
        assert (await once(url)).outcome == outcome


@pytest.mark.parametrize(
    ("head", "sent", "outcome"),
    [
        (b"Content-Length: 9999\r\n", GOOD[:2], "cut"),
        (b"Connection: close\r\n", GOOD[:1], "truncated"),
        (b"Connection: close\r\n", GOOD[:2], "ok"),  # a finish reason, then the end that means the end
        (b"Transfer-Encoding: chunked\r\n", [], "cut"),
        (b"Content-Encoding: gzip\r\nConnection: close\r\n", GOOD, "bad_stream"),
    ],
)
async def test_ends_before_done(head: bytes, sent: list[bytes], outcome: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + b"".join(sent))

    async with served(answer) as url:
        assert (await once(url)).outcome == outcome


async def test_a_line_that_is_no_http_is_a_cut() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await reader.read()

    async with served(answer) as url:
        assert (await once(url)).outcome == "cut"


async def test_an_event_beyond_any_line_limit_arrives_whole() -> None:
    text = "x" * (8 << 20)
    event = b'data: {"choices":[{"index":0,"text":"' + text.encode() + b'","finish_reason":"length"}]}\n\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(STREAM + chunk(event) + chunk(GOOD[2] + GOOD[3]) + b"0\r\n\r\n")
        await writer.drain()

    async with served(answer) as url:
        got = await once(url)
    assert (got.outcome, len(got.reply.text())) == ("ok", len(text))


async def test_interim_responses_are_skipped() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM + chunk(b"".join(GOOD)) + b"0\r\n\r\n")

    async with served(answer) as url:
        assert (await once(url)).outcome == "ok"


async def test_the_connection_is_used_again_only_when_the_answer_has_ended() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(STREAM + chunk(b"".join(GOOD)))
        await writer.drain()
        await reader.read()

    async with served(answer) as url:
        connector = Connector(Origin.parse(url))
        connection = await connector.open()
        assert (await exchange(connector, connection)).outcome == "ok"
        assert not connection.usable()
        assert not await connection.settle()


async def test_a_connection_that_the_server_closed_is_not_usable() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(STREAM + chunk(b"".join(GOOD)) + b"0\r\n\r\n")

    async with served(answer) as url:
        connector = Connector(Origin.parse(url))
        connection = await connector.open()
        await exchange(connector, connection)
        assert await connection.settle()
        async with asyncio.timeout(2.0):
            while connection.usable():
                await asyncio.sleep(0.005)


async def test_tls_with_a_private_authority(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with served(answer, context) as url:
        with pytest.raises(OSError, match="certificate verify failed"):
            await fetch(Connector(Origin.parse(url)), "GET", "/", {})
        for connector in (Connector(Origin.parse(url), ca=cert), Connector(Origin.parse(url), insecure=True)):
            assert await fetch(connector, "GET", "/", {}) == (200, b"{}")


async def test_fetch_says_what_went_wrong() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}")

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with served(cut) as url:
        with pytest.raises(BrokenOff):
            await fetch(Connector(Origin.parse(url)), "GET", "/", {})
    async with served(silent) as url:
        with pytest.raises(TimeoutError):
            await fetch(Connector(Origin.parse(url)), "GET", "/", {}, timeout_s=0.05)


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("spark-a:8000", Origin("http", "spark-a", 8000), "spark-a:8000"),
        ("http://user:pass@h/v1?key=1", Origin("http", "h", 80), "h"),
        ("https://h/base/v1/", Origin("https", "h", 443, "/base"), "h"),
        ("http://[::1]:8000", Origin("http", "::1", 8000), "[::1]:8000"),
    ],
)
def test_origin_of_a_url(url: str, origin: Origin, authority: str) -> None:
    assert Origin.parse(url) == origin
    assert origin.authority == authority
    assert "pass" not in str(Origin.parse(url))


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:99999"])
def test_what_is_no_origin(url: str) -> None:
    with pytest.raises(BadUrl):
        Origin.parse(url)


def test_the_request_on_the_wire() -> None:
    origin = Origin.parse("http://h:8000/base")
    data = origin.request("POST", "/v1/completions", {"Authorization": "Bearer k"}, b"{}")
    head, body = data.split(b"\r\n\r\n")
    assert body == b"{}"
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /base/v1/completions HTTP/1.1"
    assert {"Host: h:8000", "Accept-Encoding: identity", "Authorization: Bearer k", "Content-Length: 2"} <= set(lines)
