"""`llmtop export`: a recording as CSV, as OpenMetrics text or as one HTML page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from llmtop.commands.common import EXIT_OK, add_recording
from llmtop.contract.settings import UsageError
from llmtop.recording.read import Recording, open_recording
from llmtop.recording.reread import reread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmtop export`."""
    add_recording(parser)
    kind = parser.add_mutually_exclusive_group(required=True)
    for name, text in (
        ("csv", "a row per snapshot and server"),
        ("prometheus", "OpenMetrics text with time stamps"),
        ("html", "one page with charts and tables, without links"),
    ):
        kind.add_argument(f"--{name}", dest="kind", action="store_const", const=name, help=text)
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="write to OUT (standard output)")


def run(args: argparse.Namespace) -> int:
    """Export a recording; the exit code."""
    recording = open_recording(args.file, reread if args.reread else None)
    for note in recording.notes:
        print(f"llmtop: {args.file}: {note}", file=sys.stderr)
    if args.output is None:
        for part in _parts(recording, args.kind):
            sys.stdout.buffer.write(part.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
        return EXIT_OK
    if args.output.exists() and args.output.samefile(args.file):
        raise UsageError(f"{args.output} is the recording itself; write to another file")
    try:
        with args.output.open("w", encoding="utf-8", errors="replace", newline="") as file:
            file.writelines(_parts(recording, args.kind))
    except OSError as error:
        raise UsageError(f"{args.output}: {error.strerror or error}") from None
    return EXIT_OK


def _parts(recording: Recording, kind: str) -> Iterator[str]:
    if kind == "csv":
        from llmtop.recording.export_csv import lines

        return lines(recording)
    if kind == "html":
        from llmtop.recording.export_html import page

        return page(recording)
    from llmtop.recording.prometheus import openmetrics

    return openmetrics(recording)
