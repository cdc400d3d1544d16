"""The lines around the panels: header, what limits the server, findings; and the arrangement by size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmtop.contract.snapshot import Finding, Latency, Pool, ServerView, State
from llmtop.contract.units import UNKNOWN, count, duration, gib, percent, rate
from llmtop.engines.registry import engine_text
from llmtop.ui.panels.machine import gpu_panel, memory_panel, tightest_pool
from llmtop.ui.panels.server import kv_panel, latency_panel, quantile_span, queue_panel, throughput_panel
from llmtop.ui.panels.view import LEVEL_STYLE, STATE_STYLE, View, pair
from llmtop_widgets import glyphs
from llmtop_widgets.gauge import gauge_line
from llmtop_widgets.text import Line, Span, beside, crop, fit, line, spread, text_width, width

Panel = Callable[[View, int, int], list[Line]]
LEVEL_WORDS = {"critical": ("CRITICAL", "critical"), "warning": ("LOW", "low"), "info": ("NOTE", "info")}
GAP = 2
MARGIN = Span(" ")
LABEL = 9
WIDE, MEDIUM = 150, 72
ROWS_WIDE: Sequence[tuple[Panel, ...]] = (
    (kv_panel, memory_panel, gpu_panel),
    (throughput_panel, queue_panel, latency_panel),
)
ROWS_MEDIUM: Sequence[tuple[Panel, ...]] = (
    (kv_panel, memory_panel),
    (queue_panel, throughput_panel),
    (latency_panel, gpu_panel),
)
LEAST: dict[Panel, int] = {
    kv_panel: 6,
    memory_panel: 6,
    queue_panel: 4,
    throughput_panel: 4,
    latency_panel: 6,
    gpu_panel: 4,
}


def header(view: View, cells: int) -> Line:
    """Model, address, version, state with its reason, age of the sample."""
    server = view.server
    marks: list[Span] = []
    if view.snapshot is not None and view.snapshot.simulation:
        marks.append(Span(f" {view.snapshot.simulation} ", "info"))
    if view.recording:
        marks.append(Span(f" {view.recording} ", "info" if view.recording.startswith("REPLAY") else "critical"))
    if view.paused:
        marks.append(Span(" PAUSED ", "low"))
    if server is None:
        words = "looking for model servers on this host" if view.snapshot is None else "no model server found"
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


def _address(server: ServerView) -> str:
    return server.url.removeprefix("http://")


def body(view: View, cells: int, rows: int) -> list[Line]:
    """Everything between header and key bar, arranged for `cells` x `rows`."""
    inner, rows = cells - 2, max(0, rows)
    foot = footer_lines(view, inner, max(1, rows // 6))[:rows]
    room = rows - len(foot)
    if cells < MEDIUM or room < 12:
        lines = _compact(view, inner, room)
    else:
        lines = _grid(view, inner, room, ROWS_WIDE if cells >= WIDE else ROWS_MEDIUM)
    lines = lines[:room] + [()] * (room - len(lines))
    return [fit((MARGIN, *content), cells) for content in (*lines, *foot)]


def _grid(view: View, cells: int, rows: int, layout: Sequence[tuple[Panel, ...]]) -> list[Line]:
    heights = share_rows([max(LEAST[panel] for panel in row) for row in layout], rows)
    lines: list[Line] = []
    for row, height in zip(layout, heights, strict=True):
        column = (cells - GAP * (len(row) - 1)) // len(row)
        blank = 1 if height > max(LEAST[panel] for panel in row) else 0
        blocks = [(panel(view, column, height - blank), column) for panel in row]
        drawn = beside(blocks, GAP)
        lines += drawn + [()] * (height - len(drawn))
    return lines


def share_rows(least: Sequence[int], rows: int) -> list[int]:
    """Heights that add up to `rows`: the least each, the rest evenly from the top; too few: the last give way."""
    heights = list(least)
    while sum(heights) > rows and any(height > 2 for height in heights):
        heights[max(range(len(heights)), key=lambda i: (heights[i], i))] -= 1
    spare = rows - sum(heights)
    for place in range(max(0, spare)):
        heights[place % len(heights)] += 1
    return heights


def _compact(view: View, cells: int, rows: int) -> list[Line]:
    """The core numbers for a small terminal, the most important first."""
    server = view.server or ServerView("")
    gauge = gauge_line(server.kv_usage, max(4, cells - LABEL - 8), "series1")
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


def footer_lines(view: View, cells: int, findings_shown: int) -> list[Line]:
    """What limits the server, then the worst findings; nothing below when all is well."""
    lines = [_limit_line(view, cells)]
    findings = list(view.snapshot.findings) if view.snapshot else []
    shown = findings[: max(1, findings_shown)]
    lines += [_finding_line(finding, cells) for finding in shown]
    if len(findings) > len(shown):
        more = line(Span(f" +{len(findings) - len(shown)}", "label"))
        lines[-1] = pair(crop(lines[-1], cells - 5), more, cells)
    return lines


def _limit_line(view: View, cells: int) -> Line:
    server = view.server
    code = server.limited_by if server else None
    words = {
        "KV_PRESSURE": "the KV cache",
        "SEQ_CAP": "the batch size",
        "DEFERRED": "deferred requests",
        "MIXED": "a queue that came and went",
        "UNDERLOADED": "nothing: more users would fit",
    }
    style = "ok" if code == "UNDERLOADED" else "low" if code else "dim"
    left = line(Span("limited by ", "label"), Span(code or UNKNOWN, style))
    if server and code:
        evidence = Span(f"  {server.limited_by_evidence or ''}", "dim")
        full = (*left, Span(f"  {words.get(code, '')}"), evidence)
        left = full if width(full) <= cells else (*left, evidence)  # figures are worth more than words
    if view.note:  # the answer to a key goes before what the line says anyway
        return spread(left, line(Span(view.note, "info")), cells)
    return pair(crop(left, cells), line(Span(f"charts {view.step_s:g} s/column", "dim")), cells)


def _finding_line(finding: Finding, cells: int) -> Line:
    word, style = LEVEL_WORDS[finding.level]
    arrow = glyphs.current().arrow_right
    spans = [Span(f" {word} ", style), Span(f" {finding.text}", "bold")]
    if finding.evidence:
        spans.append(Span(f"  {finding.evidence}", "dim"))
    if finding.advice:
        spans.append(Span(f"  {arrow} {finding.advice}", ""))
    return crop(tuple(spans), cells)
