"""The simulated machine: device, host and memory readings that follow the simulated engine.

The engine's process tells what it does over a small JSON endpoint; everything else (power, temperature,
clocks, page cache) is made here from the profile. The parts of every memory pool add up to its total, as
they do on a real machine.
"""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from llmtop.contract.snapshot import Device, DeviceMemory, DeviceProcess, Host, SourceStatus
from llmtop.demo.profile import MachineConfig, MachineProfile
from llmtop.machine.sample import Dip, MachineSample, MemInfo, NodeMem

POLL_S = 0.1
_WINDOW_S = 1.0  # utilisation is the busy share of this window
_WARMING_S = 25.0  # time constant of the temperature
_KEEP_FREE = 400 * 2**20  # the kernel's reserve: page cache gives way before it
_NOISE = 192 * 2**20
VLLM_PROCESS = "VLLM::EngineCore"


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server's process said last: seconds of effort per engine, bytes held, its phase and its name."""

    monotonic: float
    pid: int
    phase: str
    busy_s: tuple[float, ...]
    prefill_s: tuple[float, ...]
    engine_bytes: int
    cache_bytes: int
    hog_bytes: int
    process: str = VLLM_PROCESS


def together(states: Sequence[ServerState]) -> ServerState | None:
    """Several servers of one machine as one: bytes and effort added; None for none."""
    if len(states) < 2:
        return states[0] if states else None

    def added(name: str) -> Any:
        return sum(getattr(state, name) for state in states)

    return replace(
        states[0],
        busy_s=(sum(map(sum, (state.busy_s for state in states))),),
        prefill_s=(sum(map(sum, (state.prefill_s for state in states))),),
        engine_bytes=added("engine_bytes"),
        cache_bytes=added("cache_bytes"),
        hog_bytes=added("hog_bytes"),
    )


def parse_state(data: Mapping[str, Any]) -> ServerState:
    """The state from the endpoint's JSON; raises KeyError or TypeError on another shape."""
    return ServerState(
        monotonic=float(data["monotonic"]),
        pid=int(data["pid"]),
        phase=str(data["phase"]),
        busy_s=tuple(map(float, data["busy_s"])),
        prefill_s=tuple(map(float, data["prefill_s"])),
        engine_bytes=int(data["engine_bytes"]),
        cache_bytes=int(data["cache_bytes"]),
        hog_bytes=int(data["hog_bytes"]),
        process=str(data.get("process", VLLM_PROCESS)),
    )


@dataclass(slots=True)
class _Gpu:
    """One device's inner state."""

    temperature_c: float
    util: float = 0.0
    prefill: float = 0.0
    power_w: float = 0.0
    energy_j: float = 0.0


