"""The stage: four figures large enough for the back row at every size, one chart, a banner for a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cranked_app import session
from fakes.snapshots import ALL, BUSY_SERVER, GIB, UNIFIED_POOL, busy, down, gh200, stale, unknown
from llmtop.contract.snapshot import Rates, ServerView, Snapshot
from llmtop.load.events import Finished
from llmtop.load.plan import Plan
from llmtop.load.results import LevelResult, RunResult
from llmtop.session.history import History
from llmtop.ui.load_state import LoadState
from llmtop.ui.messages import LoadNews
from llmtop.ui.panels.stage import Grid, best_grid, figures, stage_page
from llmtop.ui.panels.view import Scales, View
from llmtop_widgets.bigtext import big_lines
from llmtop_widgets.linewidget import STYLE_NAMES
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


def digits_below(rows: list[str], label: str, grid: Grid) -> str:
    """The large digits below a label, read back from their pixels."""
    top = next(number for number, row in enumerate(rows) if label in row)
    left = rows[top].index(label)
    heights = (grid.tall, grid.tall + grid.stretch) * 2 + (grid.tall,)
    starts = [top + 1 + sum(heights[:number]) for number in range(5)]
    bitmap = [rows[start][left:].ljust(300) for start in starts]
    text, column = "", 0
    while column < 150:
        found = next((c for c in "0123456789.%–<k" if _is_at(bitmap, column, c, grid.wide)), None)
        if found is None:
            break
        text, column = text + found, column + (len(big_lines(found, narrow=True)[0][0].text) + 1) * grid.wide
    return text


def _is_at(bitmap: list[str], column: int, character: str, wide: int) -> bool:
    wanted = ["".join(pixel * wide for pixel in plain(row)) for row in big_lines(character, narrow=True)]
    cells = len(wanted[0])
    clear = all(row[column + cells : column + cells + wide].strip() == "" for row in bitmap)
    return clear and [row[column : column + cells] for row in bitmap] == wanted


def grid_of(view: View, size: tuple[int, int]) -> Grid:
    """The grid that the page of this size uses: the thickest strokes that its digits show."""
    rows = page(view, size)
    top = next(number for number, row in enumerate(rows) if "users served" in row)
    below = rows[top + 1 :]
    left = rows[top].index("users served")
    blank = next(number for number, row in enumerate(below) if not row.strip())
    column = "".join("#" if row[left] != " " else " " for row in below[:blank])
    wide = len(below[0][left:].split(" ")[0]) // 3
    tall = len(column) // 5
    return Grid(2, wide, tall, (len(column) - 5 * tall) // 2)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_four_figures_are_large_and_right(size: tuple[int, int]) -> None:
    view = view_of(busy())
    grid, rows = grid_of(view, size), page(view, size)
    assert digits_below(rows, "tokens per second", grid) == "94"
    assert digits_below(rows, "users served", grid) == "8"
    assert digits_below(rows, "KV cache", grid) == "61%"
    assert digits_below(rows, "headroom, GiB", grid) == "23.3"
    assert "gpt-oss-120b" in "\n".join(rows[:3])
    assert "SERVING" in "\n".join(rows[:3])
    assert "now" in rows[-1]


@pytest.mark.parametrize(
    ("cells", "rows", "grid"),
    [
        (58, 14, Grid(2, 2, 1, 0)),
        (78, 18, Grid(2, 2, 1, 1)),
        (118, 23, Grid(2, 4, 2, 0)),
        (198, 12, Grid(4, 3, 2, 0)),
        (248, 55, Grid(2, 9, 5, 0)),
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
    rows = page(view, (120, 36))
    assert digits_below(rows, "tokens per second", Grid(2, 3, 2, 0)) == "12.4k"
    assert digits_below(rows, "KV cache", Grid(2, 4, 2, 0)) == "61%"


@pytest.mark.parametrize(
    ("state", "word", "style"), [("low", "LOW", "low"), ("critical", "CRITICAL", "alarm"), ("ok", None, "value")]
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
        assert digits_below(s.rows, "users served", Grid(2, 4, 2, 0)) == "8"
        await s.push(replace(of_server(running=17), time=busy().time + 4))
        assert digits_below(s.rows, "users served", Grid(2, 4, 2, 0)) == "17"
        await s.pilot.resize_terminal(60, 20)
        await s.pilot.pause()
        assert digits_below(s.rows, "users served", Grid(2, 2, 1, 0)) == "17"


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
