"""What the commands share: flags, the only builder of `Settings`, and lines of text as output."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from llmtop import __version__
from llmtop.contract.settings import INTERVAL_S, NodeAddress, Settings, Target, UsageError

if TYPE_CHECKING:
    from llmtop.contract.snapshot import Snapshot

EXIT_OK, EXIT_UNHEALTHY, EXIT_USAGE, EXIT_CRASH = 0, 1, 2, 70
THEMES = (  # of the screen, which is not imported to check a word
    *("ansi-dark", "ansi-light", "atom-one-dark", "atom-one-light", "catppuccin-frappe", "catppuccin-latte"),
    *("catppuccin-macchiato", "catppuccin-mocha", "dracula", "flexoki", "gruvbox", "llmtop", "llmtop-ansi"),
    *("llmtop-light", "llmtop-projector", "monokai", "nord", "rose-pine"),
    *("rose-pine-dawn", "rose-pine-moon", "solarized-dark", "solarized-light", "textual-dark", "textual-light"),
    "tokyo-night",
)
Show = Callable[[Settings, Any, Any], int]


class CommandParser(argparse.ArgumentParser):
    """One clear line instead of a page of usage, and no abbreviated flags; `arrange` orders words before parsing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.arrange: Callable[[Sequence[str]], Sequence[str]] = list

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


# flags


def add_look(parser: argparse.ArgumentParser) -> None:
    """The flags that choose between screen, table, lines and JSON, and how the screen looks."""
    out = parser.add_argument_group("output")
    out.add_argument("--once", action="store_true", help="print the state once and end")
    out.add_argument("--json", action="store_true", help="one JSON object per line (see `llmtop schema`)")
    out.add_argument("--plain", action="store_true", help="one line of text per interval, no screen")
    out.add_argument("--ascii", action="store_true", default=None, help="no block characters")
    out.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    out.add_argument("--theme", metavar="NAME", help="colour theme of the screen")
    parser.add_argument("--version", action="version", version=f"llmtop {__version__}")


def add_common(parser: argparse.ArgumentParser) -> None:
    """The flags that every watching command has."""
    add_look(parser)
    out = parser.add_argument_group("files")
    out.add_argument("--record", metavar="FILE", type=Path, help="also write every snapshot to FILE (JSON Lines)")
    out.add_argument("--record-raw", action="store_true", help="with --record: the raw metrics pages too")
    out.add_argument(
        "--prometheus-file", metavar="PATH", type=Path, help="also keep the last snapshot in PATH for node_exporter"
    )
    page = parser.add_argument_group("a page for Prometheus")
    page.add_argument(
        "--export-port", type=int, metavar="PORT", help="serve /metrics on PORT while watching (0: any free one)"
    )
    page.add_argument("--export-host", default="127.0.0.1", metavar="ADDRESS", help="listen there (127.0.0.1)")
    how = parser.add_argument_group("measuring")
    how.add_argument("-d", "--interval", type=float, metavar="S", help="seconds between polls, 0.2 to 60 (1)")
    add_machine(how)


def add_machine(group: Any) -> None:
    """The flags that say where the machine is read."""
    group.add_argument(
        "--memory", choices=("auto", "unified", "discrete"), help="the kind of GPU memory, where it is not seen"
    )
    group.add_argument("--procfs", type=Path, metavar="DIR", help="another /proc")
    group.add_argument("--sysfs", type=Path, metavar="DIR", help="another /sys")


def add_connection(group: Any) -> None:
    """The flags that say how a server is reached."""
    group.add_argument("--api-key-env", metavar="NAME", help="environment variable with the server's API key")
    group.add_argument("--ca", type=Path, metavar="FILE", help="certificate authority to trust for https")
    group.add_argument("--insecure", action="store_true", help="do not check certificates")


def add_recording(parser: argparse.ArgumentParser) -> None:
    """The recording that a command reads."""
    parser.add_argument("file", type=Path, metavar="FILE", help="made with --record, the key r, or --json")
    parser.add_argument(
        "--reread", action="store_true", help="read the pages of --record-raw anew, as this version does"
    )


# settings


