"""What the panels draw from, and the few shapes they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmtop.contract.snapshot import Node, ServerView, Snapshot, State
from llmtop.session.history import History
from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, crop, line, spread, text_width, width
from llmtop_widgets.timechart import Bands, ScaleKeeper, chart_lines, time_axis_line

if TYPE_CHECKING:
    from llmtop.ui.load_state import LoadState

LEVEL_STYLE = {"ok": "ok", "low": "low", "critical": "critical"}
STATE_STYLE = {
    State.SERVING: "ok",
    State.IDLE: "ok",
    State.SLEEPING: "info",
    State.STARTING: "info",
    State.STALE: "low",
    State.NO_ENGINE_METRICS: "low",
    State.AUTH: "low",
    State.STALLED: "critical",
    State.DOWN: "critical",
}


HOLD_S = 30.0


def recording_style(words: str) -> str:
    """The style of the recording mark: a replay is no alarm, a recording that runs must not be forgotten."""
    return "info" if words.startswith("REPLAY") else "critical"


@dataclass(slots=True)
class Scales:
    """What charts keep from frame to frame: the steady tops of those without a natural one, and their lines."""

    keepers: dict[str, ScaleKeeper] = field(default_factory=dict)
    drawn: dict[str, tuple[tuple[object, ...], list[Line]]] = field(default_factory=dict)
    held: dict[str, tuple[int, float]] = field(default_factory=dict)  # rows, and when so many were needed last

    def top(self, name: str, values: Sequence[float | None], minimum: float) -> float:
        """The top of the scale of a chart for the values now visible."""
        keeper = self.keepers.setdefault(name, ScaleKeeper(minimum))
        return keeper.update(max((value for value in values if value is not None), default=None))

    def rows(self, name: str, needed: int, now: float) -> int:
        """As many rows as are needed, and as were a moment ago: what comes and goes must not move all the rest."""
        rows, when = self.held.get(name, (0, now))
        if needed < rows and 0 <= now - when < HOLD_S:
            return rows
        self.held[name] = (needed, now)
        return needed

    def once(self, name: str, key: tuple[object, ...], draw: Callable[[], list[Line]]) -> list[Line]:
        """What `draw` returns; the lines of before while the key is that of before: most frames change no column."""
        before = self.drawn.get(name)
        if before is not None and before[0] == key:
            return before[1]
        lines = draw()
        self.drawn[name] = (key, lines)
        return lines


@dataclass(frozen=True, slots=True)
class View:
    """One frame: a snapshot, the selected server, the past, and how to look at it."""

    snapshot: Snapshot | None
    server: ServerView | None
    history: History
    step_s: float
    scales: Scales
    interval_s: float
    paused: bool = False
    recording: str | None = None
    note: str | None = None
    load: LoadState | None = None  # the load test that runs
    age_s: float = 0.0
    whole: Snapshot | None = None  # with what may not stand beside the server
    node: Node | None = None  # the machine that is looked at in place of a server
    asking: str = "looking for model servers"  # what goes on before the first snapshot

    @property
    def known(self) -> bool:
        """Whether the server's values are those of a running engine, perhaps old ones."""
        return self.server is not None and (self.server.state.live or self.server.state is State.STALE)

    def past(self, owner: str, name: str, columns: int, step_s: float | None = None) -> list[float | None]:
        """So many columns of a series."""
        step = step_s or self.step_s
        return self.history.columns(owner, name, step, columns, self._over(step))

    def marks(self, columns: int) -> tuple[list[int], list[str]]:
        """The marks in so many columns, and their names."""
        return self.history.marks_in(self.step_s, columns, self._over(self.step_s))

    def _over(self, step: float) -> float:
        """When the newest column ended that changes no more: the figures beside a chart are the present."""
        return self.history.now if step <= self.interval_s else self.history.now - step

    @property
    def url(self) -> str:
        """The selected server's; empty for none."""
        return self.server.url if self.server is not None else ""

    @property
    def badge(self) -> str | None:
        """The load test that runs, on every page."""
        if self.load is None:
            return None
        progress = self.load.progress
        if progress is None:
            return "LOAD"
        return f"LOAD {progress.level.name} {progress.index + 1}/{len(self.load.plan.levels)}"

    @property
    def value(self) -> str:
        """The style of a figure: dimmed when it is old."""
        return "dim" if self.server is not None and self.server.state is State.STALE else "value"


def heading(title: str, cells: int, right: str = "") -> Line:
    """A panel's title on a rule, with a note at its right end."""
    rule = glyphs.current().horizontal
    tail = f" {right} {rule}" if right else ""
    room = cells - text_width(title) - 1 - text_width(tail)
    if room < 1:
        return crop(line(Span(title, "title"), Span(f" {right}", "label")), cells)
    return line(
        Span(title, "title"), Span(" " + rule * room, "axis"), Span(tail[:-1], "label"), Span(tail[-1:], "axis")
    )


