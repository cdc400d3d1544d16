"""`llmtop schema`: the contract of `--json` as a JSON Schema."""

from __future__ import annotations

import argparse

from llmtop.commands.common import EXIT_OK, print_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`llmtop schema` has no flags."""


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    del args
    import json

    from llmtop.contract.codec import json_schema

    print_line(json.dumps(json_schema(), indent=2))
    return EXIT_OK
