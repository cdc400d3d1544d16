"""`llmtop [URL ...]`: watch servers, on the screen, as lines, or once."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmtop.commands.common import (
    EXIT_OK,
    Show,
    add_common,
    add_connection,
    base_settings,
    has_screen,
    health,
    live_machine,
    named_nodes,
    named_targets,
    print_line,
    render,
    silence_stdout,
)
from llmtop.contract.settings import DEFAULT_PORT, FleetAddress, Settings, Target, UsageError, parse_target
from llmtop.contract.units import clean

if TYPE_CHECKING:
    from llmtop.contract.snapshot import Snapshot

_QUOTED = r"(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`)"
_MATCHER = rf"\s*([A-Za-z_][A-Za-z0-9_]*|{_QUOTED})\s*(=~|!~|!=|=)\s*{_QUOTED}\s*"
ONCE_DEADLINE_S = 15.0
PROMETHEUS_PORT, FLEET_INTERVAL_S = 9090, 5.0
ONCE_INTERVAL_S = 5.0  # two polls must fit into the deadline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmtop` itself."""
    parser.epilog = f"commands: llmtop {' | '.join(parser.get_default('commands') or ())}   (each has --help)"
    parser.add_argument(
        "servers",
        nargs="*",
        metavar="URL",
        help="HOST:PORT, http(s)://…/prefix, unix:/path/of/a.sock, a name of the configuration, or "
        "ssh://[USER@]HOST[:PORT]: all that serves on another machine, with its memory and GPUs",
    )
    fleet = parser.add_argument_group("a fleet, as Prometheus sees it")
    fleet.add_argument(
        "--from-prometheus",
        metavar="URL",
        help="watch what this Prometheus (VictoriaMetrics, Thanos, Mimir) scrapes; its key by --api-key-env",
    )
    fleet.add_argument("--select", metavar="MATCHERS", help="only these of it, such as 'job=\"vllm\"'")
    fleet.add_argument("--tenant", metavar="NAME", help="of several that share it (X-Scope-OrgID)")
    net = parser.add_argument_group("connection")
    add_connection(net)
    net.add_argument(
        "--this-machine", action="store_true", help="show the memory and GPUs here beside servers that run elsewhere"
    )
    net.add_argument("--allow-remote-load", action="store_true", help="let the load button load public hosts")
    add_common(parser)


def run(args: argparse.Namespace, show: Show | None = None) -> int:
    """Watch the servers and machines named, else what is found here; `show` takes the place of the screen."""
    settings = base_settings(args)
    if args.from_prometheus is not None:
        return watch(args, _fleet(args, settings), show=show)
    if args.select is not None or args.tenant is not None:
        raise UsageError("--select and --tenant choose from a Prometheus: name it with --from-prometheus URL")
    nodes, servers = named_nodes(args, args.servers)
    _check_words(servers if args.servers else (), args.commands)
    if nodes:
        targets = named_targets(args, servers, alone=False) if servers else ()
        return watch(args, replace(settings, nodes=nodes, targets=targets), show=show)
    targets = named_targets(args, args.servers)
    found = replace(settings, targets=targets) if targets else _found_here(settings, args)
    return watch(args, found, show=show)


def _fleet(args: argparse.Namespace, settings: Settings) -> Settings:
    """A Prometheus in place of servers; the key of the environment is a server's, and none of its business."""
    from llmtop.commands.config import attach_key, check_certificates

    if args.servers:
        raise UsageError("--from-prometheus takes the place of servers: name either")
    if args.tenant is not None and not (args.tenant.isascii() and args.tenant.isprintable() and args.tenant):
        raise UsageError("--tenant must be a word that can be sent in a header")
    typed = args.from_prometheus.rstrip("/").removesuffix("/api/v1")
    target = parse_target(typed if "://" in typed or ":" in typed else f"{typed}:{PROMETHEUS_PORT}")
    target = replace(target, ca=args.ca, insecure=bool(args.insecure))
    check_certificates((target,))
    (target,) = attach_key((target,), os.environ, args.api_key_env) if args.api_key_env else (target,)
    select = (args.select or "").strip().removeprefix("{").removesuffix("}").strip().rstrip(",")
    if not re.fullmatch(rf"({_MATCHER}(,{_MATCHER})*)?", select):
        raise UsageError(f'--select takes matchers such as \'job="vllm",pod=~"a.*"\', not {clean(args.select, 60)!r}')
    interval = settings.interval_s if args.interval is not None else max(settings.interval_s, FLEET_INTERVAL_S)
    return replace(settings, fleet=FleetAddress(target, select, args.tenant), interval_s=interval)


