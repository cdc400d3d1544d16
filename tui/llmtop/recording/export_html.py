"""A recording as one HTML page: charts and tables, no script, nothing from elsewhere. All text is escaped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from llmtop import __version__
from llmtop.contract.snapshot import Device, Finding, Pool, ServerView, Snapshot
from llmtop.contract.units import UNKNOWN, duration, gib, percent, seconds, si
from llmtop.load import recorded, table
from llmtop.load.events import LevelDone
from llmtop.recording.export_charts import COLUMNS, Axis, Chart, ChartSeries, svg
from llmtop.recording.read import Recording

STYLE = """
:root { color-scheme: light dark; --text: #1c2024; --dim: #60646c; --line: #d9dce0; --page: #fcfcfd;
  --c1: #0b6bcb; --c2: #c4560a; --c3: #1a7f37; --c4: #8250df; --mark: #b42318; }
@media (prefers-color-scheme: dark) { :root { --text: #edeef0; --dim: #9ba1a6; --line: #363a3f; --page: #111113;
  --c1: #70b8ff; --c2: #ffa057; --c3: #3dd68c; --c4: #baa7ff; --mark: #ff9592; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 1500px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid var(--line); }
figure { margin: 0; } figcaption { font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1.2em; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--dim); }
.grid { stroke: var(--line); } .mark { stroke: var(--mark); stroke-dasharray: 3 3; }
polyline { fill: none; stroke-width: 1.5; }
.s1 polyline { stroke: var(--c1); } .s2 polyline { stroke: var(--c2); }
.s3 polyline { stroke: var(--c3); } .s4 polyline { stroke: var(--c4); }
.s1 circle, .k1 { fill: var(--c1); color: var(--c1); } .s2 circle, .k2 { fill: var(--c2); color: var(--c2); }
.s3 circle, .k3 { fill: var(--c3); color: var(--c3); } .s4 circle, .k4 { fill: var(--c4); color: var(--c4); }
.key { font-weight: 400; font-size: 0.9em; margin-left: 1em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: 0.2em 0.8em; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--dim); font-weight: 600; } td.text, th.text { text-align: left; white-space: normal; }
footer { color: var(--dim); margin-top: 3em; }
"""

MOST_EVENTS = 1000
Row = tuple[str, ...]


def page(recording: Recording) -> Iterator[str]:
    """The parts of the page."""
    axis = Axis(recording.start, recording.end, min(COLUMNS, max(1, len(recording))))
    last = recording.snapshot(len(recording) - 1)
    groups = list(_groups(recording))
    findings, events = _collect(recording, axis, groups)
    marks = [(recording.times[index], mark.text) for index, mark in recording.marks]
    gap = max(2, round(3 * recording.pace_s * axis.columns / max(axis.end - axis.start, 1e-9)))
    yield _head(recording)
    yield _facts(recording, last)
    for title, charts in groups:
        yield f"<h2>{escape(title)}</h2>\n"
        yield '<div class="charts">' + "".join(_figure(chart, svg(chart, axis, marks, gap)) for chart in charts)
        yield "</div>\n" + _summaries(charts)
    yield _load_table(recording)
    yield _table(
        "Findings", ("level", "first seen", "last seen", "what", "evidence", "advice"), findings, text=range(6)
    )
    clock = [(_clock(when), text) for when, text in marks]
    yield _table("Marks", ("time", "mark"), clock, text=range(2))
    yield _table("Events", ("time", "kind", "what", "server", "node"), events, text=range(5))
    yield f"<footer>llmtop {escape(__version__)}. {UNKNOWN} means that the source did not say.</footer>\n"
    yield "</body></html>\n"


def _head(recording: Recording) -> str:
    name = escape(recording.path.name)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>llmtop: {name}</title><style>{STYLE}</style></head>\n<body>\n<h1>llmtop recording {name}</h1>\n"
    )


def _facts(recording: Recording, last: Snapshot) -> str:
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recording.start))
    lines = [
        ("recorded", f"{day} to {_clock(recording.end)}, {duration(recording.end - recording.start)}"),
        ("snapshots", f"{len(recording):,}, one every {recording.pace_s:.3g} s"),
        ("host", last.host.name or UNKNOWN),
    ]
    lines += [("server", _server_words(server)) for server in last.servers]
    lines += [("note", note) for note in recording.notes]
    return _table("", (), lines, text=range(2))


def _server_words(server: ServerView) -> str:
    engine = " ".join(filter(None, (server.engine, server.version)))
    return ", ".join(filter(None, (server.name, server.model, _address(server.url), engine, server.state.value)))


def _address(url: str) -> str:
    return url.partition("://")[2] or url


# what is shown


def _groups(recording: Recording) -> Iterator[tuple[str, list[Chart]]]:
    """Charts of every server, pool and device that is anywhere in the recording."""
    servers: dict[str, ServerView] = {}
    pools: dict[str, Pool] = {}
    devices: dict[str, Device] = {}
    for snapshot in recording:
        servers.update((server.url, server) for server in snapshot.servers)
        pools.update((pool.name + snapshot.beyond(pool.node), pool) for pool in snapshot.pools)
        devices.update((_device_name(device, snapshot), device) for device in snapshot.devices)
    for url, server in servers.items():
        yield " ".join(filter(None, (server.model, _address(url)))), _server_charts(url)
    if pools or devices:
        yield "Machine", [*(_pool_chart(name, pool) for name, pool in pools.items()), *_device_charts(list(devices))]


def _server_charts(url: str) -> list[Chart]:
    def of(name: str, fold: str, read: Any) -> ChartSeries:
        def value(snapshot: Snapshot) -> float | None:
            server = next((server for server in snapshot.servers if server.url == url), None)
            # what a stale server last said is not what it does now
            found: float | None = read(server) if server is not None and server.state.live else None
            return found

        return ChartSeries(name, fold, value)  # type: ignore[arg-type]

    return [
        Chart(
            "Throughput, tok/s",
            [
                of("generation", "mean", lambda s: s.rates.generation_tok_s),
                of("prompt", "mean", lambda s: s.rates.prompt_tok_s),
            ],
            si,
        ),
        Chart("KV cache", [of("used", "max", lambda s: s.kv_usage)], lambda value: percent(value, 0), 1.0),
        Chart("Requests", [of("running", "max", lambda s: s.running), of("waiting", "max", lambda s: s.waiting)], si),
        Chart(
            "Time to first token",
            [
                of("mean", "mean", lambda s: s.latency.ttft.mean_s),
                of("p95", "max", lambda s: s.latency.ttft.p95.value_s if s.latency.ttft.p95 else None),
            ],
            seconds,
        ),
        Chart("Inter-token latency", [of("mean", "mean", lambda s: s.latency.itl.mean_s)], seconds),
    ]


def _pool_chart(name: str, pool: Pool) -> Chart:
    def headroom(snapshot: Snapshot) -> float | None:
        current = (other for other in snapshot.pools if snapshot.current(other.node))
        return next((o.headroom_bytes for o in current if o.name + snapshot.beyond(o.node) == name), None)

    title = f"{name}: headroom of {gib(pool.total_bytes)} GiB"
    return Chart(title, [ChartSeries("headroom", "min", headroom)], gib, pool.total_bytes)


def _device_charts(names: Sequence[str]) -> Iterator[Chart]:
    def of(name: str, field: str) -> ChartSeries:
        def value(snapshot: Snapshot) -> float | None:
            current = (device for device in snapshot.devices if snapshot.current(device.node))
            device = next((device for device in current if _device_name(device, snapshot) == name), None)
            return getattr(device, field, None)

        return ChartSeries(name, "mean", value)

    for place in range(0, len(names), 4):
        some = names[place : place + 4]
        yield Chart("GPU utilisation, %", [of(name, "util") for name in some], si, 100.0)
        yield Chart("Power, W", [of(name, "power_w") for name in some], si)


def _device_name(device: Device, snapshot: Snapshot) -> str:
    return f"GPU {device.index}" + (f" MIG {device.mig}" if device.mig else "") + snapshot.beyond(device.node)


def _collect(
    recording: Recording, axis: Axis, groups: Sequence[tuple[str, Sequence[Chart]]]
) -> tuple[list[Row], list[Row]]:
    """Go through the recording once: fill the charts; from when to when every finding was there, and what happened."""
    every = [series for _, charts in groups for chart in charts for series in chart.series]
    seen: dict[str, tuple[float, float, Finding]] = {}
    events: list[Row] = []
    for when, snapshot in zip(recording.times, recording, strict=True):
        column = axis.column(when)
        for series in every:
            series.take(column, snapshot)
        events += ((_clock(e.time), e.kind, e.text, _address(e.server or ""), e.node or "") for e in snapshot.events)
        for finding in snapshot.findings:
            seen[finding.id] = (seen[finding.id][0] if finding.id in seen else when, when, finding)
    findings: list[Row] = [
        (found.level, _clock(first), _clock(last), found.text, found.evidence or "", found.advice or "")
        for first, last, found in seen.values()
    ]
    return findings, events[:MOST_EVENTS]


# how it is shown


def _figure(chart: Chart, picture: str) -> str:
    keys = "".join(
        f'<span class="key k{number}">{escape(series.name)}</span>' for number, series in enumerate(chart.series, 1)
    )
    return f"<figure><figcaption>{escape(chart.title)}{keys}</figcaption>{picture}</figure>\n"


def _summaries(charts: Sequence[Chart]) -> str:
    rows = []
    for chart in charts:
        for series in chart.series:
            least, mean, most = series.summary() or (None, None, None)
            rows.append((f"{chart.title}: {series.name}", chart.text(least), chart.text(mean), chart.text(most)))
    return _table("", ("figure", "least", "mean", "most"), rows, text=(0,))


def _load_table(recording: Recording) -> str:
    items = (recorded.from_values(event.values) for event in recording.events if event.kind == recorded.KIND)
    levels = [item.result for item in items if isinstance(item, LevelDone)]
    cells = table.rows(levels)
    shown = table.known_columns(cells)
    heads = [table.COLUMNS[place].head for place in shown]
    return _table("Load test", heads, [[row[place] for place in shown] for row in cells], text=(0,))


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, text: Iterable[int]) -> str:
    """A table, or nothing when it has no rows; `text` are the columns to the left."""
    if not rows:
        return ""
    left = set(text)

    def cells(tag: str, row: Sequence[str]) -> str:
        styles = (' class="text"' if place in left else "" for place in range(len(row)))
        inner = (f"<{tag}{style}>{escape(cell)}</{tag}>" for style, cell in zip(styles, row, strict=True))
        return f"<tr>{''.join(inner)}</tr>"

    head = f"<thead>{cells('th', heads)}</thead>" if heads else ""
    body = "\n".join(cells("td", row) for row in rows)
    return (f"<h2>{escape(title)}</h2>\n" if title else "") + f"<table>{head}<tbody>\n{body}\n</tbody></table>\n"


def _clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))
