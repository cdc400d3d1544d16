"""`llmtop warmup`: watch a start-up from its log, launch one, check one beforehand, or compare two."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from llmtop.commands.common import (
    add_connection,
    add_look,
    add_machine,
    base_settings,
    has_screen,
    live_machine,
    named_targets,
)
from llmtop.contract.secrets import KNOWN
from llmtop.contract.settings import DEFAULT_PORT, Target, UsageError
from llmtop.warmup import factory
from llmtop.warmup.check import make_plan, read_command
from llmtop.warmup.detached import detached_tool, published_port, start_container
from llmtop.warmup.evidence import evidence
from llmtop.warmup.launch import Launch
from llmtop.warmup.log_source import (
    LineSource,
    LogError,
    container,
    existing_file,
    file_lines,
    follow_file,
    journal,
    read_descriptor,
)
from llmtop.warmup.preflight import preflight
from llmtop.warmup.report import Report, compare, load, make_report, to_json, to_line, to_markdown
from llmtop.warmup.show import PlainView
from llmtop.warmup.startup import Startup
from llmtop.warmup.tracker import Tracker
from llmtop.warmup.watch import Watch

_STEP_S = 0.1
_FIRST_ROUND_S = 5.0
HERE = f"127.0.0.1:{DEFAULT_PORT}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmtop warmup`; what follows `--` is the command to start, `--once` reads the log that is there."""
    where = parser.add_argument_group("where the log comes from")
    where.add_argument(
        "--log", metavar="FILE", help="follow this file, - for a pipe; with a command: where to keep its log"
    )
    where.add_argument("--container", metavar="NAME", help="the log of a docker or podman container")
    where.add_argument("--journal", metavar="UNIT", help="the log of a systemd unit")
    where.add_argument("--url", help="the server's address, asked for /health until it answers")
    what = parser.add_argument_group("what to do")
    what.add_argument(
        "--check", action="store_true", help="only judge whether a start would succeed: exit 0, 1 or 3 (risky)"
    )
    what.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two reports (JSON) or logs side by side")
    what.add_argument(
        "--report", metavar="FILE", help="write the result: JSON for a name ending in .json, else Markdown"
    )
    what.add_argument("--reserve", type=float, metavar="GiB", help="memory that must stay free (default 3, unified 8)")
    add_connection(parser.add_argument_group("connection"))
    add_machine(parser.add_argument_group("the machine"))
    add_look(parser)
    parser.add_argument("command", nargs="*", metavar="-- CMD ...", help="the command to start and watch")


def run(args: argparse.Namespace) -> int:
    """Do what the flags say; returns the exit code."""
    KNOWN.add_command(args.command, os.environ)
    try:
        problem = conflict(args)
        if problem is not None:
            raise UsageError(problem)
        if args.report is not None:  # better known now than after a start-up
            os.close(_report(args.report))
        if args.compare:
            return _compare(Path(args.compare[0]), Path(args.compare[1]))
        if args.check:
            return _check(args)
        if args.once:
            return _once(args)
        screen = _wants_screen(args)
        if args.command and detached_tool(args.command) is not None:
            return _launch_container(args, screen)
        if args.command:
            return _launched_on_screen(args) if screen else _launch(args)
        return _on_screen(args) if screen else _follow(args)
    except LogError as error:
        raise UsageError(str(error)) from None


def _wants_screen(args: argparse.Namespace) -> bool:
    """A start-up is followed and nothing else was asked for; a pipe on stdin leaves no keys for a screen."""
    return has_screen() and not (args.json or args.plain or args.report or args.log == "-")


def _on_screen(args: argparse.Namespace) -> int:
    lines = line_source(args) if args.log or args.container or args.journal else None
    return _page(args, lines, HERE)


def _page(args: argparse.Namespace, lines: LineSource | None, url: str) -> int:
    """The warm-up page until it is left; the exit code."""
    from llmtop.ui.main import run_ui

    settings = base_settings(args, targets=_targets(args, url), startup=True)
    return run_ui(settings, live_machine(settings), lines)


def _launched_on_screen(args: argparse.Namespace) -> int:
    """The command's output goes to its log while the page is there, and to the terminal once it is left."""
    if shutil.which(args.command[0]) is None:
        raise UsageError(f"{args.command[0]}: No such file or directory")
    log = Path(args.log) if args.log else default_log()
    launch = Launch(args.command, log, lambda _: None, terminal=True)
    with _never_orphaned(launch):
        code = _page(args, launch, _address(args.command) or HERE)
        if launch.launched is None:
            return code
        launch.show(_writer(sys.stdout))
        launch.forward_signals()
        if code > 128:
            launch.forward(code - 128)
        elif launch.wait(0) is None:
            print(f"llmtop: {args.command[0]} goes on, its log is {log}; Ctrl+C ends it", file=sys.stderr)
        return _ended(launch)


