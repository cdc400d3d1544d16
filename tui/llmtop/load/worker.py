"""The process that makes the load: `python -m llmtop.load.worker`.

JSON lines on stdin: first `{"plan", "authorization", "parent", "reach"}`, then commands: `preflight`, `measure`,
`profile`, `plan`, `prepare` (a level), `go` (at a time), `stop`. JSON lines on stdout: `hello preflight measuring
measured ready req snap level error done`. It ends, and every connection with it, on `stop`, at the end of stdin, and
with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from llmtop.contract.codec import plain, rebuild
from llmtop.contract.secrets import KNOWN
from llmtop.load.level import STOPPED, LevelRun, Share
from llmtop.load.measure import measure
from llmtop.load.plan import Level, Plan
from llmtop.load.probe import PreflightError, Probe
from llmtop.load.prompts import Profile
from llmtop.load.records import RequestRecord
from llmtop.load.vitals import VitalsMeter, die_with_parent
from llmtop.net.connection import Connector, Origin, tls_words
from llmtop.net.loop import loop_factory

SNAP_S = 0.25
_LINE_LIMIT = 16 << 20


class Pipe(asyncio.BaseProtocol):
    """Writes JSON lines to stdout without ever blocking the loop."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def open(cls) -> Pipe:
        """The pipe on stdout."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(cls, os.fdopen(1, "wb", buffering=0))
        protocol._transport = transport
        return protocol

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def pause_writing(self) -> None:
        """A slow reader fills our memory, not the measurement."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def emit(self, event: str, **values: Any) -> None:
        """One line."""
        if self._transport is not None and not self.lost.done():
            line = json.dumps({"event": event, **values}, separators=(",", ":"))
            self._transport.write(line.encode() + b"\n")

    async def close(self) -> None:
        """Writes what is left, for two seconds at most."""
        if self._transport is not None and not self.lost.done():
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.lost, 2.0)


