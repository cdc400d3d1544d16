"""The pictures of a load test: while it runs, and its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llmtop.load import table
from llmtop.load.events import FirstToken, Lane, Progress
from llmtop.load.plan import Plan
from llmtop.load.scenarios import SCENARIOS
from llmtop.model.units import UNKNOWN, count, duration, gib, percent, rate, seconds
from llmtop.ui.load_state import LoadState
from llmtop.ui.panels.machine import tightest_pool
from llmtop.ui.panels.view import View, fact, heading, pair
from llmtop_widgets import glyphs
from llmtop_widgets.curve import Limit, Point, scatter_lines
from llmtop_widgets.gauge import gauge_line
from llmtop_widgets.text import Line, Span, beside, crop, fit_text, line
from llmtop_widgets.timechart import chart_lines, nice_ceiling

LANE_STYLE = {"idle": "track", "wait": "low", "decode": "series1"}
PHASES = {
    "preflight": "asking the server what it accepts",
    "stopping": "stopping: no new requests, closing the open ones",
    "finished": "finished",
    "failed": "no result",
}


def running_page(state: LoadState, view: View, cells: int, rows: int) -> list[Line]:
    """The level that runs: how far, who does what, speeds, first tokens, the server; finished levels below."""
    lines = [_head(state, cells), _bar(state, cells)]
    finished = _table(state.done, cells)
    room = rows - len(lines) - len(finished) - len(state.warnings[-1:]) - 1
    progress = state.progress
    if progress is not None and room >= 4:
        height = max(4, min(room, 16))
        half = (cells - 2) // 2
        left = _lanes(progress, half, height) if cells >= 72 else []
        right = _speeds(state, view, half if left else cells, height)
        lines += beside([(left, half), (right, half)], 2) if left else right
        if room - height >= 5:
            lines += _dots(state.first_tokens, cells, min(8, room - height), state.plan.slo.get("ttft_p99"))
    lines += [line(), *finished] if finished else []
    lines += [line(Span(" NOTE ", "info"), Span(text)) for text in state.warnings[-1:]]
    return [crop(content, cells) for content in lines[:rows]]


def _head(state: LoadState, cells: int) -> Line:
    progress, plan = state.progress, state.plan
    title = line(Span(SCENARIOS[plan.scenario].title, "title"), Span(f"  {plan.url.removeprefix('http://')}", "label"))
    if state.phase == "level" and progress is not None:
        level = progress.level
        left = f", {duration(progress.eta_s)} left" if progress.eta_s is not None else ""
        words = (
            f"level {progress.index + 1}/{len(plan.levels)}  {level.name}  {progress.completed}/{level.num_prompts} ok"
        )
        style = "low" if progress.errors else "label"
        return pair(title, line(Span(words, "bold"), Span(f"  {progress.errors} err{left}", style)), cells)
    if state.phase == "draining" and state.drain is not None:
        drain = state.drain
        words = "the server is back to" if drain.drained else "waiting for the server: it runs"
        return pair(title, line(Span(f"{words} {count(drain.running)} (before: {count(drain.before)})", "bold")), cells)
    return pair(title, line(Span(PHASES.get(state.phase, state.phase), "bold")), cells)


def _bar(state: LoadState, cells: int) -> Line:
    fraction = state.progress.fraction if state.progress else 0.0
    return (*gauge_line(fraction, cells - 8, "series2"), Span(f"{fraction * 100:6.0f} %", "value"))


def _lanes(progress: Progress, cells: int, rows: int) -> list[Line]:
    """A lane per slot: waiting for its first token, or how much of its answer is there."""
    lanes, room = progress.lanes, rows - 1
    waiting = sum(lane.state == "wait" for lane in lanes)
    lines = [heading("Slots", cells, f"{waiting} wait, {sum(lane.state == 'decode' for lane in lanes)} decode")]
    columns = max(1, min(-(-len(lanes) // max(1, room)), cells // 12))
    width = (cells - 2 * (columns - 1)) // columns
    cut = list(lanes)[: room * columns]
    drawn = [_lane(lane, width, progress.level.output_len) for lane in cut]
    blocks = [(drawn[place * room : (place + 1) * room], width) for place in range(columns)]
    return lines + beside(blocks, 2)


def _lane(lane: Lane, cells: int, wanted: int) -> Line:
    label = f"{lane.slot + 1:>3} "
    tail = (
        f"{lane.tokens:>5}"
        if lane.state == "decode"
        else fit_text({"wait": "wait", "idle": ""}[lane.state], 5, "right")
    )
    share = lane.tokens / wanted if lane.state == "decode" and wanted else 0.0
    bar = gauge_line(share, max(1, cells - len(label) - 6), LANE_STYLE[lane.state])
    return (Span(label, "label"), *bar, Span(f" {tail}", LANE_STYLE[lane.state] if lane.state == "wait" else "value"))


def _speeds(state: LoadState, view: View, cells: int, rows: int) -> list[Line]:
    """Client over server tok/s on one scale: two lines that must lie on each other; then the server."""
    progress = state.progress
    assert progress is not None
    server = progress.server
    facts = [
        pair(
            fact("client", rate(progress.tok_s), "series2", "tok/s"),
            fact("server", rate(progress.server_tok_s), "series3", "tok/s"),
            cells,
        ),
        pair(
            fact("running", count(server.running if server else None), "value"),
            fact("waiting", count(server.waiting if server else None), "value"),
            cells,
        ),
    ]
    pool = tightest_pool(view.snapshot)
    facts.append(
        pair(
            fact("KV", percent(server.kv_usage if server else None), "value"),
            fact("headroom", gib(pool.headroom_bytes if pool else None), "value", "GiB"),
            cells,
        )
    )
    height = (rows - 1 - len(facts)) // 2
    if height < 1:
        return [heading("Speed", cells, "tok/s"), *facts][:rows]
    known = [value for value in (*state.client, *state.server) if value is not None]
    top = nice_ceiling(max(known, default=1.0))
    client = chart_lines(list(state.client), width=cells, height=height, hi=top, style="series2")
    other = chart_lines(list(state.server), width=cells, height=height, hi=top, style="series3")
    return [heading("Speed", cells, f"client above server, 0 to {top:g} tok/s"), *client, *other, *facts][:rows]


def _dots(tokens: Sequence[FirstToken], cells: int, rows: int, limit: float | None) -> list[Line]:
    """TTFT of every request of this level in the order they came; those of the first wave hollow."""
    glyph = glyphs.current()
    note = f"limit {seconds(limit)}" if limit is not None else ""
    lines = [heading("TTFT", cells, note + "  o first wave")]
    width, height = cells - 8, rows - 1
    shown = list(tokens)[-width:]
    top = nice_ceiling(max([token.ttft_s for token in shown] + [limit or 0.0, 0.01]))
    grid = [[" "] * width for _ in range(height)]
    if limit is not None:
        row = min(height - 1, max(0, height - 1 - math.floor(limit / top * (height - 1))))
        grid[row] = [glyph.threshold] * width
    for column, token in enumerate(shown):
        row = height - 1 - round(min(token.ttft_s, top) / top * (height - 1))
        grid[row][column] = "o" if token.first_wave else glyph.dot
    for place, cells_of_row in enumerate(grid):
        label = seconds(top) if place == 0 else "0 s" if place == height - 1 else ""
        lines.append(line(Span(f"{label:>7} ", "axis"), Span("".join(cells_of_row), "series4")))
    return lines


def _table(levels: Sequence[Mapping[str, Any]], cells: int) -> list[Line]:
    """Finished levels; columns give way from the right where there is no room."""
    if not levels:
        return []
    rows = table.rows(levels)
    shown = table.known_columns(rows)
    heads = [table.COLUMNS[i].head for i in shown]
    grid = [heads, *([row[i] for i in shown] for row in rows)]
    widths = [max(len(row[i]) for row in grid) for i in range(len(heads))]
    flags = heads.index("flags") if "flags" in heads else None
    order = [i for i in range(len(heads)) if i != flags]
    while len(order) > 3 and sum(widths[i] + 2 for i in order) > cells:
        order.pop()
    lines = [line(Span(_row(grid[0], order, widths), "header"))]
    return lines + [line(Span(_row(row, order, widths), "value")) for row in grid[1:]]


def _row(cells: Sequence[str], order: Sequence[int], widths: Sequence[int]) -> str:
    return "  ".join(cells[i].rjust(widths[i]) if i else cells[i].ljust(widths[i]) for i in order)


def result_page(state: LoadState, cells: int, rows: int) -> list[Line]:
    """The answer: in words, the table, the curve, and why not to trust a row."""
    if state.error is not None:
        return [heading("Load test", cells), line(), line(Span(" no result ", "critical"), Span(f" {state.error}"))]
    result = state.result or {}
    levels = result.get("levels", [])
    words = result.get("words", "")
    style = "ok" if result.get("met") else "low"
    lines = [heading("Answer", cells, "interrupted" if result.get("interrupted") else "")]
    lines += [line(Span(part, "bold" if place == 0 else "")) for place, part in enumerate(_wrap(words, cells))]
    lines.append(_verdict(result, style))
    lines += [line(), *_table(levels, cells)]
    doubts = [
        line(Span(f" {name} ", "low"), Span(f" {level['level']}: {reason}", "dim"))
        for level in levels
        for name, reason in (level.get("flag_reasons") or {}).items()
    ]
    where = result.get("directory")
    tail = [line(Span("files ", "label"), Span(str(where)))] if where else []
    room = rows - len(lines) - len(tail) - 1
    curves = _curves(levels, result, cells, min(14, room - min(len(doubts), 4))) if room >= 9 else []
    lines += [line(), *curves] if curves else []
    lines += doubts[: max(0, rows - len(lines) - len(tail))] + tail
    return [crop(content, cells) for content in lines[:rows]]


def _verdict(result: Mapping[str, Any], style: str) -> Line:
    spot, knee, fail = result.get("sweet_spot"), result.get("knee"), result.get("first_fail")
    spans = [
        Span("sweet spot ", "label"),
        Span(UNKNOWN if spot is None else f"{spot:g}", f"bold {style}"),
        Span("   knee ", "label"),
        Span(UNKNOWN if knee is None else f"{knee:g}", "bold"),
    ]
    if fail:
        spans += [Span("   first fail ", "label"), Span(f"{fail['level']} by {fail['criterion']}", "low")]
    return line(*spans)


def _curves(levels: Sequence[Mapping[str, Any]], result: Mapping[str, Any], cells: int, rows: int) -> list[Line]:
    """Total tok/s over tok/s per user, and TTFT over users with the limit."""
    whole = [level for level in levels if level["completed"]]
    if len(whole) < 2 or rows < 6:
        return []
    glyph, slo = glyphs.current(), result.get("slo") or {}
    marks = {result.get("knee"): glyph.diamond, result.get("sweet_spot"): glyph.star}
    speed = [
        Point(
            level["user_tok_s"] or 0.0,
            level["output_throughput"],
            f"c={level['concurrency']}",
            "series2",
            marks.get(level["concurrency"], ""),
        )
        for level in whole
    ]
    wait = [Point(level["concurrency"], level["p99_ttft_ms"] / 1000, "", "series4") for level in whole]
    limits = [Limit("x", slo["user_tok_s"], "limit")] if "user_tok_s" in slo else []
    late = [Limit("y", slo["ttft_p99"], "limit")] if "ttft_p99" in slo else []
    if cells < 90:
        return scatter_lines(speed, cells, rows, x_label="tok/s per user", y_label="total tok/s", marks=limits)
    half = (cells - 2) // 2
    left = scatter_lines(speed, half, rows, x_label="tok/s per user", y_label="total tok/s", marks=limits)
    right = scatter_lines(wait, half, rows, x_label="users", y_label="P99 TTFT, s", marks=late)
    return beside([(left, half), (right, half)], 2)


def _wrap(words: str, cells: int) -> list[str]:
    lines, current = [], ""
    for word in words.split():
        if current and len(current) + 1 + len(word) > cells:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}".strip()
    return [*lines, current] if current else lines


def plan_lines(plan: Plan, estimate: str, commands: Sequence[str], cells: int) -> list[Line]:
    """What a plan would send, and the equal command of vLLM."""
    prompt, output = plan.tokens()
    sized = "at most " if any(level.duration_s is not None for level in plan.levels) else ""
    lines = [
        line(
            Span(f"{sized}{plan.requests():,}", "bold"),
            Span(" requests, ", "label"),
            Span(f"{prompt:,}", "bold"),
            Span(" prompt + ", "label"),
            Span(f"{output:,}", "bold"),
            Span(f" output tokens{estimate}", "label"),
        ),
        line(Span("levels  ", "label"), Span("  ".join(level.name for level in plan.levels))),
        line(),
        line(Span("the same with vLLM's own tool (first level):", "label")),
    ]
    return lines + [line(Span(f"  {part}", "dim")) for part in _wrap(commands[0] if commands else "", cells - 2)]
