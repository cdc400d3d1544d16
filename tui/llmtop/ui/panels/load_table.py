"""The table of a load test's levels, and two runs side by side, as lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from llmtop.contract.units import UNKNOWN, count, rate
from llmtop.load import table
from llmtop.load.compare import Comparison
from llmtop.load.results import LevelResult, RunResult
from llmtop.load.verdict import failure
from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, line

# the columns a narrow screen keeps longest; the others, and the flags, have room elsewhere
KEPT = (
    "level",
    "tok/s",
    "/user",
    "req/s",
    "P99 (n)",
    "err",
    "TTFT",
    "x1",
    "xdec",
    "KV max",
    "TPOT",
    "steady",
    "burst",
    "wait",
    "E2EL",
    "head GiB",
    "decode",
    "in SLO",
    "J/tok",
    "W",
)
GAP = 2
NOISE = 0.02  # a change below this is none


def level_table(
    levels: Sequence[LevelResult], cells: int, slo: Mapping[str, float], marks: Mapping[str, str] | None = None
) -> list[Line]:
    """A head and a line per level; columns give way by their rank where there is no room.

    `marks` are signs before levels, by name. A level that breaks a limit, or was interrupted, is coloured so.
    """
    if not levels:
        return []
    cells_of = table.rows(levels)
    heads = [column.head for column in table.COLUMNS]
    widths = [max(len(row[i]) for row in (heads, *cells_of)) for i in range(len(heads))]
    order = _fitting(heads, widths, table.known_columns(cells_of), cells - GAP)
    lines = [line(Span("  "), Span(_row(heads, order, widths), "header"))]
    for level, row in zip(levels, cells_of, strict=True):
        sign = (marks or {}).get(level.level, " ")
        lines.append(line(Span(f"{sign} ", "bold"), Span(_row(row, order, widths), _style(level, slo))))
    return lines


def _fitting(heads: Sequence[str], widths: Sequence[int], known: Sequence[int], cells: int) -> list[int]:
    """The columns to show, in their order: as many as fit, by rank."""
    room, order = cells + GAP, []
    for head in KEPT:
        place = heads.index(head)
        if place in known and widths[place] + GAP <= room:
            order.append(place)
            room -= widths[place] + GAP
    return sorted(order)


def _style(level: LevelResult, slo: Mapping[str, float]) -> str:
    if level.interrupted:
        return "dim"
    return "low" if failure(level, slo) is not None else "value"


def _row(cells: Sequence[str], order: Sequence[int], widths: Sequence[int]) -> str:
    shown = (cells[i].rjust(widths[i]) if i else cells[i].ljust(widths[i]) for i in order)
    return (" " * GAP).join(shown)


def verdict_marks(result: RunResult) -> dict[str, str]:
    """The sign of each level that the answer names: the first one that fails, the knee, the sweet spot."""
    glyph, fail = glyphs.current(), result.first_fail
    found = {fail.level: glyph.cross} if fail else {}
    for load, sign in ((result.knee, glyph.diamond), (result.sweet_spot, glyph.star)):
        found |= {level.level: sign for level in result.levels if level.load == load}
    return found


# two runs


def comparison_table(compared: Iterable[Comparison], cells: int) -> list[Line]:
    """Per level a line for the run before, one for this one, and the change, coloured by who wins."""
    blocks = [(level, list(items)) for level, items in groupby(compared, key=lambda item: item.level)]
    if not blocks:
        return []
    first = max(len(level) for level, _ in blocks)
    figures = [item.figure for item in blocks[0][1]]
    widths = [max(8, len(figure)) + GAP for figure in figures]
    while len(figures) > 1 and first + 9 + sum(widths[: len(figures)]) > cells:
        figures.pop()
    head = "".join(figure.rjust(width) for figure, width in zip(figures, widths, strict=False))
    lines = [line(Span(" " * (first + 9) + head, "header"))]
    for level, items in blocks:
        shown = list(zip(items[: len(figures)], widths, strict=False))
        rows = ((level, "before", "label", _then), ("", "now", "value", _now))
        lines += [
            line(
                Span(f"{name:<{first}}  ", "bold"),
                Span(f"{when:<7}", "label"),
                *(Span(cell(item).rjust(width), style) for item, width in shown),
            )
            for name, when, style, cell in rows
        ]
        changes = (Span(_change(item).rjust(width), _change_style(item)) for item, width in shown)
        lines.append(line(Span(" " * (first + 9)), *changes))
    return lines


def _then(item: Comparison) -> str:
    return _figure(item, item.a)


def _now(item: Comparison) -> str:
    return _figure(item, item.b)


def _figure(item: Comparison, value: float | None) -> str:
    return count(value) if item.figure == "errors" else rate(value)


def _change(item: Comparison) -> str:
    return UNKNOWN if item.change is None else f"{item.change:+.1%}"


def _change_style(item: Comparison) -> str:
    if item.better is None or item.change is None or abs(item.change) < NOISE:
        return "dim"
    return "ok" if item.better else "low"
