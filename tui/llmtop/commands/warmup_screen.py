"""`llmtop warmup`: on a terminal a followed start-up opens on the warm-up page, everything else is text."""

from __future__ import annotations

import argparse
from dataclasses import replace

from llmtop.cli import CommandParser, has_screen
from llmtop.commands import warmup as cli
from llmtop.contract.settings import DEFAULT_PORT, Settings, parse_target


def run(argv: list[str]) -> int:
    """Run `llmtop warmup`; the exit code."""
    parser = CommandParser(prog="llmtop warmup", description="Watch a start-up and see how close it comes to an OOM.")
    cli.add_arguments(parser)
    args = parser.parse_args(argv)
    return _on_screen(args) if _wants_screen(args) and has_screen() else cli.run(args)


def _wants_screen(args: argparse.Namespace) -> bool:
    """A log is followed and nothing else was asked for; a pipe on stdin leaves no keys for a screen."""
    as_text = args.once or args.json or args.plain or args.check or args.compare or args.command or args.report
    return not as_text and args.log != "-"


def _on_screen(args: argparse.Namespace) -> int:
    from llmtop.machine.live import LiveMachine
    from llmtop.ui.main import run_ui
    from llmtop.warmup.log_source import LogError

    problem = cli.conflict(args)
    if problem is not None:
        return cli.fail(problem)
    try:
        lines = cli.line_source(args) if args.log or args.container or args.journal else None
    except LogError as error:
        return cli.fail(str(error))
    target = parse_target(args.url or f"127.0.0.1:{DEFAULT_PORT}")
    settings = Settings((target,), procfs=args.procfs, sysfs=args.sysfs, memory=args.memory, startup=True)
    settings = replace(settings, reserve_gib=args.reserve)
    machine = LiveMachine(args.procfs, args.sysfs, args.memory)
    return run_ui(settings, machine, lines)
