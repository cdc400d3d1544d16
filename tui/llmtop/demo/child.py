"""The demo server as a child process: its command line, and `launch` for whoever wants one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from llmtop.contract.secrets import own_environment
from llmtop.demo import profile as profiles
from llmtop.demo.faults import FAULTS
from llmtop.demo.server import DemoServer, ServerOptions
from llmtop.demo.traffic import Traffic
from llmtop.demo.warmup import StartupFailed, doomed, play
from llmtop.net.loop import loop_factory

_READY_TIMEOUT_S = 20.0
_PR_SET_PDEATHSIG = 1


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m llmtop.demo`."""
    p = argparse.ArgumentParser(prog="llmtop-demo-server", description="A simulated vLLM server on loopback.")
    p.add_argument("machine", choices=profiles.names())
    p.add_argument("--port", type=int, default=0, help="port of the API (default: a free one)")
    p.add_argument("--speed", type=float, default=1.0, help="times faster than the machine it imitates")
    p.add_argument("--fault", choices=tuple(FAULTS), action="append", default=[], help="a fault from the start")
    p.add_argument("--no-traffic", action="store_true", help="no requests of its own")
    p.add_argument("--dp", type=int, default=1, metavar="N", help="data-parallel engines")
    p.add_argument("--model", help="another model name")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--warmup", action="store_true", help="play the start-up first, the port closed")
    p.add_argument("--oom", action="store_true", help="a start-up that runs out of memory in graph capture")
    p.add_argument("--log", metavar="FILE", help="where the start-up's log goes (default: stderr)")
    p.add_argument("--api-key-env", metavar="NAME", help="variable that holds the API key of /v1")
    p.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM, SIGINT or the end of its parent; 1 after --oom, 2 when it cannot start."""
    args = parser().parse_args(argv)
    if args.with_parent:
        _die_with_parent()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(args))
    except OSError as error:
        print(f"llmtop-demo-server: {error}", file=sys.stderr)
        return 2
    except StartupFailed:
        return 1
    return 0


async def _serve(args: argparse.Namespace) -> None:
    profile = profiles.load(args.machine)
    if args.oom:
        profile = doomed(profile)
    key = os.environ.get(args.api_key_env) if args.api_key_env else None
    options = ServerOptions(args.port, args.speed, args.dp, args.model, args.seed, key)
    server = DemoServer(profile, options)
    stop = _stop_event(args.with_parent)
    control = await server.open_control()
    port = server.reserve()
    starting = args.warmup or args.oom
    if not starting:
        await server.open()
    hello = {
        "url": f"http://127.0.0.1:{port}",
        "control": f"http://127.0.0.1:{control}",
        "pid": os.getpid(),
        "machine": args.machine,
        "model": server.model,
    }
    print(json.dumps(hello), flush=True)
    work = asyncio.create_task(_work(server, args, starting))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
    server.close()
    if work.done():
        work.result()
    work.cancel()


async def _work(server: DemoServer, args: argparse.Namespace, starting: bool) -> None:
    """The start-up when asked for, then traffic and faults, for ever."""
    if starting:
        with open(args.log, "a", encoding="utf-8") if args.log else contextlib.nullcontext(sys.stderr) as log:
            await play(server, lambda line: print(line, file=log, flush=True), args.oom)
        await server.open()
    if not args.no_traffic:
        Traffic(server, args.seed).start()
    for name in args.fault:
        server.fault(name)
    await asyncio.Event().wait()


def _stop_event(watch_stdin: bool) -> asyncio.Event:
    """Set by SIGTERM, SIGINT, and by the end of stdin when watched."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if watch_stdin:
        threading.Thread(target=_wait_for_eof, args=(loop, stop), daemon=True).start()
    return stop


def _wait_for_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(0, 4096):
        pass
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stop.set)


def _die_with_parent() -> None:
    """Asks Linux for SIGKILL when the parent dies; elsewhere the end of stdin does."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(slots=True)
class DemoProcess:
    """A running demo server; leaving its context stops it."""

    url: str
    control: str
    model: str
    machine: str
    process: subprocess.Popen[str]

    def fault(self, name: str, value: float | None = None) -> dict[str, float]:
        """Switches a fault on ("clear": all off) and returns what is on; raises OSError when refused."""
        body = json.dumps({"name": name, "value": value}).encode()
        answer = _post(f"{self.control}/__fault", body)
        active: dict[str, float] = answer["active"]
        return active

    def stop(self) -> None:
        """Ends the server, by force when it does not go within 3 s."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(3.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def launch(machine: str, **options: Any) -> DemoProcess:
    """Starts a demo server and waits until it says where it listens.

    Options are those of the command line with underscores: `port=0, speed=2.0, dp=2, no_traffic=True,
    fault="late"`. Raises ProfileError for an unknown machine, RuntimeError when the server does not start.
    """
    profiles.load(machine)
    command = [sys.executable, "-P", "-m", "llmtop.demo", machine, "--with-parent", *flags(options)]
    # the child must not write to the terminal it is shown on: its stderr is kept for the error message alone
    with tempfile.TemporaryFile("w+") as errors:
        pipe = subprocess.PIPE
        environ = own_environment(os.environ, options.get("api_key_env"))
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environ)
        line = _first_line(process)
        if not line:
            process.kill()
            code = process.wait()
            errors.seek(0)
            said = errors.read().strip()[-500:]
            raise RuntimeError(f"the demo server did not start (exit code {code}): {said}")
    hello = json.loads(line)
    return DemoProcess(hello["url"], hello["control"], hello["model"], machine, process)


def _first_line(process: subprocess.Popen[str]) -> str:
    """The line that says where it listens; empty when it ends or takes too long."""
    watchdog = threading.Timer(_READY_TIMEOUT_S, process.kill)
    watchdog.start()
    assert process.stdout is not None
    line = process.stdout.readline()
    watchdog.cancel()
    return line


def flags(options: dict[str, Any]) -> list[str]:
    """Options as words of the command line: False and None are left out, lists repeated."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            for item in value if isinstance(value, list | tuple) else (value,):
                words += (flag, str(item))
    return words


def _post(url: str, body: bytes) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with opener.open(request, timeout=5.0) as answer:
        result: dict[str, Any] = json.load(answer)
    return result