@dataclass(slots=True)
class Plant:
    """The machine as a pure function of the states it is given: `update` with each, then read."""

    profile: MachineProfile
    gpus: list[_Gpu] = field(default_factory=list)
    state: ServerState | None = None
    servers: tuple[ServerState, ...] = ()
    _history: deque[ServerState] = field(default_factory=deque)

    def update(self, *servers: ServerState, seconds: float) -> None:
        """Takes the newest states (none: the processes are gone) `seconds` after those before."""
        self.servers, state = servers, together(servers)
        self.state = state
        self._remember(state)
        machine = self.profile.machine
        count = len(state.busy_s) if state and machine.memory == "discrete" and state.busy_s else 1
        while len(self.gpus) < count:
            self.gpus.append(_Gpu(machine.temperature_c[0]))
        for number, gpu in enumerate(self.gpus):
            gpu.util, gpu.prefill = self._load(number)
            _heat(gpu, machine, seconds)

    def _remember(self, state: ServerState | None) -> None:
        history = self._history
        if state is None or (history and len(history[-1].busy_s) != len(state.busy_s)):
            history.clear()
        if state is None:
            return
        history.append(state)
        while len(history) > 2 and history[1].monotonic <= state.monotonic - _WINDOW_S:
            history.popleft()

    def _load(self, number: int) -> tuple[float, float]:
        """(busy share, share of it reading prompts) of the last window."""
        if len(self._history) < 2:
            return 0.0, 0.0
        old, new = self._history[0], self._history[-1]
        elapsed = new.monotonic - old.monotonic
        if number >= len(new.busy_s) or elapsed <= 0:
            return 0.0, 0.0
        busy = max(0.0, new.busy_s[number] - old.busy_s[number])
        prefill = max(0.0, new.prefill_s[number] - old.prefill_s[number])
        return min(1.0, busy / elapsed), min(1.0, prefill / busy) if busy else 0.0

    # readings

    def devices(self) -> tuple[Device, ...]:
        """Every device."""
        return tuple(self._device(number, gpu) for number, gpu in enumerate(self.gpus))

    def memory(self, now: float) -> MemInfo:
        """The host's memory; `now` (Unix time) moves the small noise."""
        machine = self.profile.machine
        total = machine.mem_total - machine.node_total
        free, cache = self._split(total, now)
        memory = MemInfo(
            total=total,
            free=free,
            available=free + cache,
            swap_total=machine.swap_total,
            swap_free=machine.swap_total,
        )
        if machine.numa_node is None:
            return memory
        hbm = self._hbm_node()
        return replace(
            memory,
            total=machine.mem_total,
            free=free + hbm.free,
            available=free + cache + hbm.free + hbm.reclaimable,
            nodes={0: NodeMem(total, free, cache, True), machine.numa_node: hbm},
        )

    def headrooms(self, now: float) -> dict[str, int]:
        """Headroom in bytes per pool, keyed as `MachineSample.dips` is."""
        memory, machine = self.memory(now), self.profile.machine
        if machine.memory == "unified":
            return {"unified": memory.available or 0}
        pools = {d.uuid: d.memory.free for d in self.devices() if d.uuid and d.memory}
        lpddr = memory.nodes.get(0)
        host = memory.available if lpddr is None else lpddr.free + lpddr.reclaimable
        return {**pools, "ram" if lpddr is None else "lpddr": host or 0}

    def host(self, name: str | None, now: float) -> Host:
        """The host's record."""
        memory = self.memory(now)
        util = max((gpu.util for gpu in self.gpus), default=0.0)
        headroom = next(iter(self.headrooms(now).values()))
        scarce = max(0.0, 0.02 - headroom / self.profile.machine.mem_total)
        unified = self.profile.machine.memory == "unified"
        return Host(
            name=name,
            cpu_percent=round(3.0 + 9.0 * util + 1.5 * _wave(now, 7.0), 1),
            mem_total_bytes=memory.total,
            mem_available_bytes=memory.available,
            swap_used_bytes=0,
            swap_out_bytes_s=0.0,
            psi_full_avg10=round(scarce * 1000, 2) if unified else 0.0,
            simulated=True,
        )

    def _split(self, total: int, now: float) -> tuple[int, int]:
        """(free, page cache) of the host's memory: cache gives way when others need the room."""
        machine, state = self.profile.machine, self.state
        used = machine.mem_other + round(_NOISE * _wave(now, 23.0))
        cache = machine.page_cache
        if state is not None:
            used += state.hog_bytes + (state.engine_bytes if machine.memory == "unified" else 0)
            cache += state.cache_bytes
        room = max(total - used, 0)
        cache = max(min(cache, room - _KEEP_FREE), 0)
        return room - cache, cache

    def _device_used(self) -> int:
        held = self.state.engine_bytes if self.state else 0
        return held + self.profile.machine.hbm_other

    def _hbm_node(self) -> NodeMem:
        machine = self.profile.machine
        room = max(machine.node_total - machine.hbm_reserved - self._device_used(), 0)
        cache = min(machine.node_cache, room)
        return NodeMem(machine.node_total, room - cache, cache, False)

    def _device(self, number: int, gpu: _Gpu) -> Device:
        machine = self.profile.machine
        unified = machine.memory == "unified"
        idle, busy = machine.clock_mhz
        hot = gpu.temperature_c >= machine.throttle_c
        return Device(
            index=number,
            uuid=machine.uuid if number == 0 else f"{machine.uuid[:-1]}{number + 1}",
            name=machine.device,
            util=round(100 * gpu.util),
            power_w=round(gpu.power_w, 1),
            power_limit_w=machine.power_limit_w,
            temperature_c=round(gpu.temperature_c),
            sm_clock_mhz=round(busy if gpu.util > 0.01 else idle),
            throttle=("thermal",) if hot else (),
            throttle_known=True,
            memory=None if unified else self._device_memory(),
            unified=unified,
            processes=self._processes(),
            energy_j=gpu.energy_j,
            energy_scope=machine.energy_scope,
            numa_node=machine.numa_node,
            simulated=True,
        )

    def _device_memory(self) -> DeviceMemory:
        machine = self.profile.machine
        used = min(self._device_used(), machine.hbm_total - machine.hbm_reserved)
        free = machine.hbm_total - machine.hbm_reserved - used
        return DeviceMemory(machine.hbm_total, used, machine.hbm_reserved, free)

    def _processes(self) -> tuple[DeviceProcess, ...]:
        held = (state for state in self.servers if state.engine_bytes)
        return tuple(DeviceProcess(state.pid, state.process, state.engine_bytes) for state in held)


