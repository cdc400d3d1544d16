"""`llmtop proxy` as a process: real sockets, real streams, and what `llmtop` shows of them."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fakes.pages import free_port
from llmtop.demo.child import launch
from program import COMMAND, environment, once
from proxied import proxied

TOKEN = b'data: {"model":"m","choices":[{"delta":{"content":"tok"}}]}\n\n'
PATIENCE_S = 60.0


class Upstream:
    """A server in a thread whose answers a test writes itself; `gone` counts the clients that left."""

    def __init__(self, answer: str = "tokens", count: int = 20, pause_s: float = 0.0) -> None:
        self.answer, self.count, self.pause_s = answer, count, pause_s
        self.gone, self.written, self.heads = 0, 0, []  # type: ignore[var-annotated]
        self.go = threading.Event()
        self._ready = threading.Event()
        self.port = 0
        threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True).start()
        assert self._ready.wait(PATIENCE_S)
        self.url = f"http://127.0.0.1:{self.port}"

    async def _main(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = re.search(rb"(?i)content-length: (\d+)", head)
                await reader.readexactly(int(length.group(1)) if length else 0)
                await getattr(self, f"_{self.answer}")(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone += 1
        finally:
            writer.close()

    async def _start(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def _tokens(self, writer: asyncio.StreamWriter) -> None:
        await self._start(writer)
        for _ in range(self.count):
            writer.write(b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN))
            await writer.drain()
            await asyncio.sleep(self.pause_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _held(self, writer: asyncio.StreamWriter) -> None:
        await self._start(writer)
        writer.write(b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN))
        while not self.go.is_set():
            await asyncio.sleep(0.01)
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(TOKEN), TOKEN))
        await writer.drain()

    async def _flood(self, writer: asyncio.StreamWriter) -> None:
        await self._start(writer)
        block = TOKEN * 1000
        while True:
            writer.write(b"%x\r\n%b\r\n" % (len(block), block))
            await writer.drain()
            self.written += len(block)

    async def _cut(self, writer: asyncio.StreamWriter) -> None:
        await self._start(writer)
        writer.write(b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN))
        await writer.drain()
        raise ConnectionError

    async def _ping(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()


def ask(body: bytes = b'{"stream":true,"model":"m"}', more: str = "") -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname
    found = socket.create_connection((parts.hostname, parts.port or 80), PATIENCE_S)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def whole(url: str, request: bytes) -> bytes:
    """Everything that a server sends, up to the end of chunks or of the connection."""
    with connected(url) as sock:
        sock.sendall(request)
        got = b""
        while not got.endswith(b"0\r\n\r\n") and (data := sock.recv(2**16)):
            got += data
        return got


def figure(url: str, name: str) -> float:
    """The sum of a family of the proxy's page."""
    page = whole(url, b"GET /metrics HTTP/1.0\r\n\r\n").decode()
    return sum(
        float(line.rpartition(" ")[2]) for line in page.splitlines() if re.match(rf"llmtop_proxy_{name}[{{ ]", line)
    )


