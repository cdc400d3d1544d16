"""The picture of a start-up: phases with their time and least headroom, the memory curve, the ledger, the advice."""

from __future__ import annotations

import time

from llmtop.contract.units import UNKNOWN, clean, gib
from llmtop.ui.panels.machine import gib_scale, tightest_pool
from llmtop.ui.panels.view import LEVEL_STYLE, View, fact, heading, pair
from llmtop.warmup.phrases import PHASES
from llmtop.warmup.recorded import Readings, StartupView
from llmtop.warmup.report import WORDS, Report, read_rate
from llmtop.warmup.startup import Phase, Startup
from llmtop_widgets import glyphs
from llmtop_widgets.gauge import gauge_line
from llmtop_widgets.text import Line, Span, beside, crop, fit_text, flow, line, width, wrap
from llmtop_widgets.timechart import chart_lines

NAME = 22
MOST_CHARS = 600  # of a sentence


def warmup_page(seen: StartupView | None, view: View, cells: int, rows: int) -> list[Line]:
    """Everything about one start-up, arranged for `cells` x `rows`."""
    if seen is None:
        return [line(), line(Span("no start-up is being watched", "bold")), line(), *_how()]
    report, active = seen.report, seen.active
    lines = [*_headline(report, active, cells), _memory_now(view, cells), line()]
    wide = cells >= 110
    left = (cells - 2) * 11 // 20 if wide else cells
    timeline = _timeline(report, left)
    if wide:
        lines += beside([(timeline, left), (_ledger(report, cells - 2 - left), cells - 2 - left)], 2)
    else:
        lines += timeline
    advice = [] if active else _advice(report, cells)  # the numbers are not in yet
    log = min(3 if rows < 30 else 6, rows - len(lines) - len(advice) - 1)
    tail = [*advice, *_last_lines(report.startup, cells, max(0, log))]
    room = rows - len(lines) - len(tail) - 1
    if not wide and room >= 16:
        lines += [line(), *_ledger(report, cells)]
        room = rows - len(lines) - len(tail) - 1
    if room >= 4:
        lines += [line(), *_curve(report.startup, seen.readings, view, cells, min(room, 14))]
    return [crop(content, cells) for content in [*lines, *tail][:rows]]


def _how() -> list[Line]:
    """How to get one."""
    ways = (
        ("llmtop warmup -- vllm serve MODEL …", "launch a server and watch its start"),
        ("llmtop warmup --log FILE", "follow a log; also --container NAME, --journal UNIT"),
        ("llmtop warmup --check -- vllm serve MODEL …", "ask before starting whether it will fit"),
        ("llmtop demo gb10 --warmup", "see one without a GPU"),
    )
    return [line(Span(f"  {command:<46}", "key"), Span(words)) for command, words in ways]


def _headline(report: Report, active: bool, cells: int) -> list[Line]:
    """State and verdict, in as many lines as it takes."""
    startup = report.startup
    style = {"ready": "ok", "failed": "critical"}.get(startup.state, "info")
    word = {"ready": "READY", "failed": "FAILED"}.get(startup.state, "STARTING" if active else "ENDED")
    version = f"vLLM {startup.version}" if startup.version else ""
    first, *more = wrap(clean(report.verdict, MOST_CHARS), cells - len(word) - 3) or [""]
    head = line(Span(f" {word} ", style), Span(f" {first}", "bold"))
    return [
        pair(head, line(Span(version, "label")), cells),
        *(line(Span(" " * (len(word) + 3) + text, "bold")) for text in more),
    ]


def _memory_now(view: View, cells: int) -> Line:
    """Headroom now, what CUDA sees, and how long it lasts when it falls."""
    pool = tightest_pool(view.snapshot)
    if pool is None:
        return line(Span("headroom ", "label"), Span(UNKNOWN))
    now = [
        Span("headroom ", "label"),
        Span(gib(pool.headroom_bytes), "bold"),
        Span(f" of {gib(pool.total_bytes)} GiB {pool.name} ", "label"),
        Span(f" {(pool.state or UNKNOWN).upper()} ", LEVEL_STYLE.get(pool.state or "", "dim")),
    ]
    facts = [tuple(now)]
    if pool.kind == "unified":
        facts += [fact("CUDA sees", gib(pool.cuda_free_bytes), "value")]
        facts += [fact("cache gives back", gib(pool.reclaimable_bytes), "value")]
    falling = line()
    if pool.falling_bytes_s and pool.falling_bytes_s > 2**26:
        empty = f", empty in {pool.empty_in_s:.0f} s" if pool.empty_in_s and pool.empty_in_s < 600 else ""
        falling = line(Span(f"falling {gib(pool.falling_bytes_s)} GiB/s{empty}", "low"))
    room = max(cells - width(falling) - 2, width(facts[0]))  # the headroom itself is never left out
    return pair(crop(flow(facts, room), cells), falling, cells)


