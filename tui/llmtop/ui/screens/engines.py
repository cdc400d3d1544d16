"""All servers and their engines, a row each; of a fleet its models above them, and what hurts first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from textual import on
from textual.widget import Widget
from textual.widgets import Input

from llmtop.contract.snapshot import EngineRow, ModelView, ServerView
from llmtop.contract.units import UNKNOWN, count, percent, rate, seconds
from llmtop.contract.words import quantile_text
from llmtop.fleet.models import hurt
from llmtop.ui.panels.view import STATE_STYLE, View, asciify
from llmtop.ui.screens.base import MOST_TYPED, ViewScreen
from llmtop_widgets import glyphs
from llmtop_widgets.linetable import Column, LineTable, Row
from llmtop_widgets.text import Span

if TYPE_CHECKING:
    from llmtop.ui.session import Session

COLUMNS = (
    Column("server", "server", 18, flex=2),
    Column("engine", "engine", 8, priority=2),
    Column("model", "model", 14, flex=2, priority=5),
    Column("state", "state", 9),
    Column("kv", "KV", 8, align="right"),
    Column("running", "run", 5, align="right"),
    Column("waiting", "wait", 5, align="right"),
    Column("tok_s", "tok/s", 8, align="right"),
    Column("capacity", "KV tokens", 11, align="right", priority=4),
    Column("preempted", "preempted", 9, align="right", priority=3),
    Column("ttft", "TTFT p95", 10, align="right", priority=1),
    Column("restarts", "restarts", 8, align="right", priority=6),
)
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


class EnginesScreen(ViewScreen):
    """Sort with o or a click, filter with /, Enter shows a server on the dashboard."""

    name_in_keys = "engines"

    def __init__(self) -> None:
        super().__init__()
        self.sort_key, self.descending = "", False
        self.needle = ""

    def body(self) -> Iterable[Widget]:
        """The table and the line for the filter."""
        yield LineTable(COLUMNS, empty="no server", id="body")
        yield Input(placeholder="filter", id="filter", classes="hidden", compact=True, max_length=MOST_TYPED)

    def begin(self) -> None:
        """Keys go to the table."""
        self.query_one(LineTable).focus()

    def draw(self, view: View) -> None:
        """Sort and filter the rows of the view."""
        servers, models = (view.snapshot.servers, view.snapshot.models) if view.snapshot else ((), ())
        if not self.sort_key and view.snapshot is not None:
            self.sort_key, self.descending = (HURT, True) if view.snapshot.fleet is not None else ("server", False)
        entries = [(server, engine) for server in servers for engine in _rows_of(server)]
        entries.sort(key=lambda entry: _SORT[self.sort_key or "server"](entry), reverse=self.descending)
        rows = [row for row in map(_row, entries) if self.needle in _text(row).casefold()]
        table = self.query_one(LineTable)
        table.set_sort("state" if self.sort_key == HURT else self.sort_key, self.descending)
        table.set_rows([*map(_model_row, models if not self.needle else ()), *rows])
        self._app.poller.look_at({key.partition(" ")[0] for key in table.keys_in_sight})

    @property
    def _app(self) -> Session:
        return cast("Session", self.app)

    def cycle_sort(self) -> None:
        """The next column; after the last the other way round."""
        keys = list(_SORT)
        place = keys.index(self.sort_key or "server") + 1
        self.sort_key = keys[place % len(keys)]
        self.descending = self.sort_key not in ("server", "model", "state")
        self._again()

    def open_filter(self) -> None:
        """Show the line for the filter."""
        field = self.query_one(Input)
        field.remove_class("hidden")
        field.focus()

    @on(LineTable.RowSelected)
    def _model_chosen(self, event: LineTable.RowSelected) -> None:
        """A model shows its replicas alone."""
        if event.key.startswith(_MODEL) and type(event) is LineTable.RowSelected:
            event.stop()
            self.open_filter()
            self.query_one(Input).value = event.key.removeprefix(_MODEL)
            self.query_one(LineTable).focus()

    def leave(self) -> bool:
        """Escape: first out of the filter, which is forgotten."""
        field = self.query_one(Input)
        if field.has_class("hidden") and not self.needle:
            return True
        field.value = self.needle = ""
        field.add_class("hidden")
        self.query_one(LineTable).focus()
        self._again()
        return False

    @on(Input.Changed)
    def _filtered(self, event: Input.Changed) -> None:
        self.needle = event.value.casefold()
        self._again()

    @on(Input.Submitted)
    def _filter_done(self) -> None:
        self.query_one(LineTable).focus()

    @on(LineTable.SortRequested)
    def _sorted(self, event: LineTable.SortRequested) -> None:
        if event.key in _SORT:
            self.descending = (
                not self.descending if event.key == self.sort_key else event.key not in ("server", "model")
            )
            self.sort_key = event.key
            self._again()

    def _again(self) -> None:
        if self.view is not None:
            self.draw(self.view)


def _model_row(model: ModelView) -> Row:
    waiting = Span(count(model.waiting), "low" if model.waiting else "value")
    mean = seconds(model.ttft_mean_s)
    ttft = mean if model.ttft_mean_s is None else f"mean {mean.replace(' ', '')}"
    cells = (
        Span(model.model or UNKNOWN, "bold"),
        Span(f"all {model.replicas}"),
        Span(""),
        Span(f"{model.healthy} well", "ok" if model.healthy == model.replicas else "low"),
        Span(percent(model.kv_usage), "value"),
        Span(count(model.running), "value"),
        waiting,
        Span(rate(model.generation_tok_s), "value"),
        Span(""),
        Span(count(model.preemptions_total), "label"),
        Span(ttft, "value"),
        Span(""),
    )
    return Row(f"{_MODEL}{model.model or ''}", tuple(asciify(cells)) if glyphs.current() is glyphs.ASCII else cells)


def _rows_of(server: ServerView) -> tuple[EngineRow | None, ...]:
    """One row for a server with one engine (or none seen), else the server and a row per engine."""
    return (None,) if len(server.engines) < 2 else (None, *server.engines)


def _text(row: Row) -> str:
    return " ".join(cell.text for cell in row.cells if isinstance(cell, Span))


def _row(entry: Entry) -> Row:
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
    cells: tuple[Span, ...] = (
        Span(name, "" if engine is None else "dim"),
        Span(label),
        Span((engine.model if engine else server.model) or UNKNOWN, "dim"),
        Span(what.state, STATE_STYLE[what.state]),
        Span(percent(what.kv_usage), "value"),
        Span(count(what.running), "value"),
        Span(count(what.waiting), "low" if what.waiting else "value"),
        Span(rate(_speed(entry)), "value"),
        Span(count(what.kv_capacity_tokens), "label"),
        Span(count(what.preemptions_total), "label"),
        Span(ttft, "value"),
        Span(str(server.restarts) if engine is None else "", "label"),
    )
    if glyphs.current() is glyphs.ASCII:
        cells = tuple(asciify((cell,))[0] for cell in cells)
    return Row(f"{server.url} {engine.engine if engine else ''}", cells)
