"""Plays a server's start-up: memory follows the phases of the profile, the log says what vLLM's log says at
each of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from llmtop.demo import warmup_log as log
from llmtop.demo.profile import MachineProfile, WarmupPhase
from llmtop.demo.server import DemoServer

Write = Callable[[str], None]

_TICK_S = 0.05
_PEAK = (0.4, 0.7)  # the part of a phase during which its transient peak is held
_KV_SHARE = 0.5  # the KV cache is allocated in this first part of its phase
_CAPTURED = 0.6  # how far graph capture gets before it runs out of memory


class StartupFailed(Exception):
    """The simulated start-up ended in an error, as asked for."""


async def play(server: DemoServer, write: Write, oom: bool = False) -> None:
    """Runs the phases in real time (divided by the speed), the port still closed; raises StartupFailed with
    `oom`.
    """
    profile = server.profile
    held = 0
    for phase in profile.warmup:
        server.phase = phase.phase
        write_all(write, log.opening(profile, phase, server.options.speed, free_bytes(profile, held)))
        seconds = phase.seconds / server.options.speed
        await _run(server, phase, seconds, held, write, oom)
        held += phase.device + (profile.engine.kv_bytes if phase.kv else 0)
        server.engine_bytes = held
        if phase.phase == "ready":
            write_all(write, log.ready(profile, server.options.speed, server.port))
        else:
            write_all(write, log.closing(profile, phase, server.options.speed))


def write_all(write: Write, lines: Iterator[str]) -> None:
    """Writes every line."""
    for line in lines:
        write(line)


async def _run(server: DemoServer, phase: WarmupPhase, seconds: float, held: int, write: Write, oom: bool) -> None:
    """One phase: memory and page cache move, progress lines come as it goes."""
    begin = time.monotonic()
    shown = -1
    while True:
        done = min((time.monotonic() - begin) / seconds, 1.0) if seconds > 0 else 1.0
        server.engine_bytes = held + grown(server.profile, phase, done)
        server.cache_bytes = _cache(server.profile, phase, done)
        shown = _progress(server, phase, done, shown, write)
        if oom and phase.phase == "graphs" and done >= _CAPTURED:
            _fail(server, write)
        if done >= 1.0:
            return
        await asyncio.sleep(min(_TICK_S, seconds / 20))


def grown(profile: MachineProfile, phase: WarmupPhase, done: float) -> int:
    """Bytes a phase has added when it is `done` (0..1), its transient peak included."""
    kv = profile.engine.kv_bytes if phase.kv else 0
    peak = phase.peak if _PEAK[0] <= done < _PEAK[1] else 0
    return round(phase.device * done + kv * min(done / _KV_SHARE, 1.0)) + peak


def _cache(profile: MachineProfile, phase: WarmupPhase, done: float) -> int:
    """Page cache left by reading the weights: it grows with them and is given back when the KV cache comes."""
    order = [p.phase for p in profile.warmup]
    left = max(p.cache for p in profile.warmup)
    at, weights, kv = order.index(phase.phase), order.index("weights"), order.index("kv")
    if at == weights:
        return round(left * done)
    if at == kv:
        return round(left * (1 - done))
    return left if weights < at < kv else 0


def _progress(server: DemoServer, phase: WarmupPhase, done: float, shown: int, write: Write) -> int:
    """Writes the progress lines that are due; returns how many steps are shown."""
    steps = phase.shards or (log.GRAPHS if phase.phase == "graphs" else 0)
    reached = int(done * steps)
    for step in range(shown + 1, reached + 1) if steps else ():
        write(log.progress(phase, step, steps, phase.seconds / server.options.speed))
    return reached


def free_bytes(profile: MachineProfile, held: int) -> int:
    """Device memory that is free for the engine when it holds `held` bytes."""
    machine = profile.machine
    if machine.memory == "unified":
        return machine.mem_total - machine.mem_other - held
    return machine.hbm_total - machine.hbm_reserved - machine.hbm_other - held


def doomed(profile: MachineProfile) -> MachineProfile:
    """The profile with a utilisation so high that the KV cache still fits and the CUDA graphs do not."""
    before = sum(p.device for p in profile.warmup if p.phase not in ("graphs", "ready"))
    room = free_bytes(profile, before) - round(profile.machine.graphs * (_CAPTURED + 0.05))
    tokens = room // profile.engine.kv_bytes_per_token
    total = profile.machine.hbm_total or profile.machine.mem_total
    share = round((before + tokens * profile.engine.kv_bytes_per_token) / total, 2)
    engine = replace(profile.engine, kv_tokens=tokens, gpu_memory_utilization=share)
    return replace(profile, engine=engine)


def _fail(server: DemoServer, write: Write) -> None:
    free = max(free_bytes(server.profile, server.engine_bytes), 0)
    write_all(write, log.out_of_memory(server.profile, free))
    server.engine_bytes = 0
    server.cache_bytes = 0
    raise StartupFailed("CUDA out of memory in graph capture")
