"""Widgets for live numbers in a terminal: lines, gauges, charts, tables, on fixed scales and few bytes."""

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
