"""The page of a start-up: is there room, how much longer, which phase; sums that add up, nothing cut."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fakes.snapshots import GIB, UNIFIED_POOL, busy
from llmtop.contract.snapshot import Pool, Snapshot
from llmtop.session.history import History
from llmtop.ui.panels.view import Scales, View
from llmtop.ui.panels.warmup import warmup_page
from llmtop.ui.panels.warmup_memory import memory_parts
from llmtop.warmup.evidence import MachineMemory, evidence
from llmtop.warmup.recorded import StartupView
from llmtop.warmup.report import make_report
from llmtop.warmup.tracker import Tracker
from llmtop_widgets.text import plain, width

BEGAN = 1_787_297_762.0  # 2026-08-21 07:36:02
TOTAL = 119.6
LINES = (
    (0, "(APIServer pid=380) INFO 08-21 07:36:02 [api_server.py:12] vLLM API server version 0.32.0"),
    (0, "(APIServer pid=380) INFO 08-21 07:36:02 [utils.py:1] non-default args: {'gpu_memory_utilization': 0.8}"),
    (10, "(EngineCore pid=396) INFO 08-21 07:36:12 [gpu_model_runner.py:38] Starting to load model org/m..."),
    (50, "Loading safetensors checkpoint shards:  40% Completed | 4/10 [00:40<01:00, 10.0s/it]"),
    (
        110,
        "(EngineCore pid=396) INFO 08-21 07:37:52 [gpu_model_runner.py:39] Model loading took 60.00 GiB memory",
    ),
    (120, "(EngineCore pid=396) INFO 08-21 07:38:02 [gpu_worker.py:1] Available KV cache memory: 30.00 GiB"),
    (121, "(EngineCore pid=396) INFO 08-21 07:38:03 [kv.py:1] GPU KV cache size: 300,000 tokens"),
    (130, "(EngineCore pid=396) INFO 08-21 07:38:12 [x.py:1] Capturing CUDA graphs (FULL):  50%|##| 1/2 [00:01<00:01]"),
    (140, "(EngineCore pid=396) INFO 08-21 07:38:22 [x.py:1] Graph capturing finished in 10 secs, took 1.00 GiB"),
    (150, "INFO:     Application startup complete."),
)
OOM = (
    "(EngineCore pid=396) ERROR 08-21 07:38:15 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to "
    "allocate 2.00 GiB. GPU 0 has a total capacity of 119.6 GiB of which 1.10 GiB is free."
)


def headroom(second: float) -> float:
    """GiB: 60 go to the weights, 30 to the KV cache, 1 to the graphs."""
    weights = min(max(second - 10, 0), 100) * 0.6
    return 110 - weights - (30 if second >= 120 else 0) - (1 if second >= 139 else 0)


def at(second: float, *, live: bool = True, fails: bool = False) -> tuple[StartupView, View]:
    """The start-up as it is seen after so many seconds."""
    tracker = Tracker()
    lines = [(when, text) for when, text in LINES if when <= second]
    for when, text in [*lines, *([(second, OOM)] if fails else [])]:
        tracker.feed(text, BEGAN + when if live else None)
    tracker.finish() if fails else None
    startup = tracker.startup(BEGAN + second if live else None)
    pool = replace(UNIFIED_POOL, headroom_bytes=int(headroom(second) * GIB), total_bytes=int(TOTAL * GIB))
    machine = MachineMemory(
        unified=True,
        total_bytes=pool.total_bytes,
        used_bytes=int((TOTAL - headroom(second)) * GIB),
        free_at_start_bytes=110 * GIB,
    )
    if fails and startup.failure is not None:
        startup = replace(startup, failure=replace(startup.failure, margin_bytes=int(0.5 * GIB)))
        machine = machine.at_failure(int(0.5 * GIB))
    readings = tuple((BEGAN + s, int(headroom(s) * GIB)) for s in range(int(second) + 1))
    report = make_report(startup, evidence(startup, machine if live else None))
    view = View(replace(busy(), pools=(pool,)), None, History(), 2.0, Scales(), 1.0)
    return StartupView(report, readings if live else (), startup.state == "starting"), view


def page(second: float, size: tuple[int, int], **how: bool) -> list[str]:
    seen, view = at(second, **how)
    return [plain(content) for content in warmup_page(seen, view, *size)]


MOMENTS = (2, 60, 115, 125, 131, 150)
SIZES = ((38, 10), (58, 18), (78, 22), (118, 38), (198, 48))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("second", MOMENTS)
def test_it_fits_every_screen_and_says_phase_and_headroom(second: int, size: tuple[int, int]) -> None:
    seen, view = at(second)
    drawn = warmup_page(seen, view, *size)
    assert len(drawn) <= size[1]
    assert all(width(content) <= size[0] for content in drawn)
    text = "\n".join(map(plain, drawn))
    assert f"headroom {headroom(second):.1f} of 119.6 GiB" in text
    if size[0] >= 78:
        assert "…" not in text.partition("\nLog ")[0]  # lines of a log may be cut


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_while_the_weights_are_read_it_says_how_long_and_what_will_be_left(size: tuple[int, int]) -> None:
    text = "\n".join(page(60, size))
    # 40 s for 40 %, so 60 s from then on, of which 10 have passed
    assert re.sub(r"\s+", " ", text).find("reading weights for 50 s, about 50 s to go") >= 0
    # 24 GiB had gone when 40 % were read: 60 of the 110 go in all
    assert "≈ 50.0 after this phase" in text
    if size[0] >= 78:
        assert "at least 14.3 when ready" in text  # 110 free at the start less 0.8 x 119.6
    assert "empty in" not in text


def test_the_memory_is_of_the_pool_that_the_engine_fills() -> None:
    seen, view = at(60)
    assert view.snapshot is not None
    (mine,) = view.snapshot.pools
    other = Pool("GPU 1", "hbm", total_bytes=80 * GIB, headroom_bytes=GIB, state="critical", device="GPU-b")
    view = replace(view, snapshot=replace(view.snapshot, pools=(other, mine)))
    text = "\n".join(plain(content) for content in warmup_page(replace(seen, pool="unified"), view, 118, 38))
    assert f"headroom {headroom(60):.1f} of 119.6 GiB" in text


def test_a_start_that_will_not_fit_is_told_in_words() -> None:
    seen, view = at(60)
    startup = replace(seen.report.startup, figures={"utilization": 0.98})
    report = replace(seen.report, evidence=replace(seen.report.evidence, utilization=0.98, requested_gib=None))
    text = "\n".join(map(plain, warmup_page(replace(seen, report=replace(report, startup=startup)), view, 118, 38)))
    assert "when ready: may not fit" in text


def test_bars_share_one_axis() -> None:
    rows = {
        name: row for row in page(150, (198, 48)) for name in ("reading weights", "graph capture") if name in row[:20]
    }
    weights, graphs = rows["reading weights"], rows["graph capture"]
    first, last = weights.index("█"), len(weights[: weights.rindex("█") + 1])
    zero = next(row for row in page(150, (198, 48)) if "took 0" in row).index("took 0") + 5
    size = next(row for row in page(150, (198, 48)) if "2:30 min" in row).index("2:30 min") + 8 - zero
    assert abs((first - zero) / size - 10 / 150) < 0.02
    assert abs((last - zero) / size - 110 / 150) < 0.02
    assert graphs.index("█") > last


def test_the_parts_of_the_memory_bar_are_what_is_used() -> None:
    for second, expected in (
        (60, {"weights": 30.0, "other": 9.6}),
        (150, {"weights": 60, "KV cache": 30, "graphs": 1}),
    ):
        seen, view = at(second)
        assert isinstance(view.snapshot, Snapshot)
        parts = {label: size for label, size, _ in memory_parts(seen.report, view.snapshot.pools[0], seen.readings)}
        assert sum(parts.values()) == pytest.approx(TOTAL - headroom(second), abs=0.01)
        assert {label: parts[label] for label in expected} == pytest.approx(expected, abs=0.01)


def sums(rows: list[str]) -> list[tuple[float, float]]:
    """Of every heading of the ledger its figure and the sum of the figures below it."""
    found: list[tuple[float, float]] = []
    for row in rows:
        column = row[-58:]
        match = re.match(r"( *)(\S.*?) +(-?[\d,]+\.\d\d)\b", column)
        if match is None or "GiB" in column:
            continue
        value = float(match[3].replace(",", ""))
        if not match[1]:
            found.append((value, 0.0))
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + value)
    return found


@pytest.mark.parametrize("how", [{}, {"fails": True}], ids=str)
def test_the_sums_of_the_ledger_add_up_and_name_their_sources(how: dict[str, bool]) -> None:
    second = 131 if how.get("fails") else 150
    rows = page(second, (198, 48), **how)
    start = next(place for place, row in enumerate(rows) if "Ledger" in row)
    ledger = [row for row in rows[start + 1 :] if "Advice" not in row][:16]
    added = sums(ledger)
    assert len(added) == 2
    for whole, parts in added:
        assert parts == pytest.approx(whole, abs=0.03)
    for origin in ("utilization x total", "used - budget"):
        assert any(origin in row for row in ledger)


def test_a_narrow_screen_has_the_sums_as_text() -> None:
    text = " ".join(page(150, (78, 40)))
    assert re.search(r"requested budget \(0\.8 x total\) 95\.68 = +weights 60\.00 \+ KV cache 30\.00", text)


def test_of_a_failed_start_the_memory_is_that_of_its_end() -> None:
    text = "\n".join(page(131, (118, 38), fails=True))
    assert "FAILED  in graph capture: CUDA out of memory: 2.00 GiB wanted, 1.10 GiB free" in text
    assert "at the failure 0.50 GiB" in text
    assert "free 0.5" in text
    assert "CRITICAL" not in text


def test_a_log_of_another_machine_is_not_mixed_with_this_ones_memory() -> None:
    seen, view = at(150, live=False)
    text = "\n".join(map(plain, warmup_page(seen, view, 118, 38)))
    assert "headroom –" in text
    assert "119.6" not in text


def test_an_inferred_phase_has_its_legend() -> None:
    text = "\n".join(page(131, (118, 38)))
    assert "the profile run *" in text
    assert "* without a line of its own in the log" in text
    assert "* without" not in "\n".join(page(60, (118, 38)))
