"""All servers and their engines, a row each; of a fleet its models above them, and what hurts first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from textual import on
from textual.widgets import Input

from llmtop.contract.snapshot import EngineRow, ModelView, ServerView, State
from llmtop.contract.units import UNKNOWN, count, percent, rate, seconds
from llmtop.contract.words import quantile_text
from llmtop.fleet.models import hurt
from llmtop.ui.panels.fleet import fleet_header, fleet_line
from llmtop.ui.panels.frame import marks_of
from llmtop.ui.panels.headline import kv_state
from llmtop.ui.panels.view import STATE_STYLE, View
from llmtop.ui.screens.base import finish
from llmtop.ui.screens.table import TableScreen, finished
from llmtop_widgets import glyphs
from llmtop_widgets.gauge import gauge_line, thin
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.linetable import Cell, Column, LineTable, Row
from llmtop_widgets.text import Line, Span, line

COLUMNS = (
    Column("server", "server", 14, flex=2, most=32),
    Column("engine", "engine", 7, priority=2),
    Column("model", "model", 14, flex=2, priority=5, most=32),
    Column("state", "state", 10),
    Column("bar", "", 12, priority=7),
    Column("kv", "KV", 8, align="right"),
    Column("running", "run", 5, align="right"),
    Column("waiting", "wait", 5, align="right"),
    Column("tok_s", "tok/s", 7, align="right"),
    Column("capacity", "KV tokens", 11, align="right", priority=4),
    Column("preempted", "preempted", 9, align="right", priority=3),
    Column("ttft", "TTFT p95", 10, align="right", priority=1),
    Column("restarts", "restarts", 8, align="right", priority=6),
)
ENGINE, BAR = 1, 4  # places of columns that are not always there, or not as wide
WIDE_FROM, WIDE_BAR = 180, 46
SHORT = {State.NO_ENGINE_METRICS: "NO METRICS"}
Entry = tuple[ServerView, EngineRow | None]
HURT = "hurt"  # no column: what does not serve, lets requests wait, is full, is slow
_MODEL = "model:"
_SORT: dict[str, Callable[[Entry], Any]] = {
    HURT: lambda e: hurt(e[0]),
    "server": lambda e: e[0].name or e[0].url,
    "model": lambda e: e[0].model or "",
    "state": lambda e: e[0].state.value,
    "kv": lambda e: _of(e, "kv_usage"),
    "running": lambda e: _of(e, "running"),
    "waiting": lambda e: _of(e, "waiting"),
    "tok_s": lambda e: _speed(e) or -1.0,
    "preempted": lambda e: _of(e, "preemptions_total"),
    "restarts": lambda e: e[0].restarts,
}


def _of(entry: Entry, name: str) -> float:
    value = getattr(entry[1] or entry[0], name)
    return -1.0 if value is None else float(value)


def _speed(entry: Entry) -> float | None:
    server, engine = entry
    return engine.generation_tok_s if engine else server.rates.generation_tok_s


class EnginesScreen(TableScreen):
    """Sort with o or a click, filter with /, Enter shows a server on the dashboard."""

    name_in_keys = "engines"
    columns = COLUMNS
    orders = tuple(_SORT)
    words = frozenset(("server", "model", "state"))
    empty = "no server"

    def draw(self, view: View) -> None:
        """Sort and filter the rows of the view."""
        servers, models = (view.snapshot.servers, view.snapshot.models) if view.snapshot else ((), ())
        verdict = self.query_one("#verdict", LinePanel)
        verdict.set_class(len(servers) < 2 and (view.snapshot is None or view.snapshot.fleet is None), "hidden")
        if view.snapshot is not None:
            verdict.set_lines(finish([line(Span(" "), *fleet_line(view.snapshot, self.size.width - 2))]))
        if not self.sort_key and view.snapshot is not None:
            self.sort_key, self.descending = (HURT, True) if view.snapshot.fleet is not None else ("server", False)
        entries = [(server, engine) for server in servers for engine in _rows_of(server)]
        entries.sort(key=lambda entry: _SORT[self.sort_key or "server"](entry), reverse=self.descending)
        bar = WIDE_BAR if self.size.width >= WIDE_FROM else COLUMNS[BAR].width
        made = (_row(entry, bar) for entry in entries)
        rows = [row for row in made if self.matches(row)]
        of_models = [
            _model_row(model, bar) for model in sorted(models, key=lambda m: m.model is None) if not self.needle
        ]
        columns = [replace(column, width=bar) if column.key == "bar" else column for column in COLUMNS]
        if all(
            len(server.engines) < 2 for server in servers
        ):  # nothing to tell apart: the name of the model is worth more
            del columns[ENGINE]
            columns = [replace(column, priority=0) if column.key == "model" else column for column in columns]
            rows, of_models = ([_without_engine(row) for row in some] for some in (rows, of_models))
        table = self.query_one(LineTable)
        table.empty = "" if view.snapshot is None else "no server"
        table.set_columns(columns)
        table.set_sort(self.sort_key, self.descending)
        table.set_rows([*of_models, *rows])
        self.session.poller.look_at({key.partition(" ")[0] for key in table.keys_in_sight})

    def head(self, view: View) -> Line:
        """Of a fleet the fleet: no replica is the one that is watched."""
        fleet = view.snapshot.fleet if view.snapshot is not None else None
        if fleet is None:
            return super().head(view)
        return fleet_header(view, fleet, marks_of(view), self.size.width)

    @on(LineTable.RowSelected)
    def _model_chosen(self, event: LineTable.RowSelected) -> None:
        """A model shows its replicas alone."""
        if event.key.startswith(_MODEL) and type(event) is LineTable.RowSelected:
            event.stop()
            self.open_filter()
            self.query_one(Input).value = event.key.removeprefix(_MODEL)
            self.query_one(LineTable).focus()


def _without_engine(row: Row) -> Row:
    return Row(row.key, row.cells[:ENGINE] + row.cells[ENGINE + 1 :])


def _kv_cells(usage: float | None, bar: int, words: str | None = None) -> tuple[Line, Span]:
    """A gauge and its number, in the colour of the threshold that is reached."""
    _, style = kv_state(usage)
    bold, ink = {"low": ("low", "low"), "critical": ("alarm", "alarm")}.get(style, ("value", "bar"))
    return thin(gauge_line(usage, bar, ink, track="axis")) if usage is not None else (), Span(
        words or percent(usage), bold
    )


def _model_row(model: ModelView, bar: int) -> Row:
    waiting = Span(count(model.waiting), "low" if model.waiting else "value")
    mean = seconds(model.ttft_mean_s)
    ttft = mean if model.ttft_mean_s is None else f"mean {mean.replace(' ', '')}"
    well = "ok" if model.healthy == model.replicas else "low" if model.healthy else "critical"
    cells: tuple[Cell, ...] = (
        Span(model.model or "model unknown", "bold"),
        Span(f"all {model.replicas}"),
        Span(""),
        Span(f"{model.healthy}/{model.replicas} well", well),
        *_kv_cells(model.kv_usage, bar, None if model.kv_usage is None else f"max {model.kv_usage * 100:.0f}%"),
        Span(count(model.running), "value"),
        waiting,
        Span(rate(model.generation_tok_s), "value"),
        Span(""),
        Span(count(model.preemptions_total), "label"),
        Span(ttft, "value"),
        Span(""),
    )
    return Row(f"{_MODEL}{model.model or ''}", finished(cells))


def _rows_of(server: ServerView) -> tuple[EngineRow | None, ...]:
    """One row for a server with one engine (or none seen), else the server and a row per engine."""
    return (None,) if len(server.engines) < 2 else (None, *server.engines)


def _row(entry: Entry, bar: int) -> Row:
    server, engine = entry
    what = engine or server
    name = (
        (server.name or server.url.removeprefix("http://"))
        if engine is None
        else f"  {glyphs.current().corner_bottom_left}"
    )
    label = (
        engine.engine
        if engine
        else f"all {len(server.engines)}"
        if len(server.engines) > 1
        else server.kv_engine or UNKNOWN
    )
    ttft = quantile_text(server.latency.ttft.p95) if engine is None else ""
    cells: tuple[Cell, ...] = (
        Span(name, "" if engine is None else "dim"),
        Span(label),
        Span((engine.model if engine else server.model) or UNKNOWN, "dim"),
        Span(SHORT.get(what.state, what.state), STATE_STYLE[what.state]),
        *_kv_cells(what.kv_usage, bar),
        Span(count(what.running), "value"),
        Span(count(what.waiting), "low" if what.waiting else "value"),
        Span(rate(_speed(entry)), "value"),
        Span(count(what.kv_capacity_tokens), "label"),
        Span(count(what.preemptions_total), "label"),
        Span(ttft, "value"),
        Span(str(server.restarts) if engine is None else "", "label"),
    )
    return Row(f"{server.url} {engine.engine if engine else ''}", finished(cells))
