"""`llmtop replay`: a recording on the screen, or as table, lines or JSON."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from llmtop.cli import EXIT_OK, CommandParser, add_look, base_settings, has_screen, health, print_line, render
from llmtop.commands.config import load_user_config
from llmtop.contract.settings import UsageError
from llmtop.contract.snapshot import Snapshot
from llmtop.recording.play import LONGEST_GAP_S, SPEEDS
from llmtop.recording.read import Recording, open_recording
from llmtop.recording.reread import reread


def run(argv: list[str]) -> int:
    """Replay a recording; the exit code."""
    args = _parser().parse_args(argv)
    if args.speed is not None and not SPEEDS[0] <= args.speed <= SPEEDS[-1]:
        raise UsageError(f"--speed must be {SPEEDS[0]:g} to {SPEEDS[-1]:g}, not {args.speed:g}")
    recording = open_recording(args.file, reread if args.reread else None)
    at = recording.index_of(args.at) if args.at is not None else None
    lines = args.once or args.json or args.plain or not has_screen()
    if not lines:
        from llmtop.ui.main import run_replay

        settings = replace(base_settings(args, load_user_config()), interval_s=recording.pace_s)
        return run_replay(settings, recording, at or 0, args.speed or 1.0)
    for note in recording.notes:
        print(f"llmtop: {args.file}: {note}", file=sys.stderr)
    if args.once:
        snapshot = recording.snapshot(len(recording) - 1 if at is None else at)
        print_line(render(snapshot, args.json, args.plain))
        return health(snapshot)
    for snapshot in _played(recording, at or 0, args.speed):
        print_line(render(snapshot, args.json, True))
    return EXIT_OK


def _played(recording: Recording, at: int, speed: float | None) -> Iterator[Snapshot]:
    """The snapshots from `at` on: at once, or in their own time when a speed is given."""
    for index in range(at, len(recording)):
        if speed is not None and index > at:
            time.sleep(min(recording.times[index] - recording.times[index - 1], LONGEST_GAP_S) / speed)
        yield recording.snapshot(index)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="llmtop replay",
        description="Show a recording as it was seen live.",
        epilog="on the screen: space stops and plays, + and - change the speed, left and right go 10 s, < and > go by "
        "marks, . steps, L loops",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="made with --record, the key r, or --json")
    parser.add_argument("--at", metavar="TIME", help="begin at HH:MM:SS, or at seconds from the start")
    parser.add_argument(
        "--reread", action="store_true", help="read the pages of --record-raw anew, as this version does"
    )
    parser.add_argument("--speed", type=float, metavar="X", help="0.25 to 100 (1; lines: as fast as they come)")
    add_look(parser)
    parser.set_defaults(
        interval=None, memory=None, procfs=None, sysfs=None, record=None, record_raw=False, prometheus_file=None
    )
    return parser
