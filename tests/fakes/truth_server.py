"""A server whose latencies are known: scripted TTFT and ITL, and a log of when it really sent.

`python truth_server.py [PORT]` prints `port N` and serves until killed. `POST /script` changes the script,
`GET /truth` gives, per finished or broken request, the times of `time.perf_counter` (one clock for all
processes of a host) at which it was read, its first and its last token were written, and whether it was cut.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Script:
    """How every request is answered; `fail` names one of the broken ways of `Stream._broken`."""

    ttft_s: float = 0.05
    itl_s: float = 0.005
    tokens_per_chunk: int = 1
    fail: str = ""
    fail_every: int = 1
    fail_after: int = 0  # tokens sent before it fails
    refuse: tuple[str, ...] = ()  # body keys answered with 400
    prefill_tok_s: float = 0.0  # when set, prompts wait for one another and TTFT follows from their length
    step_per_user_s: float = 0.0  # ITL grows by this per running request


@dataclass
class World:
    script: Script = field(default_factory=Script)
    truth: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    running: int = 0
    connections: int = 0
    requests: int = 0
    generated: int = 0
    prompted: int = 0
    succeeded: int = 0
    prefill_free_s: float = 0.0


WORLD = World()


class Stream:
    """One streamed answer."""

    def __init__(self, connection: Connection, body: dict[str, Any], chat: bool, read_s: float) -> None:
        self.connection, self.body, self.chat = connection, body, chat
        self.read_s = read_s
        self.asked = int(body.get("max_tokens") or 16)
        self.sent = 0
        self.first_s = self.last_s = 0.0
        prompt = body.get("prompt") or body["messages"][0]["content"]
        self.prompt_tokens = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        WORLD.requests += 1
        self.fails = bool(WORLD.script.fail) and WORLD.requests % WORLD.script.fail_every == 0
        self.handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        script, loop = WORLD.script, asyncio.get_running_loop()
        if self.fails and script.fail.isdigit():
            error = {"error": {"message": f"scripted {script.fail}", "code": int(script.fail)}}
            self.connection.stream = None
            self.connection.answer(int(script.fail), error)
            return
        self.connection.served += 1
        if self.fails and script.fail == "drop_reused" and self.connection.served > 1:
            self.connection.stream = None
            self.connection.transport.abort()
            return
        WORLD.running += 1
        if self.fails and script.fail == "hang":
            return
        WORLD.prompted += self.prompt_tokens
        self.connection.head_of_stream()
        ttft_s = script.ttft_s
        if script.prefill_tok_s:
            begins = max(self.read_s, WORLD.prefill_free_s)
            WORLD.prefill_free_s = begins + self.prompt_tokens / script.prefill_tok_s
            ttft_s += WORLD.prefill_free_s - self.read_s
        self.due_s = self.read_s + ttft_s
        self.handle = loop.call_later(self.due_s - time.perf_counter(), self.token)

    def token(self) -> None:
        script = WORLD.script
        if self.fails and script.fail != "drop_reused" and self.sent >= script.fail_after:
            self._broken(script.fail)
            return
        n = min(script.tokens_per_chunk, self.asked - self.sent)
        self.sent += n
        WORLD.generated += n
        last = self.sent >= self.asked
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        self._chunk(" x" * n, "length" if last else None)
        if last:
            self._end()
            return
        self.due_s += script.itl_s + script.step_per_user_s * WORLD.running
        delay = self.due_s - time.perf_counter()
        self.handle = asyncio.get_running_loop().call_later(max(0.0, delay), self.token)

    def _chunk(self, text: str, finish: str | None) -> None:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        choice |= {"delta": {"content": text}} if self.chat else {"text": text}
        chunk: dict[str, Any] = {"id": "cmpl-truth", "object": "text_completion", "choices": [choice]}
        if (self.body.get("stream_options") or {}).get("continuous_usage_stats"):
            chunk["usage"] = self._usage()
        self.connection.event(chunk)

    def _usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.sent
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.sent, "total_tokens": total}

    def _end(self) -> None:
        WORLD.succeeded += 1
        if self.body.get("stream_options"):
            self.connection.event({"choices": [], "usage": self._usage()})
        self.connection.data(b"data: [DONE]\n\n")
        self.done(cut=False)
        self.connection.end_of_stream()

    def _broken(self, how: str) -> None:
        if how == "error":
            self.connection.event({"error": {"message": "scripted error", "code": 500}})
            self.connection.data(b"data: [DONE]\n\n")
            self.connection.end_of_stream()
        elif how == "cut":
            self.connection.transport.abort()
        elif how == "truncate":
            self.connection.end_of_stream()
        elif how == "stop":
            self._chunk(" x", "stop")
            self._end()
        elif how == "silent":
            return
        self.done(cut=True)

    def done(self, cut: bool) -> None:
        if self.connection.stream is not self:
            return
        self.connection.stream = None
        WORLD.running -= 1
        if self.handle is not None:
            self.handle.cancel()
        times = {"read_s": self.read_s, "first_s": self.first_s, "last_s": self.last_s}
        WORLD.truth.append({**times, "tokens": self.sent, "cut": cut})


class Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as little of it as the load generator needs."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.buffer = b""
        self.served = 0
        self.stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        WORLD.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        WORLD.connections -= 1
        if self.stream is not None:
            self.stream.done(cut=True)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, rest = self.buffer.split(b"\r\n\r\n", 1)
            lines = head.decode().split("\r\n")
            headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
            size = int(headers.get("content-length", 0))
            if len(rest) < size:
                return
            self.buffer = rest[size:]
            method, path, _ = lines[0].split()
            WORLD.headers.append(head.decode())
            self.request(method, path, json.loads(rest[:size]) if size else {}, now)

    def request(self, method: str, path: str, body: dict[str, Any], now: float) -> None:
        if path in ("/v1/completions", "/v1/chat/completions"):
            ids = ["ids"] if isinstance(body.get("prompt"), list) else []
            refused = [key for key in [*body, *ids] if key in WORLD.script.refuse]
            if refused:
                words = "prompt must be a string" if refused == ["ids"] else f"{refused[0]} is not permitted"
                self.answer(400, {"error": {"message": words}})
                return
            WORLD.bodies.append(body)
            self.stream = Stream(self, body, path.endswith("chat/completions"), now)
            self.stream.start()
        elif path == "/script":
            WORLD.script = Script(**body)
            WORLD.truth.clear()
            WORLD.bodies.clear()
            WORLD.headers.clear()
            WORLD.requests = 0
            self.answer(200, {})
        else:
            self.page(path, body)

    def page(self, path: str, body: dict[str, Any]) -> None:
        if path == "/truth":
            world = {"running": WORLD.running, "connections": WORLD.connections, "requests": WORLD.requests}
            logs = {"truth": WORLD.truth, "bodies": WORLD.bodies, "headers": WORLD.headers}
            self.answer(200, world | logs)
        elif path == "/v1/models":
            self.answer(200, {"data": [{"id": "truth", "max_model_len": 100_000}]})
        elif path == "/tokenize":
            words = sorted(set(body["prompt"].split()))
            ids = list(range(1000, 1000 + len(words)))
            self.answer(200, {"tokens": ids, "token_strs": [f"\u0120{word.strip('.,;:')}" for word in words]})
        elif path == "/metrics":
            self.answer(200, metrics_page())
        else:
            self.answer(404, {"error": {"message": f"no {path}"}})

    def answer(self, status: int, body: dict[str, Any] | str) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.transport.write(f"HTTP/1.1 {status} -\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    def head_of_stream(self) -> None:
        kind = "text/event-stream; charset=utf-8"
        self.transport.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

    def data(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, chunk: dict[str, Any]) -> None:
        self.data(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def end_of_stream(self) -> None:
        self.transport.write(b"0\r\n\r\n")


def metrics_page() -> str:
    label = '{engine="0",model_name="truth"}'
    success = '{engine="0",finished_reason="length",model_name="truth"}'
    return (
        f"vllm:num_requests_running{label} {WORLD.running}\nvllm:num_requests_waiting{label} 0\n"
        f"vllm:kv_cache_usage_perc{label} {min(1.0, WORLD.running / 100)}\n"
        f"vllm:generation_tokens_total{label} {WORLD.generated}\nvllm:prompt_tokens_total{label} {WORLD.prompted}\n"
        f"vllm:request_success_total{success} {WORLD.succeeded}\nvllm:num_preemptions_total{label} 0\n"
        f"vllm:prefix_cache_queries_total{label} {WORLD.prompted}\nvllm:prefix_cache_hits_total{label} 0\n"
    )


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=1024)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop as loops
    except ImportError:
        loops = asyncio  # type: ignore[misc]
    loops.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
