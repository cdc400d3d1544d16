"""The picture for a projector: four figures in digits that carry to the back row, one chart, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.contract.snapshot import Pool, ServerView
from llmtop.contract.units import UNKNOWN, count, si
from llmtop.ui.panels.digits import of_percent, of_size, of_speed, of_whole
from llmtop.ui.panels.machine import tightest_pool
from llmtop.ui.panels.server import KV_THRESHOLDS
from llmtop.ui.panels.view import LEVEL_STYLE, STATE_STYLE, Plot, View, chart
from llmtop_widgets.bigtext import FONT_ROWS, big_lines, big_width
from llmtop_widgets.text import Line, Span, beside, crop, fit, line, plain, spread, width

LEAST_CELLS, LEAST_ROWS = 44, 14  # below: a line per figure
GAP = 4
SPEED = Plot("generated tok/s", si, minimum=10.0)
CHART_ROWS = 4  # three for the curve, one for the time axis
BIG = {"low": "low", "critical": "alarm"}  # "critical" is reverse video, which digits cannot wear


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: what it is, its digits, digits of the usual width, its style, a word beside the label."""

    label: str
    digits: str
    usual: str
    style: str
    word: Line = ()


@dataclass(frozen=True, slots=True)
class Grid:
    """How the figures are set: so many side by side, a pixel of a digit `wide` x `tall` cells."""

    columns: int
    wide: int = 1
    tall: int = 1
    stretch: int = 0  # rows more for each of the two stretches between the strokes

    @property
    def height(self) -> int:
        """Rows of a digit."""
        return FONT_ROWS * self.tall + 2 * self.stretch


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
    lines += chart(view, owner, "generation", cells, height, SPEED)
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
    marks = [Span(f"{snapshot.simulation}  ", "label")] if snapshot is not None and snapshot.simulation else []
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
    usual = view.value
    speed = usual
    waiting = line(Span(f"+{count(server.waiting)} waiting", "low")) if server.waiting else ()
    return (
        Figure("tokens per second", of_speed(server.rates.generation_tok_s), "888", speed),
        Figure("users served", of_whole(server.running), "88", usual, waiting),
        Figure("KV cache", of_percent(server.kv_usage), "88%", _kv_style(server.kv_usage, usual)),
        _headroom(pool),
    )


def _headroom(pool: Pool | None) -> Figure:
    state = pool.state if pool else None
    words = {"low": "LOW", "critical": "CRITICAL"}
    word = line(Span(f" {words[state]} ", LEVEL_STYLE[state])) if state in words else ()
    style = BIG.get(state or "", "value")
    return Figure("headroom, GiB", of_size(pool.headroom_bytes if pool else None), "88.8", style, word)


def _kv_style(usage: float | None, usual: str) -> str:
    levels = [style for limit, style in KV_THRESHOLDS if usage is not None and usage >= limit]
    return usual if usual == "dim" or not levels else levels[-1]


def best_grid(shown: Sequence[Figure], cells: int, rows: int) -> Grid:
    """Two by two or four in a row, whichever has the thicker strokes; fewer rows on a tie."""
    return max((_grid(shown, columns, cells, rows) for columns in (4, 2)), key=lambda g: (g.wide * g.tall, g.columns))


def _grid(shown: Sequence[Figure], columns: int, cells: int, rows: int) -> Grid:
    """The largest digits; strokes about as thick in both directions, a cell being twice as high as wide."""
    down = len(shown) // columns
    room = (rows - (down - 1)) // down - 1
    usual = max(big_width(figure.usual, narrow=True) for figure in shown)
    fits = _room(columns, cells) // usual
    tall = max(1, min(room // FONT_ROWS, (fits + 1) // 2))
    stretch = max(0, min((room - FONT_ROWS * tall) // 2, (tall + 1) // 2))
    return Grid(columns, max(1, min(fits, 2 * tall)), tall, stretch) if room >= FONT_ROWS else Grid(columns, 0, 0)


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
    label = line(Span(figure.label, "label"), Span("  " if figure.word else ""), *figure.word)
    # a number of more digits than usual is set narrower, and all others stay as they are
    wide = max(1, min(grid.wide, room // big_width(figure.digits, narrow=True)))
    heights = (grid.tall, grid.tall + grid.stretch) * 2 + (grid.tall,)
    lines = [label]
    for bitmap, times in zip(big_lines(figure.digits, narrow=True), heights, strict=True):
        row = "".join(pixel * wide for pixel in plain(bitmap))
        lines += [line(Span(row, figure.style))] * times
    return lines


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
        lines += [(), *chart(view, owner, "generation", cells, height, SPEED)]
    return _with_note(lines, view, moment, cells, rows)
