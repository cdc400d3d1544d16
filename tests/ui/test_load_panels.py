"""The pictures of a load test at every size: many slots, long names, failures, interruptions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.snapshots import BUSY_SERVER, busy
from llmtop.load.counters import ServerCounters
from llmtop.load.earlier import Earlier, earlier_run
from llmtop.load.events import (
    Draining,
    Finished,
    FirstToken,
    Lane,
    LevelDone,
    LevelPreparing,
    LevelStarted,
    Preflighted,
    Progress,
    Warned,
)
from llmtop.load.plan import Level, Plan
from llmtop.load.prompts import Profile
from llmtop.load.results import Flag, LevelResult, RunResult, Spread, values_of
from llmtop.load.scenarios import Options, bench_commands, build
from llmtop.load.verdict import judge
from llmtop.session.history import History
from llmtop.ui.load_state import LoadState
from llmtop.ui.panels.load import plan_lines, running_page
from llmtop.ui.panels.load_answer import comparison_page, result_page
from llmtop.ui.panels.view import Scales, View
from llmtop_widgets.text import Line, plain, width

URL = "http://a-very-long-host-name.of.some.cluster.example.internal:8000"
CELLS = (38, 58, 70, 78, 98, 118, 198)
ROWS = (3, 6, 10, 22, 38, 48)
VIEW = View(busy(), BUSY_SERVER, History(), 1.0, Scales(), 1.0)
SPREAD = Spread(100.0, 100.0, 0.0, 100.0, 100.0, 100.0, 100.0)
SLO = {"ttft_p99": 4.0, "user_tok_s": 6.0}


def texts(lines: Iterable[Line]) -> list[str]:
    return [plain(content) for content in lines]


def styles(lines: Iterable[Line], words: str) -> str:
    """The style of the first span that holds these words."""
    return next(span.style for content in lines for span in content if words in span.text)


def counters(running: int, preemptions: int = 5) -> ServerCounters:
    return ServerCounters(1.0, running=running, waiting=3, kv_usage=0.5, generation=100, preemptions=preemptions)


def level_result(concurrency: int, **more: Any) -> LevelResult:
    """A level of 64 requests; the throughput grows with the users, the P99 TTFT is half a second each."""
    own: dict[str, Any] = {
        "level": f"c={concurrency}",
        "concurrency": concurrency,
        "completed": 64,
        "tok_s": 30.0 + 8 * concurrency,
        "user_tok_s": (30.0 + 8 * concurrency) / concurrency,
        "ttft": replace(SPREAD, p99_ms=490.0 * concurrency),
    }
    return LevelResult(**({"tpot": SPREAD, "e2el": SPREAD} | own | more))


def result(*levels: LevelResult, **more: Any) -> RunResult:
    verdict = judge(levels, SLO)
    own: dict[str, Any] = {
        "scenario": "sweep",
        "interrupted": any(level.interrupted for level in levels),
        "levels": levels,
        "sweet_spot": verdict.sweet_spot,
        "knee": verdict.knee,
        "first_fail": verdict.first_fail,
        "met": verdict.met,
        "monotone": verdict.monotone,
        "words": verdict.words,
        "slo": SLO,
        "url": URL,
        "model": "m",
        "directory": "/home/somebody/.local/state/llmtop/runs/20260101-120000-sweep",
    }
    return RunResult(**(own | more))


def running(users: int = 8, finished: int = 0, **options: Any) -> LoadState:
    """A state in the middle of a level: a third of the slots wait, the others are somewhere in their answer."""
    plan = build("sweep", Plan(URL, ()), Options(concurrencies=(users,), **options))
    state = LoadState(plan)
    state.take(Preflighted(Profile(), counters(0, 2)))
    for done in range(finished):
        state.take(LevelDone(done, level_result(done + 1)))
    level = plan.levels[0]
    state.take(LevelPreparing(0, level))
    state.take(LevelStarted(0, level, 0.0))
    lanes = tuple(Lane(slot, "wait" if slot % 3 == 0 else "decode", slot % 128, 0.1) for slot in range(users))
    tokens = tuple(FirstToken(0.1 * i, 0.4 + i / 100, i < users) for i in range(3 * users))
    for _ in range(3):
        state.take(progress(level, lanes, tokens))
    return state


def progress(level: Level, lanes: tuple[Lane, ...], tokens: tuple[FirstToken, ...]) -> Progress:
    return Progress(
        index=0,
        level=level,
        now_s=1.0,
        sent=20,
        completed=12,
        errors=0,
        running=len(lanes),
        tokens=500,
        tok_s=512.0,
        server_tok_s=509.0,
        server=counters(len(lanes)),
        lanes=lanes,
        first_tokens=tokens,
        fraction=0.25,
        eta_s=72.0,
    )


def ended(*levels: LevelResult, before: int = 0, after: int | None = 0, **more: Any) -> LoadState:
    state = running()
    state.take(Draining(after, before, after is not None and after <= before))
    state.take(Finished(result(*levels, **more)))
    return state


def sweep(doubts: Mapping[int, tuple[Flag, ...]] | None = None) -> list[LevelResult]:
    few = (Flag("few samples", "64 requests: P99 is about the maximum, it needs 100"),)
    return [level_result(c, flags=(doubts or {}).get(c, few)) for c in (1, 4, 8, 16, 32)]


STATES = {
    "preflight": LoadState(build("sweep", Plan(URL, ()))),
    "one user": running(1),
    "8 users": running(8),
    "64 users": running(64, finished=4),
    "256 users": running(256, finished=9),
    "512 users": running(512),
    "answer": ended(*sweep()),
    "many levels": ended(*(level_result(c) for c in range(1, 30))),
    "nothing": ended(),
    "failures": ended(level_result(4, completed=0, failed=64, errors={"cut": 60, "connect": 4}, stopped="x" * 200)),
    "interrupted": ended(level_result(1), level_result(4, interrupted=True, errors={"cancelled": 4})),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("cells", CELLS)
def test_everything_fits(name: str, cells: int) -> None:
    state = STATES[name]
    for rows in ROWS:
        page = running_page(state, VIEW, cells, rows) if state.active else result_page(state, VIEW, cells, rows)
        assert len(page) <= rows
        assert max(map(width, page), default=0) <= cells


@pytest.mark.parametrize("cells", CELLS)
def test_a_plan_fits_but_for_words_that_cannot_be_broken(cells: int) -> None:
    plan = build("output", Plan(URL, (), model="m"))
    lines = texts(plan_lines(plan, "3m", bench_commands(plan), cells))
    assert all(len(text) <= cells or " " not in text.strip() for text in lines[1:])
    assert sum(text.count("out ") for text in lines) == 10


# while it runs


@pytest.mark.parametrize("cells", CELLS)
def test_how_far_it_is_stays_on_the_screen_whatever_the_host_is_called(cells: int) -> None:
    head = texts(running_page(running(8), VIEW, cells, 22))[0]
    assert "1/1 c=8  12/64 ok  0 err" in head
    assert ("left" in head) == (cells >= 38)


def test_a_level_boxed_in_time_names_no_goal() -> None:
    head = texts(running_page(running(8, duration_s=20.0), VIEW, 98, 22))[0]
    assert "12 ok" in head
    assert "12/64" not in head


@pytest.mark.parametrize(("users", "cells", "rows"), [(1, 78, 22), (8, 78, 22), (64, 198, 48), (40, 118, 38)])
def test_every_slot_has_a_lane_where_there_is_room(users: int, cells: int, rows: int) -> None:
    page = texts(running_page(running(users), VIEW, cells, rows))
    assert f"{-(-users // 3)} wait, {users - -(-users // 3)} decode" in "".join(page)
    assert sum(len(re.findall(r"░ +wait", text)) for text in page[3:]) == -(-users // 3)


@pytest.mark.parametrize(("users", "cells", "rows"), [(256, 198, 48), (256, 78, 22), (64, 78, 22), (512, 118, 38)])
def test_many_slots_are_a_cell_each(users: int, cells: int, rows: int) -> None:
    page = running_page(running(users), VIEW, cells, rows)
    cut = [text[: (cells - 2) // 2] for text in texts(page)[3 : 3 + -(-users // ((cells - 2) // 2))]]
    assert sum(text.count("·") for text in cut) == -(-users // 3)
    assert sum(mark in "▁▂▃▄▅▆▇█" for text in cut for mark in text) == users - -(-users // 3)


def test_client_and_server_are_on_one_scale_and_the_server_is_described() -> None:
    page = "\n".join(texts(running_page(running(8), VIEW, 98, 30)))
    assert "512 tok/s, 0 to 1,000" in page
    assert "509 tok/s, 0 to 1,000" in page
    for words in ("running 8", "waiting 3", "KV 50.0 %", "preempted 3", "headroom 23.3 GiB", "46.2 W"):
        assert words in page


def test_dots_of_the_first_wave_are_hollow_and_the_limit_is_drawn_when_it_is_near() -> None:
    near, far = running(8), running(8)
    near.plan = replace(near.plan, slo={"ttft_p99": 0.5})
    pages = [texts(running_page(state, VIEW, 98, 38)) for state in (near, far)]
    for page in pages:
        dots = page[next(place for place, text in enumerate(page) if text.startswith("TTFT")) + 1 :]
        assert sum(text.count("o") for text in dots) == 8 * 3
        assert sum(text.count("•") for text in dots) == 16 * 3
    assert any("┄┄" in text for text in pages[0])
    assert not any("┄┄" in text for text in pages[1])
    assert any("limit 4.0 s" in text for text in pages[1])


def test_finished_levels_stand_below_with_failing_ones_coloured() -> None:
    state = running(8, finished=2)
    state.done[1] = level_result(2, failed=3)
    page = running_page(state, VIEW, 98, 38)
    assert styles(page, "c=1 ") == "value"
    assert styles(page, "c=2 ") == "low"


def test_the_latest_warning_is_shown() -> None:
    state = running(8)
    state.take(Warned("no counters at /metrics"))
    assert "no counters at /metrics" in texts(running_page(state, VIEW, 98, 22))[-1]


def test_a_stop_stays_a_stop_until_the_server_drains() -> None:
    state = running(8)
    state.phase = "stopping"
    state.take(LevelStarted(0, state.plan.levels[0], 0.0))
    assert "stopping: no new requests" in texts(running_page(state, VIEW, 98, 22))[0]
    state.take(Draining(3, 1, False))
    assert "waiting for the server: it runs 3 (before: 1)" in texts(running_page(state, VIEW, 98, 22))[0]


# the answer


def test_the_answer_names_sweet_spot_knee_and_first_failure() -> None:
    page = result_page(ended(*sweep()), VIEW, 118, 38)
    text = "\n".join(texts(page))
    assert "★ sweet spot 8   ◆ knee 32   ✗ first fail c=16: P99 TTFT" in text
    assert all(words in text for words in ("★ c=8 ", "✗ c=16 ", "◆ c=32 "))
    assert styles(page, "c=16  ") == "low"
    assert "total tok/s" in text
    assert "P99 TTFT, s" in text
    assert "few samples  all levels: 64 requests" in text
    assert texts(page)[-1].startswith("files /home/somebody")


def test_a_doubt_of_some_levels_names_them() -> None:
    levels = sweep({c: (Flag("queueing", f"up to {c} requests waited"),) for c in (4, 8)})
    text = "\n".join(texts(result_page(ended(*levels), VIEW, 118, 38)))
    assert "queueing  c=4, c=8: up to 8 requests waited (c=8)" in text
    assert "few samples  c=1, c=16, c=32: 64 requests" in text


def test_doubts_without_room_are_counted() -> None:
    levels = sweep({1: tuple(Flag(f"doubt {n}", "because") for n in range(8))})
    page = texts(result_page(ended(*levels), VIEW, 78, 22))
    assert page[-2].endswith("+6 in report.md")


def test_failures_by_class_and_the_reason_of_an_early_end() -> None:
    level = level_result(
        4, completed=50, failed=14, errors={"cut": 10, "connect": 4}, stopped="5 connection errors in a row"
    )
    page = result_page(ended(level), VIEW, 98, 30)
    text = "\n".join(texts(page))
    assert "errors  c=4: 10 cut, 4 connect" in text
    assert "ended early  c=4: 5 connection errors in a row" in text
    assert (" errors ", "critical") in [span for content in page for span in content]


def test_an_interrupted_level_is_dimmed_and_out_of_the_curve() -> None:
    page = result_page(ended(level_result(1), level_result(4), level_result(8, interrupted=True)), VIEW, 98, 38)
    assert styles(page, "c=8 ") == "dim"
    assert "interrupted" in texts(page)[0]
    assert sum("c=8" in text for text in texts(page)) == 1


@pytest.mark.parametrize(
    ("before", "after", "now", "words", "style"),
    [
        (0, 0, 0, "server back to 0 running", "ok"),
        (2, 2, 2, "server back to 2 running", "ok"),
        (0, 3, 3, "server still runs 3, before 0", "low"),
        (0, 3, 0, "server back to 0 running", "ok"),  # later than the run waited for it
        (0, None, None, "the server does not say what it runs", "low"),
    ],
)
def test_whether_the_server_is_back_stays_on_the_page(
    before: int, after: int | None, now: int | None, words: str, style: str
) -> None:
    view = replace(VIEW, server=replace(BUSY_SERVER, url=URL, running=now))
    page = result_page(ended(*sweep(), before=before, after=after), view, 118, 38)
    assert texts(page)[-1].endswith(words)
    assert page[-1][-1].style == style


def test_a_run_that_could_not_begin_says_why_in_full() -> None:
    state = LoadState(build("sweep", Plan(URL, ())), phase="failed", error="HTTP 401 from /v1/models: " + "key " * 40)
    page = texts(result_page(state, VIEW, 78, 22))
    assert "no result" in page[2]
    assert " ".join(" ".join(page).split()).count("key") == 40


# two runs


def test_two_runs_are_compared_level_by_level() -> None:
    then = result(level_result(1), level_result(4), level_result(64))
    state = ended(level_result(1, tok_s=76.0, ttft=replace(SPREAD, mean_ms=150.0)), level_result(4), level_result(8))
    page = comparison_page(state, Earlier(Path("/runs/20260101-110000-sweep"), then), 118, 30)
    lines = texts(page)
    assert "20260101-110000-sweep" in lines[1]
    assert sum("before" in text for text in lines[3:]) == 2  # c=1 and c=4; the others are not in both
    assert (styles(page, "+100.0%"), styles(page, "+50.0%")) == ("ok", "low")
    assert styles(page, "+0.0%") == "dim"
    for cells in CELLS:
        assert max(map(width, comparison_page(state, Earlier(Path("/x"), then), cells, 22))) <= cells


def test_the_earlier_run_is_the_latest_before_of_the_same_kind(tmp_path: Path) -> None:
    def write(name: str, **more: Any) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(values_of(result(level_result(1), **more))))

    now = result(level_result(1), directory=str(tmp_path / "20260103-000000-sweep"))
    assert earlier_run(tmp_path / "missing", now) is None
    write("20260103-000000-sweep")
    assert earlier_run(tmp_path, now) is None
    write("20260101-000000-sweep")
    write("20260102-000000-sweep", url="http://other:8000")
    write("20260102-120000-quick", scenario="quick")
    write("20260102-130000-sweep", levels=(level_result(7),))  # no level in common
    write("20260102-133000-sweep", levels=(level_result(1, interrupted=True),))
    (tmp_path / "20260102-140000-sweep").mkdir()  # broken off
    write("20260104-000000-sweep")  # later than the run itself
    found = earlier_run(tmp_path, now)
    assert found is not None
    assert found.path.name == "20260102-000000-sweep"


@pytest.mark.parametrize("cells", [78, 118, 198])
def test_the_answer_is_in_human_words_first_and_then_in_bars(cells: int) -> None:
    page = texts(result_page(ended(*sweep()), VIEW, cells, 38))
    assert page[1] == "8 USERS at once, each 11.8 tok/s, first word within 3.9 s (P99 of 64)"
    assert page[2] == "16 users: first word after 7.8 s; your limit is 4.0 s"
    bars = [row for row in page if " tok/s " in row and ("ok" in row or "✗" in row) and "█" in row]
    assert len(bars) == 5
    assert any("ok ★" in row for row in bars)
    lengths = [row.count("█") for row in bars]
    assert lengths == sorted(lengths)


def test_every_output_names_the_model_and_a_rate_is_nobody_at_once() -> None:
    rated = [replace(level, request_rate=float(level.concurrency)) for level in sweep()]
    state = ended(*rated)
    assert state.result is not None
    state.result = replace(state.result, model="gpt-oss-120b")
    page = texts(result_page(state, VIEW, 118, 38))
    assert page[0].rstrip("─ ").endswith("gpt-oss-120b")
    assert " REQUESTS A SECOND, each " in page[1]


def test_the_users_of_a_running_level_stand_in_large_digits() -> None:
    page = texts(running_page(running(8), VIEW, 118, 38))
    assert [row[:3] for row in page[2:5]] == ["█▀█", "█▀█", "▀▀▀"]
    assert "users at once" in page[2]
    assert "limits: tok/s per user 6.0, P99 TTFT 4.0 s" in page[4]
    assert not any("users at once" in row for row in texts(running_page(running(8), VIEW, 78, 22)))


def test_the_curve_of_a_sweep_grows_with_it() -> None:
    state = running(8, finished=2)
    levels = tuple(replace(state.plan.levels[0], name=f"c={users}", concurrency=users) for users in (1, 2, 8, 32))
    state.plan = replace(state.plan, levels=levels)
    text = "\n".join(texts(running_page(state, VIEW, 118, 38)))
    assert "tok/s so far" in text
    assert "2 of 4 levels" in text
    assert re.search(r"★ now", text)
    assert re.search(r"0 +users +40", text)  # the axis has room for the levels to come
    assert "so far" not in "\n".join(texts(running_page(running(8), VIEW, 118, 38)))  # one level is no curve
    assert state.progress is not None
    state.progress = replace(state.progress, tok_s=None)
    silent = "\n".join(texts(running_page(state, VIEW, 118, 38)))
    assert "tok/s so far" in silent
    assert not re.search(r"★ now", silent)  # nobody decoded in the last second: no point at 0
