"""The phases of a start-up on one time axis, and the headroom beneath on the same axis."""

from __future__ import annotations

import time
from dataclasses import dataclass

from llmtop.contract.units import UNKNOWN, gib
from llmtop.ui.panels.machine import gib_scale
from llmtop.ui.panels.view import heading
from llmtop.warmup.phrases import PHASES, PhaseName
from llmtop.warmup.recorded import Readings
from llmtop.warmup.report import WORDS
from llmtop.warmup.startup import Phase, Startup
from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, fit_text, line
from llmtop_widgets.timechart import chart_lines

MARK, NAME, TOOK, LEFT, WHEN = 2, 21, 8, 9, 10
LEAST_BAR = 12
LEGEND = "* without a line of its own in the log: the time between two others"


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Seconds from the beginning to the end that is expected, and the Unix time of the beginning (live only)."""

    seconds: float
    now: float
    zero: float | None


def time_axis(startup: Startup, to_go: float | None) -> TimeAxis:
    """The axis that all phases share: to the end of the last one, or of the one that runs."""
    ends = [p.start_s + p.seconds for p in startup.phases if p.start_s is not None and p.seconds is not None]
    now = max(ends, default=0.0)
    zero = next((p.began - p.start_s for p in startup.phases if p.began is not None and p.start_s is not None), None)
    return TimeAxis(max(1.0, now + (to_go or 0.0)), now, zero)


def seconds_words(value: float) -> str:
    """`43 s`, from two minutes on `2:05 min`."""
    return f"{value:.0f} s" if value < 120 else f"{int(value) // 60}:{int(value) % 60:02d} min"


@dataclass(frozen=True, slots=True)
class _PhaseColumns:
    """Cells of each column; a bar that has no room is left out, and with it the time of the least headroom."""

    name: int
    bar: int
    when: int


def _columns(cells: int) -> _PhaseColumns:
    bar = cells - MARK - NAME - TOOK - 1 - LEFT
    if bar < LEAST_BAR:
        return _PhaseColumns(max(8, cells - MARK - TOOK - LEFT), 0, 0)
    when = WHEN if bar - WHEN >= 30 else 0
    return _PhaseColumns(NAME, bar - when, when)


def phase_lines(startup: Startup, axis: TimeAxis, cells: int, rows: int) -> list[Line]:
    """A row per phase: mark, name, seconds, its bar, the least headroom; on few rows those about the present one."""
    known = {phase.name: phase for phase in startup.phases}
    least = min((p.min_headroom_bytes for p in startup.phases if p.min_headroom_bytes is not None), default=None)
    columns = _columns(cells)
    legend = [line(Span(LEGEND[:cells], "dim"))] if any(p.inferred for p in startup.phases) and rows >= 11 else []
    names = _shown(startup, rows - 2 - len(legend))
    lines = [heading("Phases", cells, _note(startup, cells)), _axis_line(axis, columns)]
    if rows < 9:
        lines = lines[1:]
    return [*lines, *(_row(name, known.get(name), startup, axis, least, columns) for name in names), *legend]


def _note(startup: Startup, cells: int) -> str:
    if not startup.phases:
        return "no log, no phase known"
    return "when each ran, and the least headroom in it" if cells >= 70 else "least headroom"


def _shown(startup: Startup, rows: int) -> tuple[PhaseName, ...]:
    if rows >= len(PHASES):
        return PHASES
    rows = max(1, rows)
    place = PHASES.index(startup.phase) if startup.phase in PHASES else 0
    first = min(max(0, place - rows // 2), len(PHASES) - rows)
    return PHASES[first : first + rows]


def _axis_line(axis: TimeAxis, columns: _PhaseColumns) -> Line:
    """The ends of the axis above the bars."""
    left = f"{'GiB left':>{LEFT}}{'at':>{columns.when}}" if columns.when else f"{'GiB left':>{LEFT}}"
    whole = seconds_words(axis.seconds)
    bar = f"0{whole:>{columns.bar - 1}}" if columns.bar else ""
    took = f"{'took':>{TOOK}}" + (" " if columns.bar else "")
    return line(Span(" " * (MARK + columns.name) + took, "label"), Span(bar, "axis"), Span(left, "label"))


def _row(
    name: PhaseName, phase: Phase | None, startup: Startup, axis: TimeAxis, least: int | None, columns: _PhaseColumns
) -> Line:
    glyph = glyphs.current()
    current = startup.state == "starting" and startup.phase == name and phase is not None
    failed = startup.failure is not None and (startup.failure.phase or startup.phase) == name
    mark = glyph.cross if failed else glyph.arrow_right if current else glyph.check if phase else glyph.dotted
    style = "alarm" if failed else "accent" if current else "ok" if phase else "dim"
    took = "" if phase is None else UNKNOWN if phase.seconds is None else _took(phase.seconds)
    low = phase.min_headroom_bytes if phase else None
    at = phase.min_headroom_time if phase else None
    when = time.strftime("%H:%M:%S", time.localtime(at)) if at and columns.when else ""
    words = WORDS[name] + (" *" if phase and phase.inferred else "")
    ink = style if failed or current else "series2"
    return line(
        Span(f"{mark} ", style),
        Span(fit_text(words, columns.name), "bold" if current or failed else "" if phase else "dim"),
        Span(f"{took:>{TOOK}}", "value" if phase else "dim"),
        *((Span(" "), *_bar(phase, axis, columns.bar, ink, current=current)) if columns.bar else ()),
        Span(f"{gib(low, 2) if phase else '':>{LEFT}}", "bold" if low is not None and low == least else "value"),
        Span(f"{when:>{columns.when}}" if columns.when else "", "label"),
    )


def _took(value: float) -> str:
    return f"{value:.1f} s" if value < 1000 else f"{value:.0f} s"


def _bar(phase: Phase | None, axis: TimeAxis, cells: int, style: str, *, current: bool) -> Line:
    """Where on the axis a phase lies; what is still expected of the one that runs is shaded."""
    glyph = glyphs.current()
    if phase is None or phase.start_s is None or phase.seconds is None:
        return (Span(" " * cells),)
    step = len(glyph.bar_partials) + 1
    begin = min(cells - 1, int(phase.start_s / axis.seconds * cells))
    eighths = round((phase.start_s + phase.seconds) / axis.seconds * cells * step) - begin * step
    full, part = divmod(min(max(1, eighths), (cells - begin) * step), step)
    bar = glyph.bar_full * full + (glyph.bar_partials[part - 1] if part else "")
    rest = cells - begin - len(bar)
    ahead = min(rest, round((axis.seconds - axis.now) / axis.seconds * cells)) if current else 0
    return line(Span(" " * begin), Span(bar, style), Span(glyph.bar_empty * ahead, "track"), Span(" " * (rest - ahead)))


def curve_lines(startup: Startup, readings: Readings, axis: TimeAxis, top: float, cells: int, rows: int) -> list[Line]:
    """Headroom beneath the bars, on their axis: the least of each column, a line where a phase begins."""
    columns = _columns(cells)
    gutter = MARK + columns.name + TOOK + 1 if columns.bar else 7
    size = columns.bar or cells - gutter
    if axis.zero is None or size < LEAST_BAR or rows < 3:
        return []
    step, zero = axis.seconds / size, axis.zero
    values: list[float | None] = [None] * size
    for at, value in readings:
        place = int((at - zero) / step)
        if at >= zero and place < size:
            held = values[place]
            values[place] = value if held is None else min(held, value)
    seen = [place for place, value in enumerate(values) if value is not None]
    if not seen:
        return []
    filled: float | None = None
    for place in range(seen[0], seen[-1] + 1):  # between two readings nothing was seen to change
        filled = values[place] = filled if values[place] is None else values[place]
    marks = [int(p.start_s / step) for p in startup.phases if p.start_s and p.start_s / step < size]
    drawn = chart_lines(values, width=size, height=rows - 1, hi=top, style="series2", marks=marks)
    labels = {0: gib_scale(top), rows - 2: "0 G"}
    lines = [(Span(f"{labels.get(row, ''):>{gutter - 1}} ", "axis"), *row_line) for row, row_line in enumerate(drawn)]
    return [heading("Headroom", cells, "GiB, a line where a phase begins"), *lines]