def _ended(launch: Launch) -> int:
    """Wait for the command; its exit code."""
    while (code := launch.wait(1.0)) is None:
        continue
    return code


def _targets(args: argparse.Namespace, url: str | None) -> tuple[Target, ...]:
    """The server that the flags name, else the one at `url`."""
    return named_targets(args, [name]) if (name := args.url or url) else ()


def conflict(args: argparse.Namespace) -> str | None:
    """Why these flags do not go together, in words; None when they do."""
    sources = [name for name in ("container", "journal") if getattr(args, name)]
    if args.log and not args.command:
        sources.append("log")
    if len(sources) > 1:
        return f"--{sources[0]} and --{sources[1]} exclude each other"
    if args.command and (args.container or args.journal):
        return f"a command and --{sources[0]} exclude each other"
    if args.once and args.command and not args.check:
        return "--once reads a log that is there; a command is watched until it ends"
    if args.once and not sources and not args.check:
        return "--once needs --log, --container or --journal"
    if args.reserve is not None and not 0 <= args.reserve < math.inf:
        return "--reserve is a size in GiB"
    return None


# ------------------------------------------------------------------------------------------ finished logs


def _once(args: argparse.Namespace) -> int:
    tracker = Tracker()
    for text in _finished(args):
        tracker.feed(text)
    tracker.finish()
    report = _of(tracker.startup(), args.reserve)
    _give(report, args)
    return 0 if report.startup.state == "ready" else 1


def _of(startup: Startup, reserve: float | None = None) -> Report:
    return make_report(startup, evidence(startup), reserve)


def _finished(args: argparse.Namespace) -> Iterator[str]:
    if args.log and args.log != "-":
        yield from file_lines(Path(args.log))
        return
    source = line_source(args, follow=False)
    source.start()
    while not source.ended:
        lines = source.take()
        yield from (line.text for line in lines)
        if not lines:
            time.sleep(0.01)
    if source.error:
        raise LogError(source.error)


def _compare(a: Path, b: Path) -> int:
    try:
        text = compare(_report_or_log(a), _report_or_log(b), (a.stem, b.stem) if a.stem != b.stem else (str(a), str(b)))
    except ValueError as error:
        raise UsageError(str(error)) from None
    sys.stdout.write(text)
    return 0


