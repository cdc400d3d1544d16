"""What is asked of NVML, as tables and pure functions: fields, throttle bits, errors in words, the unified rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from llmtop.machine.headroom import MemoryMode, is_grace

# One way of asking: takes the pynvml module and a device handle. Of several, the first that answers counts.
Way = Callable[[Any, Any], Any]

LIBRARY = "libnvidia-ml.so.1"

# NVML return codes (nvml.h, nvmlReturn_t)
UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
UNKNOWN = 999
# Answers that will be the same the next time.
SETTLED = frozenset({2, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, 25, 26})
# The library is not usable at all: not initialised, driver gone or replaced, library missing.
UNUSABLE = frozenset({UNINITIALIZED, 9, LIBRARY_NOT_FOUND, 18})

_WORDS: Mapping[int, str] = {
    4: "no permission to use the NVIDIA driver (/dev/nvidiactl)",
    9: "NVIDIA driver not loaded: reboot or reload the driver",
    12: f"no NVIDIA driver library ({LIBRARY})",
    18: "NVIDIA driver/library version mismatch: reboot or reload the driver",
    999: "Unknown Error from the NVIDIA driver: restart the container",
}

_THROTTLE: Mapping[int, str] = {
    # 0x1 idle and 0x2 application clocks are no throttling.
    0x4: "sw power cap",
    0x8: "hw slowdown",
    0x10: "sync boost",
    0x20: "sw thermal",
    0x40: "hw thermal",
    0x80: "power brake",
    0x100: "display",
    0x200: "board limit",
    0x400: "reliability",
}

_SHARES_HOST_MEMORY = re.compile(r"\b(GB10|Thor|Orin|Xavier)\b|Tegra|nvgpu", re.IGNORECASE)
_POWER_INSTANT, _SCOPE_MODULE = 186, 1
_ATS = 2
_MOST_WATTS, _HOTTEST_C = 100_000.0, 200.0
MOST_BYTES = 2**44  # no machine has 16 TiB


def unusable_words(code: int, text: str) -> str:
    """Why NVML gives nothing, and what helps."""
    return _WORDS.get(code, f"NVML error {code}: {text}")


def throttle_names(bits: int) -> tuple[str, ...]:
    """The reasons why clocks are held down, from the bits of nvmlClocksEventReasons."""
    return tuple(name for bit, name in _THROTTLE.items() if bits & bit)


def is_unified(
    name: str | None,
    answer: Literal["memory", "none", "error"],
    total: int | None,
    host_total: int | None,
    ats: bool,
    mode: MemoryMode,
) -> bool:
    """Whether a device allocates from host memory.

    Evidence: NVML has no memory size for it (`answer` "none": NOT_SUPPORTED or total 0) or one not below the host's
    by more than 10 %; and a name known to share, or (without a size) address translation by the host's page tables.
    Every other error leaves it unknown. Grace has that translation too, but memory of its own.
    """
    if mode != "auto":
        return mode == "unified"
    if answer == "error":
        return False
    if answer == "none":
        return may_share(name, ats, mode)
    whole = bool(total and host_total) and (total or 0) >= 0.9 * (host_total or 0)
    return whole and may_share(name, False, mode)


def may_share(name: str | None, ats: bool, mode: MemoryMode) -> bool:
    """Whether a device may allocate from host memory, whatever size NVML has for it: that can be a carve-out."""
    known = name is not None and _SHARES_HOST_MEMORY.search(name) is not None
    return mode == "unified" or ((known or ats) and not is_grace(name))


def merge_processes(
    lists: Iterable[Iterable[tuple[int, int | None]]], pid_max: int, most: int
) -> dict[int, int | None]:
    """One row per process of (pid, bytes) lists; the same process in two lists holds its memory once.

    Rows that cannot be true are dropped: pid 0, above `pid_max`, or more memory than `most` (drivers 535.43-86
    shifted the records).
    """
    rows: dict[int, int | None] = {}
    for listed in lists:
        for pid, used in listed:
            if not 0 < pid <= pid_max or (used is not None and used > most):
                continue
            known = rows.get(pid)
            rows[pid] = used if known is None else max(known, used or 0)
    return rows


def _up_to(most: float, value: float) -> float | None:
    """The value, unless it is one that no device has: drivers fill a field they lack with all ones."""
    return float(value) if value <= most else None


def _module_power(nvml: Any, handle: Any) -> bool:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(_POWER_INSTANT, _SCOPE_MODULE)])
    return int(value.nvmlReturn) == 0


def _listed(kind: str) -> tuple[Way, ...]:
    def way(version: str) -> Way:
        # With a version in its name: pynvml raises an error of its own where the newest is missing.
        function = f"nvmlDeviceGet{kind}RunningProcesses_{version}"
        return lambda n, h: [(int(row.pid), row.usedGpuMemory) for row in getattr(n, function)(h)]

    return way("v3"), way("v2")


MEMORY: tuple[Way, ...] = (
    lambda n, h: n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2),
    lambda n, h: n.nvmlDeviceGetMemoryInfo(h),
)

# Read once per device.
STATIC: Mapping[str, tuple[Way, ...]] = {
    "name": (lambda n, h: str(n.nvmlDeviceGetName(h)),),
    "numa_node": (lambda n, h: int(n.nvmlDeviceGetNumaNodeId(h)),),
    "ats": (lambda n, h: int(n.nvmlDeviceGetAddressingMode(h)) == _ATS,),
    "module_power": (_module_power,),
    "sm_clock_max_mhz": (lambda n, h: float(n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM)),),
    "slowdown_c": (
        lambda n, h: _up_to(_HOTTEST_C, n.nvmlDeviceGetTemperatureThreshold(h, n.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)),
    ),
}

# Read once a second.
FIELDS: Mapping[str, tuple[Way, ...]] = {
    "util": (lambda n, h: _up_to(100.0, n.nvmlDeviceGetUtilizationRates(h).gpu),),
    "power_w": (lambda n, h: _up_to(_MOST_WATTS, n.nvmlDeviceGetPowerUsage(h) / 1000),),
    "power_limit_w": (
        lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
        lambda n, h: n.nvmlDeviceGetPowerManagementLimit(h) / 1000,
    ),
    "temperature_c": (
        lambda n, h: _up_to(_HOTTEST_C, n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
        lambda n, h: _up_to(_HOTTEST_C, n.nvmlDeviceGetTemperatureV(h, n.NVML_TEMPERATURE_GPU)),
    ),
    "sm_clock_mhz": (lambda n, h: float(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),),
    "throttle": (
        lambda n, h: throttle_names(n.nvmlDeviceGetCurrentClocksEventReasons(h)),
        lambda n, h: throttle_names(n.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
    ),
    "energy_j": (lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1000,),
}

# Dear: each holds a lock of the driver (milliseconds).
PROCESSES: Mapping[str, tuple[Way, ...]] = {
    "compute": _listed("Compute"),
    "graphics": _listed("Graphics"),
    "mps": _listed("MPSCompute"),
}
