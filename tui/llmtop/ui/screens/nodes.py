"""All machines, a row each: memory, GPUs, fabric, and the servers that run there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmtop.contract.snapshot import ServerView
from llmtop.contract.units import UNKNOWN, gib
from llmtop.ui.panels.nodes import NODE_STYLE, NodeFigures, figures, nodes_line
from llmtop.ui.panels.view import LEVEL_STYLE, STATE_STYLE, View
from llmtop.ui.screens.base import finish
from llmtop.ui.screens.table import TableScreen, finished
from llmtop_widgets.gauge import gauge_line, thin
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.linetable import Cell, Column, LineTable, Row
from llmtop_widgets.text import Span, line

BAR = 10
COLUMNS = (
    Column("node", "node", 11, flex=2, most=28),
    Column("state", "state", 11),
    Column("bar", "", BAR, priority=7),
    Column("headroom", "headroom", 8, align="right"),
    Column("low", "least", 6, align="right", priority=1),
    Column("util", "GPU", 6, align="right"),
    Column("power", "power", 6, align="right", priority=3),
    Column("clock", "SM clock", 8, align="right", priority=5),
    Column("fabric", "RDMA GB/s", 9, align="right", priority=4),
    Column("servers", "servers", 14, flex=3),
)
_ORDERED = ("ok", "unknown", "stale", "down")
_SORT: dict[str, Callable[[NodeFigures], Any]] = {
    "": lambda _: 0,  # as they were named
    "node": lambda row: row.node.name,
    "state": lambda row: -_ORDERED.index(row.node.state),
    "headroom": lambda row: _or_most(row.headroom),
    "low": lambda row: _or_most(row.pool.low_water_bytes if row.pool else None),
    "util": lambda row: _or_least(row.util),
    "power": lambda row: _or_least(row.watts),
    "clock": lambda row: _or_most(row.clock),
    "fabric": lambda row: (row.rx_bytes_s or 0.0) + (row.tx_bytes_s or 0.0),
    "servers": lambda row: len(row.servers) + len(row.parts),
}


class NodesScreen(TableScreen):
    """Sort with o or a click, filter with /, Enter shows a machine."""

    name_in_keys = "nodes"
    columns = COLUMNS
    orders = tuple(_SORT)
    words = frozenset(("", "node", "state", "headroom", "low", "clock"))  # the least of these is what hurts
    empty = "no machine seen"

    def draw(self, view: View) -> None:
        """Sort and filter the rows of the view."""
        snapshot = view.whole
        found = figures(snapshot) if snapshot is not None else []
        verdict = line(Span(" "), *nodes_line(found, self.size.width - 2))
        self.query_one("#verdict", LinePanel).set_lines(finish([verdict]))
        found.sort(key=_SORT[self.sort_key], reverse=self.descending)
        rows = [row for row in map(_row, found) if self.matches(row)]
        table = self.query_one(LineTable)
        has_rails = snapshot is not None and bool(snapshot.fabric)
        place = [column.key for column in COLUMNS].index("fabric")
        if not has_rails:
            rows = [Row(row.key, row.cells[:place] + row.cells[place + 1 :]) for row in rows]
        table.set_columns([column for column in COLUMNS if has_rails or column.key != "fabric"])
        table.set_sort(self.sort_key, self.descending)
        table.set_rows(rows)


def _row(row: NodeFigures) -> Row:
    pool, old = row.pool, row.node.state != "ok"
    level = LEVEL_STYLE.get(pool.state or "", "value") if pool else "dim"
    ink = {"low": "low", "critical": "alarm"}.get(level, "bar")
    taken = None
    if pool is not None and pool.total_bytes and pool.headroom_bytes is not None:
        taken = 1.0 - pool.headroom_bytes / pool.total_bytes
    several = f" x{len(row.devices)}" if len(row.devices) > 1 else ""
    value = "dim" if old else "value"
    cells: tuple[Cell, ...] = (
        Span(row.node.name, "bold"),
        Span(row.words, NODE_STYLE[row.node.state]),
        thin(gauge_line(taken, BAR, ink, track="axis")) if taken is not None else (),
        Span(gib(row.headroom), "dim" if old else level if level in ("low", "critical") else "bold"),
        Span(gib(pool.low_water_bytes if pool else None), value),
        Span(_unit(row.util, "%") + several, value),
        Span(_unit(row.watts, " W"), value),
        Span(_unit(row.clock, " MHz"), "low" if row.slow and not old else value),
        Span(f"{_speed(row.rx_bytes_s)}/{_speed(row.tx_bytes_s)}", value),
        _servers(row),
    )
    return Row(row.node.name, finished(cells))


def _servers(row: NodeFigures) -> Cell:
    """What is served there; of a machine that is not read, why."""
    if row.node.state != "ok" and row.node.reason and not row.servers:
        return Span(row.node.reason, "dim")
    names = [Span(_name(server), STATE_STYLE[server.state]) for server in row.servers]
    names += [Span(f"part of {_name(server)}", "dim") for server in row.parts]
    if not names:
        return Span("none", "dim")
    spans = [names[0]]
    for name in names[1:]:
        spans += [Span(", "), name]
    return tuple(spans)


def _name(server: ServerView) -> str:
    return server.name or server.model or server.url.partition("://")[2]


def _unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f}{unit}"


def _speed(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value / 1e9:.1f}"


def _or_most(value: float | None) -> float:
    return float("inf") if value is None else value


def _or_least(value: float | None) -> float:
    return -1.0 if value is None else value
