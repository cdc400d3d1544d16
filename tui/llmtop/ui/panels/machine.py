"""The panels about the machine: memory headroom, GPUs, host."""

from __future__ import annotations

import time

from llmtop.contract.snapshot import Device, Host, Pool, ServerView
from llmtop.contract.units import UNKNOWN, duration, gib
from llmtop.machine.tightest import device_pools, tightest_of, tightest_pool, tightness
from llmtop.session.history import device_series, pool_series
from llmtop.session.machine_rules import slow_clock
from llmtop.ui.panels.holders import holder_lines, legend, pool_parts
from llmtop.ui.panels.nodes import part_lines
from llmtop.ui.panels.view import LEVEL_STYLE, Plot, View, chart, chart_of, fact, heading, pair
from llmtop_widgets.stackedbar import stacked_line
from llmtop_widgets.text import Line, Span, line, pack, spread, width, wrap

ROOM_FOR_POWER = 48  # cells
LEAST_CHART = 5  # rows that are left below the lines of the holders


def memory_facts(view: View, cells: int, rows: int) -> list[Line]:
    """Headroom first, then the bar whose parts add up, the low-water mark, and what it is made of."""
    pools = device_pools(view.snapshot)
    parts = part_lines(view.whole, view.server, cells) if view.whole and view.server else []
    if parts:
        return _several(view, parts, cells, rows)
    if not pools:
        unknown = _unknown_machine("Memory", view, cells)
        return unknown or [heading("Memory", cells, ""), line(Span("no reading yet", "dim"))]
    tight = min(pools, key=tightness)
    shown = [tight] if len(pools) == 1 or rows < 9 else [tight, *(pool for pool in pools if pool is not tight)][:3]
    several = f"tightest of {len(pools)}: " if len(pools) > 1 else ""
    lines = [heading("Memory", cells, _place(view, tight.node) + several + tight.name)]
    for place, pool in enumerate(shown):
        if place:
            lines.append(heading("", cells, pool.name))
        lines += _pool_lines(pool, cells)
    held = holder_lines(tight, cells)
    if len(tight.holders) > 1 and len(lines) + len(held) + LEAST_CHART <= rows:
        lines += held
    return lines


def _several(view: View, parts: list[Line], cells: int, rows: int) -> list[Line]:
    """The memory of the machines that a server runs on, and of the tightest of them all there is room for."""
    name = view.server.headroom_node if view.server else None
    tight = tightest_of(view.whole, name) if view.whole and name else None
    lines = [heading("Memory", cells, f"{len(parts)} nodes, GiB left" + (f", least on {name}" if name else "")), *parts]
    if tight is None:
        return lines[:rows]
    more = _pool_lines(tight, cells)
    if len(lines) + 1 + len(more) > rows:
        return [*lines, _low_water(tight, cells)][:rows]
    return [*lines, heading("", cells, f"{name}: {tight.name}"), *more]


def _unknown_machine(title: str, view: View, cells: int) -> list[Line]:
    """Why nothing is known of the machine that the server runs on; empty where something could be."""
    node = view.snapshot.node_of(view.server) if view.snapshot else None
    if view.node is not None:
        node = view.node
    elif view.snapshot and view.server is None:
        node = next((known for known in view.snapshot.nodes if not known.local), None)
    if node is None or node.state == "ok":
        return []
    why = (node.reason or "") if title == "Memory" else "not known here"
    words = [line(Span(row, "dim")) for row in wrap(why, max(1, cells))]
    return [heading(title, cells, node.name), line(Span(UNKNOWN, "bold")), *words]


def _place(view: View, node: str | None) -> str:
    """The name of a machine that is not the server's, and of what time its figures are where they are old."""
    read = next((known for known in view.snapshot.nodes if known.name == node), None) if view.snapshot else None
    if read is not None and not read.local:
        old = f" {duration(read.age_s)} ago" if read.state == "stale" and read.age_s is not None else ""
        return f"{read.name}{old}: "
    return f"this machine, {node}: " if view.server is not None and node != view.server.node else ""


def memory_chart(view: View, cells: int, rows: int) -> list[Line]:
    """What is taken of the tightest pool over time: headroom is the gap above, the low-water mark a line."""
    pool = tightest_pool(view.snapshot)
    if pool is None:
        return []
    total = float(pool.total_bytes or 1)

    def used(columns: int) -> list[float | None]:
        free = view.past(pool_series(pool), "headroom", columns)
        return [None if value is None else max(0.0, total - value) for value in free]

    least = None if pool.low_water_bytes is None else total - pool.low_water_bytes
    title = "taken, GiB; the gap above is headroom"
    plot = Plot(title, gib_scale, hi=total, threshold=least)
    return chart_of(view, pool_series(pool), used, cells, rows, plot)


