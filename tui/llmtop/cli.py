"""The table of commands and what their ends mean as exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import NoReturn

from llmtop.commands.common import EXIT_CRASH, EXIT_OK, EXIT_USAGE, CommandParser
from llmtop.contract.secrets import KNOWN, mask
from llmtop.contract.settings import UsageError
from llmtop.contract.units import clean

COMMANDS = {  # each a module of llmtop.commands with `add_arguments(parser)` and `run(args)`
    "demo": "Watch a simulated server and machine; no GPU needed.",
    "load": "Put a server under load and find how many users it carries.",
    "proxy": "Measure a server that counts nothing by the traffic that passes.",
    "warmup": "Watch a start-up and see how close it comes to an OOM.",
    "replay": "Show a recording as it was seen live.",
    "export": "Turn a recording into a file for other programs.",
    "monitoring": "Print a Grafana dashboard and alert rules for the page of --export-port.",
    "web": "The same screens in a browser, behind a token. Open the URL that it prints.",
    "schema": "Print the JSON Schema of one line of --json.",
}
WATCH = "What htop is for processes, for LLM serving: KV cache, memory headroom, queue, tokens per second."
_SIGNAL = 128
_FLUSH_S = 1.0
_LONGEST = 1000  # characters of the line that says what is wrong


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run llmtop and leave the process; quitting never waits for a driver, a resolver or a reader that hangs."""
    code = run(sys.argv[1:] if argv is None else argv)
    flushing = threading.Thread(target=_flush, daemon=True)
    flushing.start()
    flushing.join(_FLUSH_S if code > _SIGNAL else None)
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (BrokenPipeError, ValueError, OSError):
            pass


def run(argv: Sequence[str]) -> int:
    """Run llmtop and return its exit code."""
    try:
        return _dispatch(list(argv))
    except UsageError as error:
        print(f"llmtop: {clean(' '.join(mask(str(error)).split()), _LONGEST)}", file=sys.stderr)
        return EXIT_USAGE
    except (BrokenPipeError, KeyboardInterrupt):
        return EXIT_OK
    except SystemExit as error:  # argparse after --help and --version
        return error.code if isinstance(error.code, int) else EXIT_OK
    except Exception:
        sys.stderr.write(KNOWN.hide(traceback.format_exc()))
        return EXIT_CRASH


def _dispatch(argv: list[str]) -> int:
    named = argv[0] if argv and argv[0] in COMMANDS else None
    command = importlib.import_module(f"llmtop.commands.{named or 'watch'}")
    parser = CommandParser(prog=f"llmtop {named}" if named else "llmtop", description=COMMANDS.get(named or "", WATCH))
    parser.set_defaults(commands=tuple(COMMANDS))
    command.add_arguments(parser)
    code: int = command.run(parser.parse_args(parser.arrange(argv[1:] if named else argv)))
    return code
