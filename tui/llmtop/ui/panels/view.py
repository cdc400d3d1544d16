"""What the panels draw from, and the few shapes they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llmtop.contract.snapshot import ServerView, Snapshot, State
from llmtop.session.history import History
from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, crop, line, spread, text_width, width
from llmtop_widgets.timechart import ScaleKeeper, chart_lines, time_axis_line

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


@dataclass(slots=True)
class Scales:
    """The steady tops of charts that have no natural one."""

    keepers: dict[str, ScaleKeeper] = field(default_factory=dict)

    def top(self, name: str, values: Sequence[float | None], minimum: float) -> float:
        """The top of the scale of a chart for the values now visible."""
        keeper = self.keepers.setdefault(name, ScaleKeeper(minimum))
        return keeper.update(max((value for value in values if value is not None), default=None))


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
    age_s: float = 0.0

    @property
    def known(self) -> bool:
        """Whether the server's values are those of a running engine, perhaps old ones."""
        return self.server is not None and (self.server.state.live or self.server.state is State.STALE)

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


GUTTER = 6


def chart(
    view: View,
    owner: str,
    name: str,
    cells: int,
    rows: int,
    *,
    scale: Callable[[float], str],
    hi: float | None = None,
    minimum: float = 1.0,
    style: str = "series1",
    threshold: float | None = None,
    axis: bool = True,
) -> list[Line]:
    """The past of a series in `rows` rows: its scale at the left, the time axis in the last row when there is room."""
    if rows < 1:
        return []
    with_axis = axis and rows >= 3
    plot = rows - with_axis
    gutter = GUTTER if plot >= 2 and cells >= 32 else 0
    columns = cells - gutter
    values = view.history.columns(owner, name, view.step_s, columns)
    top = view.scales.top(f"{owner}/{name}", values, minimum) if hi is None else hi
    lines = chart_lines(
        values,
        width=columns,
        height=plot,
        hi=top,
        style=style,
        marks=view.history.mark_columns(view.step_s, columns),
        threshold=threshold,
    )
    if with_axis:
        lines.append(time_axis_line(columns, view.step_s))
    if not gutter:
        return lines
    labels = {0: scale(top), plot - 1: scale(0.0)}
    return [(Span(f"{labels.get(row, ''):>{gutter - 1}} ", "axis"), *content) for row, content in enumerate(lines)]


def asciify(content: Line) -> Line:
    """Plain ASCII for terminals that have nothing else."""
    return tuple(Span(_ascii(span.text), span.style) for span in content)


_PLAIN = str.maketrans({"–": "-", "≈": "~", "…": "~", "×": "x", "→": ">", "·": "-", "°": " ", "—": "-", "’": "'"})


def _ascii(text: str) -> str:
    return text if text.isascii() else text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