class Worker:
    """Carries out the commands of its parent, one level at a time."""

    def __init__(self, plan: Plan, order: dict[str, Any], pipe: Pipe) -> None:
        authorization, reach = order.get("authorization"), order.get("reach") or {}
        ca = Path(reach["ca"]) if reach.get("ca") else None
        self._plan = plan
        self._pipe = pipe
        KNOWN.add_header(authorization)
        self._headers = {"Authorization": authorization} if authorization else {}
        connect_s, insecure = plan.timeouts.connect_s, bool(reach.get("insecure"))
        self._connector = Connector(Origin.parse(plan.url), connect_s, ca, insecure, via=reach.get("via"))
        self._profile = Profile()
        self._run: LevelRun | None = None
        self._index = 0
        self._work: asyncio.Task[None] | None = None
        self._ends_s = time.perf_counter() + plan.caps.run_s

    async def serve(self, commands: asyncio.StreamReader) -> None:
        """Until `stop`, the end of stdin, or a lost stdout."""
        self._pipe.lost.add_done_callback(lambda _: commands.feed_eof())
        while line := await commands.readline():
            command = json.loads(line)
            if command["cmd"] == "stop":
                break
            self._command(command)
        await self._stop()

    def _command(self, command: dict[str, Any]) -> None:
        match command.pop("cmd"):
            case "preflight":
                self._start(self._preflight())
            case "measure":
                self._start(self._measure())
            case "profile":
                self._profile = rebuild(Profile, command["profile"])
            case "plan":
                self._replan(rebuild(Plan, command["plan"]))
            case "prepare":
                self._start(self._prepare(command["level"], Share(**command["share"])))
            case "go":
                self._start(self._go(command["t0"]))

    def _replan(self, plan: Plan) -> None:
        """Another plan for the same server; the caps of the first hold."""
        plan = replace(plan, caps=self._plan.caps)
        if problems := plan.problems():
            self._pipe.emit("error", message="; ".join(problems))
        else:
            self._plan = plan

    def _start(self, work: Any) -> None:
        self._work = asyncio.ensure_future(self._guarded(work))

    async def _guarded(self, work: Any) -> None:
        """Runs a command; what goes wrong is told to the parent in words."""
        try:
            await work
        except (PreflightError, OSError, TimeoutError) as error:
            words = str(error) or type(error).__name__
            if isinstance(error, ssl.SSLError):
                words = tls_words(error)
            elif isinstance(error, TimeoutError):
                words = f"no connection within {self._plan.timeouts.connect_s:g} s"
            elif isinstance(error, OSError) and error.strerror:
                words = error.strerror
            self._pipe.emit("error", message=f"{self._plan.url}: {words}")
        except Exception as error:
            self._pipe.emit("error", message=f"a fault of llmtop: {error!r}")
            raise

    async def _stop(self) -> None:
        if self._run is not None:
            self._run.stop(STOPPED)
        if self._work is not None and not self._work.done():
            await asyncio.wait({self._work}, timeout=0.3 if self._run is not None else 0)
            self._work.cancel()

    async def _preflight(self) -> None:
        probe = Probe(self._plan, self._connector, self._headers)
        self._profile = await probe.run()
        self._pipe.emit("preflight", profile=plain(self._profile), spent=plain(probe.spent))

    async def _measure(self) -> None:
        probe = Probe(self._plan, self._connector, self._headers)
        pace = await measure(probe, self._profile, self._measuring)
        self._pipe.emit("measured", pace=plain(pace), spent=plain(probe.spent))

    def _measuring(self, levels: Sequence[Level]) -> None:
        sent = replace(self._plan, levels=tuple(levels))
        self._pipe.emit("measuring", requests=sent.requests(), tokens=sent.tokens())

    async def _prepare(self, index: int, share: Share) -> None:
        self._index = index
        self._run = LevelRun(self._plan, self._profile, index, share, self._connector, self._headers, self._record)
        warm_up = await self._run.prepare()
        gc.collect()
        gc.freeze()
        self._pipe.emit("ready", level=index, warm_up=warm_up.to_json() if warm_up else None)

    async def _go(self, t0: float) -> None:
        run = self._run
        if run is None:
            return
        vitals = VitalsMeter()
        gc.disable()
        snaps = asyncio.ensure_future(self._snaps(run))
        vitals.start()
        try:
            await run.run(t0)
        finally:
            gc.enable()
            snaps.cancel()
        self._pipe.emit(
            "level",
            level=self._index,
            stopped=run.stopped,
            refused=run.refused,
            interrupted=run.interrupted,
            vitals=asdict(vitals.stop()),
        )
        self._run = None

    async def _snaps(self, run: LevelRun) -> None:
        while True:
            await asyncio.sleep(SNAP_S)
            now = time.perf_counter()
            self._pipe.emit("snap", level=self._index, now=now, **run.snapshot(now))
            if now > self._ends_s:
                run.stop("wall limit of the run")

    def _record(self, record: RequestRecord) -> None:
        self._pipe.emit("req", level=self._index, record=record.to_json())


async def _stdin() -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb"))
    return reader


async def _main() -> None:
    commands, pipe = await _stdin(), await Pipe.open()
    order = json.loads(await commands.readline() or b"null")
    if order is None:
        return
    die_with_parent(order["parent"])
    plan: Plan = rebuild(Plan, order["plan"])
    pipe.emit("hello", pid=os.getpid(), loop=type(asyncio.get_running_loop()).__module__)
    problems = plan.problems()
    if problems:
        pipe.emit("error", message="; ".join(problems))
    else:
        worker = Worker(plan, order, pipe)
        await worker.serve(commands)
    pipe.emit("done")
    await pipe.close()


def main() -> None:
    """Runs the worker; Ctrl-C is left to the parent, which says `stop`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_main())


if __name__ == "__main__":
    main()
    sys.exit(0)
