"""Snapshots as Prometheus series: a file for node_exporter's textfile collector, and OpenMetrics text of a recording.

What is not known has no sample. Names end in their unit, as Prometheus' conventions ask.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from llmtop.contract.snapshot import Device, Host, Latency, Pool, ServerView, Snapshot, SourceStatus, State
from llmtop.engines.limits import Code

Labels = tuple[tuple[str, str], ...]
Value = float | int | bool | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series; `family` is a key of `FAMILIES`."""

    family: str
    labels: Labels
    value: float


FAMILIES: Mapping[str, tuple[str, str]] = {
    "server_up": ("gauge", "1 when the server is well: SERVING, IDLE or SLEEPING, and its /health does not fail"),
    "server_state": ("gauge", "1 for the state the server is in, 0 for the others"),
    "requests_running": ("gauge", "requests in the batch"),
    "requests_waiting": ("gauge", "requests in the queue"),
    "kv_usage_ratio": ("gauge", "share of the KV blocks in use, of the fullest engine"),
    "kv_used_tokens": ("gauge", "tokens in the KV cache"),
    "kv_capacity_tokens": ("gauge", "tokens that the KV cache holds"),
    "kv_full_seconds": ("gauge", "time until the KV cache is full, while it fills"),
    "kv_room_requests": ("gauge", "requests of the full model length that still fit"),
    "limited_by": ("gauge", "1 for what holds the server back now, 0 for the others"),
    "preemptions": ("counter", "preemptions since the server started"),
    "restarts": ("gauge", "restarts of the server that were seen"),
    "generation_tokens_per_second": ("gauge", "generated tokens per second over the window"),
    "prompt_tokens_per_second": ("gauge", "prompt tokens per second over the window"),
    "prompt_computed_tokens_per_second": ("gauge", "prompt tokens per second that were computed"),
    "prompt_cached_tokens_per_second": ("gauge", "prompt tokens per second from the prefix cache"),
    "requests_per_second": ("gauge", "finished requests per second over the window"),
    "prefix_hit_ratio": ("gauge", "share of prompt tokens found in the prefix cache"),
    "joules_per_token": ("gauge", "energy per generated token"),
    "latency_seconds": ("gauge", "latency over the window by kind and statistic; p95 and p99 only with enough samples"),
    "pool_total_bytes": ("gauge", "size of a memory pool"),
    "pool_used_bytes": ("gauge", "used bytes of a memory pool"),
    "pool_headroom_bytes": ("gauge", "bytes left before the next out-of-memory"),
    "pool_low_water_bytes": ("gauge", "least headroom since the start or the last mark"),
    "pool_low_water_timestamp_seconds": ("gauge", "Unix time of the least headroom"),
    "pool_empty_seconds": ("gauge", "time until a pool is empty, while its headroom falls"),
    "pool_state": ("gauge", "1 for the state the pool is in, 0 for the others"),
    "device_ok": ("gauge", "1 when the device answers"),
    "device_utilization_ratio": ("gauge", "share of time in which a kernel ran"),
    "device_power_watts": ("gauge", "power draw"),
    "device_temperature_celsius": ("gauge", "temperature"),
    "device_memory_used_bytes": ("gauge", "used device memory"),
    "host_cpu_ratio": ("gauge", "share of the host's CPU time in use"),
    "host_memory_available_bytes": ("gauge", "MemAvailable of the host"),
    "findings": ("gauge", "findings by level"),
    "finding": ("gauge", "1 for every finding that holds"),
    "snapshot_timestamp_seconds": ("gauge", "Unix time of the snapshot"),
}
_SERVER: Mapping[str, Callable[[ServerView], Value]] = {
    "server_up": lambda s: s.healthy,
    "requests_running": lambda s: s.running,
    "requests_waiting": lambda s: s.waiting,
    "kv_usage_ratio": lambda s: s.kv_usage,
    "kv_used_tokens": lambda s: s.kv_used_tokens,
    "kv_capacity_tokens": lambda s: s.kv_capacity_tokens,
    "kv_full_seconds": lambda s: s.kv_full_in_s,
    "kv_room_requests": lambda s: s.room_requests,
    "preemptions": lambda s: s.preemptions_total,
    "restarts": lambda s: s.restarts,
    "generation_tokens_per_second": lambda s: s.rates.generation_tok_s,
    "prompt_tokens_per_second": lambda s: s.rates.prompt_tok_s,
    "prompt_computed_tokens_per_second": lambda s: s.rates.prompt_computed_tok_s,
    "prompt_cached_tokens_per_second": lambda s: s.rates.prompt_cached_tok_s,
    "requests_per_second": lambda s: s.rates.requests_s,
    "prefix_hit_ratio": lambda s: s.prefix_hit_rate,
    "joules_per_token": lambda s: s.joules_per_token,
}
# what a server that no longer answers has said is not what it does now
_WITHOUT_ANSWER = ("server_up", "restarts")
_POOL: Mapping[str, Callable[[Pool], Value]] = {
    "pool_total_bytes": lambda p: p.total_bytes,
    "pool_used_bytes": lambda p: p.used_bytes,
    "pool_headroom_bytes": lambda p: p.headroom_bytes,
    "pool_low_water_bytes": lambda p: p.low_water_bytes,
    "pool_low_water_timestamp_seconds": lambda p: p.low_water_time,
    "pool_empty_seconds": lambda p: p.empty_in_s,
}
_POOL_STATES = ("ok", "low", "critical")
_DEVICE: Mapping[str, Callable[[Device], Value]] = {
    "device_ok": lambda d: d.state == "OK",
    "device_utilization_ratio": lambda d: _ratio(d.util),
    "device_power_watts": lambda d: d.power_w,
    "device_temperature_celsius": lambda d: d.temperature_c,
    "device_memory_used_bytes": lambda d: d.memory.used if d.memory else None,
}


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The known values of a snapshot."""

    def current(part: Pool | Device | Host) -> bool:
        return snapshot.current(part.node)

    for server in snapshot.servers:
        yield from _server(server)
    for pool in filter(current, snapshot.pools):
        labels = _labels(pool=pool.name, kind=pool.kind, device=pool.device, node=_other(snapshot, pool))
        yield from _known(labels, {name: read(pool) for name, read in _POOL.items()})
        yield from _one_of("pool_state", labels, "state", _POOL_STATES, pool.state)
    for device in filter(current, snapshot.devices):
        gpu, node = str(device.index), _other(snapshot, device)
        labels = _labels(gpu=gpu, uuid=device.uuid, name=device.name, mig=device.mig, node=node)
        yield from _known(labels, {name: read(device) for name, read in _DEVICE.items()})
    host = snapshot.host if current(snapshot.host) else Host()
    cpu = _ratio(host.cpu_percent)
    yield from _known((), {"host_cpu_ratio": cpu, "host_memory_available_bytes": host.mem_available_bytes})
    for level in ("critical", "warning", "info"):
        number = sum(finding.level == level for finding in snapshot.findings)
        yield Sample("findings", _labels(level=level), float(number))
    for finding in snapshot.findings:
        yield Sample("finding", _labels(id=finding.id, level=finding.level), 1.0)
    yield Sample("snapshot_timestamp_seconds", (), float(snapshot.time))


def _other(snapshot: Snapshot, part: Pool | Device) -> str | None:
    """The machine of a pool or device, where it is not the first one."""
    return part.node if snapshot.beyond(part.node) else None


def _server(server: ServerView) -> Iterator[Sample]:
    labels = _labels(server=server.url, model=server.model)
    yield from _one_of("server_state", labels, "state", State, server.state)
    shown = [name for name in _SERVER if server.state.live or name in _WITHOUT_ANSWER]
    yield from _known(labels, {name: _SERVER[name](server) for name in shown})
    if server.state.live:
        yield from _one_of("limited_by", labels, "limit", get_args(Code), server.limited_by)
        for kind in ("ttft", "itl", "tpot", "e2e", "queue"):
            yield from _latency(labels, kind, getattr(server.latency, kind))


def _latency(labels: Labels, kind: str, latency: Latency) -> Iterator[Sample]:
    """Mean and quantiles; not those of which only a bucket's edge is known or which rest on too few samples."""
    values: dict[str, float | None] = {"mean": latency.mean_s}
    for name, quantile in (("p50", latency.p50), ("p95", latency.p95), ("p99", latency.p99)):
        good = quantile is not None and quantile.bound == "=" and not quantile.weak
        values[name] = quantile.value_s if quantile is not None and good else None
    for name, value in values.items():
        if value is not None:
            yield Sample("latency_seconds", (*labels, ("kind", kind), ("stat", name)), float(value))