def until(true: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def counted(url: str, requests: int) -> bool:
    return figure(url, "requests_total") == requests


def test_256_streams_at_once_are_whole_and_counted(tmp_path: Path) -> None:
    server = Upstream("held")
    expected = whole(Upstream("tokens", 2).url, ask())

    async def one(url: str) -> bytes:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(ask())
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got += await reader.read(2**16)
        writer.close()
        return got

    async def all_of_them(url: str) -> list[bytes]:
        return await asyncio.gather(*(one(url) for _ in range(256)))

    with proxied(server.url, tmp_path) as (url, _):

        def release() -> None:
            until(lambda: figure(url, "generation_tokens_total") == 256)
            server.go.set()

        watch = threading.Thread(target=release)
        watch.start()
        answers = asyncio.run(all_of_them(url))
        watch.join()
        assert set(answers) == {expected}
        until(lambda: figure(url, "requests_running") == 0)
        assert figure(url, "generation_tokens_total") == 512
        assert figure(url, "time_to_first_token_seconds_count") == 256


def test_the_time_to_the_first_token_is_the_clients_own(tmp_path: Path) -> None:
    server = Upstream("tokens", 3, 0.01)
    off: list[float] = []
    with proxied(server.url, tmp_path) as (url, _), connected(url) as sock:
        for number in range(40):
            before = figure(url, "time_to_first_token_seconds_sum")
            began = time.perf_counter()
            sock.sendall(ask())
            got = sock.recv(2**16)
            while TOKEN not in got:
                got += sock.recv(2**16)
            own = time.perf_counter() - began
            while not got.endswith(b"0\r\n\r\n"):
                got += sock.recv(2**16)
            until(partial(counted, url, number + 1))
            off.append(own - (figure(url, "time_to_first_token_seconds_sum") - before))
    assert min(off) >= 0  # the client is further away
    assert sorted(off)[len(off) // 4] < 0.0005  # of the quiet moments of a busy machine


def test_it_adds_next_to_nothing(tmp_path: Path) -> None:
    server = Upstream("ping")

    def quickest(url: str) -> float:
        with connected(url) as sock:
            times = []
            for _ in range(300):
                began = time.perf_counter()
                sock.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
                assert sock.recv(1000).endswith(b"{}")
                times.append(time.perf_counter() - began)
            return sorted(times)[len(times) // 10]

    with proxied(server.url, tmp_path) as (url, _):
        quickest(url)
        assert quickest(url) - quickest(server.url) < 0.0003 * 2  # there and back


def memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024  # type: ignore[union-attr]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_a_client_that_does_not_read_holds_up_its_own_stream_alone(tmp_path: Path) -> None:
    server = Upstream("flood")
    with proxied(server.url, tmp_path) as (url, process):
        (child,) = children(process.pid)
        before = memory(child)
        with connected(url) as sock:
            sock.sendall(ask())
            until(lambda: server.written > 0)
            seen = -1
            while seen != server.written:  # until nothing moves any more
                seen = server.written
                time.sleep(0.3)
            assert memory(child) - before < 2**23
            server.answer = "tokens"
            assert whole(url, ask()).count(TOKEN) == 20
            server.answer = "flood"
            got = sum(len(sock.recv(2**20)) for _ in range(50))
            assert got > 0
        until(lambda: server.gone >= 1)  # the client left, and so does its request


def test_a_client_that_leaves_and_a_server_that_cuts(tmp_path: Path) -> None:
    server = Upstream("held")
    with proxied(server.url, tmp_path) as (url, _):
        with connected(url) as sock:
            sock.sendall(ask())
            got = b""
            while TOKEN not in got:
                got += sock.recv(2**16)
        until(lambda: figure(url, "requests_running") == 0)
        server.go.set()
        until(lambda: server.gone == 1)
        server.answer = "cut"
        got = whole(url, ask())
        assert got.count(TOKEN) == 1
        assert not got.endswith(b"0\r\n\r\n")
        page = whole(url, b"GET /metrics HTTP/1.0\r\n\r\n").decode()
        assert 'finished_reason="abort"} 1' in page
        assert 'finished_reason="error"} 1' in page


def test_keys_pass_and_are_said_nowhere(tmp_path: Path) -> None:
    server = Upstream("tokens")
    with proxied(server.url, tmp_path) as (url, process):
        whole(url, ask(more="Authorization: Bearer sesame-7\r\n"))
        assert b"Bearer sesame-7" in server.heads[-1]
        assert b"sesame" not in whole(url, b"GET /metrics HTTP/1.0\r\n\r\n")
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        assert process.stdout.read() == ""


def test_a_server_that_is_not_there_is_said_and_found_later(tmp_path: Path) -> None:
    with proxied(f"127.0.0.1:{free_port()}", tmp_path) as (url, _):
        got = whole(url, ask())
        assert got.startswith(b"HTTP/1.1 502 ")
        error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
        assert error["message"].startswith("llmtop proxy: cannot connect to http://127.0.0.1:")
        shown = json.loads(once(tmp_path, "--once", "--json", url).stdout)["servers"][0]
        assert (shown["engine"], shown["state"]) == ("llmtop-proxy", "IDLE")
        assert shown["reason"] == "/health says 502"


def test_llmtop_shows_the_server_behind_it(tmp_path: Path) -> None:
    with launch("gb10", speed=2, no_traffic=True) as demo, proxied(demo.url, tmp_path) as (url, _):
        parts = urlsplit(url)
        stream = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
        body = {
            "model": demo.model,
            "prompt": list(range(100, 400)),
            "max_tokens": 400,
            "stream": True,
            "ignore_eos": True,
        }
        stream.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = stream.getresponse()
        answer.read(2000)
        reading = threading.Thread(target=answer.read)
        reading.start()
        shown = json.loads(once(tmp_path, "--once", "--json", f":{parts.port}").stdout)["servers"][0]
        assert (shown["engine"], shown["state"], shown["model"]) == ("llmtop-proxy", "SERVING", demo.model)
        assert (shown["running"], shown["waiting"], shown["kv_usage"]) == (1, None, None)
        alone = 1000 / 29.1 * 2  # tok/s: the machine's own for one user, at twice its speed
        assert shown["rates"]["generation_tok_s"] == pytest.approx(alone, rel=0.25)
        assert shown["rates"]["prompt_tok_s"] is None
        reading.join(PATIENCE_S)
        stream.close()


@pytest.mark.parametrize(
    "words",
    [
        ["nine", "x:1"],
        [":99999", "x:1"],
        [":9000", "127.0.0.1:9000"],
        [":0", "ftp://x"],
        [":0"],
        [":0", "x", "--api-key-env", "K"],
    ],
)
def test_what_cannot_be_is_said_in_one_line(words: list[str], tmp_path: Path) -> None:
    env = environment(tmp_path, {"K": "secret"})
    done = subprocess.run([COMMAND, "proxy", *words], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f":{taken.getsockname()[1]}"
        done = once(tmp_path, "proxy", place, "127.0.0.1:1", "--serve", machine=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "in use" in done.stderr


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    with proxied("127.0.0.1:1", tmp_path) as (url, process):
        (child,) = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])
        with pytest.raises(ConnectionRefusedError):
            connected(url)


def test_random_answers_of_a_real_server_are_the_same_through_it(tmp_path: Path) -> None:
    chance = random.Random(2)
    with launch("gb10", speed=50, no_traffic=True) as demo, proxied(demo.url, tmp_path) as (url, _):
        for _ in range(30):
            body = {
                "model": demo.model,
                "prompt": [chance.randrange(100, 9000) for _ in range(20)],
                "max_tokens": 9,
                "seed": 1,
            }
            body["stream"] = chance.random() < 0.7
            contents = []
            for address in (demo.url, url):
                connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE_S)
                connection.request("POST", "/v1/completions", json.dumps(body))
                answer = connection.getresponse()
                text = re.sub(rb'"(id|created)":[^,]*,', b"", answer.read())
                contents.append((answer.status, answer.getheader("content-type"), text))
                connection.close()
            assert contents[0] == contents[1]
