"""The headline strip: four figures in places of their own, each with its state in colour and word, and a trend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.contract.snapshot import Pool, ServerView, State
from llmtop.contract.units import UNKNOWN, count, gib
from llmtop.machine.tightest import tightest_pool
from llmtop.session.history import STEPS_S, pool_series
from llmtop.ui.panels.digits import of_percent, of_size, of_speed
from llmtop.ui.panels.view import LEVEL_STYLE, View, widths
from llmtop_widgets.bigtext import half_lines
from llmtop_widgets.text import Line, Span, beside, crop, fit, flow, line, spread, text_width
from llmtop_widgets.timechart import chart_lines

GAP = 3
LEAST_TREND = 4
SLOWER = 5


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure: its label, its state, the value with its unit, what stands beside it, and its recent past (0..1)."""

    label: str
    word: str
    style: str
    value: str
    unit: str
    beside: Sequence[str]
    trend: Sequence[float | None]


def tiles(view: View, trend: int) -> tuple[Tile, ...]:
    """KV, HEADROOM, QUEUE, TOK/S; of a stale server the values are dimmed."""
    server = view.server or ServerView("")
    shown = (_kv(view, server, trend), _headroom(view, trend), _queue(view, server, trend), _speed(view, server, trend))
    if server.state is not State.STALE:
        return shown
    old = {tile.label for tile in shown} - {"HEADROOM"}
    return tuple(_aged(tile) if tile.label in old else tile for tile in shown)


def _aged(tile: Tile) -> Tile:
    return Tile(tile.label, "STALE", "dim", tile.value, tile.unit, tile.beside, tile.trend)


def kv_state(usage: float | None) -> tuple[str, str]:
    """The word and the style of a share of the KV cache."""
    if usage is None:
        return UNKNOWN, "dim"
    return ("FULL", "critical") if usage >= 0.95 else ("HIGH", "low") if usage >= 0.85 else ("OK", "ok")


def _kv(view: View, server: ServerView, trend: int) -> Tile:
    word, style = kv_state(server.kv_usage)
    room = f"room for {count(server.room_requests)}" if server.room_requests is not None else ""
    past = _past(view, server.url, "kv", trend)
    return Tile("KV CACHE", word, style, of_percent(server.kv_usage), "used", (room,), past)


def _headroom(view: View, trend: int) -> Tile:
    pool = tightest_pool(view.snapshot)
    if pool is None:
        return Tile("HEADROOM", UNKNOWN, "dim", UNKNOWN, "GiB", (), [None] * trend)
    where = f" on {pool.node}" if view.server is not None and len(view.server.nodes) > 1 else ""
    details = (f"of {gib(pool.total_bytes)}{where}", f"least {gib(pool.low_water_bytes)}")
    word = (pool.state or UNKNOWN).upper()
    style = LEVEL_STYLE.get(pool.state or "", "dim")
    return Tile("HEADROOM", word, style, of_size(pool.headroom_bytes), "GiB", details, _free(view, pool, trend))


def _free(view: View, pool: Pool, trend: int) -> list[float | None]:
    """The headroom over time as a share of the pool."""
    total = pool.total_bytes or 1
    values = _past(view, pool_series(pool), "headroom", trend)
    return [None if value is None else value / total for value in values]


def _queue(view: View, server: ServerView, trend: int) -> Tile:
    waiting = server.waiting
    word, style = (UNKNOWN, "dim") if waiting is None else ("WAITING", "low") if waiting else ("NONE", "ok")
    cap = f" of {count(server.max_num_seqs)}" if server.max_num_seqs is not None else ""
    details = (f"{count(server.running)} run{cap}",)
    values = _past(view, server.url, "waiting", trend)
    return Tile(
        "QUEUE", word, style, count(waiting), "waiting", details, _share(view, f"{server.url}/trend", values, 4.0)
    )


def _speed(view: View, server: ServerView, trend: int) -> Tile:
    speed = server.rates.generation_tok_s
    word = UNKNOWN if speed is None else "STALLED" if server.state is State.STALLED else "IDLE" if not speed else "OK"
    style = "critical" if word == "STALLED" else "dim" if speed is None else "ok"
    details = (f"peak {of_speed(view.history.peak(server.url))}",)
    values = _past(view, server.url, "generation", trend)
    return Tile(
        "TOK/S", word, style, of_speed(speed), "tok/s", details, _share(view, f"{server.url}/generation", values, 10.0)
    )


def _past(view: View, owner: str, name: str, columns: int) -> list[float | None]:
    """A trend is longer than a chart, and moves less."""
    step = next((step for step in STEPS_S if step >= SLOWER * view.step_s), STEPS_S[-1])
    return view.past(owner, name, columns, step)


def _share(view: View, name: str, values: Sequence[float | None], least: float) -> list[float | None]:
    """Values as shares of a scale that stands still."""
    top = view.scales.top(name, values, least)
    return [None if value is None else value / top for value in values]


def strip_lines(view: View, cells: int, tall: bool) -> list[Line]:
    """The four tiles side by side: a label, then the value in one row, or in three with its details beside it."""
    rooms = widths(cells, 4, GAP)
    draw = _tall if tall else _flat
    shown = zip(tiles(view, rooms[0]), rooms, strict=True)
    return beside([(draw(tile, room), room) for tile, room in shown], GAP)


def _label(tile: Tile, cells: int) -> Line:
    word = tile.word if tile.style in ("dim", "ok") else f" {tile.word} "
    return spread(line(Span(tile.label, "title")), line(Span(word, tile.style)), cells)


def _value_style(tile: Tile) -> str:
    """Neutral where nothing is wrong; large digits and values cannot wear reverse video."""
    return {"low": "bold low", "critical": "alarm", "dim": "dim"}.get(tile.style, "bold")


def _flat(tile: Tile, cells: int) -> list[Line]:
    value = line(Span(tile.value, _value_style(tile)), Span(f" {tile.unit}", "label"))
    trend = _trend(tile, cells - 12)
    return [_label(tile, cells), spread(value, trend, cells) if trend else crop(value, cells)]


def _tall(tile: Tile, cells: int) -> list[Line]:
    digits = half_lines(tile.value, _value_style(tile))
    wide = max(sum(text_width(span.text) for span in content) for content in digits)
    room = cells - wide - 1
    details = flow((line(Span(text, "label")) for text in tile.beside), room, 1)
    beside_it = [line(Span(tile.unit, "label")), details, _trend(tile, room)]
    rows = zip(digits, beside_it, strict=True)
    return [_label(tile, cells), *(crop((*fit(row, wide + 1), *note), cells) for row, note in rows)]


def _trend(tile: Tile, cells: int) -> Line:
    if cells < LEAST_TREND:
        return ()
    return chart_lines(list(tile.trend)[-cells:], width=cells, height=1, hi=1.0)[0]
