"""The worker's own health: how late its loop runs, how much CPU it uses, how long it waits for a core."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from array import array
from dataclasses import dataclass

from llmtop.load.stats import percentile

_TICK_S = 0.02
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Vitals:
    """Over one level: share of a core used, share of time spent runnable but waiting, loop lag."""

    cpu_share: float | None = None
    wait_share: float | None = None
    lag_p99_s: float | None = None


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies; exits at once if it already has.

    `parent` is the pid the caller expects. Where prctl is missing, the end of stdin still says it.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def run_queue_wait_s() -> float | None:
    """Seconds this process has been runnable without a core (/proc/self/schedstat); None if unknown."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class VitalsMeter:
    """Measures from `start` to `stop`, in the running loop."""

    def __init__(self) -> None:
        self._lags = array("d")
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._began = self._cpu = 0.0
        self._wait: float | None = None

    def start(self) -> None:
        """Begins to measure."""
        self._began, self._cpu, self._wait = time.perf_counter(), time.process_time(), run_queue_wait_s()
        self._arm()

    def stop(self) -> Vitals:
        """Ends and returns what was measured."""
        if self._handle is not None:
            self._handle.cancel()
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        waited = run_queue_wait_s()
        known = waited is not None and self._wait is not None
        return Vitals(
            cpu_share=(time.process_time() - self._cpu) / elapsed,
            wait_share=(waited - self._wait) / elapsed if known else None,  # type: ignore[operator]
            lag_p99_s=percentile(sorted(self._lags), 99) if self._lags else None,
        )

    def _arm(self) -> None:
        self._due = time.perf_counter() + _TICK_S
        self._handle = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._lags.append(max(0.0, time.perf_counter() - self._due))
        self._arm()