def _heat(gpu: _Gpu, machine: MachineConfig, seconds: float) -> None:
    """Power from the load (reading prompts takes most), temperature slowly after it, energy summed up."""
    idle, busy = machine.power_w
    gpu.power_w = idle + (busy - idle) * gpu.util * (0.82 + 0.18 * gpu.prefill)
    cool, warm = machine.temperature_c
    target = cool + (warm - cool) * (gpu.power_w - idle) / (busy - idle)
    gpu.temperature_c += (target - gpu.temperature_c) * (1 - math.exp(-seconds / _WARMING_S))
    gpu.energy_j += gpu.power_w * seconds


def _wave(now: float, period: float) -> float:
    """A slow wobble between -1 and 1: measured values are never quite still."""
    turn = 2 * math.pi * now / period
    return 0.6 * math.sin(turn) + 0.4 * math.sin(2.7 * turn)


class SimulatedMachine:
    """A `MachineSource` that follows the demo servers behind their control addresses, polled at 10 Hz in a thread of
    its own.
    """

    def __init__(self, profile: MachineProfile, *controls: str, speed: float = 1.0) -> None:
        self._plant = Plant(profile)
        self._plant.update(seconds=0.0)
        self._connections = [http.client.HTTPConnection(urlsplit(url).netloc, timeout=2.0) for url in controls]
        faster = "" if speed == 1 else f" at {speed:g} x its speed"
        self._name = f"{profile.key} (simulated{faster})"
        self._speed = speed
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._dips: dict[str, Dip] = {}
        self._read_at: float | None = None
        self._reason: str | None = None
        self._rounds = 0

    def start(self) -> None:
        """Take a first reading, so that no history begins with an empty machine, then poll in a daemon thread."""
        self._round(0.0)
        threading.Thread(target=self._poll, name="demo-machine", daemon=True).start()

    def stop(self) -> None:
        """Asks the thread to end."""
        self._stopped.set()

    def ready(self) -> bool:
        """Whether the first reading is done or has failed."""
        return self._rounds > 0

    def sample(self) -> MachineSample:
        """The newest reading, and the least headroom of each pool since the last call."""
        now = time.time()
        with self._lock:
            dips, self._dips = self._dips, {}
            age = None if self._read_at is None else time.monotonic() - self._read_at
            return MachineSample(
                time=now,
                host=replace(self._plant.host(self._name, now), simulated_speed=self._speed),
                mem=self._plant.memory(now),
                devices=self._plant.devices(),
                dips=dips,
                status=(SourceStatus("machine", self._reason is None, self._reason, age),),
            )

    def _poll(self) -> None:
        before = time.monotonic()
        while not self._stopped.wait(POLL_S):
            now = time.monotonic()
            self._round(now - before)
            before = now
        for connection in self._connections:
            connection.close()

    def _round(self, seconds: float) -> None:
        answers = [_fetch(connection) for connection in self._connections]
        reason = next((why for _, why in answers if why is not None), None)
        with self._lock:
            self._plant.update(*(state for state, _ in answers if state is not None), seconds=seconds)
            self._note_dips(time.time())
            self._reason = reason
            self._read_at = time.monotonic() if reason is None else self._read_at
            self._rounds += 1

    def _note_dips(self, now: float) -> None:
        for key, headroom in self._plant.headrooms(now).items():
            known = self._dips.get(key)
            if known is None or headroom < known.headroom_bytes:
                self._dips[key] = Dip(headroom, now)


def _fetch(connection: http.client.HTTPConnection) -> tuple[ServerState | None, str | None]:
    """One state (None: the server's process is gone), and why it could not be read."""
    try:
        connection.request("GET", "/__machine")
        return parse_state(json.load(connection.getresponse())), None
    except ConnectionRefusedError:
        return None, None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        connection.close()
        return None, "the demo server does not answer"
