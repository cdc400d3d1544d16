"""`llmtop proxy`: stand before a server that counts nothing, and show what passes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

from llmtop.commands.common import EXIT_OK, add_common, add_connection, base_settings, has_screen, named_targets
from llmtop.contract.secrets import own_environment
from llmtop.contract.settings import Target, UsageError

HERE = "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmtop proxy`."""
    parser.epilog = "example: llmtop proxy :9000 http://127.0.0.1:11434, then send requests to 127.0.0.1:9000"
    parser.add_argument("listen", metavar="[HOST]:PORT", help="where clients ask; without a host on this machine alone")
    parser.add_argument("upstream", metavar="URL", help="the OpenAI- or Ollama-compatible server that answers")
    parser.add_argument("--serve", action="store_true", help="only pass on: watch it with `llmtop :PORT`")
    add_connection(parser.add_argument_group("connection"))
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Pass requests on until the screen is left, or a signal comes."""
    host, port = _place(args.listen)
    if args.api_key_env:
        raise UsageError("llmtop proxy passes on the keys that clients send; it has none of its own")
    (upstream,) = named_targets(args, [args.upstream])
    if upstream.host in (host, HERE, "localhost", "::1") and upstream.port == port:
        raise UsageError(f"{args.upstream} is where the proxy itself would listen")
    settings = base_settings(args)
    with _served(host, port, upstream) as (process, listening):
        address = f"http://{HERE if host in ('0.0.0.0', '::') else f'[{host}]' if ':' in host else host}:{listening}"
        if args.serve or not (has_screen() or args.once or args.json or args.plain):
            print(f"llmtop proxy: {address} passes on to {upstream.url}; llmtop {address} shows it", flush=True)
            return _wait(process)
        from llmtop.commands.watch import watch

        return watch(args, replace(settings, targets=(Target(address),)))


def _place(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UsageError(f"{listen!r}: write :PORT or HOST:PORT, with a port of 0 (a free one) to 65535")
    return host.strip("[]") or HERE, int(port)


@contextlib.contextmanager
def _served(host: str, port: int, upstream: Target) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The proxy in a process of its own, so that a screen that is drawn delays nothing; it ends with this one."""
    command = [sys.executable, "-P", "-m", "llmtop.proxy", host, str(port), upstream.url, "--with-parent"]
    command += ["--ca", str(upstream.ca)] if upstream.ca else []
    command += ["--insecure"] if upstream.insecure else []
    pipe, environ = subprocess.PIPE, own_environment(os.environ)
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True, env=environ)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline() or '{"error": "the proxy did not start"}')
        if "error" in said:
            raise UsageError(said["error"])
        yield process, said["port"]
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(3.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[str]) -> int:
    with contextlib.suppress(KeyboardInterrupt):
        return process.wait()
    return EXIT_OK
