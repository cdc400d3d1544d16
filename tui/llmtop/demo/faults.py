"""Faults of a simulated server, switched on at start or while it runs; the page faults are pure functions
of a page.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

TEXT = "text/plain; version=1.0.0; charset=utf-8"
HUGE_BYTES = 64 * 1024 * 1024
HOSTILE_MODEL = 'evil"\\\x1b[31mred\x1b[0m\n[bold]markup[/bold] 模型 \u2028 \u202e\x07'

# name -> what it does; the value of a fault is a number of seconds or engines where it has one
FAULTS = {
    "down": "stop listening",
    "hang": "accept and never answer",
    "slow": "answer /metrics after N seconds (default 3)",
    "late": "answer /metrics 0 to 0.3 s late, the page built as it is sent",
    "restart": "new process after N seconds of refused connections (default 0): counters at 0, new start time",
    "restart-noclock": "the same without any start time on the page",
    "other-model": "the server comes back with another model",
    "html": "/metrics answers an HTML page",
    "json": "/metrics answers JSON",
    "http500": "/metrics answers 500",
    "http404": "/metrics answers 404",
    "http401": "/metrics answers 401",
    "empty": "/metrics answers 200 with no body",
    "truncated": "the page ends in the middle of a line",
    "nan": "every gauge is NaN",
    "huge": "a page of 64 MB",
    "hostile": "a model name with control characters, markup, a newline, CJK and U+2028",
    "dp": "N data-parallel engines (default 2)",
    "engine-vanish": "one of several engines is gone",
    "stall": "engines frozen, requests running, counters still",
    "sleep": "the engine sleeps, its weights off the device",
    "disable-log-stats": "no engine families on the page",
    "unhealthy": "/health answers 503 beside a good page",
    "hog": "another process takes N GiB of memory (default 8)",
    "kill": "the server process dies",
}
DEFAULTS = {"slow": 3.0, "dp": 2.0, "hog": 8.0}


class FaultError(ValueError):
    """A fault that is not in FAULTS, or that cannot be had now."""


@dataclass(frozen=True, slots=True)
class FaultAnswer:
    """What /metrics answers."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


@dataclass(slots=True)
class Faults:
    """The faults that are on, with their values; `seed` makes the jitter repeatable."""

    seed: int = 0
    active: dict[str, float] = field(default_factory=dict)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def set(self, name: str, value: float | None = None) -> None:
        """Switches a fault on; raises FaultError."""
        if name not in FAULTS:
            raise FaultError(f"no fault {name!r}; known: {', '.join(FAULTS)}")
        self.active[name] = DEFAULTS.get(name, 0.0) if value is None else value

    def clear(self, name: str | None = None) -> None:
        """Switches one fault or all of them off."""
        if name is None:
            self.active.clear()
        else:
            self.active.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return name in self.active

    def delay(self) -> float:
        """Seconds to wait before the page is built and sent."""
        jitter = self._random.uniform(0.0, 0.3) if "late" in self.active else 0.0
        return self.active.get("slow", 0.0) + jitter

    def answer(self, build: Callable[[], str]) -> FaultAnswer:
        """The page as /metrics gives it, spoiled by the faults that are on."""
        fixed = next((FIXED[name] for name in self.active if name in FIXED), None)
        if fixed is not None:
            return fixed
        body = build().encode()
        for name, spoil in _SPOILED.items():
            if name in self.active:
                body = spoil(body)
        return FaultAnswer(body)


FIXED = {
    "html": FaultAnswer(b"<!doctype html><html><body><h1>It works!</h1></body></html>", 200, "text/html"),
    "json": FaultAnswer(b'{"status":"ok","metrics":[]}', 200, "application/json"),
    "http500": FaultAnswer(b"Internal Server Error", 500, "text/plain; charset=utf-8"),
    "http404": FaultAnswer(b'{"detail":"Not Found"}', 404, "application/json"),
    "http401": FaultAnswer(b'{"error":"Unauthorized"}', 401, "application/json"),
    "empty": FaultAnswer(b""),
}


def _truncated(body: bytes) -> bytes:
    """Two thirds of the page, cut inside a line."""
    cut = body.rindex(b"\n", 0, len(body) * 2 // 3)
    return body[: cut - 7]


def _nan(body: bytes) -> bytes:
    """The page with every engine gauge set to NaN."""
    gauges = (b"vllm:num_requests_", b"vllm:kv_cache_usage_perc", b"vllm:engine_sleep_state")
    lines = body.split(b"\n")
    return b"\n".join(line.rsplit(b" ", 1)[0] + b" NaN" if line.startswith(gauges) else line for line in lines)


def _huge(body: bytes) -> bytes:
    """The page followed by comments up to 64 MB."""
    filler = b"# " + b"x" * 1021 + b"\n"
    return body + filler * ((HUGE_BYTES - len(body)) // len(filler) + 1)


_SPOILED: dict[str, Callable[[bytes], bytes]] = {"truncated": _truncated, "nan": _nan, "huge": _huge}