def _one_of(family: str, labels: Labels, label: str, names: Iterable[str], held: str | None) -> Iterator[Sample]:
    """A state set: 1 for the one that holds; nothing where none is known to."""
    for name in names if held is not None else ():
        yield Sample(family, (*labels, (label, name)), float(name == held))


def _known(labels: Labels, values: Mapping[str, Value]) -> Iterator[Sample]:
    numbers = ((name, float(value)) for name, value in values.items() if value is not None)
    return (Sample(name, labels, number) for name, number in numbers if math.isfinite(number))


def _labels(**values: str | None) -> Labels:
    return tuple((name, value) for name, value in values.items() if value)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def textfile(snapshot: Snapshot) -> str:
    """The Prometheus text format without time stamps, which is what a textfile collector takes."""
    return "".join(_families([(None, snapshot)], openmetrics=False))


def openmetrics(snapshots: Iterable[Snapshot]) -> Iterator[str]:
    """OpenMetrics text with time stamps, as `promtool tsdb create-blocks-from openmetrics` reads it."""
    yield from _families(((snapshot.time, snapshot) for snapshot in snapshots), openmetrics=True)
    yield "# EOF\n"


def _families(snapshots: Iterable[tuple[float | None, Snapshot]], *, openmetrics: bool) -> Iterator[str]:
    """Family by family and series by series, each in the order of time, as the format demands."""
    found: dict[str, dict[Labels, list[tuple[float | None, float]]]] = {name: {} for name in FAMILIES}
    for when, snapshot in snapshots:
        for series, value in {(s.family, s.labels): s.value for s in samples(snapshot)}.items():
            points = found[series[0]].setdefault(series[1], [])
            if when is None or not points or points[-1][0] is None or when > points[-1][0]:
                points.append((when, value))
    for name, by_labels in found.items():
        if by_labels:
            yield from _family(name, by_labels, openmetrics)