def pair(left: Line, right: Line, cells: int) -> Line:
    """Two facts at the edges; the right one goes when both do not fit."""
    if width(left) + 2 + width(right) > cells:
        return crop(left, cells)
    return spread(left, right, cells)


def fact(label: str, value: str, style: str, unit: str = "") -> Line:
    """`label value unit` with the value standing out."""
    return line(
        Span(f"{label} " if label else "", "label"), Span(value, style), Span(f" {unit}" if unit else "", "label")
    )


def widths(cells: int, columns: int, gap: int) -> list[int]:
    """The cells of so many columns side by side, `gap` between them, from edge to edge."""
    each, rest = divmod(max(0, cells - gap * (columns - 1)), columns)
    return [each + (place >= columns - rest) for place in range(columns)]


GUTTER = 6
TITLED = 4  # rows from which a chart has a title and its time axis


@dataclass(frozen=True, slots=True)
class Plot:
    """How a figure is drawn over time: its title with the unit, its scale, its thresholds as (value, style)."""

    title: str
    scale: Callable[[float], str]
    hi: float | None = None
    minimum: float = 1.0
    style: str = "series1"
    bands: Bands = ()
    threshold: float | None = None
    axis: bool = True
    labels: bool = False  # whether marks are named


def chart(view: View, owner: str, name: str, cells: int, rows: int, plot: Plot) -> list[Line]:
    """The past of a series in `rows` rows."""

    def read(columns: int) -> list[float | None]:
        return view.past(owner, name, columns)

    return chart_of(view, f"{owner}/{name}", read, cells, rows, plot)


def chart_of(
    view: View, key: str, read: Callable[[int], Sequence[float | None]], cells: int, rows: int, plot: Plot
) -> list[Line]:
    """The values of `read(columns)` in `rows` rows: title with the largest value, scale, time axis."""
    if rows < 1:
        return []
    columns, height, _ = _shape(cells, rows, plot.axis)
    values = read(columns)
    top = view.scales.top(key, values, plot.minimum) if plot.hi is None else plot.hi
    places, names = view.marks(columns)

    def draw() -> list[Line]:
        lines = chart_lines(
            values,
            width=columns,
            height=height,
            hi=top,
            style=plot.style,
            marks=places,
            labels=names if plot.labels else (),
            threshold=plot.threshold,
            bands=plot.bands,
        )
        ends = (plot.scale(top), plot.scale(0.0))
        return framed(lines, plot.title, extremes(values, plot.scale), ends, view, cells, rows, plot.axis)

    same = (values, top, places, names if plot.labels else (), cells, rows, plot.style, plot.threshold, view.step_s)
    return view.scales.once(key, same, draw)


def _shape(cells: int, rows: int, axis: bool = True) -> tuple[int, int, int]:
    """(columns, height, gutter) of the plot of a chart in so many cells and rows."""
    height = rows - (rows >= TITLED) - (axis and rows >= TITLED)
    gutter = GUTTER if height >= 2 and cells >= 32 else 0
    return cells - gutter, height, gutter


def plot_size(cells: int, rows: int) -> tuple[int, int]:
    """(columns, height) that a chart has for its values."""
    return _shape(cells, rows)[:2]


def framed(
    lines: Sequence[Line],
    title: str | Line,
    right: str,
    ends: tuple[str, str],
    view: View,
    cells: int,
    rows: int,
    axis: bool = True,
) -> list[Line]:
    """A plot with its title, the ends of its scale at the left, the time axis below: as much as there is room for."""
    columns, height, gutter = _shape(cells, rows, axis)
    drawn = list(lines)
    if gutter:
        labels = {0: ends[0], height - 1: ends[1]}
        drawn = [(Span(f"{labels.get(row, ''):>{gutter - 1}} ", "axis"), *content) for row, content in enumerate(drawn)]
    if rows < TITLED:
        return drawn
    told = line(Span(title, "label")) if isinstance(title, str) else title
    head = [spread(told, line(Span(right, "label")), cells)]
    foot = [(Span(" " * gutter), *time_axis_line(columns, view.step_s))] if axis else []
    return [*head, *drawn, *foot]


def extremes(values: Sequence[float | None], scale: Callable[[float], str]) -> str:
    """The largest value of the columns shown; the newest is the figure beside the chart."""
    known = [value for value in values if value is not None]
    return f"max {scale(max(known))}" if known else ""


def asciify(content: Line) -> Line:
    """Plain ASCII for terminals that have nothing else."""
    return tuple(Span(_ascii(span.text), span.style) for span in content)


_PLAIN = str.maketrans({"–": "-", "≈": "~", "…": "~", "×": "x", "→": ">", "·": "-", "°": " ", "—": "-", "’": "'"})


def _ascii(text: str) -> str:
    return text if text.isascii() else text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