def _pool_lines(pool: Pool, cells: int) -> list[Line]:
    word = (pool.state or UNKNOWN).upper()
    style = LEVEL_STYLE.get(pool.state or "", "dim")
    head = line(
        Span("headroom ", "label"),
        Span(gib(pool.headroom_bytes), "bold"),
        Span(f" of {gib(pool.total_bytes)} GiB", "label"),
    )
    parts = pool_parts(pool, cells)
    bar = stacked_line([(part.size, part.style) for part in parts], pool.total_bytes, cells)
    lines = [pair(head, line(Span(f" {word} ", style)), cells), bar, _low_water(pool, cells)]
    if pool.kind == "unified":
        sees = fact("CUDA sees", gib(pool.cuda_free_bytes), "value")
        lines.append(pair(sees, fact("cache gives back", gib(pool.reclaimable_bytes), "value"), cells))
    elif pool.kind == "hbm" and pool.reclaimable_bytes:
        lines.append(fact("page cache in HBM", gib(pool.reclaimable_bytes), "value"))
    if pool.kind != "lpddr":
        lines.append(legend(parts, cells))
    return lines


def _low_water(pool: Pool, cells: int) -> Line:
    when = time.strftime("%H:%M:%S", time.localtime(pool.low_water_time)) if pool.low_water_time else UNKNOWN
    low = line(Span("low-water ", "label"), Span(gib(pool.low_water_bytes), "value"), Span(f" at {when}", "label"))
    falling = pool.falling_bytes_s if pool.falling_bytes_s and pool.falling_bytes_s > 2**27 else None
    return pair(low, fact("", f"-{gib(falling)}/s", "low") if falling else line(), cells)


def held_lines(view: View, cells: int) -> list[Line]:
    """Who holds each pool that models live in."""
    pools = device_pools(view.snapshot)
    lines: list[Line] = []
    for pool in pools:
        held = holder_lines(pool, cells)
        title = [line(Span(_place(view, pool.node) + pool.name, "bold"))] if len(pools) > 1 and held else []
        lines += [*title, *held]
    return lines


def gpu_facts(view: View, cells: int, rows: int) -> list[Line]:
    """One GPU in full, or a line for each of several; the host below."""
    snapshot = view.snapshot
    devices = list(snapshot.devices) if snapshot else []
    host = [_host_line(snapshot.host, cells)] if snapshot and snapshot.host.name else []
    if not devices and (unknown := _unknown_machine("GPU", view, cells)):
        return unknown[:rows]
    if not devices:
        why = next((s.reason for s in snapshot.sources if not s.ok and s.reason), None) if snapshot else None
        return [heading("GPU", cells, ""), line(Span(why or "no GPU seen", "dim")), *host][:rows]
    if len(devices) == 1:
        return _one_gpu(devices[0], view, cells) + host
    room = max(1, rows - 1 - len(host))
    lines = [heading("GPUs", cells, f"{len(devices)}, g shows all" if len(devices) > room else str(len(devices)))]
    # the one in trouble must not be cut off
    order = sorted(devices, key=lambda d: d.state == "OK" and not d.throttle) if len(devices) > room else devices
    several = len({device.node for device in devices}) > 1
    lines += [_gpu_row(device, f"{device.node} " if several else "", cells) for device in order[:room]]
    return [*lines, *host][:rows]


def gpu_chart(view: View, cells: int, rows: int) -> list[Line]:
    """Utilisation of the one GPU, and power below it where there is room for both."""
    devices = view.snapshot.devices if view.snapshot else ()
    if len(devices) != 1:
        return []
    device = devices[0]
    owner = device_series(device)
    both = rows >= 8 and device.power_w is not None
    upper = rows // 2 if both else rows
    drawn = chart(view, owner, "util", cells, upper, Plot("utilisation", _percent_scale, hi=100.0, axis=not both))
    if both:
        limit = device.power_limit_w
        plot = Plot("power", _watt_scale, minimum=50.0, hi=limit)
        drawn += chart(view, owner, "power", cells, rows - upper, plot)
    return drawn


