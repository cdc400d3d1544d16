"""A page for Prometheus to scrape: what the last snapshot knows, and how the last load test ended.

It is served by `prometheus_client` in threads of its own, and holds nothing that a screen would not show.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Metric, start_http_server

from llmtop.contract.settings import UsageError
from llmtop.contract.snapshot import Snapshot
from llmtop.load import recorded
from llmtop.load.events import Finished
from llmtop.load.results import LevelResult, RunResult
from llmtop.recording.prometheus import FAMILIES, Labels, Sample, samples

_LOAD: Mapping[str, str] = {
    "load_finished_timestamp_seconds": "Unix time at which the last load test ended",
    "load_met": "1 when a level of the last load test kept every limit",
    "load_sweet_spot": "heaviest load that kept the limits: users at once, or requests per second",
    "load_knee": "load beyond which more of it gives hardly more tokens",
    "load_level_tokens_per_second": "generated tokens per second of a level",
    "load_level_requests_per_second": "finished requests per second of a level",
    "load_level_failed_requests": "requests of a level that failed",
    "load_level_latency_seconds": "latency of a level as its clients saw it, by kind and statistic",
}
_KINDS: Mapping[str, tuple[str, str]] = {**FAMILIES, **{name: ("gauge", text) for name, text in _LOAD.items()}}


class Exporter:
    """The page at `http://HOST:PORT/metrics`; raises UsageError when it cannot listen there."""

    def __init__(self, host: str, port: int) -> None:
        self._snapshot: Snapshot | None = None
        self._load: tuple[Sample, ...] = ()
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(f"--export-port: cannot listen on {host}:{port}: {error.strerror or error}") from None
        place = f"[{host}]" if ":" in host else host
        self.url = f"http://{place}:{self._server.server_port}/metrics"

    def write(self, snapshot: Snapshot) -> None:
        """Show this snapshot from now on."""
        self._snapshot = snapshot

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        """Show the load test that has ended."""
        item = recorded.from_values(values) if kind == recorded.KIND else None
        if isinstance(item, Finished):
            self._load = tuple(_load(item.result))

    def close(self) -> None:
        """Stop listening; waits for no reader."""
        threading.Thread(target=self._server.shutdown, daemon=True).start()
        self._server.socket.close()

    def describe(self) -> list[Metric]:
        """Nothing in advance: what is not known has no family."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape."""
        found: dict[str, dict[Labels, float]] = {name: {} for name in _KINDS}
        for sample in (*(samples(self._snapshot) if self._snapshot is not None else ()), *self._load):
            found[sample.family][sample.labels] = sample.value
        for name, by_labels in found.items():
            kind, text = _KINDS[name]
            family = Metric(f"llmtop_{name}", text, kind)
            for labels, value in by_labels.items():
                family.add_sample(family.name + ("_total" if kind == "counter" else ""), dict(labels), value)
            if by_labels:
                yield family


def _load(run: RunResult) -> Iterator[Sample]:
    known = {"server": run.url, "model": run.model, "scenario": run.scenario}
    labels = tuple((name, value) for name, value in known.items() if value)
    yield Sample("load_finished_timestamp_seconds", labels, time.time())
    yield Sample("load_met", labels, float(run.met))
    for name, value in (("load_sweet_spot", run.sweet_spot), ("load_knee", run.knee)):
        if value is not None:
            yield Sample(name, labels, float(value))
    for level in run.levels:
        yield from _level((*labels, ("level", level.level)), level)


def _level(labels: Labels, level: LevelResult) -> Iterator[Sample]:
    yield Sample("load_level_tokens_per_second", labels, level.tok_s)
    yield Sample("load_level_requests_per_second", labels, level.requests_s)
    yield Sample("load_level_failed_requests", labels, float(level.failed))
    for kind, spread in (("ttft", level.ttft), ("itl", level.itl), ("tpot", level.tpot), ("e2e", level.e2el)):
        if spread is not None:
            for stat, value in (("mean", spread.mean_ms), ("p50", spread.p50_ms), ("p99", spread.p99_ms)):
                yield Sample("load_level_latency_seconds", (*labels, ("kind", kind), ("stat", stat)), value / 1000)
