"""The one place where the watch of a start-up is put together."""

from __future__ import annotations

from llmtop.contract.settings import Settings, Target
from llmtop.machine.source import MachineSource
from llmtop.net.client import HealthProbe
from llmtop.warmup.log_source import LineSource
from llmtop.warmup.memory import MemoryLog
from llmtop.warmup.process import ProcessProbe
from llmtop.warmup.watch import Watch

FAST_HZ = 20.0


def make_watch(settings: Settings, machine: MachineSource, lines: LineSource | None, target: Target | None) -> Watch:
    """The watch of the start-up that `lines` tell of, else the process of `target`; the end is its first /health."""
    health = HealthProbe(target) if target is not None else None
    probe = ProcessProbe(settings.procfs, target.host, target.port) if target is not None and lines is None else None
    return Watch(
        lines,
        MemoryLog(machine),
        health,
        probe=probe,
        reserve_gib=settings.reserve_gib,
        procfs=settings.procfs,
        sysfs=settings.sysfs,
    )
