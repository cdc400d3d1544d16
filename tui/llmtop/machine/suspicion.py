"""Whether /proc/meminfo is that of the machine whose memory a GPU allocates from, or of a container (lxcfs).

A container can have one of its own: smaller than the machine, and blind to what a GPU holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from llmtop.contract.snapshot import Device
from llmtop.machine.sample import MemInfo

_GIB = 2**30
ROUNDING = 1.02  # what two sources may differ by about the size of the machine
LASTING_S = 5.0  # processes are read every two seconds: those of a server that ended are still listed for a while
_GB10 = re.compile(r"\bGB10\b")
_WHOLE_GB10 = 107 * _GIB  # of 128 GB


def foreign(mem: MemInfo, shared: Sequence[Device]) -> str | None:
    """Why /proc/meminfo cannot be of the machine whose memory `shared` devices allocate from; None where it may be."""
    if not mem.total:
        return None
    if mem.mounted is not None:
        return f"{mem.mounted} is mounted over /proc/meminfo"
    told = f"more than the {mem.total / _GIB:.1f} GiB of /proc/meminfo"
    held = _held(shared)
    if held > mem.total:
        return f"GPU processes hold {held / _GIB:.1f} GiB, {told}"
    size = max((device.memory.total for device in shared if device.memory is not None), default=0)
    if size > mem.total * ROUNDING:
        return f"the GPU's driver has {size / _GIB:.1f} GiB, {told}"
    nodes = sum(node.total for node in mem.nodes.values())
    if nodes > mem.total * ROUNDING:
        return f"the NUMA nodes have {nodes / _GIB:.1f} GiB, {told}"
    if mem.total < _WHOLE_GB10 and any(_GB10.search(device.name or "") for device in shared):
        return f"a GB10 has 128 GB, {told}"
    return None


def _excess(mem: MemInfo, shared: Sequence[Device]) -> str | None:
    """What GPU processes hold is used, and cannot be available too."""
    held = _held(shared)
    if not held or mem.total is None or mem.available is None or held + mem.available <= mem.total * ROUNDING:
        return None
    rest, total = f"{mem.available / _GIB:.1f}", f"{mem.total / _GIB:.1f} GiB"
    return f"GPU processes hold {held / _GIB:.1f} GiB, yet /proc/meminfo has {rest} of {total} available"


def _held(shared: Sequence[Device]) -> int:
    return sum(process.memory_bytes or 0 for device in shared for process in device.processes)


class Suspicion:
    """What readings of one machine gave away so far.

    Found once, it holds: the process that gave it away may end. A sum that cannot be must last, for its parts are not
    read at the same time; until then it is a doubt, if no reading before it was sound.
    """

    def __init__(self) -> None:
        self._foreign: str | None = None
        self._sound = False
        self._since: float | None = None

    def judge(self, mem: MemInfo, shared: Sequence[Device], t: float) -> MemInfo:
        """The reading of monotonic `t`, with why it is not the machine's, or may not be."""
        excess = _excess(mem, shared)
        self._since = None if excess is None else t if self._since is None else self._since
        self._sound = self._sound or (excess is None and _held(shared) > 0)
        lasted = self._since is not None and t - self._since >= LASTING_S
        self._foreign = self._foreign or foreign(mem, shared) or (excess if lasted else None)
        doubt = None if self._foreign or self._sound else excess
        if self._foreign is None and doubt is None:
            return mem
        return replace(mem, foreign=self._foreign, doubt=doubt)
