"""Owns one worker process: starts it, talks to it in JSON lines, and makes sure that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import deque
from typing import Any

from llmtop.contract.codec import plain
from llmtop.load.plan import Plan

_LINE_LIMIT = 64 << 20
_END_S = 2.0


class WorkerFailed(RuntimeError):
    """The worker said what went wrong, or ended without a word."""


class Child:
    """One worker. Events are taken from `events` in order; the end of its output is the event `gone`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.stderr: deque[str] = deque(maxlen=50)
        self._process = process
        self._readers = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._read_errors())]

    @classmethod
    async def start(cls, plan: Plan, authorization: str | None, tls: dict[str, Any]) -> Child:
        """A new worker, plan in hand; the key goes through the pipe and nowhere else."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "llmtop.load.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_LIMIT,
        )
        child = cls(process)
        child.say(plan=plain(plan), authorization=authorization, parent=os.getpid(), tls=tls)
        return child

    def say(self, **command: Any) -> None:
        """Sends one command; a worker that has ended hears nothing."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps(command).encode() + b"\n")

    async def hear(self, *names: str) -> dict[str, Any]:
        """The next event of these names; raises `WorkerFailed` when it reports an error or ends."""
        while True:
            event = await self.events.get()
            if event["event"] in names:
                return event
            if event["event"] in ("error", "gone"):
                raise WorkerFailed(event.get("message") or self._last_words())

    async def end(self) -> None:
        """Stops it: politely, then by force."""
        self.say(cmd="stop")
        if self._process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _END_S)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await asyncio.wait(self._readers, timeout=_END_S)

    def kill(self) -> None:
        """Ends it at once; the kernel closes its connections."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def _last_words(self) -> str:
        return "the load worker ended: " + (self.stderr[-1] if self.stderr else f"exit {self._process.returncode}")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.events.put_nowait(json.loads(line))
        self.events.put_nowait({"event": "gone"})

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.stderr.append(line.decode("utf-8", "replace").rstrip())