def _timeline(report: Report, cells: int) -> list[Line]:
    """A row per phase: mark, name, seconds, share of the whole, least headroom and when."""
    startup = report.startup
    known = {phase.name: phase for phase in startup.phases}
    longest = max((phase.seconds or 0.0 for phase in startup.phases), default=0.0) or 1.0
    least = min((p.min_headroom_bytes for p in startup.phases if p.min_headroom_bytes is not None), default=None)
    name_cells, bar = _columns(cells)
    left = f"{'headroom GiB':>14}{'at':>10}" if bar else f"{'GiB left':>9}"
    lines = [
        heading("Phases", cells, "time and least headroom of each"),
        line(Span(f"  {'':<{name_cells}}{'took':>8} {'':<{bar}}{left}", "label")),
    ]
    lines += [_phase_row(name, known.get(name), startup, longest, least, cells) for name in PHASES]
    if startup.progress is not None and startup.state == "starting":
        done, speed = startup.progress, read_rate(startup)
        pace = f"  {speed:.2f} GiB/s" if speed else ""
        words = f"  {done.label} {done.done}/{done.total}{pace}"
        lines.append(line(Span(words + " ", "label"), *gauge_line(done.percent / 100, max(4, bar), "series2")))
    return lines


def _columns(cells: int) -> tuple[int, int]:
    """Cells of a phase's name and of its bar; without a bar the time of the least headroom has no room either."""
    bar = cells - NAME - 36
    return (NAME, bar) if bar >= 4 else (min(NAME, cells - 20), 0)


def _phase_row(name: str, phase: Phase | None, startup: Startup, longest: float, least: int | None, cells: int) -> Line:
    glyph, (name_cells, bar) = glyphs.current(), _columns(cells)
    current = startup.state == "starting" and startup.phase == name
    failed = startup.failure is not None and (startup.failure.phase or startup.phase) == name
    mark = glyph.cross if failed else glyph.arrow_right if current else glyph.check if phase else glyph.dotted
    style = "critical" if failed else "accent" if current else "ok" if phase else "dim"
    took = UNKNOWN if phase is None or phase.seconds is None else f"{phase.seconds:.1f} s"
    share = (phase.seconds or 0.0) / longest if phase else 0.0
    low = phase.min_headroom_bytes if phase else None
    when = (
        time.strftime("%H:%M:%S", time.localtime(phase.min_headroom_time)) if phase and phase.min_headroom_time else ""
    )
    note = " *" if phase and phase.inferred else ""
    return line(
        Span(f"{mark} ", style),
        Span(fit_text(WORDS[name] + note, name_cells), "bold" if current else "" if phase else "dim"),
        Span(f"{took:>8} ", "value" if phase else "dim"),
        *gauge_line(share, bar, "series2", track="axis") if phase else (Span(" " * bar),),
        Span(f"{gib(low, 2):>{14 if bar else 9}}", "low" if low is not None and low == least else "value"),
        Span(f"{when:>10}" if bar else "", "label"),
    )


def _curve(startup: Startup, readings: Readings, view: View, cells: int, rows: int) -> list[Line]:
    """Headroom over the whole start-up, the least of each column, a mark where a phase begins."""
    pool = tightest_pool(view.snapshot)
    lines = [heading("Headroom", cells, "least of each column; a line where a phase begins")]
    width, height = cells - 7, rows - 2
    if len(readings) < 2 or height < 1:
        return [*lines, line(Span("no readings", "dim"))]
    first = min(at for at, _ in readings)  # the clock may have been set back
    last = max(first + 1.0, *(at for at, _ in readings))
    step = (last - first) / width
    columns: list[float | None] = [None] * width
    for at, value in readings:
        place = min(width - 1, int((at - first) / step))
        held = columns[place]
        columns[place] = value if held is None else min(held, value)
    filled: float | None = None
    for place, found in enumerate(columns):
        filled = columns[place] = filled if found is None else found  # between two readings nothing was seen to change
    marks = [int((p.began - first) / step) for p in startup.phases if p.began is not None and first < p.began < last]
    top = float(pool.total_bytes or max(value for _, value in readings)) if pool else max(v for _, v in readings)
    drawn = chart_lines(columns, width=width, height=height, hi=top, style="series2", marks=marks)
    labels = {0: gib_scale(top), height - 1: "0 G"}
    lines += [(Span(f"{labels.get(row, ''):>6} ", "axis"), *content) for row, content in enumerate(drawn)]
    span = f"{last - first:.0f} s"
    return [*lines, line(Span(" " * 7 + f"0 s{span:>{width - 3}}", "axis"))]


def _ledger(report: Report, cells: int) -> list[Line]:
    """Where the memory went, each figure with its origin, the unexplained rest as a line of its own."""
    lines = [heading("Ledger", cells, "GiB")]
    for entry in report.ledger:
        indent = "" if entry.group == "total" else "  "
        value = UNKNOWN if entry.gib is None else f"{entry.gib:,.2f}"
        room = max(12, min(36, cells - 22))
        label = indent + entry.label
        label = label if len(label) <= room else label.partition(" (")[0]
        lines.append(
            line(
                Span(fit_text(label, room), "bold" if entry.group == "total" else ""),
                Span(f"{value:>9}", "value"),
                Span(f"  {entry.origin or UNKNOWN}", "dim"),
            )
        )
    return lines


def _advice(report: Report, cells: int) -> list[Line]:
    advice = report.advice
    lines = [heading("Advice", cells, f"confidence {advice.confidence}")]
    lines += [line(Span(text, "bold")) for text in wrap(clean(advice.text, MOST_CHARS), cells)]
    lines += [line(Span(f"  {glyphs.current().arrow_right} {change}")) for change in advice.changes[:2]]
    return lines + [line(Span(f"  {step}", "dim")) for step in advice.arithmetic[:2]]


def _last_lines(startup: Startup, cells: int, number: int) -> list[Line]:
    shown = startup.lines[-number:] if number else ()
    return [heading("Log", cells), *(line(Span(text, "dim")) for text in shown)] if shown else []
