"""A small server of the OpenAI routes that is not vLLM: no counters, and one oddity at a time.

It runs in a thread of its own and logs, per answer, when its first and last chunk were written and how many tokens
each held, by `time.perf_counter`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answered:
    """One answer: seconds when it was asked, of its first and last chunk; tokens of the first, all, the prompt."""

    read_s: float
    first_s: float
    last_s: float
    first_tokens: int
    tokens: int
    prompt: int
    ended_s: float


@dataclass
class Stranger:
    """What is odd about it; `per_s` answers at most begin per second, `most` requests are answered before 429.

    `hidden` tokens are made and not sent before the first chunk, `bundled` ones are sent as one chunk of reasoning.
    """

    completions: bool = True
    tokenizer: bool = False
    natural: int | None = None  # the answer ends there whatever is asked
    block: int = 1
    itl_s: float = 0.002
    per_s: float = 0.0
    most: int | None = None
    tokens_per_word: int = 1
    template: int = 0
    first_s: float = 0.0  # until the first token
    hidden: int = 0
    bundled: int = 0
    usage: bool = True
    data: bytes = b"data: "
    comments: bool = False  # keepalives between the chunks
    done: bytes = b"data: [DONE]\n\n"
    refuses: tuple[str, ...] = ()  # parts of a body, with 400 and OpenAI's words
    models: tuple[str, ...] = ("odd-one",)
    able: str | None = None  # the only model that makes text
    late: int = 0  # so many requests get 503 first
    again: str = "0"  # their Retry-After
    moved: str | None = None  # where it sends everybody
    tls: ssl.SSLContext | None = None
    url: str = ""
    log: list[Answered] = field(default_factory=list)
    asked: int = 0
    free_s: float = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lengths = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
                body = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
                await self._answer(head.split(" ", 2)[1], json.loads(body or b"{}"), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        chat = path == "/v1/chat/completions"
        self.asked += "completions" in path
        prompt = body["messages"][0]["content"] if chat else body.get("prompt", "")
        if path == "/v1/models":
            _whole(writer, 200, {"data": [{"id": name} for name in self.models]})
        elif path == "/tokenize" and self.tokenizer:
            _whole(writer, 200, {"tokens": list(range(1000, 1000 + len(body["prompt"].split())))})
        elif not chat and not (path == "/v1/completions" and self.completions):
            _whole(writer, 404, {"detail": "Not Found"})
        elif self.moved is not None:
            _whole(writer, 307, {}, f"Location: {self.moved}\r\n")
        elif self.asked <= self.late:
            _whole(writer, 503, {"error": {"message": "the model is being loaded"}}, f"Retry-After: {self.again}\r\n")
        elif self.most is not None and self.asked > self.most:
            _whole(writer, 429, {"error": {"message": "quota used up"}}, "Retry-After: 7\r\n")
        elif self.able is not None and body.get("model") != self.able:
            _whole(writer, 400, {"error": f'"{body.get("model")}" does not support generate'})
        elif part := next((part for part in self.refuses if part in body), None):
            instead = " Use 'max_completion_tokens' instead." if part == "max_tokens" else ""
            why = f"Unsupported parameter: '{part}' is not supported with this model.{instead}"
            _whole(writer, 400, {"error": {"message": why, "param": part}})
        elif isinstance(prompt, list):
            _whole(writer, 500, {"error": "list is no string"})
        else:
            words = len(prompt if isinstance(prompt, list) else prompt.split())
            asked = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
            tokens = min(asked, self.natural or 2**20)
            await self._stream(writer, chat, tokens, words * self.tokens_per_word + self.template)

    async def _stream(self, writer: asyncio.StreamWriter, chat: bool, tokens: int, prompt: int) -> None:
        read_s = time.perf_counter()
        if self.per_s:
            begin = self.free_s = max(self.free_s, read_s) + 1 / self.per_s
            await asyncio.sleep(begin - time.perf_counter())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(self.first_s + self.hidden * self.itl_s)
        sent, times, first = 0, [0.0, 0.0], 0
        if self.bundled:
            await asyncio.sleep(self.bundled * self.itl_s)
            self._event(writer, {"choices": [{"delta": {"reasoning_content": "so " * self.bundled}}]})
            times[0], first = time.perf_counter(), self.bundled
        while sent < tokens:
            part = min(self.block, tokens - sent)
            await asyncio.sleep(part * self.itl_s)
            sent, text = sent + part, " a" * part
            choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            self._event(writer, {"choices": [choice | {"finish_reason": "stop" if sent == tokens else None}]})
            times[1], first = time.perf_counter(), first or part
            times[0] = times[0] or times[1]
        made, thought = tokens + self.hidden + self.bundled, self.hidden + self.bundled
        if self.usage:
            details = {"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}
            usage = {"prompt_tokens": prompt, "completion_tokens": made, **details}
            self._event(writer, {"choices": [], "usage": usage})
        writer.write((_chunk(self.done) if self.done else b"") + b"0\r\n\r\n")
        self.log.append(Answered(read_s, times[0], times[1], first + self.hidden, made, prompt, time.perf_counter()))

    def _event(self, writer: asyncio.StreamWriter, values: dict[str, Any]) -> None:
        if self.comments:
            writer.write(_chunk(b": ping\n\n"))
        writer.write(_chunk(self.data + json.dumps(values).encode() + b"\n\n"))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _whole(writer: asyncio.StreamWriter, status: int, values: dict[str, Any], headers: str = "") -> None:
    body = json.dumps(values).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)


@contextmanager
def stranger(**odd: Any) -> Iterator[Stranger]:
    """One that listens on a free port."""
    one, loop, ready = Stranger(**odd), asyncio.new_event_loop(), threading.Event()

    async def listen() -> None:
        server = await asyncio.start_server(one.serve, "127.0.0.1", 0, limit=2**22, ssl=one.tls)
        one.url = f"http{'s' if one.tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(listen())
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield one
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
