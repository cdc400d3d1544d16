"""A recording as CSV: a row per snapshot and server, columns named by the paths of the JSON contract."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from llmtop.contract.codec import plain
from llmtop.contract.snapshot import Device, Pool, ServerView, Snapshot

LATENCIES = ("ttft", "itl", "tpot", "e2e", "queue")
_SERVER = (
    *("url", "name", "model", "state", "running", "waiting", "kv_usage", "kv_used_tokens", "kv_capacity_tokens"),
    *("room_requests", "preemptions_total", "restarts", "prefix_hit_rate", "joules_per_token"),
    *("rates.window_s", "rates.generation_tok_s", "rates.prompt_tok_s", "rates.prompt_computed_tok_s"),
    *("rates.prompt_cached_tok_s", "rates.requests_s", "latency.window_s"),
    *(f"latency.{kind}.{part}" for kind in LATENCIES for part in ("n", "mean_s")),
    *(
        f"latency.{kind}.{part}.{value}"
        for kind in LATENCIES
        for part in ("p50", "p95", "p99")
        for value in ("value_s", "bound")
    ),
)
_HOST = ("cpu_percent", "mem_available_bytes", "swap_used_bytes")
_POOL = ("headroom_bytes", "used_bytes", "low_water_bytes")
_DEVICE = ("util", "power_w", "temperature_c", "sm_clock_mhz", "memory.used")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def lines(snapshots: Iterable[Snapshot]) -> Iterator[str]:
    """The lines of the file; `snapshots` is gone through twice, because the columns depend on all of them."""
    pools: dict[str, None] = {}
    devices: dict[str, None] = {}
    for snapshot in snapshots:
        pools.update((_pool_name(pool, snapshot), None) for pool in snapshot.pools)
        devices.update((_device_name(device, snapshot), None) for device in snapshot.devices)
    machine = [
        f"{name}.{part}" for names, parts in ((pools, _POOL), (devices, _DEVICE)) for name in names for part in parts
    ]
    columns = ["time", "local_time", *_SERVER, *(f"host.{part}" for part in _HOST), *machine, "limited_by"]
    columns += ["marks", "events"]
    yield _line(columns)
    for snapshot in snapshots:
        common = _common(snapshot)
        for server in snapshot.servers or (None,):
            row = common | (_flat(server) if server is not None else {})
            yield _line(_cell(row.get(column)) for column in columns)


def _common(snapshot: Snapshot) -> dict[str, object]:
    """What is the same in the rows of all servers."""
    when = datetime.fromtimestamp(snapshot.time).astimezone()
    row: dict[str, object] = {"time": snapshot.time, "local_time": when.isoformat(timespec="milliseconds")}
    row |= {f"host.{name}": value for name, value in plain(snapshot.host).items()}
    for pool in snapshot.pools:
        row |= {f"{_pool_name(pool, snapshot)}.{name}": value for name, value in plain(pool).items()}
    for device in snapshot.devices:
        row |= {f"{_device_name(device, snapshot)}.{name}": value for name, value in _flat(device).items()}
    row |= {"limited_by": snapshot.limited_by, "marks": "; ".join(mark.text for mark in snapshot.marks)}
    return row | {"events": "; ".join(event.text for event in snapshot.events)}


def _flat(record: ServerView | Device) -> dict[str, object]:
    return dict(_leaves("", plain(record)))


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}" if path else name, item)
    else:
        yield path, value


def _pool_name(pool: Pool, snapshot: Snapshot) -> str:
    return f"pool.{pool.name}{snapshot.beyond(pool.node)}"


def _device_name(device: Device, snapshot: Snapshot) -> str:
    return f"gpu{device.index}" + (f".mig{device.mig}" if device.mig else "") + snapshot.beyond(device.node)


def _cell(value: object) -> object:
    """A cell; text that a spreadsheet would run as a formula is quoted."""
    if isinstance(value, str) and len(value) > 1 and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value


def _line(cells: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()
