"""The panels about the server: KV cache, queue, throughput, latency."""

from __future__ import annotations

from llmtop.contract.snapshot import Latency, LatencySet, Quantile, ServerView
from llmtop.contract.units import UNKNOWN, count, duration, hit_text, percent, rate, seconds, si
from llmtop.ui.panels.view import Plot, View, chart, extremes, fact, framed, heading, pair, plot_size
from llmtop_widgets import glyphs
from llmtop_widgets.gauge import gauge_line
from llmtop_widgets.text import Line, Span, fit_text, line
from llmtop_widgets.timechart import braille_lines, stacked_chart_lines

TWO_CHARTS = 16  # rows
KV_FULL = 0.95
KV_THRESHOLDS = ((0.85, "low"), (0.95, "alarm"))


def kv_facts(view: View, cells: int, _: int) -> list[Line]:
    """How full the KV cache of the fullest engine is, and how much fits."""
    server = view.server or ServerView("")
    several = len(server.engines) > 1 and server.kv_engine is not None
    return [
        heading("KV cache", cells, f"fullest: engine {server.kv_engine}" if several else ""),
        _kv_gauge(view, server, cells),
        *_kv_tokens(view, server, cells),
    ]


def kv_chart(view: View, cells: int, rows: int) -> list[Line]:
    """How full it was; on the whole screen as high as it was."""
    top = 1.0 if rows < TWO_CHARTS else None
    plot = Plot("used; from 95 % on requests wait", share, top, 0.1, threshold=KV_FULL, bands=KV_THRESHOLDS)
    return chart(view, view.url, "kv", cells, rows, plot)


def _kv_gauge(view: View, server: ServerView, cells: int) -> Line:
    label = fit_text(percent(server.kv_usage), 8, "right")
    style = "dim" if view.value == "dim" else "bar"
    gauge = gauge_line(server.kv_usage, cells - 8, style, thresholds=() if style == "dim" else KV_THRESHOLDS)
    return (*gauge, Span(label, view.value))


def _kv_tokens(view: View, server: ServerView, cells: int) -> list[Line]:
    approx = "≈" if server.kv_capacity_approx else ""
    tokens = line(
        Span(count(server.kv_used_tokens), view.value),
        Span(f" of {approx}{count(server.kv_capacity_tokens)} tokens", "label"),
    )
    growth = server.kv_growth_tok_s
    trend = (
        line() if growth is None or abs(growth) < 1 else fact("", f"{'+' if growth > 0 else ''}{si(growth)}/s", "label")
    )
    room = line(
        Span("room for ", "label"),
        Span(count(server.room_requests), view.value),
        Span(f" x {count(server.max_model_len)}", "label"),
    )
    full = fact("full in", duration(server.kv_full_in_s), "low") if (server.kv_full_in_s or 1e9) < 600 else line()
    preempted = fact("preempted", count(server.preemptions_total), "low" if server.rates.preemptions_s else view.value)
    hit = fact("prefix hit", hit_text(server.prefix_hit_rate, server.external_prefix_hit_rate), view.value)
    return [pair(tokens, trend, cells), pair(room, full, cells), pair(preempted, hit, cells)]


def queue_facts(view: View, cells: int, _: int) -> list[Line]:
    """Who runs and who waits, and why."""
    server = view.server or ServerView("")
    cap = f"of {count(server.max_num_seqs)}" if server.max_num_seqs is not None else ""
    waiting = fact("waiting", count(server.waiting), "low" if server.waiting else view.value)
    return [
        heading("Queue", cells, _queue_note(server)),
        pair(fact("running", count(server.running), view.value, cap), waiting, cells),
    ]


def queue_chart(view: View, cells: int, rows: int) -> list[Line]:
    """Who runs and, on top, who waits, on one axis."""
    if rows < 1:
        return []
    url = view.url
    columns, height = plot_size(cells, rows)
    running = view.past(url, "running", columns)
    waiting = view.past(url, "waiting", columns)
    both = [None if a is None else a + (b or 0.0) for a, b in zip(running, waiting, strict=True)]
    top = view.scales.top(f"{url}/queue", both, 4.0)

    def draw() -> list[Line]:
        drawn = stacked_chart_lines(running, waiting, width=columns, height=height, hi=top, styles=("series1", "low"))
        most = max((value for value in waiting if value is not None), default=None)
        right = f"{extremes(both, si)}, waiting {count(most)}" if most is not None else extremes(both, si)
        return framed(drawn, _legend(), right, (si(top), "0"), view, cells, rows)

    return view.scales.once(f"{url}/queue", (running, waiting, top, cells, rows, view.step_s), draw)


def _legend() -> Line:
    """The title of the chart, a sample of its columns before each word."""
    glyph = glyphs.current()
    lower, upper = glyph.blocks[-1], glyph.blocks[-1] if glyphs.colours() else glyph.shades[1]
    return line(
        Span("requests: ", "label"),
        Span(lower, "series1"),
        Span(" running, ", "label"),
        Span(upper, "low"),
        Span(" waiting on top", "label"),
    )


def _queue_note(server: ServerView) -> str:
    parts = [f"{reason} {number}" for reason, number in server.waiting_by_reason.items() if number]
    if server.admission_rejections_total:
        parts.append(f"rejected {server.admission_rejections_total:,}")
    if server.lora:
        parts.append(f"LoRA {len(server.lora)}")
    return ", ".join(parts)


