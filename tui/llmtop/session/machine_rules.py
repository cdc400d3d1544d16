"""What can be wrong with a machine: memory, devices, the sources that read them."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.contract.snapshot import Finding, Pool, Snapshot, State
from llmtop.contract.units import bytes_text
from llmtop.session.history import device_series
from llmtop.session.server_rules import remedies, runs_on


def memory(snapshot: Snapshot) -> Iterator[Finding]:
    """Little headroom."""
    for pool in snapshot.pools:
        if pool.state in ("low", "critical"):
            yield Finding(
                f"memory:{pool.name}{snapshot.on(pool.node)}",
                "critical" if pool.state == "critical" else "warning",
                f"{pool.name}{snapshot.on(pool.node)}: headroom {bytes_text(pool.headroom_bytes)}" + _trend(pool),
                pool.reason or pool.basis,
                _less_memory(pool, snapshot),
            )


def _less_memory(pool: Pool, snapshot: Snapshot) -> str:
    """What the servers of the pool's machine can do, each engine in its own words."""
    there = [server for server in snapshot.servers if runs_on(server, pool.node)]
    words = dict.fromkeys(remedies(server).memory for server in there)
    return ", or ".join((*words, "stop what else holds memory"))


def _trend(pool: Pool) -> str:
    if not pool.empty_in_s or not pool.falling_bytes_s or pool.empty_in_s > 60:
        return ""
    return f", falling {bytes_text(pool.falling_bytes_s)}/s, empty in {pool.empty_in_s:.0f} s"


def cache_in_the_way(snapshot: Snapshot) -> Iterator[Finding]:
    """CUDA sees only MemFree on unified memory: page cache can make a start fail though it would be given back."""
    starting = [server for server in snapshot.servers if server.state in (State.STARTING, State.DOWN)]
    for pool in snapshot.pools:
        free, cache = pool.cuda_free_bytes or 0, pool.reclaimable_bytes or 0
        begins = any(runs_on(server, pool.node) for server in starting)
        if begins and pool.kind == "unified" and cache > max(4 * free, 8 * 2**30):
            yield Finding(
                f"page-cache{snapshot.on(pool.node)}",
                "info",
                f"CUDA sees {bytes_text(free)} free{snapshot.on(pool.node)}, page cache holds {bytes_text(cache)} more",
                "MemFree against MemAvailable",
                "before a start: sync; echo 3 > /proc/sys/vm/drop_caches",
            )


def devices(snapshot: Snapshot) -> Iterator[Finding]:
    """Devices that are lost, in error or slowed down."""
    for device in snapshot.devices:
        label = f"GPU {device.index} {device.name or ''}".strip() + snapshot.on(device.node)
        if device.state != "OK":
            yield Finding(
                f"device:{device_series(device)}",
                "critical" if device.state == "LOST" else "warning",
                f"{label}: {device.state}",
                device.reason,
                "see the kernel log (Xid); a lost GPU needs a reset or a reboot" if device.state == "LOST" else None,
            )
        hot = [reason for reason in device.throttle if "thermal" in reason or "brake" in reason or "slowdown" in reason]
        if hot:
            yield Finding(f"throttle:{device_series(device)}", "warning", f"{label} throttles", ", ".join(hot))


def sources(snapshot: Snapshot) -> Iterator[Finding]:
    """Sources that fail; a machine without a driver is no trouble, one whose driver fails is."""
    for source in snapshot.sources:
        if not source.ok and not (source.reason or "").startswith("no NVIDIA driver library"):
            yield Finding(f"source:{source.name}", "warning", f"{source.name}: {source.reason or 'no data'}")
