"""What passes through the proxy, byte by byte, between connections that tests hold in their hands."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llmtop.engines.exposition import Exposition
from llmtop.engines.page import read_page
from llmtop.net.connection import Origin
from llmtop.proxy.relay import HIGH, ClientSide, Relay, ServerSide

ASK = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Length: 26\r\n\r\n"
    b'{"stream":1,"model":"m-1"}'
)
EVENTS = [
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    *(
        b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % word
        for word in (b"Hello", b' \\"content\\":\\"x', b"\xc3\xa9")
    ),
    b'data: {"usage":{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}\n\n',
    b"data: [DONE]\n\n",
]
STREAM = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS) + b"0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = self.aborted = self.paused = False

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Bench:
    """One client of a proxy, and the connections that it opens to its server."""

    def __init__(self, refused: bool = False) -> None:
        self.upstreams: list[tuple[ServerSide, Wire]] = []
        self.relay = Relay(Origin.parse("http://server:8000/base"), self._dial)
        self.client, self.wire = ClientSide(self.relay), Wire()
        self.client.connection_made(self.wire)
        self._refused = refused

    async def _dial(self, make: Callable[[], ServerSide]) -> ServerSide:
        if self._refused:
            raise ConnectionRefusedError(111, "Connection refused")
        upstream, wire = make(), Wire()
        upstream.connection_made(wire)
        self.upstreams.append((upstream, wire))
        return upstream

    async def ask(self, data: bytes = ASK) -> ServerSide:
        self.client.data_received(data)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self.upstreams[-1][0] if self.upstreams else ServerSide(self.client)

    def page(self) -> dict[str, float]:
        """The counters and gauges of the only row of the proxy's own page."""
        other, wire = ClientSide(self.relay), Wire()
        other.connection_made(wire)
        other.data_received(b"GET /metrics HTTP/1.1\r\n\r\n")
        found = read_page(Exposition().parse(wire.sent.partition(b"\r\n\r\n")[2]), 0.0)
        assert found is not None
        (row,) = (row for row in found.rows if row.is_engine)
        counts = {name: histogram.count for name, histogram in row.histograms.items()}
        return {**row.gauges, **row.counters, **counts, f"model {row.key[0]}": 1}


def run(test: Any) -> None:
    asyncio.run(test)


def cut(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """The data in pieces of any size."""
    at = 0
    while at < len(data):
        size = chance.choice((1, 2, 3, 7, 40, 200, 2000))
        yield data[at : at + size]
        at += size


def test_a_stream_is_the_same_byte_for_byte_however_it_is_cut() -> None:
    async def play() -> None:
        chance = random.Random(7)
        bench = Bench()
        splits = 0
        for _ in range(2000):
            bench.wire.sent = b""
            upstream = await bench.ask()
            for piece in cut(HEAD + STREAM, chance):
                upstream.data_received(piece)
                splits += 1
            assert bench.wire.sent == HEAD + STREAM
        figures = bench.page()
        assert len(bench.upstreams) == 1
        assert splits > 10_000
        assert (figures["generation"], figures["prompt"], figures["hits"]) == (10_000, 14_000, 8000)
        assert (figures["ttft"], figures["itl"], figures["e2e"]) == (2000, 4000, 2000)
        assert (figures["running"], figures["finished:stop"], figures["model m-1"]) == (0, 2000, 1)

    run(play())


def test_a_request_is_the_same_however_it_is_cut() -> None:
    async def play() -> None:
        chance = random.Random(3)
        for _ in range(60):
            bench = Bench()
            for piece in cut(ASK, chance):
                await bench.ask(piece)
            sent = bench.upstreams[0][1].sent
            assert sent.startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer secret\r\n")
            assert sent.endswith(b'\r\nHost: server:8000\r\n\r\n{"stream":1,"model":"m-1"}')
            assert bench.page()["running"] == 1

    run(play())


def test_of_requests_in_one_read_the_second_waits_for_the_end_of_the_first() -> None:
    async def play() -> None:
        bench = Bench()
        upstream = await bench.ask(ASK + b"GET /v1/models HTTP/1.1\r\n\r\n")
        assert b"models" not in bench.upstreams[0][1].sent
        upstream.data_received(HEAD + STREAM)
        assert bench.upstreams[0][1].sent.endswith(b"GET /base/v1/models HTTP/1.1\r\nHost: server:8000\r\n\r\n")
        upstream.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        assert bench.wire.sent.endswith(b"\r\n\r\n{}")
        assert not bench.wire.closed

    run(play())


def test_a_client_that_goes_takes_its_request_with_it() -> None:
    async def play() -> None:
        bench = Bench()
        upstream = await bench.ask()
        upstream.data_received(HEAD + STREAM[:150])
        bench.client.connection_lost(None)
        assert bench.upstreams[0][1].aborted
        figures = bench.page()
        assert (figures["running"], figures["finished:abort"], figures["finished:error"]) == (0, 1, 0)

    run(play())


def test_a_server_that_goes_leaves_an_answer_that_is_seen_to_be_cut() -> None:
    async def play() -> None:
        bench = Bench()
        upstream = await bench.ask()
        upstream.data_received(HEAD + STREAM[:150])
        upstream.connection_lost(None)
        assert bench.wire.sent == HEAD + STREAM[:150]
        assert bench.wire.closed
        figures = bench.page()
        assert (figures["running"], figures["finished:error"], figures["generation"]) == (0, 1, 1)

    run(play())


@pytest.mark.parametrize("how", ["refused", "gone", "no http"])
def test_a_server_that_is_dead_is_said_in_one_line(how: str) -> None:
    async def play() -> None:
        bench = Bench(how == "refused")
        upstream = await bench.ask()
        if how == "gone":
            upstream.connection_lost(None)
        if how == "no http":
            upstream.data_received(b"SSH-2.0-x\r\n\r\n")
        assert bench.wire.sent.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert b'"message": "llmtop proxy: ' in bench.wire.sent
        assert b"secret" not in bench.wire.sent
        assert bench.wire.closed

    run(play())


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"GET /v1/realtime HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"501"),
        (b"CONNECT x:443 HTTP/1.1\r\n\r\n", b"501"),
        (b"GET / HTTP/2.0\r\n\r\n", b"505"),
        (b"\x16\x03\x01 hello\r\n\r\n", b"400"),
        (b"GET http://[x HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, b"431"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
    ],
)
def test_what_is_not_passed_on_is_refused(asked: bytes, status: bytes) -> None:
    async def play() -> None:
        bench = Bench()
        await bench.ask(asked)
        assert bench.wire.sent.startswith(b"HTTP/1.1 " + status)
        assert bench.wire.closed
        assert not bench.upstreams

    run(play())


