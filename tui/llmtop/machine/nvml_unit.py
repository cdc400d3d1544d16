"""One GPU or MIG instance as NVML's thread knows it, and the frozen record made of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llmtop.contract.snapshot import Device, DeviceMemory, DeviceProcess
from llmtop.machine.headroom import MemoryMode
from llmtop.machine.nvml_fields import (
    FIELDS,
    MOST_BYTES,
    NOT_SUPPORTED,
    SETTLED,
    STATIC,
    is_unified,
    may_share,
    unusable_words,
)


class FailedError(Exception):
    """One question NVML did not answer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class LostError(Exception):
    """The GPU that was asked has fallen off the bus."""


class UnusableError(Exception):
    """NVML as a whole gives nothing."""


@dataclass(slots=True, eq=False)
class Unit:
    """One GPU or MIG instance: its handle, what is known of it, and what it last answered."""

    index: int
    handle: Any = None
    uuid: str | None = None
    mig: str | None = None
    described: bool = False
    values: dict[str, Any] = field(default_factory=dict)
    memory: DeviceMemory | None = None
    answer: Literal["memory", "none", "error"] = "error"
    processes: tuple[DeviceProcess, ...] = ()
    settled: dict[tuple[str, int], tuple[FailedError, float]] = field(default_factory=dict)  # and until when
    errors: dict[str, FailedError] = field(default_factory=dict)
    failure: str | None = None  # no handle to be had
    lost: str | None = None
    probe: bool = True  # whether a lost unit is worth another call
    read_at: float | None = None
    energy_time: float | None = None  # Unix time
    record: Device | None = None  # what `device` made of all this, while it holds

    def lose(self, why: str) -> None:
        """Mark as lost since now, unless it already is; nothing it answered before holds any longer."""
        self.lost = self.lost or f"{why} since {time.strftime('%H:%M:%S')}"
        self.forget()

    def forget(self) -> None:
        """Drop what was read, and keep what the device is."""
        self.values = {name: value for name, value in self.values.items() if name in STATIC}
        self.memory, self.answer, self.processes = None, "error", ()
        self.errors.clear()
        self.settled.clear()
        self.record = None

    def remember(self, info: Any) -> None:
        """Take the answer to a memory query; None stands for the error in `errors`, a total of 0 for no memory."""
        before, self.memory = self.memory, None
        if info is not None and info.total:
            total, used, reserved = int(info.total), int(info.used), int(getattr(info, "reserved", 0))
            self.memory, self.answer = DeviceMemory(total, used, reserved, max(0, total - reserved - used)), "memory"
        else:
            error = self.errors.get("memory")
            self.answer = "none" if error is None or error.code == NOT_SUPPORTED else "error"
        if self.memory != before:
            self.record = None

    def most_held(self, mode: MemoryMode) -> int:
        """What a process can hold at most: no more than there is, where the device has memory of its own."""
        shares = may_share(self.values.get("name"), bool(self.values.get("ats")), mode)
        return MOST_BYTES if shares or self.memory is None else self.memory.total

    def device(self, elsewhere: set[int], host_total: int | None, mode: MemoryMode) -> Device:
        """The record of this unit, without the processes that are listed `elsewhere`."""
        values = {name: value for name, value in self.values.items() if name in FIELDS and value is not None}
        name = self.values.get("name")
        total = None if self.memory is None else self.memory.total
        ats = bool(self.values.get("ats"))
        scope: Literal["gpu", "module"] = "module" if self.values.get("module_power") else "gpu"
        return Device(
            index=self.index,
            uuid=self.uuid,
            name=name,
            state=self._state(),
            reason=self._reason(),
            memory=self.memory,
            unified=self.mig is None and is_unified(name, self.answer, total, host_total, ats, mode),
            processes=tuple(process for process in self.processes if process.pid not in elsewhere),
            mig=self.mig,
            energy_scope=scope if "energy_j" in values else None,
            energy_time=self.energy_time if "energy_j" in values else None,
            numa_node=self.values.get("numa_node"),
            sm_clock_max_mhz=self.values.get("sm_clock_max_mhz"),
            slowdown_c=self.values.get("slowdown_c"),
            throttle_known="throttle" in values,
            **values,
        )

    def _state(self) -> Literal["OK", "LOST", "ERROR"]:
        if self.lost:
            return "LOST"
        error = self.errors.get("memory")
        return "ERROR" if self.failure or (error is not None and error.code not in SETTLED) else "OK"

    def _reason(self) -> str | None:
        if self.lost or self.failure:
            return self.lost or self.failure
        if self.answer == "error" and "memory" in self.errors:
            return f"memory: {self.errors['memory']}"
        unsettled = (f"{name}: {error}" for name, error in self.errors.items() if error.code not in SETTLED)
        return next(unsettled, None)


def gone(known: Sequence[Unit], found: Sequence[Unit]) -> list[Unit]:
    """GPUs that were there when the list was longer; where another took the place, the old one is forgotten."""
    before = [unit for unit in known if unit.mig is None]
    now = {id(unit) for unit in found if unit.mig is None}
    return [unit for unit in before if id(unit) not in now] if len(now) < len(before) else []


def words(error: FailedError | LostError) -> str:
    """An error in words for the user, with what helps."""
    return unusable_words(error.code, str(error)) if isinstance(error, FailedError) else str(error)
