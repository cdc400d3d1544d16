"""The lines around the panels: header, what limits the server, findings; and the arrangement by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmtop.contract.snapshot import Latency, Node, Pool, ServerView, Snapshot, State
from llmtop.contract.units import UNKNOWN, count, duration, gib, percent, rate
from llmtop.contract.words import first_steps
from llmtop.engines.registry import engine_text
from llmtop.machine.tightest import tightest_pool
from llmtop.ui.panels.board import EVENTS, GPU, KV, LATENCY, MEMORY, QUEUE, SO_FAR, THROUGHPUT, Panel
from llmtop.ui.panels.headline import strip_lines
from llmtop.ui.panels.nodes import NODE_STYLE
from llmtop.ui.panels.server import KV_THRESHOLDS, quantile_span
from llmtop.ui.panels.verdict import beyond_verdict, finding_lines, verdict_line
from llmtop.ui.panels.view import LEVEL_STYLE, STATE_STYLE, View, pair, recording_style, widths
from llmtop_widgets import glyphs
from llmtop_widgets.gauge import gauge_line
from llmtop_widgets.text import Line, Span, beside, crop, fit, line, spread, text_width, width

GAP = 2
MARGIN = Span(" ")
LABEL = 9
WIDE, MEDIUM = 150, 72
ROWS_WIDE: Sequence[tuple[Panel, ...]] = ((KV, MEMORY, QUEUE), (THROUGHPUT, LATENCY, GPU))
ROWS_MEDIUM: Sequence[tuple[Panel, ...]] = ((KV, MEMORY), (QUEUE, THROUGHPUT), (LATENCY, GPU))
STRIP = (KV, MEMORY, QUEUE, THROUGHPUT)  # behind the headline figures
ROWS_LEAST = 16  # below: a line per figure
TALL_ROWS, TALL_CELLS = 30, 96  # from here on the headline figures are three rows high


def marks_of(view: View) -> Line:
    """What is unusual about the view: simulated, recorded, loaded, stopped."""
    simulation = view.snapshot.simulation if view.snapshot is not None else None
    marks = (
        (simulation, "info"),
        (view.recording, recording_style(view.recording or "")),
        (view.badge, "accent"),
        ("PAUSED" if view.paused else None, "low"),
    )
    return tuple(Span(f" {words} ", style) for words, style in marks if words)


def header(view: View, cells: int) -> Line:
    """Model, address, version, state with its reason, age of the sample."""
    server, marks = view.server, marks_of(view)
    if view.node is not None:
        return _node_header(view, view.node, cells)
    if server is None:
        words = view.asking if view.snapshot is None else "no model server found"
        return spread(line(Span(" llmtop", "accent"), Span(f"  {words}", "dim")), line(*marks, Span(" ")), cells)
    age = UNKNOWN if server.age_s is None else f"{server.age_s + view.age_s:.0f} s ago"
    right = line(*marks, Span(f" {age} ", "low" if server.state is State.STALE else "label"))
    state = Span(f" {server.state} ", STATE_STYLE[server.state])
    name = server.name or server.model or UNKNOWN
    room = cells - width(right) - width((state,)) - 12
    # on a narrow screen the state is worth more than the name of the program
    start = Span(" llmtop  ", "accent") if room >= 8 else MARGIN
    left = [start, *crop((Span(name, "bold"),), max(8, min(room, 48))), Span("  "), state]
    for text in (
        _address(server),
        engine_text(server.engine, server.version),
        server.reason,
        f"up {duration(server.up_s)}" if server.up_s else None,
    ):
        if text and width(tuple(left)) + 2 + text_width(text) < cells - width(right):
            left += [Span("  "), Span(text, "dim" if text == server.reason else "label")]
    return spread(tuple(left), right, cells)


def _node_header(view: View, node: Node, cells: int) -> Line:
    """The machine that is looked at, and how it is."""
    age = f"{node.age_s:.0f} s ago " if node.age_s is not None else ""
    left = line(
        Span(" llmtop  ", "accent"),
        Span(node.name, "bold"),
        Span(f"  {node.state.upper()}", NODE_STYLE[node.state]),
        Span(f"  {node.host.name}" if node.host and node.host.name not in (None, node.name) else "", "label"),
        Span(f"  {node.reason}" if node.reason else "", "dim"),
    )
    right = line(*marks_of(view), Span(age, "low" if node.state == "stale" else "label"))
    return spread(crop(left, max(0, cells - width(right))), right, cells)


def _address(server: ServerView) -> str:
    return server.url.removeprefix("http://")


@dataclass(slots=True)
class LaidOut:
    """The lines between header and key bar, and where each panel is: (panel, column, row, cells, rows)."""

    lines: list[Line]
    places: list[tuple[Panel, int, int, int, int]] = field(default_factory=list)

    def at(self, x: int, y: int) -> Panel | None:
        """The panel at a cell."""
        under = (p for p, left, top, cells, rows in self.places if left <= x < left + cells and top <= y < top + rows)
        return next(under, None)


def page(view: View, cells: int, rows: int, zoomed: Panel | None = None) -> LaidOut:
    """Everything between header and key bar, arranged for `cells` x `rows`: the answer, the figures, the evidence."""
    inner, rows = max(0, cells - 2), max(0, rows)
    if view.node is not None:
        return _node_page(view, cells, rows, zoomed)
    if view.snapshot is not None and view.server is None:
        lines = _first_steps(view, inner, rows)[:rows]
        return LaidOut([fit((MARGIN, *content), cells) for content in lines + [()] * (rows - len(lines))])
    laid, foot = LaidOut([_verdict_row(view, inner)]), list[Line]()
    if zoomed is not None:
        laid.lines += [(), *zoomed.whole(view, inner, rows - 2)]
    elif cells < MEDIUM or rows < ROWS_LEAST:
        foot = footer_lines(view, inner, 1 if rows >= 8 else 0)
        laid.lines += _compact(view, inner, max(0, rows - 1 - len(foot)))
    else:
        foot = footer_lines(view, inner, max(2, rows // 8))
        foot = [()] * (view.scales.rows("footer", len(foot), view.history.now) - len(foot)) + foot
        _strip(laid, view, inner, rows)
        _grid(laid, view, inner, rows - len(foot), _layout(cells, rows))
    room = max(0, rows - len(foot))
    lines = (laid.lines[:room] + [()] * (room - len(laid.lines)) + foot)[:rows]
    laid.lines = [fit((MARGIN, *content), cells) for content in lines]
    return laid


def _node_page(view: View, cells: int, rows: int, zoomed: Panel | None) -> LaidOut:
    """A machine on which no watched server has its port: its memory, its GPUs, and what happened."""
    inner = max(0, cells - 2)
    laid = LaidOut([line(Span(view.note, "info"))] if view.note else [()])
    if zoomed is not None:
        laid.lines += zoomed.whole(view, inner, rows - 1)
    else:
        layout: Sequence[tuple[Panel, ...]] = ((MEMORY, GPU),) if cells >= MEDIUM else ((MEMORY,), (GPU,))
        _grid(laid, view, inner, rows, (*layout, (EVENTS,)) if rows >= ROWS_LEAST else layout[:1])
    lines = (laid.lines + [()] * rows)[:rows]
    return LaidOut([fit((MARGIN, *content), cells) for content in lines], laid.places)


def _first_steps(view: View, cells: int, rows: int) -> list[Line]:
    """What to type where no server was found, above what is known of the machine."""
    note = [line(Span(view.note, "info"))] if view.note else []
    card = [
        *note,
        (),
        *(
            line(Span(text, "value" if text[:2] == "  " else "dim"))
            for text in first_steps(view.snapshot or Snapshot(0.0)).splitlines()
        ),
        (),
    ]
    laid = LaidOut(card)
    if rows - len(card) >= MEMORY.least:
        _grid(laid, view, cells, rows, ((MEMORY, GPU) if cells >= MEDIUM else (MEMORY,),))
    return laid.lines


def _strip(laid: LaidOut, view: View, cells: int, rows: int) -> None:
    """The headline figures, tall where there is room, between blank lines where there is more."""
    tall = rows >= TALL_ROWS and cells >= TALL_CELLS and bool(glyphs.current().quadrants)
    laid.lines += [()] if tall else []
    drawn, room = strip_lines(view, cells, tall), cells // len(STRIP)
    laid.places += [(panel, place * room, len(laid.lines), room, len(drawn)) for place, panel in enumerate(STRIP)]
    laid.lines += [*drawn, ()]


def _layout(cells: int, rows: int) -> Sequence[tuple[Panel, ...]]:
    if cells >= WIDE:
        return (*ROWS_WIDE, (EVENTS, SO_FAR)) if rows >= 36 else ROWS_WIDE
    return (*ROWS_MEDIUM, (EVENTS,)) if rows >= 44 else ROWS_MEDIUM


def _verdict_row(view: View, cells: int) -> Line:
    """What limits the server and what to do; the answer to a key goes before the rest of it."""
    if view.note:
        note = crop(line(Span(view.note, "info")), cells)
        return spread(crop(verdict_line(view, cells), max(0, cells - width(note) - 2)), note, cells)
    return verdict_line(view, cells)


def _grid(laid: LaidOut, view: View, cells: int, rows: int, layout: Sequence[tuple[Panel, ...]]) -> None:
    """Put rows of panels below what is there, down to row `rows`."""
    least = [max(panel.least for panel in row) for row in layout]
    heights = share_rows(least, rows - len(laid.lines), [row[0] is not EVENTS for row in layout])
    for row, height, needed in zip(layout, heights, least, strict=True):
        blank = 1 if height > needed + 1 else 0
        left, top, blocks = 0, len(laid.lines), []
        for panel, column in zip(row, widths(cells, len(row), GAP), strict=True):
            laid.places.append((panel, left, top, column, height))
            blocks.append((panel.lines(view, column, height - blank), column))
            left += column + GAP
        drawn = beside(blocks, GAP)
        laid.lines += drawn + [()] * (height - len(drawn))


def share_rows(least: Sequence[int], rows: int, grows: Sequence[bool] | None = None) -> list[int]:
    """Heights that add up to `rows`: the least each, the rest evenly from the top among those that grow.

    Too few rows: the highest of the last give way.
    """
    heights = list(least)
    while sum(heights) > rows and any(height > 2 for height in heights):
        heights[max(range(len(heights)), key=lambda i: (heights[i], i))] -= 1
    growing = [place for place in range(len(heights)) if grows is None or grows[place]]
    for place in range(max(0, rows - sum(heights))):
        heights[growing[place % len(growing)]] += 1
    return heights


def _compact(view: View, cells: int, rows: int) -> list[Line]:
    """The core numbers for a small terminal, the most important first."""
    server = view.server or ServerView("")
    gauge = gauge_line(server.kv_usage, max(4, cells - LABEL - 8), thresholds=KV_THRESHOLDS)
    kv = _row("KV", *gauge, Span(f"{percent(server.kv_usage):>8}", view.value))
    waiting = Span(count(server.waiting), "low" if server.waiting else view.value)
    lines = [
        kv,
        _compact_headroom(tightest_pool(view.snapshot)),
        _row("running", Span(count(server.running), view.value), Span("   waiting ", "label"), waiting),
        _row(
            "tok/s",
            Span(rate(server.rates.generation_tok_s), view.value),
            Span("   prompt ", "label"),
            Span(rate(server.rates.prompt_tok_s), view.value),
        ),
        _compact_latency("TTFT", server.latency.ttft, view),
        _row(
            "tokens",
            Span(count(server.kv_used_tokens), view.value),
            Span(f" of {count(server.kv_capacity_tokens)}", "label"),
        ),
        _compact_latency("ITL", server.latency.itl, view),
        _row("room", Span(count(server.room_requests), view.value), Span(f" x {count(server.max_model_len)}", "label")),
    ]
    return lines[:rows]


def _row(label: str, *spans: Span) -> Line:
    return line(Span(f"{label:<{LABEL}}", "label"), *spans)


def _compact_headroom(pool: Pool | None) -> Line:
    state = pool.state if pool else None
    return _row(
        "headroom",
        Span(gib(pool.headroom_bytes if pool else None), "bold"),
        Span(f" of {gib(pool.total_bytes if pool else None)} GiB ", "label"),
        Span(f" {(state or UNKNOWN).upper()} ", LEVEL_STYLE.get(state or "", "dim")),
    )


def _compact_latency(label: str, figures: Latency, view: View) -> Line:
    p50, p95 = quantile_span(figures.p50, view), quantile_span(figures.p95, view)
    return _row(label, Span("p50", "label"), p50, Span("  p95", "label"), p95)


def footer_lines(view: View, cells: int, most: int) -> list[Line]:
    """The worst findings in at most `most` lines, what does not fit counted; nothing when all is well."""
    findings = beyond_verdict(view)
    lines: list[Line] = []
    for place, finding in enumerate(findings):
        left = most - len(lines)
        if left < 1:
            if not lines:
                break
            more = line(Span(f" +{len(findings) - place}", "label"))
            lines[-1] = pair(crop(lines[-1], cells - 5), more, cells)
            break
        lines += finding_lines(finding, cells, left)
    return lines