def test_neither_side_is_read_faster_than_the_other_takes_it() -> None:
    async def play() -> None:
        bench = Bench()
        upstream = await bench.ask(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n")
        server = bench.upstreams[0][1]
        bench.client.pause_writing()
        assert server.paused
        bench.client.resume_writing()
        assert not server.paused
        upstream.pause_writing()
        assert bench.wire.paused
        bench.client.data_received(b"x" * 10)
        assert bench.wire.paused
        upstream.resume_writing()
        assert not bench.wire.paused
        waiting = Bench()
        waiting.client.data_received(ASK)
        waiting.client.data_received(b"x" * (HIGH + 1))  # before the connection is there
        assert waiting.wire.paused

    run(play())


def test_an_old_client_gets_an_answer_without_chunks() -> None:
    async def play() -> None:
        bench = Bench()
        upstream = await bench.ask(b"GET /x HTTP/1.0\r\n\r\n")
        for piece in cut(HEAD + STREAM, random.Random(5)):
            upstream.data_received(piece)
        head, _, body = bench.wire.sent.partition(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in head
        assert b"Connection: close" in head
        assert body == b"".join(EVENTS)
        assert bench.wire.closed

    run(play())


def test_an_answer_that_ends_with_its_connection() -> None:
    async def play() -> None:
        bench = Bench()
        upstream = await bench.ask(b"GET /x HTTP/1.1\r\n\r\n")
        upstream.data_received(b"HTTP/1.0 200 OK\r\n\r\nabc")
        upstream.connection_lost(None)
        assert bench.wire.sent == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"
        assert bench.wire.closed

    run(play())


def test_a_word_in_between_is_passed_on_too() -> None:
    async def play() -> None:
        bench = Bench()
        upstream = await bench.ask(ASK[:-26])
        upstream.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert bench.wire.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
        await bench.ask(ASK[-26:])
        upstream.data_received(HEAD + STREAM)
        assert bench.wire.sent.endswith(HEAD + STREAM)

    run(play())


BAD_CHUNK = (
    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    b"no size\r\n",
)


def test_a_request_that_turns_out_bad_is_refused_and_what_the_server_says_to_it_is_nobodys() -> None:
    async def play() -> None:
        bench = Bench()
        upstream = await bench.ask(BAD_CHUNK[0])
        bench.client.data_received(BAD_CHUNK[1])
        assert bench.wire.sent.startswith(b"HTTP/1.1 400 ")
        assert bench.upstreams[0][1].aborted
        upstream.data_received(HEAD + STREAM)
        assert bench.wire.sent.count(b"HTTP/1.1 ") == 1
        assert b"data:" not in bench.wire.sent

    run(play())


def test_a_request_that_turns_out_bad_while_it_is_answered_cuts_the_answer_and_adds_nothing_to_it() -> None:
    async def play() -> None:
        bench = Bench()
        upstream = await bench.ask(BAD_CHUNK[0])
        upstream.data_received(HEAD + STREAM[:40])
        sent = bench.wire.sent
        bench.client.data_received(BAD_CHUNK[1])
        assert bench.wire.sent == sent
        assert bench.wire.closed
        assert bench.upstreams[0][1].aborted
        assert bench.page()["running"] == 0

    run(play())
