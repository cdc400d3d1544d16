"""Widgets for live numbers in a terminal: lines, gauges, charts, tables, on fixed scales and few bytes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmtop_widgets.bigtext import half_lines
    from llmtop_widgets.curve import Limit, Point, scatter_lines
    from llmtop_widgets.gauge import gauge_line
    from llmtop_widgets.linepanel import LinePanel
    from llmtop_widgets.linetable import Column, LineTable, Row
    from llmtop_widgets.linewidget import LineWidget
    from llmtop_widgets.stackedbar import shade, stacked_line
    from llmtop_widgets.statusbar import KeyBar, KeyHint
    from llmtop_widgets.strokes import stroke_lines, stroke_width
    from llmtop_widgets.text import Line, Span, beside, fit, fit_text, flow, join, line, plain, spread, width
    from llmtop_widgets.timechart import ScaleKeeper, chart_lines, nice_ceiling, time_axis_line

__all__ = [
    "Column",
    "KeyBar",
    "KeyHint",
    "Limit",
    "Line",
    "LinePanel",
    "LineTable",
    "LineWidget",
    "Point",
    "Row",
    "ScaleKeeper",
    "Span",
    "beside",
    "chart_lines",
    "fit",
    "fit_text",
    "flow",
    "gauge_line",
    "half_lines",
    "join",
    "line",
    "nice_ceiling",
    "plain",
    "scatter_lines",
    "shade",
    "spread",
    "stacked_line",
    "stroke_lines",
    "stroke_width",
    "time_axis_line",
    "width",
]

_HOMES = {
    "bigtext": ("half_lines",),
    "curve": ("Limit", "Point", "scatter_lines"),
    "gauge": ("gauge_line",),
    "linepanel": ("LinePanel",),
    "linetable": ("Column", "LineTable", "Row"),
    "linewidget": ("LineWidget",),
    "stackedbar": ("shade", "stacked_line"),
    "statusbar": ("KeyBar", "KeyHint"),
    "strokes": ("stroke_lines", "stroke_width"),
    "text": ("Line", "Span", "beside", "fit", "fit_text", "flow", "join", "line", "plain", "spread", "width"),
    "timechart": ("ScaleKeeper", "chart_lines", "nice_ceiling", "time_axis_line"),
}


def __getattr__(name: str) -> object:
    """Import a name's module when it is asked for: a screen pays at its start only for what it draws."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
