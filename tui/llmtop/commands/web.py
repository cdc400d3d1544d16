"""`llmtop web`: flags of its own first, then whatever `llmtop` or `llmtop demo` would be given."""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
from collections.abc import Sequence
from typing import Any

from llmtop.commands import demo, watch
from llmtop.commands.common import CommandParser, Show
from llmtop.contract.settings import Settings, UsageError

EXTRA = "llmtop web needs the package textual-serve: pip install 'llmtop-monitor[web]'"
_VALUES = ("--host", "--port", "--tabs")
_SWITCHES = ("--allow-load", "-h", "--help")
MOST_TABS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmtop web`; the rest is what it shows."""
    assert isinstance(parser, CommandParser)
    parser.arrange = arranged
    parser.usage = (
        "llmtop web [--host ADDRESS] [--port N] [--tabs N] [--allow-load] [URL ... | demo ...] [llmtop flags]"
    )
    parser.epilog = "from another machine: ssh -L 8090:127.0.0.1:8090 HOST, then open the URL there"
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="listen on this address (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8090, metavar="N", help="port, 0 for a free one (8090)")
    parser.add_argument("--tabs", type=int, default=8, metavar="N", help="at most so many tabs at once (8)")
    parser.add_argument("--allow-load", action="store_true", help="let whoever has the URL start load tests")
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes; the exit code."""
    if importlib.util.find_spec("textual_serve") is None:
        raise UsageError(EXTRA)
    if not 1 <= args.tabs <= MOST_TABS:
        raise UsageError(f"--tabs must be 1 to {MOST_TABS}")
    if not 0 <= args.port <= 65535:
        raise UsageError("--port must be 0 to 65535")
    _check_host(args.host)

    def show(settings: Settings, machine: Any, startup: Any) -> int:
        from llmtop.web.server import WebOptions, serve

        return serve(settings, machine, WebOptions(args.host, args.port, args.tabs, args.allow_load), startup)

    return _watch(args.rest, args.commands, show)


def _watch(rest: list[str], commands: Sequence[str], show: Show) -> int:
    name = rest[0] if rest and rest[0] in commands else None
    if name not in (None, "demo"):
        raise UsageError(f"llmtop web shows servers or the demo, not {name}")
    add, run_it = (demo.add_arguments, demo.run) if name else (watch.add_arguments, watch.run)
    parser = CommandParser(prog="llmtop web demo" if name else "llmtop web")
    parser.set_defaults(commands=commands)
    add(parser)
    return run_it(parser.parse_args(rest[1:] if name else rest), show)


def arranged(argv: Sequence[str]) -> list[str]:
    """The words with a `--` between those of `llmtop web` and the rest."""
    own, rest = split(argv)
    return [*own, "--", *rest]


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(flags of `llmtop web`, the rest): its own come first, so that those of others keep their meaning."""
    place = 0
    while place < len(argv):
        word = argv[place]
        if word in _VALUES:
            place += 2
        elif word in _SWITCHES or word.startswith(tuple(f"{name}=" for name in _VALUES)):
            place += 1
        else:
            break
    return list(argv[:place]), list(argv[place:])


def _check_host(host: str) -> None:
    """One address or name: every request is asked for it."""
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = not host
    if everywhere:
        raise UsageError("--host takes the one address under which the page is opened")
