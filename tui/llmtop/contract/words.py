"""Words that text output and screens share."""

from __future__ import annotations

from llmtop.contract.snapshot import Quantile
from llmtop.contract.units import UNKNOWN, seconds

FIRST_STEPS = """\
no model server was found on this machine: no process of one that can be
seen, and nothing answers at port 8000

  llmtop demo                        a simulated server and machine, to look around
  llmtop HOST:8000                   a server elsewhere, or at another port here
  llmtop warmup -- vllm serve MODEL  start a server and watch it start"""


def quantile_text(value: Quantile | None) -> str:
    """A quantile with what marks it."""
    return UNKNOWN if value is None else value.mark + seconds(value.value_s)
