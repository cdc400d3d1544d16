"""What a recording becomes: CSV, OpenMetrics text, an HTML page; and the file for node_exporter."""

from __future__ import annotations

import csv
import io
import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_textfile

from fakes import snapshots as fakes
from llmtop.contract.snapshot import Event, Finding, Mark, Quantile, Snapshot, State
from llmtop.load import recorded
from llmtop.recording.export_charts import Axis, Chart, ChartSeries, nice_top, svg
from llmtop.recording.export_csv import lines
from llmtop.recording.export_html import page
from llmtop.recording.prometheus import FAMILIES, PrometheusFile, openmetrics, samples, textfile
from llmtop.recording.read import open_recording
from llmtop.recording.write import Recorder

EVIL = "<script>alert(1)</script>\"'&"


def run_of(*snapshots: Snapshot) -> list[Snapshot]:
    """The snapshots one second apart."""
    return [replace(snapshot, time=fakes.busy().time + place) for place, snapshot in enumerate(snapshots)]


def values(snapshot: Snapshot) -> dict[str, float]:
    """Name and the labels that are no identity -> value."""
    identity = ("server", "model", "uuid", "name", "device", "gpu", "pool")
    return {
        " ".join([sample.family, *(v for k, v in sample.labels if k not in identity)]): sample.value
        for sample in samples(snapshot)
    }


# CSV


def rows_of(snapshots: list[Snapshot]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(lines(snapshots)))))


def test_csv_has_a_row_for_every_snapshot_and_server() -> None:
    rows = rows_of(run_of(fakes.busy(), fakes.three_servers()))
    assert len(rows) == 4
    first = rows[0]
    assert float(first["time"]) == fakes.busy().time
    assert first["url"] == fakes.BUSY_SERVER.url
    assert (first["state"], first["running"], first["waiting"]) == ("SERVING", "8", "3")
    assert float(first["rates.generation_tok_s"]) == 94.3
    assert float(first["latency.ttft.p95.value_s"]) == fakes.LATENCY.ttft.p95.value_s  # type: ignore[union-attr]
    assert first["latency.ttft.p95.bound"] == "="
    assert int(first["pool.GB10 unified.headroom_bytes"]) == fakes.UNIFIED_POOL.headroom_bytes
    assert float(first["gpu0.power_w"]) == 46.2


def test_csv_leaves_the_unknown_empty_and_zero_zero() -> None:
    down, idle = rows_of(run_of(fakes.down(), fakes.idle()))
    assert (down["running"], down["kv_usage"], down["rates.generation_tok_s"]) == ("", "", "")
    assert (idle["running"], float(idle["kv_usage"])) == ("0", 0.0)


def test_csv_has_a_row_without_a_server_and_columns_of_every_pool() -> None:
    rows = rows_of(run_of(replace(fakes.busy(), servers=()), fakes.gh200()))
    assert [row["url"] != "" for row in rows] == [False, True]
    assert rows[0]["pool.GPU 0 HBM.headroom_bytes"] == ""
    assert rows[1]["pool.GPU 0 HBM.headroom_bytes"] != ""
    assert rows[1]["gpu0.memory.used"] == str(88 * 2**30)


@pytest.mark.parametrize("model", ["=1+1", "+x", "-x", "@x"])
def test_csv_text_is_no_formula(model: str) -> None:
    server = replace(fakes.BUSY_SERVER, model=model)
    (row,) = rows_of([replace(fakes.busy(), servers=(server,))])
    assert row["model"] == f"'{model}"


# Prometheus


def test_openmetrics_is_valid_and_has_every_point_with_its_time() -> None:
    snapshots = run_of(fakes.busy(), fakes.idle(), fakes.down(), fakes.three_servers(), fakes.gh200())
    families = {family.name: family for family in parse_openmetrics("".join(openmetrics(snapshots)))}
    running = [s for s in families["llmtop_requests_running"].samples if s.labels["server"] == fakes.BUSY_SERVER.url]
    assert [(float(s.timestamp), s.value) for s in running][:2] == [
        (snapshots[0].time, 8.0),
        (snapshots[1].time, 0.0),
    ]
    assert families["llmtop_preemptions"].type == "counter"
    assert {s.name for s in families["llmtop_preemptions"].samples} == {"llmtop_preemptions_total"}
    assert set(families) <= {f"llmtop_{name}" for name in FAMILIES}


