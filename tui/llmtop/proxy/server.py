"""Listens, and the process that does nothing else: whoever shows its figures must not slow down what passes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from llmtop.net.connection import Connector, Origin
from llmtop.net.loop import loop_factory
from llmtop.proxy.relay import ClientSide, Relay


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512)


async def serve(sock: socket.socket, upstream: str, ca: Path | None, insecure: bool, stop: asyncio.Event) -> None:
    """Pass requests on until `stop` is set."""
    connector = Connector(Origin.parse(upstream), ca=ca, insecure=insecure, pin=False)
    relay = Relay(connector.origin, connector.dial)
    server = await asyncio.get_running_loop().create_server(lambda: ClientSide(relay), sock=sock)
    try:
        await stop.wait()
    finally:
        server.close()
        relay.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT, or the end of stdin where `--with-parent` says so."""
    parser = argparse.ArgumentParser(prog="llmtop proxy")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("upstream")
    parser.add_argument("--ca", type=Path)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--with-parent", action="store_true")
    args = parser.parse_args(argv)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        sock = listen(args.host, args.port)
    except OSError as error:
        print(json.dumps({"error": f"{args.host}:{args.port}: {error.strerror or error}"}), flush=True)
        return 2
    if args.with_parent:
        threading.Thread(target=_wait_for_the_end, args=(loop, stop), daemon=True).start()
    print(json.dumps({"port": sock.getsockname()[1]}), flush=True)
    await serve(sock, args.upstream, args.ca, args.insecure, stop)
    return 0


def _wait_for_the_end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    sys.stdin.read()
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stop.set)
