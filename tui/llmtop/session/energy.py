"""Joules per generated token: the driver's energy counters over 10 s, by the tokens per second of the server."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llmtop.contract.snapshot import Device, ServerView
from llmtop.engines.rates import RATE_WINDOW_S

Scope = Literal["gpu", "module"]


@dataclass(frozen=True, slots=True)
class _Reading:
    t: float
    joules: float


class EnergyMeter:
    """Mean power of each device over the rate window. Power samples are never integrated: sensors sleep in between."""

    def __init__(self) -> None:
        self._readings: dict[str, deque[_Reading]] = {}

    def push(self, devices: Iterable[Device], now: float) -> None:
        """Take the energy counters, by the Unix time of their reading or `age_s` before `now`."""
        for device in devices:
            if device.energy_j is None or device.uuid is None:
                continue
            taken = device.energy_time if device.energy_time is not None else now - (device.age_s or 0.0)
            readings = self._readings.setdefault(device.uuid, deque())
            if readings and (device.energy_j < readings[-1].joules or taken < readings[-1].t):
                readings.clear()  # the driver was reloaded, or the clock set back
            if not readings or device.energy_j > readings[-1].joules:
                readings.append(_Reading(taken, device.energy_j))
            while len(readings) > 2 and readings[1].t <= taken - RATE_WINDOW_S:
                readings.popleft()

    def watts(self, device: Device) -> float | None:
        """Mean power over the window; None before two readings."""
        readings = self._readings.get(device.uuid or "")
        if not readings or len(readings) < 2 or readings[-1].t <= readings[0].t:
            return None
        return (readings[-1].joules - readings[0].joules) / (readings[-1].t - readings[0].t)

    def fill(self, server: ServerView, devices: Sequence[Device]) -> ServerView:
        """The server with the J/token of its devices; unchanged where that cannot be known."""
        rate = server.rates.generation_tok_s
        powers = [self.watts(device) for device in devices]
        known = [power for power in powers if power is not None]
        if not rate or not known or len(known) != len(powers):
            return server
        scope: Scope = "module" if any(device.energy_scope == "module" for device in devices) else "gpu"
        return replace(server, joules_per_token=sum(known) / rate, joules_scope=scope)
