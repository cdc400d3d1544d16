"""The real machine: two daemon threads read it, `sample` copies what they have read.

One thread reads /proc and /sys, the other talks to NVML, so that a driver that hangs never stops the host's
readings. Both read memory ten times a second, because a peak of 150 ms is what an out-of-memory looks like from
outside, and everything else once a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from llmtop.contract.snapshot import Device, Host, Rail, SourceStatus
from llmtop.machine.fabric import FabricReader
from llmtop.machine.headroom import MemoryMode, device_headroom, device_key, host_pool, is_unified, pool_key
from llmtop.machine.host import Disk, HostReader, available_in
from llmtop.machine.killers import KillerReader, KillRule
from llmtop.machine.nvml import NvmlReader
from llmtop.machine.sample import Dip, MachineSample, MemInfo, NodeMem
from llmtop.machine.suspicion import Suspicion

SLOW_S = 1.0
PROCESSES_S = 2.0
LONGEST_S = 60.0
FABRIC_S = 3.0
KILLERS_EVERY = 5  # readings of the fabric
HUNG_S = 2.0  # a call that takes longer is reported as no answer
SLOW_ROUNDS = 3


class SamplingPace:
    """The period of something done again and again; it doubles while rounds take more than half of it.

    One slow round is a hiccup of this machine and would cost the dips of the next one; `SLOW_ROUNDS` in a row are not.
    """

    def __init__(self, period: float) -> None:
        self.base = self.period = period
        self._took = 0.0
        self._slow = 0

    def note(self, took: float) -> None:
        """Take the seconds of one round."""
        self._took = took
        self._slow = self._slow + 1 if took > self.period / 2 else 0
        if self._slow >= SLOW_ROUNDS:
            self.period, self._slow = min(self.period * 2, LONGEST_S), 0
        elif took < self.period / 8:
            self.period = max(self.period / 2, self.base)

    def rebase(self, period: float) -> None:
        """Aim at another period from now on."""
        self.base = self.period = period

    def words(self, what: str) -> str | None:
        """That and why the pace is slower than meant, or None."""
        if self.period <= self.base:
            return None
        every, meant = f"{self.period:.2g} s", f"{self.base:.2g} s"
        return f"{what} read every {every} instead of {meant}: a round takes {self._took * 1000:.0f} ms"


class Ending:
    """As `threading.Event`, set once and for good, at three quarters of the CPU time per wait that times out."""

    def __init__(self) -> None:
        self._held = threading.Lock()
        self._held.acquire()
        self._set = False

    def set(self) -> None:
        """End all waits, those to come included."""
        if not self._set:
            self._set = True
            self._held.release()

    def is_set(self) -> bool:
        """Whether the end has come."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most so long; whether it has come."""
        if not self._set and self._held.acquire(timeout=max(0.0, seconds)):
            self._held.release()  # for the others that wait
        return self._set


