"""Where the memory of a start-up went, as two sums that add up, and what to set next time."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.contract.units import clean
from llmtop.ui.panels.view import heading
from llmtop.warmup.ledger import LedgerLine
from llmtop.warmup.report import Report
from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, fit_text, line, pack, text_width, wrap

VALUE, LABEL = 9, 27
MOST_CHARS = 600
_LEAST = 0.005  # what would print as 0.00 adds nothing


def _sums(report: Report) -> list[tuple[LedgerLine, list[LedgerLine]]]:
    """Each heading with the rows that add up to it; rows that are not known, or nothing, are left out."""
    heads = [line for line in report.ledger if line.group == "total" and line.key != "total" and line.gib is not None]
    rows = [line for line in report.ledger if line.gib is not None and abs(line.gib) >= _LEAST]
    sums = [(head, [row for row in rows if row.group == head.key]) for head in heads]
    if not heads:
        loose = [row for row in rows if row.group != "total"]
        return [(LedgerLine("known", "of an unknown total", None, None, "total"), loose)] if loose else []
    return [(head, parts) for head, parts in sums if parts]


def ledger_lines(report: Report, cells: int, rows: int) -> list[Line]:
    """A table of each sum with the source of every figure; nothing when no figure is known."""
    sums = _sums(report)
    if not sums:
        return []
    whole = next((entry.gib for entry in report.ledger if entry.key == "total"), None)
    lines = [heading("Ledger", cells, "GiB" if whole is None else f"{whole:.2f} GiB in all")]
    for head, parts in sums:
        lines += _entry(head, cells, "bold")
        for part in parts:
            lines += _entry(part, cells, "")
    return lines[:rows]


def _entry(entry: LedgerLine, cells: int, style: str) -> list[Line]:
    """A row; a source that has no room behind its figure goes below it, whole."""
    indent, value = "" if style else "  ", "" if entry.gib is None else f"{entry.gib:,.2f}"
    origin, label = entry.origin or "", indent + entry.label
    label = (
        label if len(label) <= LABEL else label.partition(" (")[0].removesuffix(" in budget").removesuffix(" outside")
    )
    room = max(LABEL, len(label))
    if room + VALUE + 2 + text_width(origin) <= cells:
        return [_figure(label, value, room, style, f"  {origin}")]
    return [_figure(label, value, room, style, ""), line(Span(f"{origin:>{cells}}", "dim"))]


def _figure(label: str, value: str, room: int, style: str, origin: str) -> Line:
    return line(Span(fit_text(label, room), style), Span(f"{value:>{VALUE}}", style or "value"), Span(origin, "dim"))


def sum_lines(report: Report, cells: int, rows: int) -> list[Line]:
    """The sums as text for a narrow screen: `requested budget 107.64 = weights 62.30 + KV cache 34.21 + …`."""
    lines: list[Line] = []
    for head, parts in _sums(report):
        name = f"{head.label} {head.gib:,.2f} =" if head.gib is not None else "known:"
        words = [_term(part, first=place == 0) for place, part in enumerate(parts)]
        told = pack([name, *words], cells, " ")
        lines += [line(Span(text, "bold" if not place else "")) for place, text in enumerate(told)]
    return [heading("Ledger", cells, "GiB"), *lines] if lines and len(lines) < rows else []


def _term(part: LedgerLine, *, first: bool) -> str:
    gib = part.gib or 0.0
    sign = "-" if gib < 0 else "" if first else "+"
    return f"{sign} {part.label.removeprefix('less: ').partition(' (')[0]} {abs(gib):,.2f}".strip()


def advice_lines(report: Report, cells: int, rows: int) -> list[Line]:
    """What to set next time; on a screen of many `rows` with the arithmetic, on one of few the change alone."""
    advice = report.advice
    if rows < 16:
        short = f"{glyphs.current().arrow_right} {advice.changes[0] if advice.changes else advice.text}"
        return [line(Span(words, "bold")) for words in wrap(clean(short, MOST_CHARS), cells)][:2]
    text = [line(Span(words, "bold")) for words in wrap(clean(advice.text, MOST_CHARS), cells)]
    changes = _indented(advice.changes[:3], f"  {glyphs.current().arrow_right} ", cells, "")
    steps = _indented(advice.arithmetic[:3], "  ", cells, "dim") if rows >= 28 else []
    return [heading("Advice", cells, f"confidence {advice.confidence}"), *text, *changes, *steps]


def _indented(sentences: Sequence[str], lead: str, cells: int, style: str) -> list[Line]:
    lines: list[Line] = []
    for sentence in sentences:
        told = wrap(clean(sentence, MOST_CHARS), cells - len(lead))
        lines += [
            line(Span((lead if not place else " " * len(lead)) + words, style)) for place, words in enumerate(told)
        ]
    return lines
