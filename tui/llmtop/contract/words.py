"""Words that text output and screens share."""

from __future__ import annotations

from llmtop.contract.snapshot import Quantile, Snapshot
from llmtop.contract.units import UNKNOWN, seconds

FIRST_STEPS = """\
no model server was found on this machine: no process of one that can be
seen, and nothing answers at port 8000

  llmtop demo                        a simulated server and machine, to look around
  llmtop HOST:8000                   a server elsewhere, or at another port here
  llmtop warmup -- vllm serve MODEL  start a server and watch it start"""


def first_steps(snapshot: Snapshot) -> str:
    """Where no server was found and why, and what to type."""
    read = [node for node in snapshot.nodes if not node.local]
    if not read:
        return FIRST_STEPS
    why = "no model server was found there: no process of one that can be seen"
    return "\n".join(f"{node.name}: {node.reason or why}" for node in read)


def quantile_text(value: Quantile | None) -> str:
    """A quantile with what marks it."""
    return UNKNOWN if value is None else value.mark + seconds(value.value_s)
