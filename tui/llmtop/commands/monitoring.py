"""`llmtop monitoring`: what Grafana and Prometheus need for the page of `--export-port`, ready to load."""

from __future__ import annotations

import argparse
import textwrap
from importlib.resources import files

from llmtop.commands.common import EXIT_OK, print_line

_RESOURCE = """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: llmtop
spec:
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to print."""
    parser.add_argument(
        "what",
        choices=("grafana", "rules", "prometheusrule"),
        help="a dashboard (JSON), a rule file of Prometheus, or the same rules for the operator in Kubernetes (YAML)",
    )


def run(args: argparse.Namespace) -> int:
    """Print it."""
    folder = files("llmtop.recording") / "monitoring"
    name = "grafana.json" if args.what == "grafana" else "rules.yml"
    text = (folder / name).read_text("utf-8")
    print_line((_RESOURCE + textwrap.indent(text, "  ") if args.what == "prometheusrule" else text).rstrip("\n"))
    return EXIT_OK
