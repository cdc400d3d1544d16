"""Who holds a pool of memory: the parts of its bar, their legend, and a line for each holder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.contract.snapshot import Holder, Pool
from llmtop.contract.units import UNKNOWN, gib
from llmtop_widgets.stackedbar import shade
from llmtop_widgets.text import Line, Span, crop, fit, fit_text, line, spread, text_width, width, wrap

LEAST_NAMED = 48  # cells
NAMED = 2  # holders that have a part of their own in the bar, beside what all the others hold
MOST_LINES = 8
SIZE_CELLS = 8
STYLES = ("series1", "series3", "series5")
OTHER, DRIVER, CACHE = "other", "driver", "cache"
_FIXED = {OTHER: "series3", DRIVER: "series4", CACHE: "axis"}
_WHOSE_OTHER = {
    "unified": "the system, host memory of all programs, page tables",
    "hbm": "the driver's contexts, page cache in HBM, processes it does not list",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar: what it is called, its bytes and its style."""

    label: str
    size: float
    style: str


def pool_parts(pool: Pool, cells: int = LEAST_NAMED) -> list[Part]:
    """What is used, by whom where there is room for names; what is left of the total is headroom.

    Holders are the driver's figures, "other" is what no process of them owns; together no more than what is used.
    """
    used = pool.used_bytes
    if used is None:
        return []
    parts = _held(pool, used, NAMED if cells >= LEAST_NAMED else 0)
    left = max(0.0, used - sum(part.size for part in parts))
    parts.append(Part(OTHER if parts else "used", left, _FIXED[OTHER] if parts else STYLES[0]))
    if pool.reserved_bytes:
        parts.append(Part(DRIVER, pool.reserved_bytes, _FIXED[DRIVER]))
    if pool.kind == "unified" and pool.reclaimable_bytes:
        parts.append(Part(CACHE, min(pool.reclaimable_bytes, pool.headroom_bytes or 0), _FIXED[CACHE]))
    return parts


def _held(pool: Pool, used: float, named: int) -> list[Part]:
    sized = [(holder, float(holder.bytes)) for holder in pool.holders if holder.bytes is not None]
    if len(sized) < len(pool.holders) or not sized:  # what one holds is not known, so nor is what is nobody's
        return []
    named = 0 if len(sized) == 1 else named
    names = [(_name(holder), size) for holder, size in sized[:named]]
    if more := sized[named:]:
        names.append((f"{len(more)} more" if named else "processes", sum(size for _, size in more)))
    shown = min(1.0, used / (sum(size for _, size in names) or 1.0))
    return [Part(name, size * shown, STYLES[place]) for place, (name, size) in enumerate(names)]


def legend(parts: Sequence[Part], cells: int) -> Line:
    """The parts with their sizes; names give way where there is no room."""
    told = [(place, part) for place, part in enumerate(parts) if part.label != CACHE]
    sizes = sum(text_width(gib(part.size)) + 5 for _, part in told)
    longest = max((cells - sizes + 2) // (len(told) or 1), 3)
    while longest < 30 and sum(min(text_width(p.label), longest + 1) for _, p in told) <= cells - sizes + 2:
        longest += 1
    spans: list[Span] = []
    for place, part in told:
        name = fit_text(part.label, min(text_width(part.label), longest))
        spans += [Span(shade(place), part.style), Span(f" {name} ", "label"), Span(f"{gib(part.size)}  ", "value")]
    return crop(line(*spans), cells)


def holder_lines(pool: Pool, cells: int) -> list[Line]:
    """A line for each holder, one for what is nobody's, and their sum; where that is not what is used, why."""
    if pool.kind not in _WHOSE_OTHER or (pool.used_bytes is None and not pool.holders):
        return []
    shown = pool.holders[:MOST_LINES]
    rows = [_row(_name(holder), _where(holder), holder.bytes, cells) for holder in shown]
    if more := pool.holders[MOST_LINES:]:
        known = [holder.bytes for holder in more if holder.bytes is not None]
        rows.append(_row(f"{len(more)} more", "", sum(known) if known else None, cells))
    rows.append(_row(OTHER, _WHOSE_OTHER[pool.kind], pool.other_bytes, cells))
    rows.append(_row("used", f"of {gib(pool.total_bytes)} GiB", pool.used_bytes, cells, "bold"))
    note = [line(Span(part, "dim")) for part in wrap(pool.holders_note or "", cells)] if pool.holders_note else []
    return [spread(line(Span("held by", "label")), line(Span("GiB", "label")), cells), *rows, *note]


def _row(name: str, where: str, size: int | None, cells: int, style: str = "value") -> Line:
    number = Span(f"{gib(size):>{SIZE_CELLS}}", style)
    left = line(Span(name, "" if where or style == "value" else style), Span(f"  {where}" if where else "", "dim"))
    return (*fit(crop(left, cells - width((number,)) - 1), cells - width((number,))), number)


def _name(holder: Holder) -> str:
    return holder.name or (f"process {holder.pids[0]}" if holder.pids else UNKNOWN)


def _where(holder: Holder) -> str:
    pids = ", ".join(map(str, holder.pids[:3])) + (f" and {len(holder.pids) - 3} more" if len(holder.pids) > 3 else "")
    address = (holder.server or "").partition("://")[2]
    return "  ".join(filter(None, (address, holder.container, f"pid {pids}" if pids else None)))