def _family(
    name: str, by_labels: Mapping[Labels, list[tuple[float | None, float]]], openmetrics: bool
) -> Iterator[str]:
    kind, text = FAMILIES[name]
    sample = f"llmtop_{name}_total" if kind == "counter" else f"llmtop_{name}"
    family = f"llmtop_{name}" if openmetrics else sample
    yield f"# HELP {family} {text}\n# TYPE {family} {kind}\n"
    for labels, points in by_labels.items():
        inner = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels)
        series = f"{sample}{{{inner}}}" if inner else sample
        for when, value in points:
            yield f"{series} {_number(value)}" + ("\n" if when is None else f" {when:.3f}\n")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class PrometheusFile:
    """A file that is replaced as a whole with every snapshot; trouble with it is a status."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status: SourceStatus | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Replace the file."""
        try:
            self._replace(textfile(snapshot).encode())
            self.status = None
        except OSError as error:
            reason = f"cannot write {self.path}: {error.strerror or error}"
            self.status = SourceStatus("prometheus file", False, reason)

    def _replace(self, content: bytes) -> None:
        if self.path.exists() and not self.path.is_file():
            raise OSError("it is not a file")
        # in the same folder, so that the replacement is atomic; a collector takes only *.prom
        fd, fresh = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with open(fd, "wb") as file:
                os.fchmod(fd, 0o644)  # the collector is another user
                file.write(content)
            os.replace(fresh, self.path)
        except OSError:
            os.unlink(fresh)
            raise