class LiveMachine:
    """Reads this machine, or the trees given; implements `MachineSource`."""

    def __init__(self, procfs: Path, sysfs: Path, memory_mode: MemoryMode = "auto", fast_hz: float = 10.0) -> None:
        self._mode = memory_mode
        self._procfs = procfs
        self._host_reader = HostReader(procfs, sysfs)
        # The NVML thread looks up processes with a reader of its own: readers keep state between calls.
        self._nvml_reader = NvmlReader(HostReader(procfs, sysfs), memory_mode)
        self._host_fast, self._host_slow = SamplingPace(1 / fast_hz), SamplingPace(SLOW_S)
        self._nvml_fast, self._nvml_slow = SamplingPace(1 / fast_hz), SamplingPace(SLOW_S)
        self._next_nvml_fast = 0.0
        self._fabric_reader = FabricReader(str(sysfs), str(procfs), Disk())
        self._killer_reader = KillerReader(str(procfs), Disk())
        self._beside_gpu = False

        self._lock = threading.Lock()  # guards what follows, which the threads write and `sample` reads
        self._host = Host()
        self._mem = MemInfo()
        self._nodes: dict[int, NodeMem] = {}
        self._unread: bytes | None = None  # a newer meminfo than `_mem`, without a new low
        self._least_available: int | None = None  # less than that has to be read in full; None: anything has
        self._suspicion = Suspicion()
        self._cdmm = False
        self._host_read_at: float | None = None
        self._devices: tuple[tuple[Device, float | None], ...] = ()
        self._nvml_read_at: float | None = None
        self._dips: dict[str, Dip] = {}
        self._faults: dict[str, str] = {}

        self._killers: tuple[KillRule, ...] = ()
        self._fabric: tuple[Rail, ...] = ()
        self._cards: tuple[float | None, float | None] = None, None

        self._stop = Ending()
        self._aside_ready = threading.Event()
        self._host_ready = threading.Event()
        self._nvml_ready = threading.Event()

    def start(self) -> None:
        """Begin sampling in daemon threads."""
        for name, loop in (("host", self._host_loop), ("nvml", self._nvml_loop), ("aside", self._aside_loop)):
            threading.Thread(target=self._guard, args=(name, loop), name=f"llmtop-{name}", daemon=True).start()

    def stop(self) -> None:
        """Ask the threads to end; never waits for a driver call."""
        self._stop.set()

    def ready(self) -> bool:
        """Whether the host and the GPUs have been read once, or NVML has failed for good."""
        return self._host_ready.is_set() and self._nvml_ready.is_set() and self._aside_ready.is_set()

    def set_fast_hz(self, fast_hz: float) -> None:
        """Read memory `fast_hz` times a second from now on."""
        self._host_fast.rebase(1 / fast_hz)
        self._nvml_fast.rebase(1 / fast_hz)

    def sample(self) -> MachineSample:
        """The newest reading and the dips since the last call."""
        now = time.monotonic()
        with self._lock:
            dips, self._dips, self._least_available = self._dips, {}, None
            if self._unread is not None:
                self._mem, self._unread = self._host_reader.mem(known=self._nodes, text=self._unread), None
            return MachineSample(
                time=time.time(),
                host=replace(self._host, net_rx_bytes_s=self._cards[0], net_tx_bytes_s=self._cards[1]),
                mem=self._judged(self._mem),
                devices=tuple(replace(device, age_s=_age(now, read)) for device, read in self._devices),
                cdmm=self._cdmm,
                dips=dips,
                killers=self._killers,
                fabric=self._fabric,
                status=(self._host_status(now), self._nvml_status(now)),
            )

    # -- the host's thread ---------------------------------------------------------------------------------------

    def _host_loop(self) -> None:
        next_slow = 0.0
        while not self._stop.is_set():
            began = time.monotonic()
            if began >= next_slow:
                self._read_host()
                next_slow = began + self._host_slow.period
                self._host_slow.note(time.monotonic() - began)
            began = time.monotonic()
            self._look_at_host_memory()
            took = time.monotonic() - began
            self._host_fast.note(took)
            self._host_ready.set()
            self._faults.pop("host", None)
            # host memory beside a GPU of its own holds no model: its dips are not worth ten wake-ups a second
            period = self._host_slow.period if self._beside_gpu else self._host_fast.period
            self._stop.wait(max(0.0, period - took))

    def _read_host(self) -> None:
        host = self._host_reader.host(self._host_reader.mem())
        nodes, cdmm = self._host_reader.nodes(), self._host_reader.cdmm()
        with self._lock:
            self._host, self._cdmm, self._nodes = host, cdmm, nodes

    def _look_at_host_memory(self) -> None:
        """Ten times a second: what shows no new low is read in full only when somebody asks."""
        text = self._host_reader.meminfo()
        available = available_in(text)
        with self._lock:
            least = self._least_available
            if available is not None and least is not None and available >= least:
                self._unread, self._host_read_at = text, time.monotonic()
                return
        self._read_host_memory(text)

    def _read_host_memory(self, text: bytes) -> None:
        nodes = self._nodes
        # Only a node without CPUs can be HBM; where that is not known, any of several.
        may_be_hbm = [n for n, node in nodes.items() if node.has_cpus is not True] if len(nodes) > 1 else []
        mem = self._host_reader.mem(may_be_hbm, nodes, text)
        with self._lock:
            self._mem, self._unread, self._host_read_at = mem, None, time.monotonic()
            # with huge pages, or HBM among the nodes, headroom depends on more than this one number
            self._least_available = None if may_be_hbm or mem.huge_total else mem.available
            devices = [device for device, _ in self._devices]
            pool = host_pool(self._judged(mem), devices, self._cdmm, self._mode)
            self._beside_gpu = pool is not None and pool.kind == "ram" and bool(self._devices)
            if pool is not None and pool.headroom_bytes is not None:
                self._note_dip(pool_key(pool), pool.headroom_bytes)

    def _judged(self, mem: MemInfo) -> MemInfo:
        shared = [device for device, _ in self._devices if is_unified(device, self._mode)]
        return self._suspicion.judge(mem, shared, time.monotonic())

    # -- NVML's thread -------------------------------------------------------------------------------------------

    def _nvml_loop(self) -> None:
        self._host_ready.wait(SLOW_S)  # whether memory is unified depends on the host's
        next_processes = 0.0
        while not self._stop.is_set():
            began = time.monotonic()
            with_processes = began >= next_processes
            if with_processes:
                next_processes = began + PROCESSES_S
            self._nvml_slow.note(self._nvml_round(with_processes))
            self._nvml_ready.set()
            self._faults.pop("nvml", None)
            self._watch_memory_until(began + self._nvml_slow.period)
        self._nvml_reader.close()

    def _nvml_round(self, with_processes: bool) -> float:
        """One slow round with fast readings in between; the seconds it took without these."""
        began, aside = time.monotonic(), 0.0
        for _ in self._nvml_reader.round(with_processes):
            aside += self._fast_nvml_if_due()
            if self._stop.is_set():
                break
        self._publish_devices()
        return time.monotonic() - began - aside

    def _watch_memory_until(self, deadline: float) -> None:
        while not self._stop.is_set() and (now := time.monotonic()) < deadline:
            wake = min(self._next_nvml_fast, deadline) if self._nvml_reader.has_fast() else deadline
            self._stop.wait(max(0.0, wake - now))
            self._fast_nvml_if_due()

    def _fast_nvml_if_due(self) -> float:
        began = time.monotonic()
        if began < self._next_nvml_fast:
            return 0.0
        self._nvml_reader.fast()
        self._publish_devices()
        took = time.monotonic() - began
        self._nvml_fast.note(took)
        self._next_nvml_fast = began + self._nvml_fast.period
        return took

    def _publish_devices(self) -> None:
        devices = self._nvml_reader.devices(self._mem.total)
        with self._lock:
            self._devices, self._nvml_read_at = devices, time.monotonic()
            for device, _ in devices:
                if device.memory is not None and not is_unified(device, self._mode):
                    self._note_dip(device_key(device), device_headroom(device.memory))

    # -- what is looked at now and then: the fabric, and what kills ---------------------------------------------

    def _aside_loop(self) -> None:
        rounds = 0
        while not self._stop.is_set():
            if rounds % KILLERS_EVERY == 0:
                total = self._host_reader.mem().total
                killers = self._killer_reader.rules(total)
                with self._lock:
                    self._killers = killers
            there = self._fabric_reader.there()
            if there:
                self._read_fabric()
            rounds += 1
            if rounds > 1 or not there:
                self._aside_ready.set()
            self._faults.pop("aside", None)
            self._stop.wait(FABRIC_S if rounds > 1 or not there else SLOW_S)

    def _read_fabric(self) -> None:
        self._fabric_reader.read(time.monotonic)
        self._fabric_reader.read_cards(time.monotonic)
        with self._lock:
            self._fabric, self._cards = self._fabric_reader.rails, self._fabric_reader.cards

    # -- both ----------------------------------------------------------------------------------------------------

    def _note_dip(self, key: str, headroom: int) -> None:
        known = self._dips.get(key)
        if known is None or headroom < known.headroom_bytes:
            self._dips[key] = Dip(headroom, time.time())

    def _guard(self, name: str, loop: Callable[[], None]) -> None:
        """Keep a reading going whatever the machine answers; what went wrong is in the status."""
        while not self._stop.is_set():
            try:
                loop()
            except Exception as error:  # an unforeseen answer must not end the readings
                with self._lock:
                    self._faults[name] = f"{type(error).__name__}: {error}"
                self._host_ready.set()
                self._aside_ready.set()
                self._nvml_ready.set()
                self._stop.wait(SLOW_S)

    def _host_status(self, now: float) -> SourceStatus:
        nothing = None if self._mem.total is not None else f"no meminfo found in {self._procfs}"
        reason = self._faults.get("host") or nothing or self._host_fast.words("memory")
        return SourceStatus("host", "host" not in self._faults, reason, _age(now, self._host_read_at))

    def _nvml_status(self, now: float) -> SourceStatus:
        started, reader = self._nvml_reader.call_started, self._nvml_reader
        hung = None if started is None or now - started < HUNG_S else f"no answer for {now - started:.0f} s"
        fault = self._faults.get("nvml") or hung or reader.reason
        empty = None if self._devices or not self._nvml_ready.is_set() else "no GPU found"
        slowed = [self._nvml_fast.words("memory"), self._nvml_slow.words("all else")]
        reason = fault or empty or "; ".join(filter(None, slowed)) or None
        return SourceStatus("nvml", fault is None, reason, _age(now, self._nvml_read_at))


def _age(now: float, read: float | None) -> float | None:
    return None if read is None else max(0.0, now - read)