def _check_words(words: Sequence[str], commands: Sequence[str]) -> None:
    """Raise UsageError for a bare word that is neither a configured server nor a host."""
    from llmtop.commands.config import load_user_config

    known = load_user_config().get("servers", {}) if words else {}
    for word in words:
        if word in known or not word.replace("-", "").replace("_", "").isalnum() or _resolves(word):
            continue
        close = difflib.get_close_matches(word, commands, 1)
        advice = f"did you mean llmtop {close[0]}?" if close else "write HOST:PORT or an address"
        raise UsageError(f"there is no command and no host {word!r}; {advice}")


def _resolves(host: str) -> bool:
    import socket

    try:
        return bool(socket.getaddrinfo(host, DEFAULT_PORT, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def _found_here(settings: Settings, args: argparse.Namespace) -> Settings:
    from llmtop.commands.config import attach_key
    from llmtop.session.poller import local_targets

    found = local_targets(settings)
    targets = attach_key(tuple(found or [Target(f"http://127.0.0.1:{DEFAULT_PORT}")]), os.environ, args.api_key_env)
    return replace(settings, targets=targets, found=True)


def watch(
    args: argparse.Namespace, settings: Settings, machine: Any = None, startup: Any = None, show: Show | None = None
) -> int:
    """Watch as asked: once, as lines, or on the screen (or what `show` puts in its place).

    `startup` is the log of a start-up to follow.
    """
    machine = live_machine(settings) if machine is None else machine
    if show is not None:
        if args.once or args.json or args.plain:
            raise UsageError("--once, --json and --plain are for a terminal")
        return show(settings, machine, startup)
    if args.once:
        return _once(settings, machine, args.json, args.plain)
    if args.json or args.plain or not has_screen():
        return _stream(settings, machine, args.json, startup)
    from llmtop.ui.main import run_ui

    return run_ui(settings, machine, startup)


def _once(settings: Settings, machine: Any, as_json: bool, as_line: bool) -> int:
    from llmtop.session.poller import Poller

    news = threading.Condition()
    latest: list[Any] = []

    def take(snapshot: Snapshot) -> None:
        with news:
            latest[:] = [snapshot, poller.settled]
            news.notify()

    settings = replace(settings, interval_s=min(settings.interval_s, ONCE_INTERVAL_S))
    poller = Poller(settings, machine, take)
    poller.start()
    deadline = time.monotonic() + ONCE_DEADLINE_S
    try:
        with news:
            while time.monotonic() < deadline and not (latest and latest[1]):
                news.wait(min(0.2, max(0.0, deadline - time.monotonic())))
                if poller.error is not None:
                    raise poller.error
    finally:  # also after Ctrl+C: what was opened elsewhere is closed
        poller.stop()
    if not latest:
        raise RuntimeError("no snapshot within the deadline")
    snapshot: Snapshot = latest[0]
    print_line(render(snapshot, as_json, as_line))
    if not as_json:
        _warn_of_files(snapshot)
    return health(snapshot)


def _stream(settings: Settings, machine: Any, as_json: bool, log: Any) -> int:
    from llmtop.machine.source import MachineTee
    from llmtop.session.poller import Poller
    from llmtop.warmup.control import WarmupControl

    done: list[BaseException | int] = []
    ended = threading.Event()

    def end(code: BaseException | int) -> None:
        done.append(code)
        ended.set()

    def take(snapshot: Snapshot) -> None:
        try:
            print_line(render(snapshot, as_json, True))
            if not as_json:
                _warn_of_files(snapshot)
        except BrokenPipeError:
            end(EXIT_OK)
        except UsageError as error:
            end(error)

    signal.signal(signal.SIGTERM, lambda *_: end(128 + signal.SIGTERM))
    signal.signal(signal.SIGHUP, lambda *_: end(128 + signal.SIGHUP))
    tee = MachineTee(machine)
    poller = Poller(settings, tee.branch(), take)
    startup = WarmupControl(tee, poller, settings, log)
    poller.start()
    if startup.wanted:
        startup.begin()
    try:
        while not ended.wait(0.2 if startup.active else 0.5):
            startup.step()
            if poller.error is not None:
                raise poller.error
    finally:
        startup.end()
        poller.stop()
    silence_stdout()
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


_warned: set[str] = set()


def _warn_of_files(snapshot: Snapshot) -> None:
    """Say once, where neither a screen nor JSON does, that a recording or another file cannot be written."""
    for source in snapshot.sources:
        if not source.ok and source.name in ("recording", "prometheus file") and source.name not in _warned:
            _warned.add(source.name)
            print(f"llmtop: {source.name}: {source.reason}", file=sys.stderr)
