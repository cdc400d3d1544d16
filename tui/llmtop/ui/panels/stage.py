"""The picture for a projector: four figures in digits that carry to the back row, one chart, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.model.snapshot import Pool, ServerView, State
from llmtop.model.units import UNKNOWN, count, si
from llmtop.ui.panels.machine import tightest_pool
from llmtop.ui.panels.server import KV_THRESHOLDS
from llmtop.ui.panels.view import LEVEL_STYLE, STATE_STYLE, View, chart
from llmtop_widgets.bigtext import FONT_ROWS, big_lines, big_width
from llmtop_widgets.text import Line, Span, crop, fit, line, spread, width

LEAST_CELLS, LEAST_ROWS = 44, 14  # below: a line per figure
GAP = 4
CHART_ROWS = 4  # three for the curve, one for the time axis
BIG = {"low": "series3", "critical": "series6"}  # "critical" is reverse video, which digits cannot wear


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: what it is, its digits, how wide they may get before all digits shrink, its style, a word beside."""

    label: str
    digits: str
    widest: str
    style: str
    word: Line = ()


@dataclass(frozen=True, slots=True)
class Grid:
    """How the figures are set: so many side by side, in digits of this height."""

    columns: int
    height: int
    narrow: bool

    @property
    def rows(self) -> int:
        """Rows of the whole grid: a label above the digits of each row, a blank between rows."""
        down = 4 // self.columns
        return down * (self.height + 1) + down - 1


def stage_page(view: View, moment: str | None, cells: int, rows: int) -> list[Line]:
    """Exactly `rows` lines of `cells` cells; `moment` is an announcement worth a banner."""
    inner = max(1, cells - 2)
    lines = _compact(view, moment, inner, rows) if cells < LEAST_CELLS or rows < LEAST_ROWS else None
    if lines is None:
        lines = _full(view, moment, inner, rows)
    lines = lines[:rows] + [()] * (rows - len(lines))
    return [fit(line(Span(" ", _fill(content)), *content), cells, style=_fill(content)) for content in lines]


def _fill(content: Line) -> str:
    """A banner runs from edge to edge."""
    return "selected" if content and content[0].style == "selected" else ""


def _full(view: View, moment: str | None, cells: int, rows: int) -> list[Line]:
    airy = rows >= 30
    head = _head(view, moment, cells, airy)
    shown = figures(view)
    room = rows - len(head) - airy - 1
    grid = best_grid(shown, cells, room - max(CHART_ROWS, room // 4))
    lines = [*head, *_digits(shown, grid, cells), *([()] * (1 + airy))]
    owner = view.server.url if view.server else ""
    height = rows - len(lines)
    lines += chart(view, owner, "generation", cells, height, scale=si, minimum=10.0, style="series2")
    return _with_note(lines, view, moment, cells, rows)


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
    marks = [Span("simulated  ", "label")] if snapshot is not None and snapshot.simulated else []
    marks += [Span(f"{view.recording}  ", "critical")] if view.recording else []
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


def figures(view: View) -> tuple[Figure, ...]:
    """Speed, users, KV cache, headroom: the server's as far as it is known, the tightest memory pool's."""
    server, pool = view.server or ServerView(""), tightest_pool(view.snapshot)
    plain = "dim" if server.state is State.STALE else "value"
    speed = "dim" if plain == "dim" else "series2"
    waiting = line(Span(f"+{count(server.waiting)} waiting", "low")) if server.waiting else ()
    return (
        Figure("tokens per second", _short(server.rates.generation_tok_s), "8888", speed),
        Figure("users served", _whole(server.running), "888", plain, waiting),
        Figure("KV cache", _percent(server.kv_usage), "100%", _kv_style(server.kv_usage, plain)),
        _headroom(pool),
    )


def _headroom(pool: Pool | None) -> Figure:
    size = pool.headroom_bytes if pool else None
    state = pool.state if pool else None
    words = {"low": "LOW", "critical": "CRITICAL"}
    word = line(Span(f" {words[state]} ", LEVEL_STYLE[state])) if state in words else ()
    style = BIG.get(state or "", "value")
    return Figure("headroom, GiB", _short(None if size is None else size / 2**30), "88.8", style, word)


def _kv_style(usage: float | None, plain: str) -> str:
    levels = [style for limit, style in KV_THRESHOLDS if usage is not None and usage >= limit]
    return plain if plain == "dim" or not levels else BIG[levels[-1]]


def _whole(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def _short(value: float | None) -> str:
    """Three digits or more: 4.2, 94.3, 1204, 12.4k."""
    if value is None:
        return UNKNOWN
    if abs(value) < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if abs(value) < 9999.5 else f"{value / 1000:.1f}k"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value * 100:.0f}%"


def best_grid(shown: Sequence[Figure], cells: int, rows: int) -> Grid:
    """Two by two or four in a row, whichever gives the larger digits; fewer rows on a tie."""
    grids = [grid for columns in (4, 2) if (grid := _largest(shown, columns, cells, rows)) is not None]
    return max(grids, key=lambda grid: (grid.height, not grid.narrow), default=Grid(2, FONT_ROWS, True))


def _largest(shown: Sequence[Figure], columns: int, cells: int, rows: int) -> Grid | None:
    room = (cells - GAP * (columns - 1)) // columns
    down = len(shown) // columns
    tallest = (rows - (down - 1)) // down - 1
    for height in range(tallest - (tallest + 1) % 2, FONT_ROWS - 1, -2):
        for narrow in (False, True):
            needed = max(big_width(text, height=height, narrow=narrow) for f in shown for text in (f.digits, f.widest))
            if needed <= room:
                return Grid(columns, height, narrow)
    return None


def _digits(shown: Sequence[Figure], grid: Grid, cells: int) -> list[Line]:
    room = (cells - GAP * (grid.columns - 1)) // grid.columns
    lines: list[Line] = []
    for first in range(0, len(shown), grid.columns):
        blocks = [_block(figure, grid, room) for figure in shown[first : first + grid.columns]]
        lines += [()] if lines else []
        for row in zip(*blocks, strict=True):
            lines.append(line(*(span for place, part in enumerate(row) for span in _spaced(place, part))))
    return lines


def _spaced(place: int, content: Line) -> Line:
    return (Span(" " * GAP), *content) if place else content


def _block(figure: Figure, grid: Grid, room: int) -> list[Line]:
    label = line(Span(figure.label, "label"), Span("  " if figure.word else ""), *figure.word)
    digits = big_lines(figure.digits, height=grid.height, style=figure.style, narrow=grid.narrow)
    return [fit(content, room) for content in (label, *digits)]


def _compact(view: View, moment: str | None, cells: int, rows: int) -> list[Line]:
    """A line per figure, for a terminal without room for large digits."""
    lines = _head(view, moment, cells, False)
    for figure in figures(view):
        content = line(
            Span(f"{figure.label:<19}", "label"), Span(figure.digits, figure.style), Span("  "), *figure.word
        )
        lines.append(crop(content, cells))
    owner = view.server.url if view.server else ""
    height = rows - len(lines) - 1
    if height >= 2:
        lines += [(), *chart(view, owner, "generation", cells, height, scale=si, minimum=10.0, style="series2")]
    return _with_note(lines, view, moment, cells, rows)
