"""The picture for a projector: four figures in digits that carry to the back row, a sentence, one chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmtop.contract.snapshot import Pool, ServerView
from llmtop.contract.units import UNKNOWN, count, duration, gib, rate, si
from llmtop.machine.tightest import tightest_pool
from llmtop.ui.panels.digits import of_percent, of_size, of_speed, of_whole
from llmtop.ui.panels.load import live_curve
from llmtop.ui.panels.server import KV_THRESHOLDS
from llmtop.ui.panels.verdict import more_users, verdict
from llmtop.ui.panels.view import LEVEL_STYLE, STATE_STYLE, Plot, View, chart, recording_style
from llmtop_widgets import glyphs
from llmtop_widgets.gauge import gauge_line, style_for, thin
from llmtop_widgets.strokes import stroke_lines, stroke_width
from llmtop_widgets.text import Line, Span, beside, crop, fit, line, spread, width

LEAST_CELLS, LEAST_ROWS = 44, 18  # below: a line per figure
LEAST_DIGITS = 4  # rows
GAP = 4
SPEED = Plot("generated tok/s", si, minimum=10.0)
CHART_ROWS = 4  # three for the curve, one for the time axis
BIG = {"low": "bold low", "critical": "alarm"}  # "critical" is reverse video, which digits cannot wear


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: what it is, its digits, digits of the usual width, its style, a word of state beside the label.

    `share` (0..1) is what its gauge shows, the figure's own direction, None where there is nothing to compare it
    with; `note` says with what.
    """

    label: str
    digits: str
    usual: str
    style: str
    word: Line = ()
    share: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """How the figures are set: so many side by side, digits so many rows high."""

    columns: int
    rows: int


def stage_page(view: View, moment: str | None, cells: int, rows: int) -> list[Line]:
    """Exactly `rows` lines of `cells` cells; `moment` is an announcement worth a banner."""
    inner = max(1, cells - 2)
    small = cells < LEAST_CELLS or rows < LEAST_ROWS
    lines = (_compact if small else _full)(view, moment, inner, rows)
    lines = lines[:rows] + [()] * (rows - len(lines))
    return [fit(line(Span(" ", _fill(content)), *content), cells, style=_fill(content)) for content in lines]


def _fill(content: Line) -> str:
    """A banner runs from edge to edge."""
    return "selected" if content and content[0].style == "selected" else ""