def test_the_textfile_is_valid_and_has_no_time_stamps() -> None:
    families = {family.name: family for family in parse_textfile(textfile(fakes.gh200()))}
    assert all(sample.timestamp is None for family in families.values() for sample in family.samples)
    assert {s.labels["kind"]: s.value for s in families["llmtop_pool_headroom_bytes"].samples} == {
        "hbm": 7 * 2**30,
        "lpddr": 420 * 2**30,
    }


def test_values_have_the_units_of_their_names() -> None:
    known = values(fakes.busy())
    assert known["device_utilization_ratio"] == 0.96
    assert known["kv_usage_ratio"] == 0.612
    assert known["host_cpu_ratio"] == 0.12
    assert known["latency_seconds ttft mean"] == fakes.LATENCY.ttft.mean_s
    assert known["server_state SERVING"] == 1.0
    assert known["server_state DOWN"] == 0.0
    assert known["findings critical"] == 0.0


def test_what_is_unknown_has_no_sample() -> None:
    known = values(fakes.down())
    assert known["server_up"] == 0.0
    assert not [name for name in known if name.startswith(("requests", "kv", "latency", "generation"))]


def test_what_a_stale_server_last_said_is_not_exported_as_now() -> None:
    assert "requests_running" not in values(fakes.stale())
    assert values(fakes.stale())["server_state STALE"] == 1.0


@pytest.mark.parametrize("quantile", [Quantile(9.0, ">"), Quantile(9.0, "<"), Quantile(9.0, weak=True)])
def test_a_quantile_that_is_only_a_bound_is_not_exported(quantile: Quantile) -> None:
    latency = replace(fakes.LATENCY, ttft=replace(fakes.LATENCY.ttft, p99=quantile))
    server = replace(fakes.BUSY_SERVER, latency=latency)
    known = values(replace(fakes.busy(), servers=(server,)))
    assert "latency_seconds ttft p99" not in known
    assert "latency_seconds ttft mean" in known


def test_labels_are_escaped() -> None:
    server = replace(fakes.BUSY_SERVER, model='a"b\\c\nd')
    text = "".join(openmetrics([replace(fakes.busy(), servers=(server,))]))
    (family,) = [family for family in parse_openmetrics(text) if family.name == "llmtop_server_up"]
    assert family.samples[0].labels["model"] == 'a"b\\c\nd'


def test_two_pools_of_one_name_do_not_make_the_text_invalid() -> None:
    pool = fakes.UNIFIED_POOL
    doubled = replace(fakes.busy(), pools=(pool, replace(pool, headroom_bytes=1)))
    assert list(parse_openmetrics("".join(openmetrics([doubled]))))


def test_times_that_do_not_grow_are_left_out() -> None:
    snapshots = run_of(fakes.busy(), fakes.busy(), fakes.busy())
    snapshots[2] = replace(snapshots[2], time=snapshots[0].time)
    (family,) = [
        family
        for family in parse_openmetrics("".join(openmetrics(snapshots)))
        if family.name == "llmtop_requests_running"
    ]
    assert len(family.samples) == 2


def test_the_file_is_replaced_as_a_whole_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "llmtop.prom"
    output = PrometheusFile(path)
    output.write(fakes.busy())
    before = path.open()
    output.write(fakes.down())
    assert "llmtop_requests_running" in before.read()  # who has opened the old file reads it to its end
    assert "llmtop_requests_running" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]
    assert output.status is None


def test_a_file_that_cannot_be_replaced_is_a_status_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "missing" / "x.prom", Path("/dev/null")):
        output = PrometheusFile(path)
        output.write(fakes.busy())
        assert output.status is not None
        assert not output.status.ok
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


# HTML


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


KINDS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
LEVEL: dict[str, object] = {  # as recordings hold it
    "level": "c=8",
    "concurrency": 8,
    "output_throughput": 93.4,
    "completed": 64,
    "failed": 0,
    **{f"{kind}_{name}_ms": 80.0 for kind in KINDS for name in ("tpot", "itl")},
    **{f"{kind}_e2el_ms": 10900.0 for kind in KINDS},
    **{f"{kind}_ttft_ms": 1500.0 for kind in KINDS},
    "p99_ttft_ms": 3930.0,
    "flag_reasons": {},
}


def html_of(path: Path, snapshots: list[Snapshot], level: dict[str, object] | None = None) -> str:
    recorder = Recorder(path)
    for snapshot in snapshots:
        recorder.write(snapshot)
    if level:
        recorder.event(recorded.KIND, {"what": "LevelDone", "values": {"index": 0, "result": level}})
    recorder.close()
    return "".join(page(open_recording(path)))


