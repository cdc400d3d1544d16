"""The rows of nvidia-smi as devices, by the same rules as NVML's answers: `[N/A]` is unknown and never zero."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from llmtop.contract.snapshot import Device, DeviceMemory, DeviceProcess
from llmtop.contract.units import clean
from llmtop.machine.headroom import MemoryMode, device_headroom, device_key, is_unified
from llmtop.machine.nvml_fields import merge_processes, throttle_names
from llmtop.machine.nvml_unit import Unit
from llmtop.machine.sample import Dip

MIB = 2**20
LARGEST_PID = 2**22
GONE_S = 6.0  # a GPU that is not among the rows for so long is lost
ENDED_S = 13.0  # the rows of processes come every five seconds
_NUMBERS: Mapping[str, tuple[str, float]] = {  # the device's field by that of nvidia-smi, and what no device reaches
    "utilization.gpu": ("util", 100.0),
    "power.draw": ("power_w", 1e5),
    "enforced.power.limit": ("power_limit_w", 1e5),
    "power.limit": ("power_limit_w", 1e5),
    "temperature.gpu": ("temperature_c", 200.0),
    "clocks.sm": ("sm_clock_mhz", 1e5),
    "clocks.max.sm": ("sm_clock_max_mhz", 1e5),
}


class Gpus:
    """What nvidia-smi said of the GPUs of a node."""

    def __init__(self, memory_mode: MemoryMode = "auto") -> None:
        self._mode: MemoryMode = memory_mode
        self._units: dict[str, Unit] = {}
        self._processes: dict[tuple[str, int], tuple[DeviceProcess, float]] = {}
        self.told = False  # whether there was any row

    def take(self, fields: str, rows: bytes, t: float) -> None:
        """Rows of GPUs, read at monotonic `t`."""
        for row in _rows(fields, rows):
            index = _number(row.get("index"), 1e4)
            if index is None:
                continue
            uuid = clean(row.get("uuid", "")) if row.get("uuid", "").startswith("GPU-") else None
            unit = self._units.setdefault(uuid or str(int(index)), Unit(int(index), uuid=uuid))
            unit.index, self.told = int(index), True
            _fill(unit, row, t)

    def take_processes(self, fields: str, rows: bytes, t: float) -> None:
        """Rows of processes; one that is in no rows any more has ended."""
        for row in _rows(fields, rows):
            pid, used = _number(row.get("pid"), 2**31), _number(row.get("used_memory"), 2**30)
            if pid is not None:
                held = None if used is None else int(used * MIB)
                process = DeviceProcess(int(pid), _name(row.get("process_name", "")), held)
                self._processes[row.get("gpu_uuid", ""), int(pid)] = process, t
        self._processes = {key: found for key, found in self._processes.items() if t - found[1] < ENDED_S}

    def devices(self, host_total: int | None, t: float) -> tuple[Device, ...]:
        """Every device, with the age of what is known of it."""
        newest = max((unit.read_at or 0.0 for unit in self._units.values()), default=0.0)
        found = []
        for unit in sorted(self._units.values(), key=lambda unit: unit.index):
            if newest - (unit.read_at or 0.0) > GONE_S:
                unit.lose("no longer listed by the driver")
            unit.processes = self._of(unit)
            device = unit.device(set(), host_total, self._mode)
            found.append(replace(device, age_s=None if unit.read_at is None else max(0.0, t - unit.read_at)))
        return tuple(found)

    def dips(self, host_total: int | None, now: float) -> dict[str, Dip]:
        """The headroom of each device with memory of its own, by its pool."""
        devices = (unit.device(set(), host_total, self._mode) for unit in self._units.values())
        own = ((device, device.memory) for device in devices if not is_unified(device, self._mode))
        return {device_key(device): Dip(device_headroom(memory), now) for device, memory in own if memory is not None}

    def _of(self, unit: Unit) -> tuple[DeviceProcess, ...]:
        mine = {pid: process for (uuid, pid), (process, _) in self._processes.items() if uuid == unit.uuid}
        held = merge_processes(
            [[(pid, process.memory_bytes) for pid, process in mine.items()]], LARGEST_PID, unit.most_held(self._mode)
        )
        order = sorted(held, key=lambda pid: (-(held[pid] or 0), pid))
        return tuple(mine[pid] for pid in order)


def _rows(fields: str, rows: bytes) -> Iterator[dict[str, str]]:
    names = fields.split(",")
    for line in rows.decode("utf-8", "replace").splitlines():
        values = [value.strip() for value in line.split(", ")]
        if len(values) >= len(names):
            spare = len(values) - len(names)  # a process's name may have commas
            place = names.index("process_name") if "process_name" in names else 0
            values[place : place + spare + 1] = [", ".join(values[place : place + spare + 1])]
            yield dict(zip(names, values, strict=True))


def _fill(unit: Unit, row: Mapping[str, str], t: float) -> None:
    unit.record, unit.read_at, unit.lost = None, t, None
    if any("lost" in value.lower() for value in row.values()):
        unit.lose("GPU is lost")
        return
    unit.values = {"name": _name(row.get("name", ""))}
    for field, (name, most) in _NUMBERS.items():
        unit.values[name] = _number(row.get(field), most) if field in row else unit.values.get(name)
    unit.values["throttle"] = _throttle(row.get("clocks_throttle_reasons.active", ""))
    total, used = _number(row.get("memory.total"), 2**30), _number(row.get("memory.used"), 2**30)
    reserved = _number(row.get("memory.reserved"), 2**30) or 0.0
    if total and used is not None:
        sizes = [int(size * MIB) for size in (total, used, reserved, max(0.0, total - used - reserved))]
        unit.memory, unit.answer = DeviceMemory(*sizes), "memory"
    else:
        told = row.get("memory.total", "").lower()
        unit.memory, unit.answer = None, "error" if "error" in told else "none"


def _throttle(bits: str) -> tuple[str, ...] | None:
    try:
        return throttle_names(int(bits, 16))
    except ValueError:
        return None


def _number(text: str | None, most: float) -> float | None:
    """A number of nvidia-smi; None for `[N/A]` and its like, and for what cannot be."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= most else None


def _name(text: str) -> str | None:
    """A name, of a program without its folder; None for `[Not Found]`, `[Insufficient Permissions]`, `[N/A]`."""
    name = clean(text.rpartition("/")[2] if text.startswith("/") else text)
    return None if not name or name.startswith("[") else name