def _report_or_log(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            is_report = file.read(1) == b"{"
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from error
    if is_report:
        return load(path)
    tracker = Tracker()
    for text in file_lines(path):
        tracker.feed(text)
    tracker.finish()
    return to_json(_of(tracker.startup()))


# ---------------------------------------------------------------------------------------------- preflight


def _check(args: argparse.Namespace) -> int:
    command = read_command(args.command)
    if command.bad_utilization is not None:
        raise UsageError(f"--gpu-memory-utilization {command.bad_utilization}: vLLM takes a number above 0 and up to 1")
    settings = base_settings(args)
    machine = live_machine(settings)
    machine.start()
    deadline = time.monotonic() + _FIRST_ROUND_S
    while not machine.ready() and time.monotonic() < deadline:
        time.sleep(0.05)
    plan = make_plan(machine.sample(), command, settings.procfs, settings.sysfs / "fs/cgroup")
    machine.stop()
    result = preflight(plan, args.reserve)
    if args.json:
        data: dict[str, object] = {"outcome": result.outcome, "text": result.text, "utilization": result.utilization}
        data |= {"arithmetic": result.arithmetic, "warnings": result.warnings}
        print(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    else:
        print(result.text)
        for line in (*result.arithmetic, *(f"note: {w}" for w in result.warnings)):
            print(f"  {line}")
    return result.exit_code


# ------------------------------------------------------------------------------------------- live watching


def line_source(args: argparse.Namespace, follow: bool = True) -> LineSource:
    """The log that the flags name; raises LogError."""
    if args.container:
        return container(args.container, follow)
    if args.journal:
        return journal(args.journal, follow)
    if args.log == "-":
        return read_descriptor(sys.stdin.fileno())
    return follow_file(existing_file(Path(args.log)))


def _follow(args: argparse.Namespace) -> int:
    has_log = bool(args.log or args.container or args.journal)
    return _until_over(args, make_watch(args, line_source(args) if has_log else None, None if has_log else HERE))


def _until_over(args: argparse.Namespace, watch: Watch) -> int:
    """Show a start-up until it is over; the exit code: 0 ready, 1 not, 130 for Ctrl+C."""
    view = PlainView(sys.stdout, args.json)
    watch.start()
    try:
        while not watch.done:
            watch.step()
            view.show(watch)
            time.sleep(_STEP_S)
    except KeyboardInterrupt:
        return 130
    finally:
        watch.stop()
        _end(watch, view, args)
    return 0 if watch.report().startup.state == "ready" else 1


def _launch_container(args: argparse.Namespace, screen: bool) -> int:
    """Start a container in the background and follow its log; it goes on when the start-up is over."""
    tool, command = detached_tool(args.command) or "docker", read_command(args.command)
    name = start_container(args.command)[:12]
    url = f"http://127.0.0.1:{published_port(args.command, command.port or DEFAULT_PORT)}"
    try:
        source = container(name)
    except LogError as error:
        raise LogError(f"container {name} was started, but {error}") from error
    code = _page(args, source, url) if screen else _until_over(args, make_watch(args, source, url))
    if code == 130 and _asked_to_stop(name):
        subprocess.run([tool, "stop", name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    elif code in (0, 130) and not source.ended:
        print(f"llmtop: container {name} goes on; `{tool} stop {name}` ends it", file=sys.stderr)
    return code


def _asked_to_stop(name: str) -> bool:
    """Ctrl+C ends the watching; the container only when the person at the terminal says so."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"stop the container {name} as well? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False


def _launch(args: argparse.Namespace) -> int:
    output = sys.stderr if args.json else sys.stdout
    log = Path(args.log) if args.log else default_log()
    launch = Launch(args.command, log, _writer(output), output.isatty())
    watch = make_watch(args, launch, _address(args.command))
    view = PlainView(sys.stdout if args.json else sys.stderr, args.json, "llmtop: ")
    launch.forward_signals()
    try:
        watch.start()
    except OSError as error:
        watch.stop()
        raise UsageError(str(error) if error.filename == str(log) else f"{args.command[0]}: {error.strerror}") from None
    view.say(f"the full log is kept in {log}")
    with _never_orphaned(launch):
        while not watch.done:
            watch.step()
            view.show(watch)
            time.sleep(_STEP_S)
        watch.stop()
        _end(watch, view, args)
        return _served(launch, watch, view, args)


def _served(launch: Launch, watch: Watch, view: PlainView, args: argparse.Namespace) -> int:
    """Wait for the command; one that is ended from outside soon after it was ready is not up."""
    code = _ended(launch)
    if code and not launch.told and watch.report().startup.state == "ready":
        watch.ended()
        _end(watch, view, args)
        sender = "ended by a signal that did not come from here (earlyoom, an orchestrator, kill)"
        view.say(f"{sender if code > 128 else 'ended by itself'}: exit code {code}")
    return code


def make_watch(args: argparse.Namespace, source: LineSource | None, url: str | None) -> Watch:
    """The watch that the flags describe; the screen uses it too."""
    targets = _targets(args, url)
    settings = base_settings(args, targets=targets)
    machine = live_machine(settings, factory.FAST_HZ)
    return factory.make_watch(settings, machine, source, next(iter(targets), None))


def default_log() -> Path:
    """Where the log of a launched command is kept: the user's state directory."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return state / "llmtop" / time.strftime("warmup-%Y%m%d-%H%M%S.log")


def _address(words: list[str]) -> str | None:
    """The address to ask for /health, when the command line looks like a server's."""
    command = read_command(words)
    if command.port is None and not any("vllm" in word for word in words):
        return None
    host = "127.0.0.1" if command.host in (None, "0.0.0.0", "::", "localhost") else command.host
    return f"http://{host}:{published_port(words, command.port or DEFAULT_PORT)}"


def _writer(stream: TextIO) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        try:
            stream.buffer.write(data)
            stream.buffer.flush()
        except (OSError, ValueError):  # nobody reads any more; the command goes on
            return

    return write


@contextmanager
def _never_orphaned(launch: Launch) -> Iterator[None]:
    """An error in llmtop must not leave a server running that nobody watches."""
    try:
        yield
    except BaseException:
        launch.forward(signal.SIGTERM)
        raise


def _end(watch: Watch, view: PlainView, args: argparse.Namespace) -> None:
    report = watch.report()
    view.end(report)
    try:
        _write(report, args.report)
    except UsageError as error:  # the command goes on
        print(f"llmtop: {error}", file=sys.stderr)


def _give(report: Report, args: argparse.Namespace) -> None:
    if args.json:
        print(to_line(report))
    else:
        sys.stdout.write(to_markdown(report))
    _write(report, args.report)


def _write(report: Report, name: str | None) -> None:
    if name is None:
        return
    text = to_line(report) + "\n" if name.endswith(".json") else to_markdown(report)
    try:
        with open(_report(name, os.O_TRUNC), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write the report {name}: {error.strerror}") from None


def _report(name: str, flags: int = 0) -> int:
    """The report's file, of mode 0600; raises UsageError where there can be none."""
    try:
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | flags, 0o600)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write the report {name!r}: {getattr(error, 'strerror', error)}") from None
