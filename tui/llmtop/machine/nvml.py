"""GPUs through NVML, where every failure is data: a missing library, a lost GPU, a field the driver lacks.

`NvmlReader` belongs to one thread. Its calls can take milliseconds or hang for minutes, so a round of readings is a
generator that yields between calls: its caller does quicker work in between, and another thread sees from
`call_started` how long the driver has not answered.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llmtop.contract.snapshot import Device, DeviceProcess
from llmtop.machine.headroom import MemoryMode, is_grace
from llmtop.machine.host import HostReader
from llmtop.machine.nvml_fields import (
    FIELDS,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    LIBRARY,
    LIBRARY_NOT_FOUND,
    MEMORY,
    PROCESSES,
    SETTLED,
    STATIC,
    UNINITIALIZED,
    UNKNOWN,
    UNUSABLE,
    Way,
    merge_processes,
    unusable_words,
)
from llmtop.machine.nvml_unit import FailedError, LostError, Unit, UnusableError, gone, words

RETRY_S = 10.0  # between attempts to initialise, and until a field that was not supported is asked for again
ENUMERATE_S = 5.0  # between looks at which devices there are


class NvmlReader:
    """Reads all GPUs and MIG instances; never raises for anything that NVML answers."""

    def __init__(self, host: HostReader, memory_mode: MemoryMode = "auto") -> None:
        self.connected = False  # whether the library is initialised
        self.reason: str | None = None  # why there are no devices
        self.call_started: float | None = None  # monotonic time at which the call now in progress began
        self._host = host
        self._mode = memory_mode
        self._nvml: Any = None
        self._next_connect = 0.0
        self._next_enumeration = 0.0
        self._units: tuple[Unit, ...] = ()
        self._split: frozenset[int] = frozenset()  # indices of GPUs that are divided into instances

    def round(self, processes: bool) -> Iterator[None]:
        """One reading of everything due, yielding between calls; processes only if asked for."""
        try:
            if not self.connected:
                if time.monotonic() < self._next_connect:
                    return
                self._connect()
                yield
            if time.monotonic() >= self._next_enumeration:
                yield from self._enumerate()
            for unit in self._units:
                yield from self._read(unit, processes)
        except UnusableError as error:
            self._disconnect(str(error))
        finally:
            for unit in self._units:
                unit.record = None

    def has_fast(self) -> bool:
        """Whether any device has memory of its own to watch."""
        return any(map(self._is_fast, self._units))

    def fast(self) -> None:
        """Read the memory of every device that has a number for it, and nothing else."""
        try:
            for unit in filter(self._is_fast, self._units):
                self._read_memory_or_lose(unit)
        except UnusableError as error:
            self._disconnect(str(error))

    def devices(self, host_total: int | None) -> tuple[tuple[Device, float | None], ...]:
        """Every device as last read, with the monotonic time of that reading (None: never)."""
        inside = {process.pid for unit in self._units if unit.mig is not None for process in unit.processes}
        for unit in self._units:
            if unit.record is None:
                unit.record = unit.device(inside if unit.mig is None else set(), host_total, self._mode)
        return tuple((unit.record, unit.read_at) for unit in self._units if unit.record is not None)

    def close(self) -> None:
        """Release the library, so that a driver reload or a GPU reset is not held up."""
        if self.connected:
            self.connected = False
            try:
                self._call(lambda nvml: nvml.nvmlShutdown())
            except (FailedError, LostError, UnusableError):
                pass

    # -- connecting ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._next_connect = time.monotonic() + RETRY_S
        try:
            ctypes.CDLL(LIBRARY)  # cheaper than importing pynvml where there is no NVIDIA driver at all
            import pynvml
        except OSError as error:
            raise UnusableError(unusable_words(LIBRARY_NOT_FOUND, str(error))) from error
        except ImportError as error:
            raise UnusableError("the Python package nvidia-ml-py is not installed") from error
        self._nvml = pynvml
        try:
            self._call(lambda nvml: nvml.nvmlInit())
        except (FailedError, LostError) as error:
            raise UnusableError(words(error)) from error
        self.connected = True
        self._next_enumeration = 0.0
        self.reason = None

    def _disconnect(self, reason: str) -> None:
        self.close()
        self.reason = reason
        self._next_connect = time.monotonic() + RETRY_S
        for unit in self._units:
            unit.handle, unit.failure = None, reason
            unit.forget()

    # -- which devices there are ---------------------------------------------------------------------------------

    def _enumerate(self) -> Iterator[None]:
        self._next_enumeration = time.monotonic() + ENUMERATE_S
        try:
            count = int(self._call(lambda nvml: nvml.nvmlDeviceGetCount()))
        except (FailedError, LostError) as error:
            raise UnusableError(words(error)) from error
        known, found = self._units, list[Unit]()
        for index in range(count):
            yield
            unit = self._identify(index, known)
            found += [unit, *self._instances(unit, known)]
        missing = gone(known, found)
        for unit in missing:
            unit.handle = None
            unit.lose("no longer listed by the driver")
        self._units = (*found, *missing)
        self._split = frozenset(unit.index for unit in found if unit.mig is not None)

    def _identify(self, index: int, known: Sequence[Unit]) -> Unit:
        """The unit of a device index: by its uuid, or where that cannot be had the one that was there."""
        before = next((u for u in known if u.index == index and u.mig is None), None) or Unit(index)
        handle = None
        try:
            handle = self._call(lambda nvml: nvml.nvmlDeviceGetHandleByIndex(index))
            uuid = self._uuid(handle)
        except LostError:
            before.handle, before.probe = handle, True
            before.lose("GPU is lost")
            return before
        except FailedError as error:
            before.handle, before.failure = None, words(error)
            before.forget()
            return before
        same = next((u for u in known if u.mig is None and uuid is not None and u.uuid == uuid), None)
        unit = same or (before if before.uuid is None or uuid is None else Unit(index))
        unit.index, unit.handle, unit.failure, unit.probe = index, handle, None, True
        unit.uuid = uuid or unit.uuid
        return unit

    def _uuid(self, handle: Any) -> str | None:
        try:
            return str(self._call(lambda nvml: nvml.nvmlDeviceGetUUID(handle)))
        except FailedError:
            return None

    def _instances(self, parent: Unit, known: Sequence[Unit]) -> list[Unit]:
        if parent.lost or parent.handle is None:
            return []
        try:
            if not self._ask(parent, "mig", (lambda nvml, handle: nvml.nvmlDeviceGetMigMode(handle)[0],)):
                return []
            ways: tuple[Way, ...] = (lambda nvml, handle: nvml.nvmlDeviceGetMaxMigDeviceCount(handle),)
            slots = range(int(self._ask(parent, "mig_slots", ways) or 0))
            return [unit for slot in slots if (unit := self._instance(parent, slot, known)) is not None]
        except LostError:
            return []

    def _instance(self, parent: Unit, slot: int, known: Sequence[Unit]) -> Unit | None:
        try:
            handle = self._call(lambda nvml: nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent.handle, slot))
        except FailedError:
            return None  # an empty slot
        uuid = self._uuid(handle)
        unit = next((u for u in known if u.mig is not None and u.uuid == uuid), None)
        if unit is None:
            ids = (self._instance_id(handle, "Gpu"), self._instance_id(handle, "Compute"))
            label = str(slot) if None in ids else "{}/{}".format(*ids)
            unit = Unit(parent.index, uuid=uuid, mig=label)
        unit.handle, unit.index, unit.failure, unit.probe = handle, parent.index, None, True
        return unit

    def _instance_id(self, handle: Any, kind: str) -> int | None:
        try:
            return int(self._call(lambda nvml: getattr(nvml, f"nvmlDeviceGet{kind}InstanceId")(handle)))
        except FailedError:
            return None

    # -- what they say -------------------------------------------------------------------------------------------

    def _read(self, unit: Unit, processes: bool) -> Iterator[None]:
        if unit.handle is None or (unit.lost and not unit.probe):
            return
        unit.probe = False
        if not self._read_memory_or_lose(unit):
            return
        yield
        try:
            if not unit.described:
                yield from self._read_fields(unit, STATIC)
                unit.described = True
            if unit.mig is None:  # an instance has none of its own
                yield from self._read_fields(unit, FIELDS)
            if processes:
                yield from self._read_processes(unit)
        except LostError:
            unit.lose("GPU is lost")

    def _read_fields(self, unit: Unit, fields: Mapping[str, tuple[Way, ...]]) -> Iterator[None]:
        for name, ways in fields.items():
            if name == "module_power" and not is_grace(unit.values.get("name")):
                continue  # only there is the energy counter known to be the module's
            unit.values[name] = self._ask(unit, name, ways)
            if name == "energy_j":
                unit.energy_time = time.time()
            yield

    def _read_memory_or_lose(self, unit: Unit) -> bool:
        """Read memory, which tells whether the GPU is there at all; False if it is lost."""
        try:
            info = self._ask(unit, "memory", MEMORY)
        except LostError:
            unit.lose("GPU is lost")
            return False
        unit.lost = None
        unit.read_at = time.monotonic()
        unit.remember(info)
        return True

    def _read_processes(self, unit: Unit) -> Iterator[None]:
        lists = []
        for kind, ways in PROCESSES.items():
            lists.append(self._ask(unit, kind, ways) or [])
            yield
        rows = merge_processes(lists, self._host.pid_max(), unit.most_held(self._mode))
        unit.processes = tuple(
            DeviceProcess(pid, self._host.process_name(pid), used)
            for pid, used in sorted(rows.items(), key=lambda row: (-(row[1] or 0), row[0]))
        )

    def _ask(self, unit: Unit, name: str, ways: Sequence[Way]) -> Any:
        """The first answer of several ways of asking; None when none has one, with the error in `unit.errors`."""
        for number, way in enumerate(ways):
            settled, until = unit.settled.get((name, number), (None, 0.0))
            if settled is not None and time.monotonic() < until:
                unit.errors[name] = settled
                continue
            try:
                value = self._call(way, unit.handle)
            except FailedError as error:
                unit.errors[name] = error
                if error.code in SETTLED:
                    unit.settled[name, number] = (error, time.monotonic() + RETRY_S)
                continue
            unit.errors.pop(name, None)
            return value
        return None

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.call_started = time.monotonic()
        try:
            return function(self._nvml, *arguments)
        except self._nvml.NVMLError as error:
            code, text = int(error.value), str(error)
            if code == GPU_IS_LOST:
                raise LostError(text) from error
            if code in UNUSABLE:
                known = self.reason if code == UNINITIALIZED else None  # why it was closed says more
                raise UnusableError(known or unusable_words(code, text)) from error
            raise FailedError(code, text) from error
        except AttributeError as error:  # this pynvml is older than the function
            raise FailedError(FUNCTION_NOT_FOUND, str(error)) from error
        except UnicodeDecodeError as error:
            raise FailedError(UNKNOWN, "the driver's answer is not text") from error
        finally:
            self.call_started = None

    def _is_fast(self, unit: Unit) -> bool:
        split = unit.mig is None and unit.index in self._split  # its instances are watched instead
        return unit.memory is not None and not split