def _percent_scale(value: float) -> str:
    return f"{value:.0f} %"


def _watt_scale(value: float) -> str:
    return f"{value:.0f} W"


def _one_gpu(device: Device, view: View, cells: int) -> list[Line]:
    name = _place(view, device.node) + (device.name or "") + (" simulated" if device.simulated else "")
    if device.state != "OK":
        return [
            heading(f"GPU {device.index}", cells, name),
            line(Span(f"{device.state} ", "critical"), Span(device.reason or "")),
        ]
    facts = line(
        *fact("util", _number(device.util), "value", "%"),
        Span("  "),
        *fact("", _number(device.power_w), "value", "W"),
        Span("  "),
        *fact("", _number(device.temperature_c), "value", "C"),
        Span("  "),
        *_clock(device),
    )
    server = view.server or ServerView("")
    joules = f"{server.joules_per_token:.2f}" if server.joules_per_token is not None else UNKNOWN
    scope = f" ({server.joules_scope})" if server.joules_scope else ""
    energy = fact("", joules, "value", f"J/token{scope}")
    if device.throttle:
        pace = spread(energy, line(Span(", ".join(device.throttle), "low")), cells)
    else:
        words = "not throttled" if device.throttle_known else f"throttling {UNKNOWN}"
        pace = pair(energy, line(Span(words, "label")), cells)
    return [heading(f"GPU {device.index}", cells, name), facts, pace]


def _gpu_row(device: Device, place: str, cells: int) -> Line:
    label = f"{place}{device.index}{'.' + device.mig if device.mig else ''}"
    if device.state != "OK":
        return line(
            Span(f"{label:<5}", "label"), Span(f"{device.state} ", "critical"), Span(device.reason or "", "dim")
        )
    free = gib(device.memory.free) if device.memory else UNKNOWN
    facts = line(
        Span(f"{label:<5}", "label"),
        Span(f"{_number(device.util):>4}", "value"),
        Span("%", "label"),
        Span(f"{_number(device.power_w):>5}", "value"),
        Span("W", "label"),
        Span(f"{_number(device.temperature_c):>4}", "value"),
        Span("C ", "label"),
    )
    memory = line(Span(f"{free:>7}", "value"), Span(" GiB free", "label"))
    clock = f"{_number(device.sm_clock_mhz)} of {_number(device.sm_clock_max_mhz)} MHz" if slow_clock(device) else ""
    words = ", ".join((*device.throttle, *filter(None, (clock,))))
    slowed = line(Span(f"  {words}" if words else "", "low"))
    everything = (*facts, *(() if device.unified else memory), *slowed)
    return everything if width(everything) <= cells or not slowed else (*facts, *slowed)


def _host_line(host: Host, cells: int) -> Line:
    swap = gib(host.swap_used_bytes)
    cpu = fact("host CPU", _number(host.cpu_percent), "value", "%")
    if host.power_w is not None and cells >= ROOM_FOR_POWER:
        cpu = (*cpu, Span("  "), *fact("all", _number(host.power_w), "value", "W"))
    rest = line(
        *fact("swap", swap, "low" if host.swap_out_bytes_s else "value", "GiB"),
        Span("  "),
        *fact("PSI", UNKNOWN if host.psi_full_avg10 is None else f"{host.psi_full_avg10:.1f}", "value"),
    )
    return pair(cpu, rest, cells)


def _clock(device: Device) -> Line:
    """The SM clock; of what it could be where that is far from it."""
    if not slow_clock(device):
        return fact("", _number(device.sm_clock_mhz), "value", "MHz")
    return fact("", _number(device.sm_clock_mhz), "low", f"of {_number(device.sm_clock_max_mhz)} MHz")


def power_lines(view: View, cells: int) -> list[Line]:
    """The power of the whole machine, rail by rail, where a driver tells it."""
    host = view.snapshot.host if view.snapshot else Host()
    if not host.power_rails_w:
        return []
    heat = line(Span("too hot: PROCHOT", "low")) if host.prochot else ()
    rails = (f"{name} {watts:.1f} W" for name, watts in host.power_rails_w.items())
    return [
        spread(line(Span("whole machine", "label")), heat, cells),
        *(line(Span(row, "value")) for row in pack([*rails], cells, "   ")),
    ]


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def gib_scale(value: float) -> str:
    """The scale of a memory chart."""
    return f"{value / 2**30:.0f} G"
