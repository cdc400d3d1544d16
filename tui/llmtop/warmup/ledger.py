"""Where the memory of a start went: the total, the budget with its parts, and what lies outside of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmtop.warmup.evidence import Evidence

_NOT_HELD = "less: budget not held"


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line of the ledger; the lines of "budget" add up to the budget, those of "outside" to total - budget."""

    key: str
    label: str
    gib: float | None
    origin: str | None
    group: Literal["total", "budget", "outside"]


def ledger(e: Evidence) -> tuple[LedgerLine, ...]:
    """total = budget + outside, each with its parts and the rest that nothing explains."""
    budget = e.budget_gib
    lines = [LedgerLine("total", "total memory", e.total_gib, e.origins.get("total_gib"), "total")]
    origin = e.origins.get("requested_gib", "utilization x total") if budget is not None else None
    share = "" if e.utilization is None else f" ({e.utilization:g} x total)"
    lines.append(LedgerLine("budget", f"requested budget{share}", budget, origin, "total"))
    outside = None if e.total_gib is None or budget is None else e.total_gib - budget
    lines.append(LedgerLine("outside", "outside the budget", outside, _computed(outside), "total"))
    return (*lines, *_inside(e, budget), *_outside(e, budget, outside))


def _inside(e: Evidence, budget: float | None) -> list[LedgerLine]:
    whole = e.weights_gib is None and e.consumed_gib is not None
    parts = [
        ("weights", "weights and non-torch", "consumed_gib", e.consumed_gib)
        if whole
        else ("weights", "weights", "weights_gib", e.weights_gib),
        ("activation", "activation peak", "activation_gib", e.activation_gib),
        ("non_torch", "non-torch (context, NCCL)", "non_torch_gib", 0.0 if whole else e.non_torch_gib),
        ("graphs_budget", "set aside for CUDA graphs", "graph_budget_gib", e.graph_budget_gib),
        ("kv", "KV cache", "kv_gib", e.kv_gib),
    ]
    lines = [
        LedgerLine(key, label, gib, e.origins.get(name), "budget")
        for key, label, name, gib in parts
        if not (whole and key == "non_torch")
    ]
    rest = None
    if budget is not None and any(gib is not None for *_, gib in parts):
        rest = budget - sum(gib for *_, gib in parts if gib is not None)
    missing = [label for _, label, _, gib in parts if gib is None]
    label = "unexplained rest in budget" + (f" (with {', '.join(missing)})" if missing and rest is not None else "")
    return [*lines, LedgerLine("budget_rest", label, rest, _computed(rest), "budget")]


def _outside(e: Evidence, budget: float | None, outside: float | None) -> list[LedgerLine]:
    graphs = None if e.graph_gib is None else max(0.0, e.graph_gib - (e.graph_budget_gib or 0.0))
    lines = [LedgerLine("graphs", "graphs beyond the budget", graphs, e.origins.get("graph_gib"), "outside")]
    over = None if e.engine_gib is None or budget is None else e.engine_gib - budget
    if over is not None:
        beyond = over - min(graphs or 0.0, max(over, 0.0))
        lines[0] = LedgerLine("graphs", lines[0].label, over - beyond if graphs is not None else None, "log", "outside")
        label = "engine beyond its budget" if beyond >= 0 else _NOT_HELD
        lines.append(LedgerLine("engine", label, beyond, "process sum", "outside"))
    lines.append(LedgerLine("others", "other processes", e.others_gib, e.origins.get("others_gib"), "outside"))
    lines.append(_unowned(e, budget, graphs))
    lines.append(
        LedgerLine("reserved", "reserved by the driver", e.reserved_gib, e.origins.get("reserved_gib"), "outside")
    )
    free = None
    if e.total_gib is not None and e.used_gib is not None:
        free = e.total_gib - e.used_gib - (e.reserved_gib or 0.0)
    lines.append(LedgerLine("free", "free", free, _computed(free), "outside"))
    rest = None if outside is None else outside - sum(line.gib for line in lines if line.gib is not None)
    label = "not measured" if free is None and rest is not None else "unexplained rest outside"
    return [*lines, LedgerLine("outside_rest", label, rest, _computed(rest), "outside")]


def _unowned(e: Evidence, budget: float | None, graphs: float | None) -> LedgerLine:
    """Memory in use that no process owns; without a process list, all that is in use beyond budget and graphs."""
    if e.used_gib is None:
        return LedgerLine("unowned", "in use without an owner", None, None, "outside")
    if e.engine_gib is not None:
        gib = e.used_gib - e.engine_gib - (e.others_gib or 0.0)
        what = (
            "operating system, page cache, programs off the GPU"
            if e.unified
            else "page cache in HBM, contexts, hidden processes"
        )
        label = f"in use without an owner ({what})"
        return LedgerLine("unowned", label, gib, "used - process sum", "outside")
    if budget is None:
        return LedgerLine("unowned", "in use without an owner", None, None, "outside")
    gib = e.used_gib - budget - (graphs or 0.0) - (e.others_gib or 0.0)
    label = "in use beyond the budget, owner unknown (no process list)" if gib >= 0 else _NOT_HELD
    return LedgerLine("unowned", label, gib, "used - budget", "outside")


def _computed(value: float | None) -> str | None:
    return None if value is None else "computed"
