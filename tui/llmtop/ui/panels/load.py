"""The pictures of a load test before its answer: the plan, and the level that runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from llmtop.contract.units import count, duration, gib, percent, rate, seconds
from llmtop.load.events import Lane, Progress
from llmtop.load.pace import measurement_words
from llmtop.load.plan import Level, Plan
from llmtop.load.scenarios import SCENARIOS
from llmtop.load.verdict import criterion_of
from llmtop.machine.tightest import tightest_pool
from llmtop.ui.load_state import LoadState
from llmtop.ui.panels.load_table import level_table
from llmtop.ui.panels.view import View, fact, heading, pair
from llmtop_widgets import glyphs
from llmtop_widgets.bigtext import half_lines
from llmtop_widgets.curve import Point, scatter_lines
from llmtop_widgets.gauge import gauge_line
from llmtop_widgets.text import Line, Span, beside, crop, fit, fit_text, line, pack, spread, width, wrap
from llmtop_widgets.timechart import chart_lines, nice_ceiling

LANE_STYLE = {"idle": "track", "wait": "low", "decode": "series1"}
LANE = 12  # the narrowest lane that still shows a bar
NARROW = 60
BESIDE = 72
LANES_BESIDE = 64  # with more slots they need the room
LARGE_ROWS = 30  # from here on the users stand in large digits
UPPER = 15  # rows of lanes and speeds, more only for more lanes
LEAST_DOTS = 12  # rows
LEAST_CURVE = 8
PHASES = {
    "preflight": "asking the server what it accepts",
    "measuring": "a few requests time the idle server",
    "preparing": "a request of the level's size warms the server up",
    "level": "starting",
    "stopping": "stopping: no new requests, closing the open ones",
}


def running_page(state: LoadState, view: View, cells: int, rows: int) -> list[Line]:
    """The level that runs: how far, who does what, speeds, first tokens, the server; finished levels below."""
    users = _users(state, cells, rows)
    lines = [_head(state, cells), *users, _bar(state, cells), *([()] if users else [])]
    notes = [line(Span(" NOTE ", "info"), Span(f" {text}")) for text in state.warnings[-1:]]
    finished = _finished(state, cells, rows)
    room = rows - len(lines) - len(finished) - len(notes)
    progress = state.progress
    if progress is not None and room >= 4:
        upper = min(room * 3 // 5, max(UPPER, len(progress.lanes) + 1)) if room >= LEAST_DOTS else min(room, UPPER)
        lines += _now(state, progress, view, cells, upper)
        lines += _below(state, progress, cells, room - upper) if room >= LEAST_DOTS else []
    return [crop(content, cells) for content in (*lines, *finished, *notes)[:rows]]


def _users(state: LoadState, cells: int, rows: int) -> list[Line]:
    """The users of the level in large digits, with the levels of the plan beside them."""
    progress = state.progress
    if progress is None or rows < LARGE_ROWS or cells < NARROW or len(progress.lanes) > LANES_BESIDE:
        return []
    level = progress.level
    digits = half_lines(f"{_load_of(level):g}", "bold accent")
    wide = max(map(width, digits)) + 2
    unit = "users at once" if level.request_rate is None else "requests a second"
    names = [(other.name, "bold" if other.name == level.name else "label") for other in state.plan.levels]
    plan = [span for name, style in names for span in (Span(name, style), Span("  "))]
    limits = [f"{criterion_of(name).words} {criterion_of(name).show(limit)}" for name, limit in state.plan.slo.items()]
    asked = f"limits: {', '.join(limits)}" if limits else ""
    notes = [line(Span(unit, "label")), tuple(plan), line(Span(asked, "label"))]
    return [(), *(crop((*fit(row, wide), *note), cells) for row, note in zip(digits, notes, strict=True)), ()]


def _finished(state: LoadState, cells: int, rows: int) -> list[Line]:
    """The table of finished levels, the last ones where there is no room for all."""
    head, *levels = level_table(state.done, cells, state.plan.slo) or [()]
    shown = levels[-max(1, (rows - 2) // 3) :]
    return [(), head, *shown] if shown else []


def _head(state: LoadState, cells: int) -> Line:
    """What runs, and how far it is; the latter stays when there is no room for both."""
    words, style = _phase_words(state)
    right = line(Span(words, "bold"), Span(_counts(state), style))
    if cells < NARROW:
        return right
    scenario = state.plan.scenario  # a recording may know one that is no more, or not yet
    title = SCENARIOS[scenario].title if scenario in SCENARIOS else scenario
    return spread(line(Span(title, "title"), Span(f"  {_address(state.plan.url)}", "label")), right, cells)


def _phase_words(state: LoadState) -> tuple[str, str]:
    progress, drain = state.progress, state.drain
    if state.phase == "level" and progress is not None:
        level = progress.level
        # of a level boxed in time the number of requests is no goal
        goal = f"/{level.num_prompts}" if level.duration_s is None else ""
        place = f"{progress.index + 1}/{len(state.plan.levels)}"
        return f"{place} {level.name}  {progress.completed}{goal} ok", "low" if progress.errors else "label"
    if state.phase == "draining" and drain is not None:
        words = "the server is back to" if drain.drained else "waiting for the server: it runs"
        return f"{words} {count(drain.running)} (before: {count(drain.before)})", "label"
    return PHASES.get(state.phase, state.phase), "label"


def _counts(state: LoadState) -> str:
    progress = state.progress
    if state.phase != "level" or progress is None:
        return ""
    left = f", {duration(progress.eta_s)} left" if progress.eta_s is not None else ""
    return f"  {progress.errors} err{left}"


def _address(url: str) -> str:
    return url.removeprefix("http://")


def _bar(state: LoadState, cells: int) -> Line:
    fraction = state.progress.fraction if state.progress else 0.0
    return (*gauge_line(fraction, cells - 8, "series2"), Span(f"{fraction * 100:6.0f} %", "value"))


def _now(state: LoadState, progress: Progress, view: View, cells: int, rows: int) -> list[Line]:
    """Slots beside speeds; on a narrow screen the speeds alone."""
    if cells < BESIDE:
        return _speeds(state, progress, view, cells, rows)
    half = (cells - 2) // 2
    return beside([(_lanes(progress, half, rows), half), (_speeds(state, progress, view, half, rows), half)], 2)


def _lanes(progress: Progress, cells: int, rows: int) -> list[Line]:
    """A lane per slot: waiting for its first token, or how much of its answer is there; one cell each for many."""
    lanes, room = progress.lanes, rows - 1
    waiting = sum(lane.state == "wait" for lane in lanes)
    note = f"{waiting} wait, {sum(lane.state == 'decode' for lane in lanes)} decode"
    columns = -(-len(lanes) // max(1, room))
    width = (cells - 2 * (columns - 1)) // max(1, columns)
    if width < LANE:
        return [heading("Slots", cells, note), *_grid(lanes, progress.level, cells)][:rows]
    drawn = [_lane(lane, width, progress.level.output_len) for lane in lanes]
    blocks = [(drawn[place * room : (place + 1) * room], width) for place in range(columns)]
    return [heading("Slots", cells, note), *beside(blocks, 2)]


def _lane(lane: Lane, cells: int, wanted: int) -> Line:
    label = f"{lane.slot + 1:>3} "
    decodes = lane.state == "decode"
    tail = f"{lane.tokens:>5}" if decodes else fit_text("wait" if lane.state == "wait" else "", 5, "right")
    share = lane.tokens / wanted if decodes and wanted else 0.0
    bar = gauge_line(share, max(1, cells - len(label) - 6), LANE_STYLE[lane.state])
    return (Span(label, "label"), *bar, Span(f" {tail}", "value" if decodes else LANE_STYLE[lane.state]))


def _grid(lanes: Sequence[Lane], level: Level, cells: int) -> list[Line]:
    """Every slot as one cell: a block that grows with its answer, a small dot while it waits."""
    marks = [(_mark(lane, level.output_len), LANE_STYLE[lane.state]) for lane in lanes]
    rows = [marks[start : start + cells] for start in range(0, len(marks), cells)]
    return [_runs(row) for row in rows]


def _mark(lane: Lane, wanted: int) -> str:
    glyph = glyphs.current()
    if lane.state != "decode":
        return glyph.dotted if lane.state == "wait" else " "
    blocks = glyph.blocks[1:]
    return blocks[min(len(blocks) - 1, lane.tokens * len(blocks) // max(1, wanted))]


def _runs(marks: Iterable[tuple[str, str]]) -> Line:
    """Neighbouring cells of one style as one span."""
    return tuple(
        Span("".join(mark for mark, _ in run), style) for style, run in groupby(marks, key=lambda mark: mark[1])
    )


def _speeds(state: LoadState, progress: Progress, view: View, cells: int, rows: int) -> list[Line]:
    """Client over server tok/s on one scale: two pictures that must be alike; then the server."""
    known = [value for value in (*state.client, *state.server) if value is not None]
    top = nice_ceiling(max(known, default=1.0))
    facts = _server_facts(state, progress, view, cells)
    pictures = (
        ("Client", progress.tok_s, state.client, "series2"),
        ("Server", progress.server_tok_s, state.server, "series3"),
    )
    height = (rows - len(pictures) - len(facts)) // len(pictures)
    lines: list[Line] = []
    for name, now, values, style in pictures:
        lines.append(heading(name, cells, f"{rate(now)} tok/s, 0 to {top:,g}"))
        if height > 0:
            lines += chart_lines(list(values), width=cells, height=height, hi=top, style=style)
    return [*lines, *facts][:rows]


def _server_facts(state: LoadState, progress: Progress, view: View, cells: int) -> list[Line]:
    """Queue, KV cache and memory while the level runs; preemptions since the run began."""
    server, before, pool = progress.server, state.before, tightest_pool(view.snapshot)
    known = server is not None and before is not None
    preempted = _since(before.preemptions, server.preemptions) if known else None  # type: ignore[union-attr]
    headroom = fact("headroom", gib(pool.headroom_bytes if pool else None), "value", "GiB")
    return [
        pair(
            fact("running", count(server.running if server else None), "value"),
            fact("waiting", count(server.waiting if server else None), "value"),
            cells,
        ),
        pair(
            fact("KV", percent(server.kv_usage if server else None), "value"),
            fact("preempted", count(preempted), "low" if preempted else "value"),
            cells,
        ),
        pair(headroom, fact("", _power(view), "value", "W"), cells),
    ]


def _since(before: int | None, now: int | None) -> int | None:
    return max(0, now - before) if before is not None and now is not None else None


def _power(view: View) -> str:
    devices = view.snapshot.devices if view.snapshot else ()
    known = [device.power_w for device in devices if device.power_w is not None]
    return rate(sum(known) if known else None)


def _below(state: LoadState, progress: Progress, cells: int, rows: int) -> list[Line]:
    """The first tokens of the level, and the curve of the run so far where there is room beside them."""
    curve = live_curve(state, progress, (cells - 2) // 2, rows) if cells >= BESIDE else []
    if not curve:
        return _dots(state, cells, rows)
    half = (cells - 2) // 2
    return beside([(_dots(state, half, rows), half), (curve, half)], 2)


def live_curve(state: LoadState, progress: Progress, cells: int, rows: int) -> list[Line]:
    """tok/s over the users of each level that is done, and of the one that runs; nothing where loads are alike."""
    loads = [_load_of(level) for level in state.plan.levels]
    if len(set(loads)) < 2 or rows < LEAST_CURVE:
        return []
    done = [Point(level.load, level.tok_s, rate(level.tok_s), "series2") for level in state.done if level.completed]
    star, speed = glyphs.current().star, progress.tok_s
    now = [] if speed is None else [Point(_load_of(progress.level), speed, "now", "accent", star)]
    unit = "users" if progress.level.request_rate is None else "requests a second"
    drawn = scatter_lines([*done, *now], cells, rows - 1, x_label=unit, x_least=max(loads))
    return [heading("tok/s so far", cells, f"{len(state.done)} of {len(loads)} levels"), *drawn[1:], ()]


def _load_of(level: Level) -> float:
    return float(level.concurrency) if level.request_rate is None else level.request_rate


def _dots(state: LoadState, cells: int, rows: int) -> list[Line]:
    """TTFT of every request of this level in the order they came; those of the first wave hollow."""
    glyph, limit = glyphs.current(), state.plan.slo.get("ttft_p99")
    width, height = cells - 8, rows - 1
    shown = state.first_tokens[-width:]
    highest = max((token.ttft_s for token in shown), default=0.0)
    far = limit is None or limit > 4 * highest > 0  # a limit that would press all dots to the floor
    top = nice_ceiling(max(highest, 0.01) if far else max(highest, limit or 0.0))
    grid = [[" "] * width for _ in range(height)]
    if limit is not None and not far:
        grid[_row_of(limit, top, height)] = [glyph.threshold] * width
    for column, token in enumerate(shown):
        grid[_row_of(token.ttft_s, top, height)][column] = "o" if token.first_wave else glyph.bullet
    note = f"o first wave  {glyph.bullet} later"
    lines = [heading("TTFT", cells, f"limit {seconds(limit)}   {note}" if limit is not None else note)]
    labels = {0: seconds(top), height - 1: "0 s"}
    for place, marks in enumerate(grid):
        lines.append(line(Span(f"{labels.get(place, ''):>7} ", "axis"), Span("".join(marks), "series4")))
    return lines


def _row_of(value_s: float, top: float, height: int) -> int:
    return height - 1 - math.floor(min(value_s, top) / top * (height - 1) + 0.5)


# the plan


def plan_lines(plan: Plan, estimate: str, commands: Sequence[str], cells: int) -> list[Line]:
    """What a plan would send, and the equal command of vLLM."""
    prompt, output = plan.tokens()
    sized = "at most " if any(level.duration_s is not None for level in plan.levels) else ""
    total = line(
        Span(f"{sized}{plan.requests():,}", "bold"),
        Span(" requests, ", "label"),
        Span(f"{prompt:,}", "bold"),
        Span(" prompt + ", "label"),
        Span(f"{output:,}", "bold"),
        Span(" output tokens", "label"),
    )
    levels = pack([level.name for level in plan.levels], cells - 8, "  ")
    lines = [total, line(Span("time    ", "label"), Span(estimate))]
    before = wrap(measurement_words(plan) or "", cells - 8)
    lines += [
        line(Span("first   " if not place else " " * 8, "label"), Span(text)) for place, text in enumerate(before)
    ]
    lines += [
        line(Span("levels  " if not place else " " * 8, "label"), Span(text)) for place, text in enumerate(levels)
    ]
    if not commands:
        return lines
    more = f", and {len(commands) - 1} more" if len(commands) > 1 else ""
    same = wrap(f"the same with vLLM's own tool{more} (F9 copies):", cells)
    lines += [(), *(line(Span(text, "label")) for text in same)]
    return lines + [line(Span(f"  {text}", "dim")) for text in wrap(commands[0], cells - 2)]
