"""What the panels say at each size: every core number, the dash for what is unknown, nothing wider than its place."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fakes.snapshots import ALL, BUSY_SERVER, GIB, busy, data_parallel, gh200, h200x8, idle, no_gpu, stale, unknown
from llmtop.contract.snapshot import (
    Event,
    Finding,
    Holder,
    Latency,
    LatencySet,
    Node,
    Quantile,
    ServerView,
    Snapshot,
    State,
)
from llmtop.session.history import History
from llmtop.ui.panels.board import PANELS, Panel
from llmtop.ui.panels.frame import header, page, share_rows
from llmtop.ui.panels.glossary import explained
from llmtop.ui.panels.holders import pool_parts
from llmtop.ui.panels.machine import held_lines, memory_facts
from llmtop.ui.panels.server import quantile_span, queue_chart
from llmtop.ui.panels.verdict import beyond_verdict, finding_lines, verdict_line
from llmtop.ui.panels.view import Scales, View
from llmtop_widgets import glyphs
from llmtop_widgets.linewidget import STYLE_NAMES
from llmtop_widgets.text import plain, width

SIZES = [(40, 12), (60, 20), (80, 24), (100, 30), (132, 43), (200, 50), (250, 80)]
TINY = [(10, 3), (1, 1), (2, 5), (20, 4)]

CORE = {
    "KV %": "61.2 %",
    "used tokens": "520,164",
    "capacity": "849,942",
    "headroom": "headroom 23.3 of 119.6 GiB",
    "headroom in words": "OK",
    "low-water": "low-water 11.8",
    "running": r"running +8\b",
    "waiting": r"waiting +3\b",
    "generation": r"94\.3 tok/s",
    "prompt": r"1,620 tok/s",
    "TTFT": r"TTFT +410 ms +380 ms +1\.9 s +3\.9 s",
    "ITL": r"ITL +84 ms +80 ms +120 ms +~150 ms",
    "E2EL": r"E2EL +10\.9 s +10\.7 s +11\.8 s +12\.1 s",
    "queue": r"queue +120 ms +<300 ms +900 ms +>2\.0 s",
    "state": "SERVING",
    "limited by": "BATCH IS FULL +24 of 30 pages +→ raise --max-num-seqs",
    "room": "room for 10 x 32,768",
    "preemptions": r"preempted +7\b",
    "prefix hit": "prefix hit 43 %",
    "GPU": r"util 96 %.*46 W.*71 C",
    "energy": r"0\.49 J/token \(gpu\)",
}
SMALL_CORE = {
    "KV %": "61.2 %",
    "headroom": "headroom +23.3",
    "running": r"running +8\b",
    "waiting": r"waiting +3\b",
    "tok/s": r"tok/s +94\.3",
}


def view_of(snapshot: Snapshot, seconds: int = 0) -> View:
    """The view of a snapshot after `seconds` of the same before it."""
    history = History()
    for second in range(seconds + 1):
        history.push(replace(snapshot, time=snapshot.time - seconds + second))
    server = snapshot.servers[0] if snapshot.servers else None
    return View(snapshot, server, history, 2.0, Scales(), 1.0)


def screen(view: View, size: tuple[int, int]) -> list[str]:
    """Header and body as text."""
    cells, rows = size
    return [plain(header(view, cells)), *map(plain, page(view, cells, rows - 2).lines)]


@pytest.mark.parametrize("size", [size for size in SIZES if size[0] >= 80], ids=str)
@pytest.mark.parametrize("number", CORE)
def test_every_core_number_is_there_from_80_cells_on(size: tuple[int, int], number: str) -> None:
    assert re.search(CORE[number], "\n".join(screen(view_of(busy(), 100), size)))


@pytest.mark.parametrize("size", [(40, 12), (60, 20)], ids=str)
@pytest.mark.parametrize("number", SMALL_CORE)
def test_the_most_important_numbers_are_there_at_40_cells(size: tuple[int, int], number: str) -> None:
    assert re.search(SMALL_CORE[number], "\n".join(screen(view_of(busy(), 100), size)))


@pytest.mark.parametrize("size", SIZES + TINY, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_every_line_is_exactly_as_wide_as_the_screen(name: str, size: tuple[int, int]) -> None:
    view = view_of(ALL[name](), 30)
    cells, rows = size
    assert width(header(view, cells)) == cells
    lines = page(view, cells, rows - 2).lines
    assert [width(content) for content in lines] == [cells] * len(lines)
    assert len(lines) == max(0, rows - 2)


@pytest.mark.parametrize("name", ALL)
def test_every_style_has_a_colour(name: str) -> None:
    view = view_of(ALL[name](), 30)
    for size in SIZES:
        lines = [header(view, size[0]), *page(view, size[0], size[1] - 2).lines]
        styles = {word for content in lines for span in content for word in span.style.split()}
        assert styles <= set(STYLE_NAMES)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_what_is_unknown_is_a_dash_and_never_a_zero(size: tuple[int, int]) -> None:
    view = view_of(unknown(), 10)
    for content in page(view, size[0], size[1] - 2).lines:
        for span in content:
            if span.style in ("value", "bold"):
                assert not re.search(r"\d", span.text), plain(content)
    text = "\n".join(screen(view, size))
    for label in ("running", "waiting"):
        assert re.search(rf"{label} +–", text)
    if size[0] >= 80:
        for pattern in (r"generation +–", r"– of – tokens", r"room for – x –", r"TTFT +–( +–){3}", r"util – %"):
            assert re.search(pattern, text), pattern


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_what_is_zero_is_a_zero(size: tuple[int, int]) -> None:
    text = "\n".join(screen(view_of(idle(), 10), size))
    assert re.search(r"running +0\b", text)
    assert re.search(r"waiting +0\b", text)
    assert "0.0 %" in text
    assert re.search(r"(generation|tok/s) +0\.0", text)


def test_no_observation_in_the_window_has_no_quantiles() -> None:
    text = "\n".join(screen(view_of(idle(), 10), (80, 24)))
    assert re.search(r"TTFT +–( +–){3}", text)
    assert "n=0" in text


def test_a_quantile_says_how_sure_it_is() -> None:
    latency = LatencySet(
        60.0, ttft=Latency(12, 0.25, Quantile(0.3, "<"), Quantile(120.0, ">", weak=True), Quantile(1.0, weak=True))
    )
    server = replace(BUSY_SERVER, latency=latency)
    text = "\n".join(screen(view_of(replace(busy(), servers=(server,))), (80, 24)))
    assert re.search(r"TTFT +250 ms +<300 ms +~>120 s +~1\.0 s", text)


def test_long_quantiles_do_not_touch() -> None:
    weak = Quantile(0.3, "<", weak=True)
    server = replace(BUSY_SERVER, latency=LatencySet(60.0, ttft=Latency(3, 0.25, weak, weak, weak)))
    text = "\n".join(screen(view_of(replace(busy(), servers=(server,))), (80, 24)))
    assert re.search(r"TTFT +250 ms( +~<300ms){3}", text)


def test_a_narrow_header_keeps_the_state() -> None:
    snapshot = replace(busy(), simulated=True)
    assert re.search(r"^ gpt-oss\S+ +SERVING +simulated +\d s ago", header_text(snapshot, 40))
    assert re.search(r"^ llmtop +gpt-oss\S+ +SERVING ", header_text(snapshot, 60))


def header_text(snapshot: Snapshot, cells: int) -> str:
    return plain(header(view_of(snapshot), cells))


@pytest.mark.parametrize(
    ("code", "evidence", "words"),
    [
        (
            "UNDERLOADED",
            "running 8 of 32, KV 61 %; nobody waited, some ran in 100 % of the last 30 s",
            "● ROOM FOR 10 MORE  running 8 of 32, KV 61 %; nobody waited, some ran in 100 % of the last 30 s",
        ),
        (
            "KV_PRESSURE",
            "KV 98 %, waiting 3, preempted 5; 60 % of the last 30 s",
            "● KV CACHE IS THE LIMIT  3 wait, 61 % used; 60 % of the last 30 s"
            "  → lower --max-model-len, or fewer users",
        ),
        (
            "MIXED",
            "up to 27 waiting, KV up to 5 %; a queue in 33 % of the last 29 s",
            "● QUEUE COMES AND GOES  somebody waited 33 % of the last 29 s; up to 27 waiting, KV up to 5 %",
        ),
    ],
)
def test_the_verdict_says_what_limits_the_server_and_what_to_do(code: str, evidence: str, words: str) -> None:
    waiting = 0 if code == "UNDERLOADED" else 3
    server = replace(BUSY_SERVER, waiting=waiting, limited_by=code, limited_by_evidence=evidence)
    view = view_of(replace(busy(), servers=(server,), limited_by=code))
    assert plain(verdict_line(view, 180)).strip() == re.sub("  →", " →", words)
    for cells in (40, 80, 120):
        assert plain(verdict_line(view, cells)).startswith(words.partition("  ")[0])


def test_where_there_is_no_room_the_advice_is_worth_more_than_half_the_evidence() -> None:
    evidence = "KV 98 %, waiting 3, preempted 5; 60 % of the last 30 s"
    server = replace(BUSY_SERVER, kv_usage=0.98, limited_by="KV_PRESSURE", limited_by_evidence=evidence)
    said = plain(verdict_line(view_of(replace(busy(), servers=(server,))), 78))
    assert said == "● KV CACHE FULL  3 wait, 98 % used → lower --max-model-len, or fewer users"


def test_memory_that_runs_out_is_said_before_a_queue() -> None:
    pool = replace(busy().pools[0], state="critical", reason="empty in 4 s")
    text = plain(verdict_line(view_of(replace(busy(), pools=(pool,))), 180))
    assert text.startswith("● MEMORY CRITICAL  23.3 of 119.6 GiB left, empty in 4 s →")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("down", "SERVER DOWN  connection refused"),
        ("stale", "NO FRESH FIGURES"),
        ("nothing", "NO SERVER"),
        ("idle", "IDLE"),
    ],
)
def test_the_verdict_names_the_state(name: str, words: str) -> None:
    assert words in plain(verdict_line(view_of(ALL[name]()), 120))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
def test_the_headline_has_a_word_for_each_state(size: tuple[int, int]) -> None:
    tight = replace(busy().pools[0], state="low")
    server = replace(BUSY_SERVER, kv_usage=0.97)
    rows = screen(view_of(replace(busy(), pools=(tight,), servers=(server,)), 30), size)
    label = next(row for row in rows if "KV CACHE " in row and "HEADROOM" in row)
    assert re.search(r"KV CACHE +FULL +HEADROOM +LOW +QUEUE +WAITING +TOK/S +OK", label)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
def test_a_finding_is_not_cut_in_the_middle_of_its_advice(size: tuple[int, int]) -> None:
    advice = "lower --gpu-memory-utilization or --max-num-seqs, or stop what else holds memory"
    finding = Finding("memory:x", "warning", "GB10 unified: headroom 5.0 GiB", "tasks wait for memory " * 3, advice)
    text = " ".join(" ".join(screen(view_of(replace(busy(), findings=(finding,))), size)).split())
    assert advice in text


def test_memory_of_another_machine_never_stands_beside_a_server() -> None:
    nodes = (Node("spark-a"), Node("spark-b", local=False, state="down", reason="nothing is known of spark-b"))
    server = replace(BUSY_SERVER, node="spark-b", local=False)
    pool = replace(busy().pools[0], node="spark-a")
    snapshot = replace(busy(), servers=(server,), pools=(pool,), nodes=nodes).beside(server)
    text = "\n".join(screen(view_of(snapshot), (120, 40)))
    assert "23.3" not in text
    assert re.search(r"HEADROOM +–", text)
    assert "nothing is known of spark-b" in text


@pytest.mark.parametrize(("size", "there"), [((120, 50), True), ((200, 50), True), ((80, 24), False)], ids=str)
def test_events_are_listed_newest_first_where_there_is_room(size: tuple[int, int], there: bool) -> None:
    events = (Event(busy().time - 60, "restart", "gpt-oss-120b restarted"), Event(busy().time, "low_water", "new low"))
    rows = screen(view_of(replace(busy(), events=events)), size)
    found = [place for place, row in enumerate(rows) if "restarted" in row or "low-water   new low" in row]
    assert bool(found) is there
    assert not there or "new low" in rows[found[0]]


def test_a_stale_server_keeps_its_numbers_and_says_their_age() -> None:
    view = view_of(stale(), 10)
    rows = screen(view, (100, 30))
    assert "STALE" in rows[0]
    assert "14 s ago" in rows[0]
    assert "no answer for 14 s" in rows[0]
    assert any("520,164 of 849,942 tokens" in row for row in rows)
    styles = {span.style for content in page(view, 100, 28).lines for span in content if "520,164" in span.text}
    assert styles == {"dim"}


def test_a_first_run_without_a_server_says_what_to_type_and_draws_no_dashes() -> None:
    alone = replace(busy(), servers=())
    for size in ((80, 24), (120, 36), (200, 50)):
        text = "\n".join(screen(view_of(alone), size))
        for words in ("llmtop demo", "llmtop HOST:8000", "llmtop warmup -- vllm serve", "headroom"):
            assert words in text, (size, words)
        assert "KV cache" not in text


def test_a_server_that_is_down_is_not_drawn_as_idle() -> None:
    rows = screen(view_of(ALL["down"](), 10), (100, 30))
    assert "DOWN" in rows[0]
    assert "connection refused" in rows[0]
    text = "\n".join(rows)
    assert re.search(r"running –", text)
    assert re.search(r"waiting –", text)
    assert "0.0 %" not in text


def test_the_headline_of_several_engines_is_the_fullest_by_name() -> None:
    text = "\n".join(screen(view_of(data_parallel()), (100, 30)))
    assert "fullest: engine 2" in text
    assert "87.0 %" in text
    assert "348,000 of 400,000 tokens" in text


def test_an_estimated_capacity_says_so() -> None:
    server = replace(BUSY_SERVER, kv_capacity_approx=True)
    assert "of ≈849,942 tokens" in "\n".join(screen(view_of(replace(busy(), servers=(server,))), (80, 24)))


def test_two_pools_are_two_figures_and_never_one() -> None:
    text = "\n".join(screen(view_of(gh200()), (132, 43)))
    assert "headroom 7.0 of 96.0 GiB" in text
    assert "LOW" in text
    assert "headroom 420.0 of 480.0 GiB" in text
    assert "427" not in text
    assert "J/token (module)" in text


def test_the_small_screen_shows_the_tightest_pool_first() -> None:
    rows = screen(view_of(gh200()), (80, 24))
    assert any("headroom 7.0 of 96.0 GiB" in row for row in rows)


@pytest.mark.parametrize("size", [(80, 24), (132, 43), (200, 50)], ids=str)
def test_of_many_devices_the_ones_in_trouble_are_in_sight(size: tuple[int, int]) -> None:
    text = "\n".join(screen(view_of(h200x8()), size))
    assert re.search(r"7 +LOST +fell off the bus", text)
    assert "power cap" in text


def test_without_a_gpu_the_reason_is_there() -> None:
    text = "\n".join(screen(view_of(no_gpu()), (132, 43)))
    assert "no NVIDIA library" in text
    assert "headroom 20.0 of 32.0 GiB" in text


def test_before_the_first_snapshot_the_header_says_what_goes_on() -> None:
    view = View(None, None, History(), 1.0, Scales(), 1.0)
    assert "looking for model servers" in plain(header(view, 80))
    assert len(page(view, 80, 22).lines) == 22


def test_without_a_server_the_header_says_so() -> None:
    assert "no model server found" in plain(header(view_of(ALL["nothing"]()), 80))


def test_who_holds_memory_is_named_where_there_is_room_and_in_full_on_the_whole_screen() -> None:
    rows = (Holder("gpt-oss-120b", "http://a:1", "big", (7, 8), 60 * GIB), Holder("qwen", None, None, (9,), 23 * GIB))
    pool = replace(busy().pools[0], holders=rows)
    view = view_of(replace(busy(), pools=(pool,)))
    wide, narrow, tall = (memory_facts(view, cells, rows) for cells, rows in ((76, 8), (38, 8), (76, 20)))
    assert "gpt-oss-120b 60.0" in plain(wide[-1])
    assert "processes 83.0" in plain(narrow[-1])
    for lines in (tall, held_lines(view, 76)):
        assert [re.split(r"\s{2,}", plain(content)) for content in lines[-4:]] == [
            ["gpt-oss-120b", "a:1", "big", "pid 7, 8", "60.0"],
            ["qwen", "pid 9", "23.0"],
            ["other", "the system, host memory of all programs, page tables", "13.3"],
            ["used", "of 119.6 GiB", "96.3"],
        ]


@pytest.mark.parametrize("name", [name for name in ALL if ALL[name]().pools])
def test_the_parts_of_a_memory_bar_and_the_headroom_add_up(name: str) -> None:
    snapshot = ALL[name]()
    for pool in snapshot.pools:
        if pool.total_bytes is None or pool.headroom_bytes is None:
            continue
        held = sum(part.size for part in pool_parts(pool) if part.label != "cache")
        assert held + pool.headroom_bytes == pytest.approx(pool.total_bytes, abs=0.01 * GIB)


def test_a_process_that_claims_more_than_is_used_does_not_burst_the_bar() -> None:
    pool = replace(busy().pools[0], holders=(Holder("greedy", bytes=10**15), Holder("more", bytes=10**14)))
    parts = pool_parts(pool)
    assert sum(part.size for part in parts if part.label != "cache") == pytest.approx(pool.used_bytes)


@pytest.mark.parametrize(
    ("least", "rows", "heights"),
    [
        ([6, 4, 6], 16, [6, 4, 6]),
        ([6, 4, 6], 20, [8, 5, 7]),
        ([6, 4, 6], 12, [4, 4, 4]),
        ([6, 4, 6], 3, [2, 2, 2]),
        ([6, 6], 40, [20, 20]),
    ],
)
def test_rows_are_shared_fairly(least: list[int], rows: int, heights: list[int]) -> None:
    assert share_rows(least, rows) == heights


def test_the_peak_is_that_of_the_epoch() -> None:
    history = History()
    for second, speed in enumerate((50.0, 180.0, 90.0)):
        rates = replace(BUSY_SERVER.rates, generation_tok_s=speed)
        snapshot = replace(busy(), time=busy().time + second, servers=(replace(BUSY_SERVER, rates=rates),))
        history.push(snapshot)
    view = View(snapshot, snapshot.servers[0], history, 2.0, Scales(), 1.0)
    assert "peak 180" in "\n".join(screen(view, (80, 24)))


def test_several_tokens_per_step_are_said() -> None:
    server = replace(BUSY_SERVER, spec_tokens_per_step=2.41)
    text = "\n".join(screen(view_of(replace(busy(), servers=(server,))), (80, 24)))
    assert "tokens/step 2.41" in text
    assert re.search(r"step +84 ms", text)


def test_findings_are_words_and_the_rest_is_counted() -> None:
    findings = tuple(replace(gh200().findings[0], id=str(i), text=f"finding {i}") for i in range(20))
    rows = screen(view_of(replace(busy(), findings=findings)), (80, 24))
    assert any(row.lstrip().startswith("LOW  finding 0") for row in rows)
    assert re.search(r"\+1\d", rows[-1])
    assert len(rows) == 23


def test_a_note_is_seen_beside_the_longest_evidence() -> None:
    server = replace(BUSY_SERVER, limited_by_evidence="x" * 200)
    view = replace(view_of(replace(busy(), servers=(server,))), note="saved llmtop-20270101-000000.svg")
    assert "saved llmtop-20270101-000000.svg" in "\n".join(screen(view, (80, 24)))


def test_a_server_that_never_answered_has_no_age() -> None:
    view = view_of(replace(busy(), servers=(ServerView("http://a:1"),)))
    assert "– " in plain(header(view, 80))
    assert "0 s ago" not in plain(header(view, 80))


def test_a_chart_shows_columns_that_are_over_and_the_figure_beside_it_the_present() -> None:
    history = History()
    for second in range(5):  # columns of two seconds: 0-1, 2-3, and 4, which has only begun
        history.push(replace(busy(), time=1000.0 + second, servers=(replace(BUSY_SERVER, running=second),)))
    view = View(busy(), BUSY_SERVER, history, 2.0, Scales(), 1.0)
    assert view.past(BUSY_SERVER.url, "running", 3) == [None, 1.0, 3.0]
    assert replace(view, interval_s=2.0).past(BUSY_SERVER.url, "running", 3) == [1.0, 3.0, 4.0]


def test_a_finding_that_comes_and_goes_does_not_move_all_panels() -> None:
    quiet = replace(busy(), findings=())
    loud = replace(busy(), findings=(Finding("swap", "warning", "the machine swaps"),))
    view = view_of(loud)
    before = screen(view, (80, 24))
    view.history.push(replace(quiet, time=view.history.now + 1))
    after = screen(replace(view, snapshot=quiet), (80, 24))
    assert [place for place, row in enumerate(after) if "──" in row] == [
        place for place, row in enumerate(before) if "──" in row
    ]
    assert not after[-1].strip()
    view.history.push(replace(quiet, time=view.history.now + 31))
    assert screen(replace(view, snapshot=quiet), (80, 24))[-1].strip()


def test_a_quantile_from_a_wide_bucket_has_the_figures_that_are_known() -> None:
    wide = Quantile(0.11934, low_s=0.05, high_s=0.25)
    assert quantile_span(wide, view_of(busy())).text.strip() == "≈120 ms"
    assert quantile_span(replace(wide, low_s=0.119, high_s=0.12), view_of(busy())).text.strip() == "119 ms"


@pytest.mark.parametrize("panel", [None, *PANELS], ids=lambda panel: panel.name if panel else "all")
def test_no_size_is_too_small_for_a_page(panel: Panel | None) -> None:
    view = view_of(busy(), seconds=5)
    sizes = [(cells, rows) for cells in (1, 2, 3, 5, 9, 20, 60, 300, 500) for rows in (1, 2, 3, 5, 8, 12, 24, 100)]
    for cells, rows in sizes:
        drawn = page(view, cells, rows, panel).lines
        assert len(drawn) <= rows, (cells, rows)
        assert all(width(line) <= cells for line in drawn), (cells, rows)


def test_the_words_over_the_queue_have_a_sample_of_its_columns_before_them() -> None:
    title = queue_chart(view_of(busy(), 60), 60, 8)[0]
    samples = [(span.text, span.style) for span in title if span.style != "label" and span.text.strip()]
    assert samples == [("█", "series1"), ("█", "low")]
    assert "requests: █ running, █ waiting on top" in plain(title)


def test_without_colours_the_queue_tells_running_and_waiting_apart() -> None:
    glyphs.use(glyphs.UNICODE, colours=False)
    try:
        text = "\n".join(map(plain, queue_chart(view_of(busy(), 60), 60, 8)))
    finally:
        glyphs.use(glyphs.UNICODE)
    assert "requests: █ running, ▒ waiting on top" in text
    assert "▒▒▒" in text.partition("\n")[2]


def test_the_evidence_gives_way_clause_by_clause_before_what_to_do() -> None:
    evidence = "running 32 of 32, waiting 3, KV 86 %; 50 % of the last 29 s"
    server = replace(BUSY_SERVER, running=32, limited_by="SEQ_CAP", limited_by_evidence=evidence)
    view = view_of(replace(busy(), servers=(server,)))
    shown = [plain(verdict_line(view, cells)) for cells in (118, 84, 78, 38)]
    advice = " → raise --max-num-seqs, or fewer users"
    assert shown == [
        f"● BATCH IS FULL  {evidence}{advice}",
        f"● BATCH IS FULL  running 32 of 32, waiting 3{advice}",
        f"● BATCH IS FULL  running 32 of 32{advice}",
        "● BATCH IS FULL  running 32 of 32",
    ]


def test_an_engine_that_stalls_in_a_server_that_works_leads() -> None:
    healthy = data_parallel()
    first, *others = healthy.servers[0].engines
    server = replace(healthy.servers[0], engines=(replace(first, state=State.STALLED), *others), limited_by="MIXED")
    finding = Finding(f"stalled-engine:{server.url}", "critical", "x (engine 0): requests run, no counter moves")
    view = view_of(replace(healthy, servers=(server,), findings=(finding,)))
    assert plain(verdict_line(view, 120)).startswith(f"● ENGINE {first.engine} STALLED")
    assert finding not in beyond_verdict(view)  # said once


def test_advice_that_does_not_fit_ends_with_a_whole_clause() -> None:
    advice = "a 1-token request tells a hang from stale gauges; a dead engine needs a restart"
    finding = Finding("f", "critical", "gpt-oss-120b (engine 1, 3): requests run, no counter moves", None, advice)
    text = " ".join(plain(content).strip() for content in finding_lines(finding, 78, 2))
    assert text.endswith("tells a hang from stale gauges")


def test_of_a_panel_on_a_small_screen_no_term_is_cut() -> None:
    for panel in PANELS:
        lines = [plain(content).strip() for content in panel.whole(view_of(busy(), 60), 78, 19)]
        whole = [plain(content).strip() for content in explained(panel.terms, 78)]
        words = [text for text in lines if text in whole]
        assert words == whole[: len(words)]
        if len(words) < len(whole):
            assert any("? explains the rest" in text for text in lines) or not words
            assert not words or whole[len(words)] in {plain(explained((t,), 78)[0]).strip() for t in panel.terms}
