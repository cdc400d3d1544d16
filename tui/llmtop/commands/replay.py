"""`llmtop replay`: a recording on the screen, or as table, lines or JSON."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from llmtop.commands.common import (
    EXIT_OK,
    add_look,
    add_recording,
    base_settings,
    has_screen,
    health,
    print_line,
    render,
)
from llmtop.contract.settings import UsageError
from llmtop.contract.snapshot import Snapshot
from llmtop.recording.play import LONGEST_GAP_S, SPEEDS
from llmtop.recording.read import Recording, open_recording
from llmtop.recording.reread import reread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmtop replay`."""
    parser.epilog = (
        "on the screen: space stops and plays, + and - change the speed, left and right go 10 s, < and > go by "
        "marks, . steps, L loops"
    )
    add_recording(parser)
    parser.add_argument("--at", metavar="TIME", help="begin at HH:MM:SS, or at seconds from the start")
    parser.add_argument("--speed", type=float, metavar="X", help="0.25 to 100 (1; lines: as fast as they come)")
    add_look(parser)


def run(args: argparse.Namespace) -> int:
    """Replay a recording; the exit code."""
    if args.speed is not None and not SPEEDS[0] <= args.speed <= SPEEDS[-1]:
        raise UsageError(f"--speed must be {SPEEDS[0]:g} to {SPEEDS[-1]:g}, not {args.speed:g}")
    recording = open_recording(args.file, reread if args.reread else None)
    at = recording.index_of(args.at) if args.at is not None else None
    lines = args.once or args.json or args.plain or not has_screen()
    if not lines:
        from llmtop.ui.main import run_replay

        return run_replay(base_settings(args, interval_s=recording.pace_s), recording, at or 0, args.speed or 1.0)
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
