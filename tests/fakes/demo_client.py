"""What tests ask a demo server: its metrics, its streams, and to be patient."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

T = TypeVar("T")


def wait_for(read: Callable[[], T], good: Callable[[T], bool], seconds: float = 10.0) -> T:
    """Reads until `good`; fails with the last value after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = read()
        if good(found):
            return found
        assert time.monotonic() < deadline, f"still {found!r} after {seconds} s"
        time.sleep(0.02)


def metrics(url: str) -> dict[str, float]:
    """Sample name and labels (without the engine) -> value."""
    samples = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line and not line.startswith("#"):
            name, _, number = line.rpartition(" ")
            samples[name.replace('engine="0",', "")] = float(number)
    return samples


def total(url: str, name: str) -> float:
    """The sum of a metric over its series."""
    return sum(v for k, v in metrics(url).items() if k.partition("{")[0] == name)


def events(body: str) -> list[dict[str, Any]]:
    """The JSON events of a stream; checks that it ends as it should."""
    parts = body.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def ids_request(length: int, output: int, first: int = 0, **more: object) -> dict[str, object]:
    return {
        "model": "gpt-oss-120b",
        "prompt": list(range(first, first + length)),
        "max_tokens": output,
        "ignore_eos": True,
        **more,
    }


async def raw_stream(url: str, request: dict[str, object]) -> int:
    """The completion tokens of one stream over a bare socket, which is cheaper than a client library."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    body = json.dumps(request | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = (await reader.read(-1)).decode()
    writer.close()
    assert answer.endswith("data: [DONE]\n\n\r\n0\r\n\r\n")
    return int(answer.rpartition('"completion_tokens":')[2].partition("}")[0])


def status(url: str) -> int | None:
    try:
        return httpx.get(url, timeout=2).status_code
    except httpx.TransportError:
        return None
