"""What is known of a machine that is read from afar, at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llmtop.contract.snapshot import SourceStatus
from llmtop.engines.ranks import RankProcess
from llmtop.machine.holders import Owner
from llmtop.machine.sample import MachineSample


@dataclass(frozen=True, slots=True)
class NodeReading:
    """The newest sample of a node (None: there was none yet), its age, and what is wrong."""

    name: str
    state: Literal["ok", "stale", "down"]
    reason: str | None = None
    age_s: float | None = None
    sample: MachineSample | None = None
    status: tuple[SourceStatus, ...] = ()
    owners: Mapping[int, Owner] = field(default_factory=dict)  # of the processes on its GPUs, by pid
    ranks: tuple[RankProcess, ...] = ()  # the parts of servers that run there