def _full(view: View, moment: str | None, cells: int, rows: int) -> list[Line]:
    airy = rows >= 30
    head, shown = _head(view, moment, cells, airy), figures(view)
    told = [(), fit(_sentence(view, cells), cells, "center"), *([()] if airy else [])]
    room = rows - len(head) - len(told)
    grid = best_grid(shown, cells, room - max(CHART_ROWS, room // (4 if view.load is None else 3)))
    lines = [*head, *_digits(shown, grid, cells), *told]
    lines += _past(view, cells, rows - len(lines))
    return _with_note(lines, view, moment, cells, rows)


def _past(view: View, cells: int, rows: int) -> list[Line]:
    """The speed over time, and beside it the curve of a load test that runs."""
    half, load = (cells - GAP) // 2, view.load
    curve = live_curve(load, load.progress, half, rows) if load is not None and load.progress is not None else []
    if not curve:
        return chart(view, view.url, "generation", cells, rows, SPEED)
    return beside([(chart(view, view.url, "generation", half, rows, SPEED), half), (curve, half)], GAP)


def _with_note(lines: list[Line], view: View, moment: str | None, cells: int, rows: int) -> list[Line]:
    """The answer to a key, in the last row; a moment has its banner already."""
    if view.note is None or view.note == moment:
        return lines
    return [*lines[: rows - 1], fit(line(Span(view.note, "info")), cells, "center")]


def _head(view: View, moment: str | None, cells: int, airy: bool) -> list[Line]:
    """Who it is and what it does; a moment takes this place for a while."""
    if moment is not None:
        banner = fit(line(Span(moment, "selected")), cells, "center", "selected")
        blank = line(Span(" " * cells, "selected"))
        return [blank, banner, blank] if airy else [banner]
    return [(), _title(view, cells), ()] if airy else [_title(view, cells)]


def _title(view: View, cells: int) -> Line:
    snapshot, server = view.snapshot, view.server
    marks = [Span(f"{snapshot.simulation}  ", "label")] if snapshot is not None and snapshot.simulation else []
    marks += [Span(f"{view.recording}  ", recording_style(view.recording))] if view.recording else []
    marks += [Span(" PAUSED ", "low")] if view.paused else []
    if server is None:
        return spread(line(Span("llmtop", "bold"), Span("  no model server", "dim")), line(*marks), cells)
    state = line(*marks, Span(f" {server.state} ", STATE_STYLE[server.state]))
    left = line(Span(server.model or server.name or UNKNOWN, "bold"))
    device = next((device.name for device in snapshot.devices if device.name), None) if snapshot else None
    for text in (device, server.reason if not server.state.live else None):
        more = line(*left, Span("   "), Span(text or "", "label"))
        left = more if text and width(more) + width(state) < cells else left
    return spread(left, state, cells)


def _sentence(view: View, cells: int) -> Line:
    """The sentence; its reason goes before it is cut."""
    words = sentence(view)
    return crop(words if width(words) <= cells else words[:2], cells)


def sentence(view: View) -> Line:
    """`8 users, 14 tok/s each, room for 25 more`, or what holds it back; of a load test where it is."""
    server, said, load = view.server, verdict(view), view.load
    if load is not None and load.progress is not None:
        progress = load.progress
        left = f", {duration(progress.eta_s)} left" if progress.eta_s is not None else ""
        place = f"level {progress.index + 1} of {len(load.plan.levels)}{left}  "
        bar = gauge_line(progress.fraction, 24, "series2")
        return line(Span(" LOAD TEST ", "selected"), Span(f"  {progress.level.name}, {place}"), *bar)
    if server is None or server.running is None:
        return line(Span(said.headline.lower(), said.style))
    words = [f"{count(server.running)} user{'' if server.running == 1 else 's'}"]
    if server.rates.generation_tok_s is not None and server.running:
        words.append(f"{rate(server.rates.generation_tok_s / server.running)} tok/s each")
    if said.style == "ok":
        room = more_users(server)
        words += [f"room for {room:,} more"] if room else []
        return line(Span(f"{glyphs.current().dot} ", "ok"), Span(", ".join(words), "bold"))
    words += [f"{count(server.waiting)} wait"] if server.waiting else []
    style = said.style.replace("critical", "alarm")
    why = "a queue comes and goes" if server.limited_by == "MIXED" else said.headline.lower()
    why = "" if said.headline.endswith("WAITING") else f"  {why}"
    return line(Span(f"{glyphs.current().dot} ", style), Span(", ".join(words), "bold"), Span(why, f"bold {style}"))


def figures(view: View) -> tuple[Figure, ...]:
    """Speed, users, KV cache, headroom: the server's as far as it is known, the tightest memory pool's."""
    server, pool = view.server or ServerView(""), tightest_pool(view.snapshot)
    usual, speed, peak = view.value, server.rates.generation_tok_s, view.history.peak(server.url)
    cap, most = server.max_num_seqs, view.history.peak(server.url, "kv")
    waiting = line(Span(f"+{count(server.waiting)} waiting", "low")) if server.waiting else ()
    of_cap = f"of {cap:,}" if cap else f"most {of_whole(view.history.peak(server.url, 'running'))}"
    shown = (
        Figure("tokens per second", of_speed(speed), "888", usual, (), _share(speed, peak), f"peak {of_speed(peak)}"),
        Figure("users served", of_whole(server.running), "88", usual, waiting, _share(server.running, cap), of_cap),
        Figure(
            "KV cache",
            of_percent(server.kv_usage),
            "88%",
            style_for(server.kv_usage or 0.0, usual, KV_THRESHOLDS) if usual != "dim" else usual,
            (),
            server.kv_usage,
            f"most {of_percent(most)}",
        ),
        _headroom(pool),
    )
    return tuple(replace(figure, style="dim") if figure.digits == UNKNOWN else figure for figure in shown)


def _share(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else min(1.0, value / whole)


def _headroom(pool: Pool | None) -> Figure:
    state = pool.state if pool else None
    words = {"low": "LOW", "critical": "CRITICAL"}
    word = line(Span(f" {words[state]} ", LEVEL_STYLE[state])) if state in words else ()
    style = BIG.get(state or "", "value")
    left, total = (pool.headroom_bytes, pool.total_bytes) if pool else (None, None)
    note = f"of {gib(total)}, least {gib(pool.low_water_bytes)}" if pool else ""
    return Figure("headroom, GiB", of_size(left), "88.8", style, word, _share(left, total), note)


def best_grid(shown: Sequence[Figure], cells: int, rows: int) -> Grid:
    """Two by two or four in a row, whichever has the larger digits; fewer rows on a tie."""
    return max((_grid(shown, columns, cells, rows) for columns in (4, 2)), key=lambda grid: (grid.rows, grid.columns))


def _grid(shown: Sequence[Figure], columns: int, cells: int, rows: int) -> Grid:
    """The largest digits that fit: below them a gauge, above them a label, a blank row between the figures."""
    down = len(shown) // columns
    most = (rows + 1) // down - 3
    fitting = (
        size
        for size in range(most, LEAST_DIGITS - 1, -1)
        if max(stroke_width(figure.usual, size) for figure in shown) <= _room(columns, cells)
    )
    return Grid(columns, next(fitting, 0))


def _room(columns: int, cells: int) -> int:
    return (cells - GAP * (columns - 1)) // columns


def _digits(shown: Sequence[Figure], grid: Grid, cells: int) -> list[Line]:
    room = _room(grid.columns, cells)
    lines: list[Line] = []
    for first in range(0, len(shown), grid.columns):
        blocks = [(_block(figure, grid, room), room) for figure in shown[first : first + grid.columns]]
        lines += [*([()] if lines else []), *beside(blocks, GAP)]
    return lines


def _block(figure: Figure, grid: Grid, room: int) -> list[Line]:
    """Everything in the middle of its place; a number of more digits than usual is drawn smaller."""
    label = line(Span(figure.label, "title"), Span("  " if figure.word else ""), *figure.word)
    rows = next((rows for rows in range(grid.rows, 2, -1) if stroke_width(figure.digits, rows) <= room), 0)
    digits = stroke_lines(figure.digits, rows, figure.style) if rows else [line(Span(figure.digits, figure.style))]
    above = (grid.rows - len(digits)) // 2
    digits = [()] * above + digits + [()] * (grid.rows - len(digits) - above)
    return [fit(content, room, "center") for content in (label, *digits, _gauge(figure, room))]


def _gauge(figure: Figure, room: int) -> Line:
    """How much of what can be; nothing to compare with leaves the note."""
    note = line(Span(f"  {figure.note}", "label"))
    bar = min(max(24, room * 3 // 5), room - width(note))
    if figure.share is None or bar < 8:
        return crop(line(Span(figure.note, "label")), room)
    style = figure.style if figure.style not in ("value", "bold") else "bar"
    return (*thin(gauge_line(figure.share, bar, style.replace("bold ", ""), track="axis")), *note)


def _compact(view: View, moment: str | None, cells: int, rows: int) -> list[Line]:
    """A line per figure, for a terminal without room for large digits."""
    lines = _head(view, moment, cells, False)
    for figure in figures(view):
        content = line(
            Span(f"{figure.label:<19}", "label"), Span(figure.digits, figure.style), Span("  "), *figure.word
        )
        lines.append(crop(content, cells))
    lines += [(), _sentence(view, cells)] if rows >= len(lines) + 3 else []
    height = rows - len(lines) - 1
    if height >= 2:
        lines += [(), *chart(view, view.url, "generation", cells, height, SPEED)]
    return _with_note(lines, view, moment, cells, rows)
