"""A server tracker with a hand-cranked clock, and the pages of the fixtures folder."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmtop.contract.snapshot import ServerView
from llmtop.engines.exposition import Exposition
from llmtop.engines.page import read_page
from llmtop.engines.page_record import Page
from llmtop.engines.tracker import Failure, ServerTracker

FIXTURES = Path(__file__).parent / "fixtures"
EPOCH = 1_800_000_000.0


class Crank:
    """Feeds pages and failures to a tracker at times (seconds) that the test chooses."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self.tracker = ServerTracker("http://server:8000")
        self.page: Page | None = None
        self._exposition = Exposition()
        self._interval_s = interval_s
        self._t = 0.0

    def feed(self, body: bytes, t: float) -> Crank:
        """One good answer with this body, whose first byte came at `t`."""
        self.page = read_page(self._exposition.parse(body), t)
        return self.take(self.page or Failure("empty", "no engine metrics"), t)

    def take(self, result: Page | Failure, t: float) -> Crank:
        """The outcome of one poll."""
        self.tracker.feed(result, t)
        self._t = t
        return self

    def view(self, t: float | None = None) -> ServerView:
        """The server as of `t`, or of the last poll."""
        at = self._t if t is None else t
        return self.tracker.view(at, EPOCH + at, self._interval_s)


def case(name: str, file: str) -> bytes:
    """A page of a metrics case."""
    return (FIXTURES / "metrics" / name / file).read_bytes()


def expected(name: str) -> dict[str, Any]:
    """The right values of a metrics case."""
    content: dict[str, Any] = json.loads((FIXTURES / "metrics" / name / "expect.json").read_text())
    expect: dict[str, Any] = content["expect"]
    return expect


def captured(version: str) -> Iterator[tuple[float, bytes, dict[str, str]]]:
    """The captured pages of a version in order: seconds since the first, the page, its row of the timeline."""
    folder = FIXTURES / "captures" / version
    with (folder / "timeline.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            page = folder / f"{int(row['n']):04d}.txt.gz"
            if page.exists():
                yield float(row["t"]), gzip.decompress(page.read_bytes()), row


def vllm_page(
    *,
    engine: str = "0",
    model: str = "m",
    start: float | None = None,
    created: float | None = None,
    **values: float | None,
) -> bytes:
    """A small vLLM page: gauges and counters of one engine by their short names, `None` leaving one out."""
    names = {
        "running": "num_requests_running",
        "waiting": "num_requests_waiting",
        "kv": "kv_cache_usage_perc",
        "generation": "generation_tokens_total",
        "prompt": "prompt_tokens_total",
        "preemptions": "num_preemptions_total",
        "iterations": "iteration_tokens_total_count",
        "ttft_count": "time_to_first_token_seconds_count",
        "success": "request_success_total",
    }
    labels = f'engine="{engine}",model_name="{model}"'
    defaults: dict[str, float | None] = {"running": 0.0, "waiting": 0.0, "kv": 0.0, "generation": 0.0, "prompt": 0.0}
    lines = [
        f"vllm:{names[name]}{{{labels}}} {value}" for name, value in (defaults | values).items() if value is not None
    ]
    if created is not None:
        lines.append(f"vllm:generation_tokens_created{{{labels}}} {created}")
    if start is not None:
        lines.append(f"process_start_time_seconds {start}")
    return "\n".join([*lines, ""]).encode()