def test_the_page_shows_charts_tables_load_levels_and_marks(tmp_path: Path) -> None:
    finding = Finding("kv", "warning", "the KV cache is the limit", "75 %", "fewer users")
    snapshots = run_of(*[fakes.busy()] * 30)
    snapshots[9] = replace(snapshots[9], findings=(finding,), marks=(Mark("mark", "mark", 1.0),))
    snapshots[9] = replace(snapshots[9], events=(Event(1.0, "state", "it fell asleep", fakes.URL, "spark-a"),))
    text = html_of(tmp_path / "run.jsonl", snapshots, LEVEL)
    seen = Page(text)
    assert seen.tags.count("svg") == 8
    assert seen.tags.count("polyline") >= 10
    words = " ".join(seen.words)
    for wanted in (
        "gpt-oss-120b",
        "Load test",
        "c=8",
        "93.4",
        "the KV cache is the limit",
        "fewer users",
        "mark",
        "it fell asleep",
        "spark-a",
    ):
        assert wanted in words


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = html_of(tmp_path / "run.jsonl", run_of(fakes.busy(), fakes.gh200()), LEVEL)
    seen = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(seen.tags)
    assert not {"href", "src", "action", "onload", "xlink:href"} & {name for name, _ in seen.attributes}
    assert "://" not in text
    assert not re.search(r"url\(|@import", text)


def test_all_text_is_escaped(tmp_path: Path) -> None:
    server = replace(fakes.BUSY_SERVER, model=EVIL, name=EVIL, version=EVIL)
    pool = replace(fakes.UNIFIED_POOL, name=EVIL)
    finding = Finding("x", "info", EVIL, EVIL, EVIL)
    snapshot = replace(
        fakes.busy(),
        servers=(server,),
        pools=(pool,),
        findings=(finding,),
        marks=(Mark("note", EVIL, 1.0),),
        events=(Event(1.0, "state", EVIL, EVIL, EVIL),),
        host=replace(fakes.HOST, name=EVIL),
    )
    text = html_of(tmp_path / "<b>.jsonl", [snapshot], LEVEL | {"level": EVIL})
    assert "<script" not in text
    assert "<b>" not in text
    assert "script" not in Page(text).tags
    assert all("alert" not in value for name, value in Page(text).attributes if name != "aria-label")


def test_a_recording_of_one_snapshot_and_one_without_servers_have_a_page(tmp_path: Path) -> None:
    assert "</html>" in html_of(tmp_path / "one.jsonl", [fakes.busy()])
    empty = Snapshot(1.0)
    assert "</html>" in html_of(tmp_path / "empty.jsonl", [empty])


def test_a_level_of_another_version_does_not_break_the_page(tmp_path: Path) -> None:
    assert "</html>" in html_of(tmp_path / "run.jsonl", [fakes.busy()], {"level": 7})


# charts


def chart_of(points: list[tuple[float, float | None]], fold: str = "mean") -> ChartSeries:
    series = ChartSeries("x", fold, lambda snapshot: snapshot.servers[0].kv_usage)  # type: ignore[arg-type]
    axis = Axis(0.0, 10.0, 10)
    for when, value in points:
        server = replace(fakes.BUSY_SERVER, kv_usage=value)
        series.take(axis.column(when), Snapshot(when, (server,)))
    return series


@pytest.mark.parametrize(("fold", "value"), [("mean", 0.4), ("max", 0.6), ("min", 0.2)])
def test_a_column_holds_what_its_fold_says(fold: str, value: float) -> None:
    series = chart_of([(3.1, 0.2), (3.5, 0.6), (3.9, None)], fold)
    (point,) = series.points()
    assert point == pytest.approx((3, value))
    assert series.summary() == pytest.approx((0.2, 0.4, 0.6))


def test_a_line_breaks_at_a_gap() -> None:
    series = chart_of([(0, 0.1), (1, 0.2), (2, None), (3, None), (4, None), (5, 0.3), (6, 0.3)])
    picture = svg(Chart("x", [series], str, 1.0), Axis(0.0, 10.0, 10), [(5.0, "mark")], gap=2)
    assert picture.count("<polyline") == 2
    assert picture.count('class="mark"') == 1


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.07, 0.08), (1, 1), (3.1, 4), (99, 100), (101, 150), (9000, 10000)]
)
def test_scales_end_with_a_round_number(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


def test_state_names_are_the_contract() -> None:
    text = textfile(fakes.busy())
    assert all(f'state="{state.value}"' in text for state in State)
