"""What happened, with times, and a row per engine: for screens that have room for more than the present."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from llmtop.contract.snapshot import EngineRow, Event, ServerView
from llmtop.contract.units import UNKNOWN, count, gib, percent, rate, si
from llmtop.fleet.models import hurt
from llmtop.machine.tightest import tightest_pool
from llmtop.ui.panels.headline import kv_state
from llmtop.ui.panels.view import STATE_STYLE, View, heading
from llmtop_widgets import glyphs
from llmtop_widgets.gauge import gauge_line, thin
from llmtop_widgets.text import Line, Span, crop, line

MOST_STATE = 10
KIND_STYLE = {
    "preemptions": "low",
    "restart": "low",
    "low_water": "low",
    "finding": "low",
    "cleared": "ok",
    "state": "info",
    "peak": "info",
    "level": "info",
    "mark": "info",
}


def events_facts(view: View, cells: int, rows: int) -> list[Line]:
    """The newest events first."""
    shown = list(view.history.events)[-max(0, rows - 1) :][::-1]
    lines = [_event_line(event, cells) for event in shown]
    return [heading("Events", cells), *(lines or [line(Span("nothing has happened yet", "dim"))])][:rows]


def _event_line(event: Event, cells: int) -> Line:
    when = time.strftime("%H:%M:%S", time.localtime(event.time))
    kind = event.kind.replace("_", "-")
    return crop(
        line(Span(f"{when}  ", "label"), Span(f"{kind:<12}", KIND_STYLE.get(event.kind, "label")), Span(event.text)),
        cells,
    )


def engines_facts(view: View, cells: int, rows: int) -> list[Line]:
    """A row per engine of the selected server, or per server; of one with one engine the extremes so far."""
    engines = view.server.engines if view.server is not None else ()
    servers: Sequence[ServerView] = view.snapshot.servers if view.snapshot else ()
    if view.snapshot is not None and view.snapshot.fleet is not None:
        servers = sorted(servers, key=hurt, reverse=True)
    if len(engines) > 1:
        title, lines = "Engines", [_engine_line(row, cells) for row in engines]
    elif len(servers) > 1:
        title, lines = "Servers", [_server_line(row, cells) for row in servers]
    else:
        return [heading("So far", cells, "m begins anew"), *_extremes(view)][:rows]
    more = f"{len(lines)}, e shows all" if len(lines) > rows - 1 else ""
    return [heading(title, cells, more), *lines][:rows]


def _extremes(view: View) -> Iterator[Line]:
    """Peaks and the least headroom with their times, tokens served, and what was counted since the server began."""
    server, pool = view.server or ServerView(""), tightest_pool(view.snapshot)
    for label, name, words in (
        ("most tok/s", "generation", rate),
        ("most users", "running", count),
        ("fullest KV", "kv", percent),
    ):
        peak = view.history.peaks.get((server.url, name))
        yield _moment(label, words(peak.value if peak else None), peak.time if peak else None)
    least = (f"{gib(pool.low_water_bytes)} GiB", pool.low_water_time) if pool else (UNKNOWN, None)
    yield _moment("least headroom", *least)
    served = view.history.served.get(server.url)
    yield _moment("tokens served", f"{glyphs.current().approx}{si(served)}" if served is not None else UNKNOWN, None)
    restarts = line(Span("  restarts ", "label"), Span(f"{server.restarts}"))
    yield (*_moment("preempted", count(server.preemptions_total), None), *restarts)


def _moment(label: str, value: str, when: float | None) -> Line:
    at = time.strftime("  at %H:%M:%S", time.localtime(when)) if when else ""
    return line(Span(f"{label:<16}", "label"), Span(f"{value:>12}", "bold"), Span(at, "label"))


def _engine_line(row: EngineRow, cells: int) -> Line:
    return _row(f"engine {row.engine}", row, row.generation_tok_s, cells)


def _server_line(row: ServerView, cells: int) -> Line:
    return _row(row.name or row.url.removeprefix("http://"), row, row.rates.generation_tok_s, cells)


def _row(name: str, row: EngineRow | ServerView, speed: float | None, cells: int) -> Line:
    _, style = kv_state(row.kv_usage)
    bar = max(4, min(24, cells - 68))
    gauge = thin(gauge_line(row.kv_usage, bar, {"low": "low", "critical": "alarm"}.get(style, "bar"), track="axis"))
    content = line(
        Span(f"{name[:18]:<18} ", "bold"),
        Span(row.state[:MOST_STATE], STATE_STYLE[row.state]),
        Span(" " * (MOST_STATE + 1 - len(row.state[:MOST_STATE]))),
        *gauge,
        Span(f"{percent(row.kv_usage):>8}"),
        Span(f"{count(row.running):>5}"),
        Span(" run", "label"),
        Span(f"{count(row.waiting):>5}", "low" if row.waiting else ""),
        Span(" wait", "label"),
        Span(f"{rate(speed):>8}"),
        Span(" tok/s", "label"),
    )
    return crop(content, cells)