def throughput_facts(view: View, cells: int, rows: int) -> list[Line]:
    """Tokens per second over the rate window."""
    server = view.server or ServerView("")
    rates = server.rates
    each = rates.generation_tok_s / server.running if rates.generation_tok_s is not None and server.running else None
    window = f"{rates.window_s:.0f} s" if rates.window_s is not None else ""
    lines = [
        heading("Throughput", cells, window),
        pair(_speed("generation", rates.generation_tok_s, view), fact("", rate(each), view.value, "each"), cells),
        pair(
            _speed("prompt", rates.prompt_tok_s, view),
            fact("cached", rate(rates.prompt_cached_tok_s), view.value),
            cells,
        ),
    ]
    if rows >= 5:
        done = fact("requests", rate(rates.requests_s), view.value, "/s")
        extra = _extra(server, view, view.history.peak(server.url))
        lines.append(pair(done, extra, cells))
    return lines


def throughput_chart(view: View, cells: int, rows: int) -> list[Line]:
    """Generated tokens, and prompt tokens below them where there is room for both."""
    both = rows >= TWO_CHARTS
    upper = rows // 2 if both else rows
    drawn = chart(view, view.url, "generation", cells, upper, Plot("generated tok/s", si, minimum=10.0, labels=True))
    prompt = Plot("prompt tok/s", si, minimum=10.0, style="series3")
    return drawn + (chart(view, view.url, "prompt", cells, rows - upper, prompt) if both else [])


def _speed(label: str, value: float | None, view: View) -> Line:
    return line(Span(f"{label:<11}", "label"), Span(f"{rate(value):>7}", view.value), Span(" tok/s", "label"))


def _extra(server: ServerView, view: View, peak: float | None) -> Line:
    """Tokens per step where a step gives more than one, else the peak."""
    step = server.spec_tokens_per_step
    if step is not None and step > 1.05:
        return fact("tokens/step", f"{step:.2f}", view.value)
    return fact("peak", rate(peak), view.value)


LATENCIES = (("TTFT", "ttft"), ("ITL", "itl"), ("TPOT", "tpot"), ("E2EL", "e2e"), ("queue", "queue"))


def latency_facts(view: View, cells: int, rows: int) -> list[Line]:
    """Mean and quantiles of what ended in the latency window."""
    server = view.server or ServerView("")
    latency = server.latency
    wide = cells >= 46
    note = f"{latency.window_s:.0f} s" if latency.window_s is not None else ""
    note += f"  n={latency.ttft.n:,}" if latency.ttft.n is not None and not wide else ""
    names = ("mean", "p50", "p95", "p99", *(("n",) if wide else ()))
    lines = [
        heading("Latency", cells, note),
        line(Span(" " * 6, "label"), *(Span(f"{name:>8}", "label") for name in names)),
    ]
    shown = [row for row in LATENCIES if not (row[1] == "tpot" and rows < 7) and not (row[1] == "queue" and rows < 6)]
    return lines + [_latency_row(label, _of(latency, name), view, wide, server) for label, name in shown]


def latency_chart(view: View, cells: int, rows: int) -> list[Line]:
    """TTFT p50 and p95 as lines."""
    if rows < 3:
        return []
    url = view.url
    columns, height = plot_size(cells, rows)
    p50 = view.past(url, "ttft_p50", columns)
    p95 = view.past(url, "ttft_p95", columns)
    top = view.scales.top(f"{url}/ttft", [*p50, *p95], 0.1)

    def draw() -> list[Line]:
        drawn = braille_lines(((p50, "series2"), (p95, "series4")), width=columns, height=height, hi=top)
        most = max((value for value in p95 if value is not None), default=None)
        right = f"max {short_seconds(most)}" if most is not None else ""
        return framed(drawn, "TTFT p50, above it p95", right, (short_seconds(top), "0"), view, cells, rows)

    return view.scales.once(f"{url}/ttft", (p50, p95, top, cells, rows, view.step_s), draw)


def _of(latency: LatencySet, name: str) -> Latency:
    figures: Latency = getattr(latency, name)
    return figures


def _latency_row(label: str, row: Latency, view: View, wide: bool, server: ServerView) -> Line:
    step = server.spec_tokens_per_step
    if label == "ITL" and step is not None and step > 1.05:
        label = "step"  # vLLM observes one gap per engine step, and a step gives several tokens
    spans = [Span(f"{label:<6}", "label"), Span(f"{seconds(row.mean_s):>8}", view.value)]
    spans += [quantile_span(value, view) for value in (row.p50, row.p95, row.p99)]
    if wide:
        spans.append(Span(f"{count(row.n) if (row.n or 0) < 1000 else si(row.n):>8}", "label"))
    return tuple(spans)


def quantile_span(value: Quantile | None, view: View) -> Span:
    """A quantile in eight cells, with what marks it."""
    if value is None:
        return Span(f"{UNKNOWN:>8}", "label")
    exact = "≈" not in value.mark  # of a wide bucket two figures are known, and those rarely
    text = value.mark + seconds(value.value_s if exact else float(f"{value.value_s:.2g}"))
    text = text if len(text) < 8 else text.replace(" ", "")  # so that columns do not touch
    return Span(f"{text:>8}", "dim" if value.weak else view.value)


def share(value: float) -> str:
    """The scale of a fraction."""
    return f"{value * 100:.0f} %"


def short_seconds(value: float) -> str:
    """The scale of a latency."""
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{value * 1000:.0f}ms"
