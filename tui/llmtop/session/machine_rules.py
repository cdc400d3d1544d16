"""What can be wrong with a machine: memory, devices, the sources that read them."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.contract.snapshot import Device, Finding, Pool, Snapshot, State
from llmtop.contract.units import bytes_text, percent
from llmtop.session.history import device_series
from llmtop.session.server_rules import remedies, runs_on

LOW_CLOCK = 0.45  # of the highest clock, at which
BUSY_PERCENT = 50.0  # a device that works is slow
QUIET_WATTS, QUIET_SHARE = 35.0, 0.35  # and the power below which it does not work hard: a GB10's, and of a power limit
HOT_C, NEAR_C = 88.0, 5.0  # where the driver names no limit, and how near to one
MUCH_SWAP, SOME_SWAP, SWAPS_OUT = 2**30, 2**26, 1e6  # bytes, bytes where memory is tight, bytes/s
TIGHT = 0.05  # of the total
_BY_FORCE = ("thermal", "brake", "slowdown")


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


def not_ours(snapshot: Snapshot) -> Iterator[Finding]:
    """Memory that no headroom or state can be told of, because what was read is a container's."""
    for pool in snapshot.pools:
        if pool.state is None and pool.reason is not None:
            what = "unknown: /proc/meminfo is" if pool.headroom_bytes is None else "in doubt: /proc/meminfo may be"
            yield Finding(
                f"meminfo:{pool.name}{snapshot.on(pool.node)}",
                "warning",
                f"{pool.name}{snapshot.on(pool.node)}: headroom {what} a container's",
                pool.reason,
                "run llmtop on the machine itself, or give it the machine's /proc (--procfs)",
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
        label = _label(device, snapshot)
        if device.state != "OK":
            yield Finding(
                f"device:{device_series(device)}",
                "critical" if device.state == "LOST" else "warning",
                f"{label}: {device.state}",
                device.reason,
                "see the kernel log (Xid); a lost GPU needs a reset or a reboot" if device.state == "LOST" else None,
            )
        held = [reason for reason in device.throttle if any(word in reason for word in _BY_FORCE)]
        if held:
            yield Finding(f"throttle:{device_series(device)}", "warning", f"{label} throttles", ", ".join(held))


def slow_clock(device: Device) -> bool:
    """Whether a device works at a low clock and little power, and the driver has no reason for it."""
    clock, most, util, watts = device.sm_clock_mhz, device.sm_clock_max_mhz, device.util, device.power_w
    if clock is None or not most or util is None or watts is None or device.state != "OK":
        return False
    little = QUIET_WATTS if device.power_limit_w is None else QUIET_SHARE * device.power_limit_w
    unexplained = device.throttle_known and not device.throttle
    return unexplained and util >= BUSY_PERCENT and clock < LOW_CLOCK * most and watts < little


def low_clock(snapshot: Snapshot) -> Iterator[Finding]:
    """A GPU that is busy, slow and cool: a limit that the driver does not show."""
    for device in filter(slow_clock, _read_now(snapshot)):
        clock, most = device.sm_clock_mhz or 0.0, device.sm_clock_max_mhz or 1.0
        cold = "unplug its power supply for a minute: a reboot alone does not end it"
        yield Finding(
            f"slow-clock:{device_series(device)}",
            "warning",
            f"{_label(device, snapshot)}: {clock:.0f} of {most:.0f} MHz while it works",
            f"{percent(clock / most, 0)} of it at {device.util:.0f} % and {device.power_w:.0f} W, no throttle reason",
            cold if device.unified else "nvidia-smi -q -d CLOCK,POWER: is its clock locked, or its power cable loose?",
        )


def hot(snapshot: Snapshot) -> Iterator[Finding]:
    """Devices near the temperature at which they are slowed down, and machines that signal it themselves."""
    for device in _read_now(snapshot):
        heat, limit = device.temperature_c, device.slowdown_c
        slowed = any("thermal" in reason for reason in device.throttle)  # says it better
        if heat is not None and heat >= (HOT_C if limit is None else limit - NEAR_C) and not slowed:
            yield Finding(
                f"hot:{device_series(device)}",
                "warning",
                f"{_label(device, snapshot)}: {heat:.0f} C",
                "its driver names no limit" if limit is None else f"it slows down at {limit:.0f} C",
                "is the air free to come in and go out? clocks fall next",
            )
    for node in snapshot.nodes:
        if node.host is not None and node.host.prochot and node.state == "ok":
            yield Finding(
                f"prochot:{node.name}",
                "warning",
                f"{node.name} signals that it is too hot (PROCHOT)",
                f"{node.host.power_w:.0f} W in all" if node.host.power_w is not None else None,
                "its clocks are held down, and the GPU's driver does not say so: let it cool",
            )


def swapped(snapshot: Snapshot) -> Iterator[Finding]:
    """Swap in use on a machine whose memory the GPU shares, while a model is served there."""
    for pool in snapshot.pools:
        host = next((node.host for node in snapshot.nodes if node.name == pool.node and node.state == "ok"), None)
        serves = any(runs_on(server, pool.node) and server.state is State.SERVING for server in snapshot.servers)
        if pool.kind != "unified" or host is None or not serves:
            continue
        used, speed = host.swap_used_bytes or 0, host.swap_out_bytes_s or 0.0
        tight = pool.headroom_bytes is not None and pool.headroom_bytes < TIGHT * (pool.total_bytes or 0)
        if used >= (SOME_SWAP if tight else MUCH_SWAP) or speed >= SWAPS_OUT:
            out = f"{bytes_text(speed)}/s go out" if speed else "none goes out now"
            stalls = f"; PSI {host.psi_full_avg10:.1f}" if host.psi_full_avg10 is not None else ""
            yield Finding(
                f"swap:{pool.node}",
                "warning" if speed >= SWAPS_OUT else "info",
                f"{bytes_text(host.swap_used_bytes)} of swap in use{snapshot.on(pool.node)} while it serves",
                f"{out}, headroom {bytes_text(pool.headroom_bytes)}{stalls}",
                f"{_less_memory(pool, snapshot)}; then swapoff -a and swapon -a",
            )


def _read_now(snapshot: Snapshot) -> list[Device]:
    """The devices of machines that have not fallen silent."""
    return [device for device in snapshot.devices if snapshot.current(device.node)]


def _label(device: Device, snapshot: Snapshot) -> str:
    return f"GPU {device.index} {device.name or ''}".strip() + snapshot.on(device.node)


def sources(snapshot: Snapshot) -> Iterator[Finding]:
    """Sources that fail; a machine without a driver is no trouble, one whose driver fails is."""
    for source in snapshot.sources:
        if not source.ok and not (source.reason or "").startswith("no NVIDIA driver library"):
            yield Finding(f"source:{source.name}", "warning", f"{source.name}: {source.reason or 'no data'}")
