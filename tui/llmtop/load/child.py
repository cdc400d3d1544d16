"""Owns one worker process: starts it, talks to it in JSON lines, and makes sure that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from typing import Any

import psutil

from llmtop.contract.codec import plain
from llmtop.contract.secrets import KNOWN, own_environment
from llmtop.load.plan import Plan

_LINE_LIMIT = 64 << 20
_END_S = 2.0
_STOP_S = 0.5
FROZEN_S = 0.2  # twice so long stopped by a signal: the streams it holds open are to end
SILENT_S = 10.0  # a worker in a level speaks four times a second


class WorkerFailed(RuntimeError):
    """The worker said what went wrong, or ended without a word."""


class Child:
    """One worker. Events are taken from `events` in order; the end of its output is the event `gone`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.stderr: deque[str] = deque(maxlen=50)
        self._process = process
        self._killer: asyncio.TimerHandle | None = None
        self._readers = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._read_errors())]
        self._guard = asyncio.ensure_future(self._guarded())

    @classmethod
    async def start(cls, plan: Plan, authorization: str | None, reach: dict[str, Any]) -> Child:
        """A new worker, plan in hand; the key goes through the pipe and nowhere else."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "llmtop.load.worker"),  # -P: no module of the current folder
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=own_environment(os.environ),
            limit=_LINE_LIMIT,
        )
        child = cls(process)
        child.say(plan=plain(plan), authorization=authorization, parent=os.getpid(), reach=reach)
        return child

    def say(self, **command: Any) -> None:
        """Sends one command; a worker that has ended hears nothing."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps(command).encode() + b"\n")

    async def hear(self, *names: str, silent_s: float | None = None) -> dict[str, Any]:
        """The next event of these names; raises `WorkerFailed` when it reports an error, ends or is silent."""
        while True:
            try:
                event = await asyncio.wait_for(self.events.get(), silent_s)
            except TimeoutError:
                self.kill()
                raise WorkerFailed(f"the load worker has said nothing for {silent_s:g} s") from None
            if event["event"] in names:
                return event
            if event["event"] in ("error", "gone"):
                raise WorkerFailed(event.get("message") or self._last_words())

    def stop(self) -> None:
        """Asks it to end, and kills it when it has not a moment later: one that is frozen holds its streams open."""
        if self._killer is None:
            self.say(cmd="stop")
            self._killer = asyncio.get_running_loop().call_later(_STOP_S, self.kill)

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._killer is not None

    async def end(self) -> None:
        """Stops it, politely, then by force, and waits until it is gone."""
        self.stop()
        await self._process.wait()
        self._guard.cancel()
        if self._killer is not None:
            self._killer.cancel()
        await asyncio.wait(self._readers, timeout=_END_S)

    def kill(self) -> None:
        """Ends it at once; the kernel closes its connections."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _guarded(self) -> None:
        """Ends it when something else than this process has stopped it with a signal; Ctrl-Z stops both."""
        before = False
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            while self._process.returncode is None:
                frozen = process.status() == psutil.STATUS_STOPPED
                if frozen and before:
                    self.events.put_nowait({"event": "error", "message": "the load worker was frozen by a signal"})
                    self.kill()
                    break
                before = frozen
                await asyncio.sleep(FROZEN_S)

    def _last_words(self) -> str:
        code = self._process.returncode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        return f"the load worker ended: {self.stderr[-1] if self.stderr else how}"

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                self.events.put_nowait(_event(line))
        except ValueError:  # not a line of ours, or one without end
            self.events.put_nowait({"event": "error", "message": "the load worker wrote what is no event"})
            self.kill()
        with contextlib.suppress(TimeoutError):  # how it ended is known a moment later
            await asyncio.wait_for(self._process.wait(), _END_S)
        self.events.put_nowait({"event": "gone"})

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.stderr.append(KNOWN.hide(line.decode("utf-8", "replace").rstrip()))


def _event(line: bytes) -> dict[str, Any]:
    """The event of a line; raises `ValueError` for what is none."""
    event = json.loads(line)
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise ValueError("no event")
    return event
