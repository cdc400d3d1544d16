"""Requests that are no HTTP, or another protocol's: one clean 400, and nothing for the loop to complain about."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from llmtop.demo import profile as profiles
from llmtop.demo.server import DemoServer, ServerOptions

GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls",
    b"\x00" * 100 + b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /metrics HTTP/9.9\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
UPGRADE = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"


async def answers(requests: list[bytes]) -> tuple[list[bytes], list[dict[str, Any]]]:
    """(the answer to each request on a connection of its own, what the loop had to report)."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    server = DemoServer(profiles.load("gb10"), ServerOptions(speed=100))
    server.reserve()
    port = await server.open()
    got = []
    for request in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writer.write_eof()
        try:
            got.append(await asyncio.wait_for(reader.read(), 20))
        except ConnectionResetError:
            got.append(b"")
        writer.close()
    server.close()
    return got, complaints


@pytest.mark.parametrize("request_bytes", GARBAGE, ids=lambda b: repr(b[:12]))
async def test_what_is_no_http_gets_one_400(request_bytes: bytes) -> None:
    (answer,), complaints = await answers([request_bytes])
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert complaints == []


async def test_an_upgrade_is_no_reason_to_complain() -> None:
    (answer,), complaints = await answers([UPGRADE])
    assert answer.startswith(b"HTTP/1.1 ")
    assert complaints == []


async def test_mutated_requests_never_reach_the_loop_s_handler() -> None:
    rng = random.Random(7)
    body = b'{"model":"gpt-oss-120b","prompt":"hi","max_tokens":2}'
    plain = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    mutated = []
    for _ in range(150):
        request = bytearray(plain)
        for _ in range(rng.randint(1, 4)):
            request[rng.randrange(len(request))] = rng.randrange(256)
        mutated.append(bytes(request))
    _, complaints = await answers(mutated)
    assert complaints == []