def base_settings(args: argparse.Namespace, **more: Any) -> Settings:
    """What the flags say, else the environment, else the configuration file; a command may lack any of the flags."""
    from llmtop.commands.config import checked_interval, load_user_config

    config, given = load_user_config(), vars(args)

    def pick(name: str, default: Any) -> Any:
        value = given.get(name)
        return config.get(name, default) if value is None else value

    memory = pick("memory", "auto")
    if memory not in ("auto", "unified", "discrete"):
        raise UsageError(f"memory must be auto, unified or discrete, not {memory!r}")
    theme = args.theme if given.get("theme") else os.environ.get("LLMTOP_THEME") or config.get("theme")
    if theme and theme not in THEMES:
        raise UsageError(f"there is no theme {theme!r}; there are {', '.join(THEMES)}")
    settings = Settings(
        interval_s=checked_interval(pick("interval", INTERVAL_S)),
        procfs=given.get("procfs") or Path("/proc"),
        sysfs=given.get("sysfs") or Path("/sys"),
        memory=memory,
        ascii=pick("ascii", False),
        mouse=config.get("mouse", True) and not given.get("no_mouse"),
        theme=theme,
        record=given.get("record"),
        record_raw=given.get("record_raw", False),
        prometheus_file=given.get("prometheus_file"),
        export=_export(given),
        allow_remote_load=given.get("allow_remote_load", False),
        this_machine=given.get("this_machine", False),
        reserve_gib=given.get("reserve"),
    )
    return replace(settings, **more)


def _export(given: Mapping[str, Any]) -> tuple[str, int] | None:
    """Where the page for Prometheus is served; raises UsageError for a port that is none, or that nobody could read."""
    port = given.get("export_port")
    if port is None:
        return None
    if not 0 <= port <= 65535:
        raise UsageError("--export-port must be 0 to 65535")
    if given.get("once"):
        raise UsageError("--export-port serves a page while llmtop watches; leave out --once")
    return given["export_host"], port


def named_targets(args: argparse.Namespace, names: Sequence[str], *, alone: bool = True) -> tuple[Target, ...]:
    """The servers named, each with its own key and certificate; without names those of the configuration file.

    Beside nodes they are not `alone`, and the key of the environment is nobody's.
    """
    from llmtop.commands.config import check_certificates, load_user_config, resolve_targets

    config = load_user_config()
    found = resolve_targets(names or config.get("watch", []), config, os.environ, args.api_key_env, alone=alone)
    targets = tuple(replace(t, ca=args.ca or t.ca, insecure=args.insecure or t.insecure) for t in found)
    check_certificates(targets)
    return targets


def named_nodes(args: argparse.Namespace, names: Sequence[str]) -> tuple[tuple[NodeAddress, ...], tuple[str, ...]]:
    """The machines to be read by ssh among what was named, and the other names."""
    from llmtop.commands.config import load_user_config, resolve_nodes

    config = load_user_config()
    return resolve_nodes(names or config.get("watch", []), config, os.environ, args.api_key_env)


def live_machine(settings: Settings, hertz: float | None = None) -> Any:
    """This machine, read as the settings say."""
    from llmtop.machine.live import LiveMachine

    where = (settings.procfs, settings.sysfs, settings.memory)
    return LiveMachine(*where) if hertz is None else LiveMachine(*where, hertz)


# output


def has_screen() -> bool:
    """Whether a full screen can be drawn: a terminal for keys and for drawing that is not dumb."""
    ttys = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.__stderr__))
    return ttys and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def render(snapshot: Snapshot, as_json: bool, as_line: bool) -> str:
    """A snapshot as JSON, as a line or as a table."""
    if as_json:
        from llmtop.contract.codec import to_json

        return to_json(snapshot)
    from llmtop.commands import text as report

    return report.line(snapshot) if as_line else report.table(snapshot)


def health(snapshot: Snapshot) -> int:
    """0 when every watched server is well; 1 when one is not or none was found."""
    servers = snapshot.servers
    return EXIT_OK if servers and all(server.healthy for server in servers) else EXIT_UNHEALTHY


def print_line(text: str) -> None:
    """Write a line as UTF-8, at once; raises BrokenPipeError when the reader has gone, UsageError when it cannot.

    Past Python's own buffer, whose lock a write into a full pipe would hold until somebody reads.
    """
    if sys.stdout is None:
        raise UsageError("standard output is closed; redirect it to a file or /dev/null")
    data = text.encode("utf-8", "replace") + b"\n"
    try:
        sys.stdout.flush()
        _write(sys.stdout.fileno(), data)
    except BrokenPipeError:
        raise
    except OSError as error:
        silence_stdout()
        raise UsageError(f"cannot write to standard output: {error.strerror}") from None


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # somebody made the pipe non-blocking
            select.select((), (fd,), ())


def silence_stdout() -> None:
    """After a closed pipe: let the interpreter's own flush go nowhere."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass
