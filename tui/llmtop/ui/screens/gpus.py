"""All devices, their processes and what throttles them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from textual.widget import Widget

from llmtop.contract.snapshot import Device, DeviceProcess
from llmtop.contract.units import UNKNOWN, gib
from llmtop.ui.panels.view import View, asciify
from llmtop.ui.screens.base import ViewScreen
from llmtop_widgets import glyphs
from llmtop_widgets.linetable import Column, LineTable, Row
from llmtop_widgets.text import Span

COLUMNS = (
    Column("index", "GPU", 7),
    Column("name", "name / process", 22, flex=3),
    Column("state", "state", 6),
    Column("util", "util", 6, align="right"),
    Column("used", "used GiB", 9, align="right"),
    Column("free", "free GiB", 9, align="right", priority=1),
    Column("power", "power", 11, align="right", priority=2),
    Column("temperature", "temp", 6, align="right", priority=3),
    Column("clock", "SM clock", 9, align="right", priority=4),
    Column("throttle", "throttled by", 14, flex=1, priority=5),
)


class GpusScreen(ViewScreen):
    """A row per device and per process on it."""

    name_in_keys = "gpus"

    def body(self) -> Iterable[Widget]:
        """The table."""
        yield LineTable(COLUMNS, empty="no GPU seen", id="body")

    def begin(self) -> None:
        """Keys go to the table."""
        self.query_one(LineTable).focus()

    def draw(self, view: View) -> None:
        """Devices in their order, processes below each."""
        devices = view.snapshot.devices if view.snapshot else ()
        node = view.snapshot.node_of(view.server) if view.snapshot else None
        table = self.query_one(LineTable)
        table.empty = f"GPUs of {node.name}: not known here" if node and node.state == "unknown" else "no GPU seen"
        table.set_rows([row for device in devices for row in _rows(device)])


def _rows(device: Device) -> Iterator[Row]:
    yield _finish(f"{device.uuid}", _device_cells(device))
    for process in device.processes:
        yield _finish(f"{device.uuid} {process.pid}", _process_cells(process))


def _finish(key: str, cells: tuple[Span, ...]) -> Row:
    if glyphs.current() is glyphs.ASCII:
        cells = tuple(asciify((cell,))[0] for cell in cells)
    return Row(key, cells)


def _device_cells(device: Device) -> tuple[Span, ...]:
    memory = device.memory
    limit = f" / {device.power_limit_w:.0f}" if device.power_limit_w is not None else ""
    where = "unified" if device.unified else UNKNOWN
    return (
        Span(f"{device.index}{f' {device.mig}' if device.mig else ''}", "bold"),
        Span((device.name or UNKNOWN) + (" (simulated)" if device.simulated else ""), "bold"),
        Span(device.state, "ok" if device.state == "OK" else "critical"),
        Span(_unit(device.util, " %"), "value"),
        Span(gib(memory.used) if memory else where, "value"),
        Span(gib(memory.free) if memory else "", "value"),
        Span(_unit(device.power_w, f"{limit} W"), "value"),
        Span(_unit(device.temperature_c, " C"), "value"),
        Span(_unit(device.sm_clock_mhz, " MHz"), "value"),
        Span(", ".join(device.throttle) if device.state == "OK" else device.reason or "", "low"),
    )


def _process_cells(process: DeviceProcess) -> tuple[Span, ...]:
    name = process.name or "(host pid, not visible here)"
    blank = Span("")
    return (
        blank,
        Span(f"  {process.pid} {name}", "dim"),
        blank,
        blank,
        Span(gib(process.memory_bytes), "label"),
        *([blank] * 5),
    )


def _unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f}{unit}"
