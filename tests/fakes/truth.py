"""The truth server as a process of its own, and a way to drive a load worker by hand."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmtop.contract.codec import plain
from llmtop.load.plan import Plan
from llmtop.load.records import RequestRecord


class TruthServer:
    """A running truth server."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def script(self, **values: Any) -> None:
        """Sets how requests are answered, and forgets the log."""
        self._call("/script", values)

    def state(self) -> dict[str, Any]:
        """What the server saw: `truth running connections requests bodies headers`."""
        return self._call("/truth", None)

    def _call(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=10) as answer:
            parsed: dict[str, Any] = json.load(answer)
            return parsed


@contextmanager
def truth_server() -> Iterator[TruthServer]:
    """Starts one and ends it."""
    script = Path(__file__).with_name("truth_server.py")
    command = [sys.executable, str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield TruthServer(process, int(process.stdout.readline().split()[1]))
    finally:
        process.kill()
        process.wait()


class Worker:
    """A load worker driven line by line; `events` keeps all it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    @classmethod
    async def start(cls, plan: Plan, authorization: str | None = None) -> Worker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "llmtop.load.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        worker = cls(process)
        worker.say(plan=plain(plan), authorization=authorization, parent=os.getpid())
        return worker

    def say(self, **values: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(values).encode() + b"\n")

    async def hear(self, *names: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """Reads until one of these events."""
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout_s):
            while line := await self.process.stdout.readline():
                event: dict[str, Any] = json.loads(line)
                self.events.append(event)
                if event["event"] in names:
                    return event
        raise EOFError(f"the worker ended without {names}: {self.events[-3:]}")

    async def level(self, index: int, slots: int, warm_up: bool = True) -> dict[str, Any]:
        """Plays a whole level alone."""
        self.say(cmd="prepare", level=index, share={"slots": slots, "warm_up": warm_up})
        await self.hear("ready")
        self.say(cmd="go", t0=time.perf_counter() + 0.02)
        return await self.hear("level", timeout_s=60)

    def records(self) -> list[RequestRecord]:
        return [RequestRecord.from_json(event["record"]) for event in self.events if event["event"] == "req"]

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
