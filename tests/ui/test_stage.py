"""The stage: four figures large enough for the back row at every size, one chart, a banner for a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cranked_app import session
from fakes.snapshots import ALL, BUSY_SERVER, GIB, UNIFIED_POOL, busy, down, gh200, stale, unknown
from llmtop.contract.snapshot import Rates, ServerView, Snapshot, State
from llmtop.load.events import Finished, Progress
from llmtop.load.plan import Level, Plan
from llmtop.load.results import LevelResult, RunResult
from llmtop.session.history import History
from llmtop.ui.load_state import LoadState
from llmtop.ui.messages import LoadNews
from llmtop.ui.panels.stage import Grid, best_grid, figures, sentence, stage_page
from llmtop.ui.panels.view import Scales, View
from llmtop_widgets.linewidget import STYLE_NAMES
from llmtop_widgets.strokes import stroke_lines
from llmtop_widgets.text import plain, width

SIZES = [(60, 20), (80, 24), (100, 30), (120, 36), (200, 18), (200, 50), (250, 80)]
TINY = [(1, 1), (5, 2), (30, 6), (40, 12), (59, 13)]


def view_of(snapshot: Snapshot, seconds: int = 60) -> View:
    """The view of a snapshot after `seconds` of the same before it."""
    history = History()
    for second in range(seconds + 1):
        history.push(replace(snapshot, time=snapshot.time - seconds + second))
    server = snapshot.servers[0] if snapshot.servers else None
    return View(snapshot, server, history, 1.0, Scales(), 1.0)


def page(view: View, size: tuple[int, int], moment: str | None = None) -> list[str]:
    """The page as text."""
    return [plain(content) for content in stage_page(view, moment, *size)]


def shows(rows: list[str], label: str, text: str, most: int = 30) -> int:
    """How high the large digits of `text` below a label are; 0 where they are not there."""
    top = next(number for number, row in enumerate(rows) if label in row)
    for high in range(most, 2, -1):
        wanted = [plain(content) for content in stroke_lines(text, high)]
        across, middle = len(wanted[0]), rows[top].index(label) + len(label) // 2
        for skipped in range(3):
            below = [row.ljust(400) for row in rows[top + 1 + skipped : top + 1 + skipped + high]]
            for left in range(max(1, middle - across // 2 - 12), middle + 12):
                place = slice(left, left + across)
                alone = not any(row[left - 1].strip() or row[left + across].strip() for row in below)
                if [row[place] for row in below] == wanted and alone:
                    return high
    return 0


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_four_figures_are_large_and_right(size: tuple[int, int]) -> None:
    rows = page(view_of(busy()), size)
    figures = {"tokens per second": "94", "users served": "8", "KV cache": "61%", "headroom, GiB": "23.3"}
    heights = {shows(rows, label, text) for label, text in figures.items()}
    assert len(heights) == 1
    assert heights.pop() >= min(4, size[1] // 5)
    assert "gpt-oss-120b" in "\n".join(rows[:3])
    assert "SERVING" in "\n".join(rows[:3])
    assert "now" in rows[-1]


@pytest.mark.parametrize(
    ("cells", "rows", "grid"),
    [
        (58, 14, Grid(2, 4)),
        (78, 18, Grid(2, 6)),
        (118, 23, Grid(2, 9)),
        (198, 12, Grid(4, 10)),
        (248, 55, Grid(2, 25)),
    ],
)
def test_digits_grow_with_the_screen(cells: int, rows: int, grid: Grid) -> None:
    assert best_grid(figures(view_of(busy())), cells, rows) == grid


@pytest.mark.parametrize("size", SIZES + TINY, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_the_page_fills_the_screen_exactly(name: str, size: tuple[int, int]) -> None:
    lines = stage_page(view_of(ALL[name]()), None, *size)
    assert [width(content) for content in lines] == [size[0]] * size[1]
    styles = {word for content in lines for span in content for word in span.style.split()}
    assert styles <= set(STYLE_NAMES)


@pytest.mark.parametrize("size", [(30, 6), (40, 12)], ids=str)
def test_a_small_terminal_has_a_line_per_figure(size: tuple[int, int]) -> None:
    rows = page(view_of(busy()), size)
    for number, words in enumerate(("tokens per second  94", "users served       8", "KV cache           61%", "23.3")):
        assert words in rows[1 + number]


def digits(snapshot: Snapshot) -> list[str]:
    """The four figures."""
    return [figure.digits for figure in figures(view_of(snapshot))]


def test_unknown_is_a_dash() -> None:
    assert digits(unknown()) == ["–"] * 4
    assert digits(Snapshot(0.0)) == ["–"] * 4
    assert digits(down())[:3] == ["–"] * 3


def of_server(**changes: object) -> Snapshot:
    """The busy machine with another server."""
    return replace(busy(), servers=(replace(BUSY_SERVER, **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("speed", "shown"), [(0.0, "0.0"), (4.24, "4.2"), (9.96, "10"), (94.3, "94"), (9999.4, "9999"), (12_440.0, "12.4k")]
)
def test_speeds_stand_still(speed: float, shown: str) -> None:
    assert digits(of_server(rates=Rates(10.0, speed)))[0] == shown


@pytest.mark.parametrize(("usage", "shown"), [(0.0, "0%"), (0.001, "<1%"), (0.006, "1%"), (1.0, "100%")])
def test_a_little_kv_cache_is_not_none(usage: float, shown: str) -> None:
    assert digits(of_server(kv_usage=usage))[2] == shown


def test_a_long_number_shrinks_alone() -> None:
    view = view_of(of_server(rates=Rates(10.0, 12_440.0)))
    rows = page(view, (100, 36))
    assert 0 < shows(rows, "tokens per second", "12.4k") < shows(rows, "KV cache", "61%")


@pytest.mark.parametrize(
    ("state", "word", "style"), [("low", "LOW", "bold low"), ("critical", "CRITICAL", "alarm"), ("ok", None, "value")]
)
def test_tight_memory_is_a_word_and_a_colour(state: str, word: str | None, style: str) -> None:
    pool = replace(UNIFIED_POOL, state=state)  # type: ignore[arg-type]
    view = view_of(replace(busy(), pools=(pool,)))
    assert figures(view)[3].style == style
    text = "\n".join(page(view, (120, 36)))
    assert [known for known in ("LOW", "CRITICAL") if known in text] == ([word] if word else [])


def test_the_headroom_is_that_of_the_tightest_pool() -> None:
    assert digits(gh200())[3] == "7.0"
    pool = replace(UNIFIED_POOL, headroom_bytes=420 * GIB)
    assert digits(replace(busy(), pools=(pool,)))[3] == "420"


@pytest.mark.parametrize(("usage", "style"), [(0.84, "value"), (0.85, "low"), (0.95, "alarm")])
def test_a_full_kv_cache_has_the_colour_of_the_dashboard(usage: float, style: str) -> None:
    assert figures(view_of(of_server(kv_usage=usage)))[2].style == style


def test_figures_of_a_stale_server_are_dimmed() -> None:
    view = view_of(stale())
    assert [figure.style for figure in figures(view)] == ["dim", "dim", "dim", "value"]
    assert "STALE" in "\n".join(page(view, (80, 24))[:3])


def test_who_waits_is_said_only_when_somebody_does() -> None:
    assert "+3 waiting" in "\n".join(page(view_of(busy()), (120, 36)))
    assert "waiting" not in "\n".join(page(view_of(of_server(waiting=0)), (120, 36)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "8 users, 11.8 tok/s each, 3 wait  batch is full"),
        ({"limited_by": "UNDERLOADED", "waiting": 0}, "8 users, 11.8 tok/s each, room for 10 more"),
        ({"limited_by": None, "waiting": 0, "running": 1, "rates": Rates()}, "1 user, room for 10 more"),
        ({"state": State.DOWN, "running": None}, "server down"),
    ],
)
def test_a_sentence_says_how_it_goes(changes: dict[str, object], words: str) -> None:
    told = plain(sentence(view_of(of_server(**changes))))
    assert told.removeprefix("● ") == words


def test_a_load_test_is_seen_on_the_stage() -> None:
    levels = (Level("c=8", 8, 40, 512, 64), Level("c=16", 16, 80, 512, 64))
    state = LoadState(Plan(BUSY_SERVER.url, levels))
    state.progress = Progress(1, levels[1], 1.0, 20, 9, 0, 16, 500, 512.0, None, None, (), (), 0.5, 42.0)
    view = replace(view_of(busy()), load=state)
    text = "\n".join(page(view, (80, 24)))
    assert "LOAD TEST   c=16, level 2 of 2, 42s left" in text
    assert "tok/s so far" in "\n".join(page(view, (120, 36)))


def test_no_finding_reaches_the_stage() -> None:
    text = "\n".join(page(view_of(gh200()), (120, 36)))
    assert "below 5 %" not in text
    assert "lower the share" not in text


@pytest.mark.parametrize("size", [(40, 12), (60, 20), (120, 36)], ids=str)
def test_a_moment_is_a_banner_from_edge_to_edge(size: tuple[int, int]) -> None:
    lines = stage_page(view_of(busy()), "new peak 1,204 tok/s", *size)
    banner = next(content for content in lines if "new peak" in plain(content))
    assert {span.style for span in banner} == {"selected"}
    assert width(banner) == size[0]


def test_the_answer_to_a_key_is_in_the_last_row() -> None:
    view = replace(view_of(busy()), note="theme textual-light")
    assert page(view, (80, 24))[-1].strip() == "theme textual-light"


def test_without_a_server_the_page_says_so() -> None:
    assert "no model server" in page(view_of(Snapshot(0.0)), (80, 24))[0]


def test_what_is_wrong_with_the_server_is_said() -> None:
    server = ServerView("http://a:8000", reason="connection refused", model="m")
    assert "connection refused" in page(view_of(replace(busy(), servers=(server,))), (100, 24))[0]


async def test_v_opens_the_stage_and_escape_leaves_it() -> None:
    async with session((80, 24)) as s:
        await s.push(busy())
        await s.press("v")
        assert s.page == "stage"
        assert "tokens per second" in s.text
        await s.press("escape")
        assert s.page == "dashboard"
        await s.press("v", "v")
        assert s.page == "dashboard"


async def test_the_stage_follows_the_figures_and_the_size() -> None:
    async with session((120, 36)) as s:
        await s.run(busy(), 3)
        await s.press("v")
        assert shows(s.rows, "users served", "8")
        await s.push(replace(of_server(running=17), time=busy().time + 4))
        large = shows(s.rows, "users served", "17")
        await s.pilot.resize_terminal(60, 20)
        await s.pilot.pause()
        assert 0 < shows(s.rows, "users served", "17") < large


async def test_a_new_peak_is_announced_on_every_page() -> None:
    async with session((80, 24)) as s:
        await s.run(busy(), 31)
        faster = replace(of_server(rates=Rates(10.0, 140.0)), time=busy().time + 31)
        await s.push(faster)
        assert "new peak 140 tok/s" in s.rows[1]
        await s.press("v")
        assert "new peak 140 tok/s" in s.rows[0]
        assert "new peak" not in s.rows[-1]


async def test_nothing_is_announced_into_a_frozen_view() -> None:
    async with session((80, 24)) as s:
        await s.run(busy(), 31)
        await s.press("v", "p")
        await s.push(replace(of_server(rates=Rates(10.0, 140.0)), time=busy().time + 31))
        assert "new peak" not in s.text
        assert "PAUSED" in s.rows[0]


async def test_a_finished_load_test_announces_its_sweet_spot() -> None:
    result = RunResult("sweep", "well", levels=(LevelResult("c=16", 16, tok_s=113.0),), sweet_spot=16)
    async with session((80, 24)) as s:
        await s.push(busy())
        await s.press("v")
        s.app.load.state = LoadState(Plan(BUSY_SERVER.url, ()))
        s.app.load._inbox.append(Finished(result))
        s.app.post_message(LoadNews())
        await s.pilot.pause()
        assert "sweet spot: 16 users, 113 tok/s" in s.rows[0]


def test_every_gauge_fills_with_the_figure_above_it() -> None:
    pool = replace(UNIFIED_POOL, headroom_bytes=12 * GIB, total_bytes=120 * GIB)
    shown = figures(view_of(replace(of_server(kv_usage=0.9), pools=(pool,))))
    assert [figure.share for figure in shown[2:]] == [0.9, 0.1]  # much is used, and little is left


def test_the_reason_in_the_sentence_is_whole_or_not_there() -> None:
    text = "\n".join(page(view_of(busy()), (40, 12)))
    assert "8 users, 11.8 tok/s each, 3 wait" in text
    assert "…" not in text
