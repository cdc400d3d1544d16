"""The command line: reads flags, chooses between screen, table, lines and JSON. Imports the UI only for the screen."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from llmtop import __version__
from llmtop.commands.config import (
    attach_key,
    check_certificates,
    checked_interval,
    load_user_config,
    resolve_targets,
)
from llmtop.contract.settings import DEFAULT_PORT, INTERVAL_S, Settings, Target, UsageError

EXIT_OK, EXIT_UNHEALTHY, EXIT_USAGE, EXIT_CRASH = 0, 1, 2, 70
ONCE_DEADLINE_S = 15.0
ONCE_INTERVAL_S = 5.0  # two polls must fit into the deadline
THEMES = ("textual-dark", "textual-light")
Show = Callable[[Settings, Any, Any], int]


class CommandParser(argparse.ArgumentParser):
    """One clear line instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run llmtop and leave the process; quitting never waits for a driver or a resolver that hangs."""
    code = run(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (BrokenPipeError, ValueError, OSError):
            pass
    os._exit(code)


def run(argv: Sequence[str]) -> int:
    """Run llmtop and return its exit code."""
    try:
        return _dispatch(list(argv))
    except UsageError as error:
        print(f"llmtop: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_OK
    except SystemExit as error:  # argparse after --help and --version
        return error.code if isinstance(error.code, int) else EXIT_OK
    except Exception:
        traceback.print_exc()
        return EXIT_CRASH


def _dispatch(argv: list[str]) -> int:
    command = _COMMANDS.get(argv[0]) if argv else None
    if command is not None:
        return command(argv[1:])
    return watch_servers(argv)


def add_look(parser: argparse.ArgumentParser) -> None:
    """The flags that choose between screen, table, lines and JSON, and how the screen looks."""
    out = parser.add_argument_group("output")
    out.add_argument("--once", action="store_true", help="print the state once and end")
    out.add_argument("--json", action="store_true", help="one JSON object per line (see `llmtop schema`)")
    out.add_argument("--plain", action="store_true", help="one line of text per interval, no screen")
    out.add_argument("--ascii", action="store_true", default=None, help="no block characters")
    out.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    out.add_argument("--theme", metavar="NAME", help="colour theme of the screen")


def add_common(parser: argparse.ArgumentParser) -> None:
    """The flags that every watching command has."""
    add_look(parser)
    out = parser.add_argument_group("files")
    out.add_argument("--record", metavar="FILE", type=Path, help="also write every snapshot to FILE (JSON Lines)")
    out.add_argument("--record-raw", action="store_true", help="with --record: the raw metrics pages too")
    out.add_argument(
        "--prometheus-file", metavar="PATH", type=Path, help="also keep the last snapshot in PATH for node_exporter"
    )
    how = parser.add_argument_group("measuring")
    how.add_argument("-d", "--interval", type=float, metavar="S", help="seconds between polls, 0.2 to 60 (1)")
    how.add_argument(
        "--memory", choices=("auto", "unified", "discrete"), help="the kind of GPU memory, where it is not seen"
    )
    how.add_argument("--procfs", type=Path, default=Path("/proc"), metavar="DIR", help="another /proc")
    how.add_argument("--sysfs", type=Path, default=Path("/sys"), metavar="DIR", help="another /sys")
    parser.add_argument("--version", action="version", version=f"llmtop {__version__}")


def _network(parser: argparse.ArgumentParser) -> None:
    net = parser.add_argument_group("connection")
    net.add_argument("--api-key-env", metavar="NAME", help="environment variable with the server's API key")
    net.add_argument("--ca", type=Path, metavar="FILE", help="certificate authority to trust for https")
    net.add_argument("--insecure", action="store_true", help="do not check certificates")
    net.add_argument(
        "--this-machine", action="store_true", help="show the memory and GPUs here beside servers that run elsewhere"
    )
    net.add_argument("--allow-remote-load", action="store_true", help="let the load button load public hosts")


def _watch_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="llmtop",
        description="What htop is for processes, for LLM serving: KV cache, memory headroom, queue, tokens per second.",
        epilog="commands: llmtop demo [MACHINE] | load URL | warmup | replay FILE | export FILE | web | schema"
        "   (each has --help)",
    )
    parser.add_argument(
        "servers", nargs="*", metavar="URL", help="HOST:PORT, http(s)://…/prefix or a name of the configuration"
    )
    _network(parser)
    add_common(parser)
    return parser


def watch_servers(argv: list[str], show: Show | None = None) -> int:
    """`llmtop [URL ...]`; `show` takes the place of the screen."""
    args = _watch_parser().parse_args(argv)
    return watch(args, _settings(args), show=show)


def _settings(args: argparse.Namespace) -> Settings:
    """Flags beat the environment, the environment beats the file."""
    config = load_user_config()
    names: Sequence[str] = args.servers or config.get("watch", [])
    targets = resolve_targets(names, config, os.environ, args.api_key_env)
    targets = tuple(
        replace(target, ca=args.ca or target.ca, insecure=args.insecure or target.insecure) for target in targets
    )
    base = base_settings(args, config)
    check_certificates(targets)
    base = replace(base, allow_remote_load=args.allow_remote_load, this_machine=args.this_machine)
    return replace(base, targets=targets) if targets else _found_here(base, args)


def base_settings(args: argparse.Namespace, config: dict[str, Any]) -> Settings:
    """What does not depend on the servers."""
    interval = args.interval if args.interval is not None else config.get("interval", INTERVAL_S)
    memory = args.memory or config.get("memory", "auto")
    if memory not in ("auto", "unified", "discrete"):
        raise UsageError(f"memory must be auto, unified or discrete, not {memory!r}")
    return Settings(
        interval_s=checked_interval(interval),
        procfs=args.procfs,
        sysfs=args.sysfs,
        memory=memory,
        ascii=config.get("ascii", False) if args.ascii is None else args.ascii,
        mouse=config.get("mouse", True) and not args.no_mouse,
        theme=args.theme or os.environ.get("LLMTOP_THEME") or config.get("theme"),
        record=args.record,
        record_raw=args.record_raw,
        prometheus_file=args.prometheus_file,
    )


def _found_here(settings: Settings, args: argparse.Namespace) -> Settings:
    from llmtop.session.poller import local_targets

    found = local_targets(settings) or [Target(f"http://127.0.0.1:{DEFAULT_PORT}")]
    targets = attach_key(tuple(found), os.environ, args.api_key_env)
    return replace(settings, targets=targets, found=True)


def watch(
    args: argparse.Namespace,
    settings: Settings,
    machine: Any = None,
    startup: Any = None,
    show: Show | None = None,
) -> int:
    """Watch as asked: once, as lines, or on the screen (or what `show` puts in its place).

    `startup` is the log of a start-up to follow.
    """
    if machine is None:
        from llmtop.machine.live import LiveMachine

        machine = LiveMachine(settings.procfs, settings.sysfs, settings.memory)
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


def has_screen() -> bool:
    """Whether a full screen can be drawn: a terminal for keys and for drawing that is not dumb."""
    ttys = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.__stderr__))
    return ttys and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def _once(settings: Settings, machine: Any, as_json: bool, as_line: bool) -> int:
    from llmtop.session.poller import Poller

    news = threading.Condition()
    latest: list[Any] = []

    def take(snapshot: Any) -> None:
        with news:
            latest[:] = [snapshot, poller.settled]
            news.notify()

    settings = replace(settings, interval_s=min(settings.interval_s, ONCE_INTERVAL_S))
    poller = Poller(settings, machine, take)
    poller.start()
    deadline = time.monotonic() + ONCE_DEADLINE_S
    with news:
        while time.monotonic() < deadline and not (latest and latest[1]):
            news.wait(min(0.2, max(0.0, deadline - time.monotonic())))
            if poller.error is not None:
                raise poller.error
    poller.stop()
    if not latest:
        raise RuntimeError("no snapshot within the deadline")
    print_line(render(latest[0], as_json, as_line))
    if not as_json:
        _warn_of_files(latest[0])
    return health(latest[0])


def render(snapshot: Any, as_json: bool, as_line: bool) -> str:
    """A snapshot as JSON, as a line or as a table."""
    if as_json:
        from llmtop.contract.codec import to_json

        return to_json(snapshot)
    from llmtop.commands import text as report

    return report.line(snapshot) if as_line else report.table(snapshot)


def health(snapshot: Any) -> int:
    """0 when every watched server is well; 1 when one is not or none was found."""
    servers = snapshot.servers
    return EXIT_OK if servers and all(server.state.healthy for server in servers) else EXIT_UNHEALTHY


def print_line(text: str) -> None:
    """Write a line as UTF-8, at once; raises BrokenPipeError when the reader has gone, UsageError when it cannot."""
    if sys.stdout is None:
        raise UsageError("standard output is closed; redirect it to a file or /dev/null")
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _silence_stdout()
        raise UsageError(f"cannot write to standard output: {error.strerror}") from None


def _stream(settings: Settings, machine: Any, as_json: bool, log: Any) -> int:
    from llmtop.machine.source import MachineTee
    from llmtop.session.poller import Poller
    from llmtop.warmup.control import WarmupControl

    done: list[BaseException | int] = []
    ended = threading.Event()

    def end(code: BaseException | int) -> None:
        done.append(code)
        ended.set()

    def take(snapshot: Any) -> None:
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
    while not ended.wait(0.2 if startup.active else 0.5):
        startup.step()
        if poller.error is not None:
            raise poller.error
    startup.end()
    poller.stop()
    _silence_stdout()
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


_warned: set[str] = set()


def _warn_of_files(snapshot: Any) -> None:
    """Say once, where neither a screen nor JSON does, that a recording or another file cannot be written."""
    for source in snapshot.sources:
        if not source.ok and source.name in ("recording", "prometheus file") and source.name not in _warned:
            _warned.add(source.name)
            print(f"llmtop: {source.name}: {source.reason}", file=sys.stderr)


def _silence_stdout() -> None:
    """After a closed pipe: let the interpreter's own flush go nowhere."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def _schema(argv: list[str]) -> int:
    parser = CommandParser(prog="llmtop schema", description="Print the JSON Schema of one line of --json.")
    parser.parse_args(argv)
    import json

    from llmtop.contract.codec import json_schema

    print_line(json.dumps(json_schema(), indent=2))
    return EXIT_OK


def _replay(argv: list[str]) -> int:
    from llmtop.commands import replay as replay_command

    return replay_command.run(argv)


def _export(argv: list[str]) -> int:
    from llmtop.commands import export

    return export.run(argv)


def _demo(argv: list[str]) -> int:
    from llmtop.commands import demo as demo_command

    return demo_command.run(argv)


def _load(argv: list[str]) -> int:
    from llmtop.commands import load as cli

    parser = CommandParser(
        prog="llmtop load", description="Put a server under load and find how many users it carries."
    )
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(argv))


def _warmup(argv: list[str]) -> int:
    from llmtop.commands import warmup_screen as warmup_command

    return warmup_command.run(argv)


def _web(argv: list[str]) -> int:
    from llmtop.commands import web as cli

    return cli.run(argv)


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "schema": _schema,
    "demo": _demo,
    "load": _load,
    "warmup": _warmup,
    "replay": _replay,
    "export": _export,
    "web": _web,
}
