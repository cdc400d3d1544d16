"""The app at every size, with every kind of text, in every palette; its pages and its pause."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from textual.widgets import Input

from cranked_app import Session, session
from fakes.snapshots import ALL, BUSY_SERVER, GIB, NOON, busy, data_parallel, hostile, three_servers, unknown
from llmtop.contract.settings import FleetAddress, Settings, Target, parse_node, parse_target
from llmtop.contract.snapshot import Device
from llmtop.machine.sample import Dip, MachineSample, MemInfo
from llmtop.ui.app import LlmtopApp
from llmtop.ui.screens.dashboard import DashboardScreen
from llmtop.ui.session import asking
from llmtop.ui.source import Live
from llmtop.ui.themes import THEMES
from llmtop_widgets.linetable import LineTable

SIZES = [(40, 12), (60, 20), (80, 24), (100, 30), (132, 43), (200, 50), (250, 80), (10, 3), (1, 1)]
PAGES = {"dashboard": "d", "engines": "e", "gpus": "g", "help": "question_mark", "load": "l", "stage": "v"}


def assert_fits(s: Session) -> None:
    """Every row is exactly as wide as the screen and no widget reaches out of it."""
    columns, rows = s.app.size
    strips = s.app.screen._compositor.render_strips(s.app.size)
    assert [strip.cell_length for strip in strips] == [columns] * rows
    for widget in s.app.screen.query("*"):
        if widget.display and widget.region.area and columns >= 40:
            assert s.app.screen.region.contains_region(widget.region) or s.page in ("help", "load"), widget


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_every_page_shows_everything_at_every_size(size: tuple[int, int]) -> None:
    async with session(size) as s:
        for page, key in PAGES.items():
            await s.press(key)
            for _ in range(200):  # a page is imported when it is first opened
                if s.page == page:
                    break
                await s.pilot.pause(0.05)
            assert s.page == page
            for snapshot in ALL.values():
                await s.push(snapshot())
                assert_fits(s)
            if page != "dashboard":
                await s.press("escape")


@pytest.mark.parametrize("page", PAGES)
async def test_a_resize_never_breaks_a_page(page: str) -> None:
    async with session() as s:
        await s.run(busy(), 3)
        await s.press(PAGES[page])
        for size in [*SIZES, *reversed(SIZES)]:
            await s.pilot.resize_terminal(*size)
            await s.pilot.pause()
            assert s.app.size == size
            assert_fits(s)


@pytest.mark.parametrize("theme", THEMES)
async def test_every_theme_draws_every_page(theme: str) -> None:
    async with session(theme=theme) as s:
        assert s.app.theme == theme
        await s.run(busy(), 3)
        for key in PAGES.values():
            await s.press(key)
            assert_fits(s)
            await s.press("escape")


@pytest.mark.parametrize(("theme", "dark"), [("llmtop", True), ("llmtop-light", False)])
async def test_light_and_dark_are_what_they_say(theme: str, dark: bool) -> None:
    async with session(theme=theme) as s:
        await s.push(busy())
        grounds = {
            segment.style.bgcolor.get_truecolor().red
            for strip in s.app.screen._compositor.render_strips(s.app.size)[4:10]
            for segment in strip
            if segment.style and segment.style.bgcolor
        }
        assert grounds
        assert all((ground < 100) is dark for ground in grounds)


@pytest.mark.parametrize("page", PAGES)
async def test_foreign_text_is_shown_as_text(page: str) -> None:
    async with session((132, 43)) as s:
        await s.push(hostile())
        await s.press(PAGES[page])
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", s.text)
        if page not in ("help", "load", "stage"):
            assert "[bold red]mark" in s.text


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("ascii_glyphs")
async def test_the_ascii_set_is_all_there_is(page: str) -> None:
    async with session((132, 43)) as s:
        for make in ALL.values():
            await s.run(make(), 3)
            await s.press(PAGES[page])
            assert [row for row in s.rows if not row.isascii()] == []
            await s.press("escape")


async def test_unknown_figures_are_dashes_on_every_page() -> None:
    async with session((132, 43)) as s:
        await s.push(unknown())
        await s.press("e")
        (row,) = [row for row in s.rows[1:] if "mystery" in row]
        assert row.split()[2:8] == ["SERVING", "–", "–", "–", "–", "–"]
        await s.press("g")
        (row,) = [row for row in s.rows if "NVIDIA Thing" in row]
        assert row.split()[3:] == ["OK", "–", "–", "–", "–", "–"]


async def test_the_first_frame_comes_before_any_data() -> None:
    async with session() as s:
        assert "looking for model servers" in s.rows[0]
        assert "q Quit" in s.rows[-1]
        assert "running –" in s.text


async def test_a_burst_of_snapshots_is_all_kept_and_the_last_is_shown() -> None:
    async with session() as s:
        for second in range(50):
            server = replace(BUSY_SERVER, running=second)
            s.app.inbox.append(replace(busy(), time=NOON + second, servers=(server,)))
        await s.push(replace(busy(), time=NOON + 50))
        columns = s.app.history.columns(BUSY_SERVER.url, "running", 1.0, 51)
        assert columns == [*map(float, range(50)), 8.0]
        assert "running 8 of 32" in s.text


async def test_a_paused_view_keeps_collecting_and_shows_it_all_afterwards() -> None:
    async with session((132, 43)) as s:
        await s.run(busy(), 5)
        await s.press("p")
        frozen = s.rows
        for second in range(5, 25):
            server = replace(BUSY_SERVER, running=30, kv_usage=0.99)
            await s.push(replace(busy(), time=NOON + second, servers=(server,)))
        assert s.rows == frozen
        await s.press("space")
        assert "running 30 of 32" in s.text
        columns = s.app.history.columns(BUSY_SERVER.url, "running", 1.0, 25)
        assert columns == [8.0] * 5 + [30.0] * 20


async def test_going_to_another_page_while_paused_does_not_thaw() -> None:
    async with session((132, 43)) as s:
        await s.push(busy())
        await s.press("p", "e", "escape")
        assert "PAUSED" in s.rows[0]


async def test_tab_goes_round_the_servers() -> None:
    async with session((132, 43)) as s:
        await s.push(three_servers())
        names = []
        for _ in range(4):
            names.append(s.rows[0].split()[1])
            await s.press("tab")
        assert names == ["alpha", "beta", "gamma", "alpha"]
        await s.press("shift+tab", "shift+tab")
        assert s.rows[0].split()[1] == "gamma"
        assert "DOWN" in s.rows[0]


async def test_a_selected_server_that_vanishes_gives_way_to_the_first() -> None:
    async with session((132, 43)) as s:
        await s.push(three_servers())
        await s.press("tab")
        assert "beta" in s.rows[0]
        await s.push(replace(three_servers(), servers=three_servers().servers[::2]))
        assert "alpha" in s.rows[0]
        await s.push(three_servers())
        assert "beta" in s.rows[0]


async def test_enter_on_a_row_shows_that_server() -> None:
    async with session((132, 43)) as s:
        await s.push(three_servers())
        await s.press("e", "down", "enter")
        assert s.page == "dashboard"
        assert "beta" in s.rows[0]
        assert "93.0 %" in s.text


async def test_data_parallel_engines_have_rows_of_their_own() -> None:
    async with session((132, 43)) as s:
        await s.push(data_parallel())
        await s.press("e")
        table = s.app.screen.query_one(LineTable)
        assert len(table.rows) == 5
        assert re.search(r"all 4.*SERVING +▄+▁+ +87\.0 % +22 +6 +206 +400,000", s.text)
        assert re.search(r"2 +gpt-oss-120b +SERVING +▄+▁+ +87\.0 % +6 +2 +52\.0", s.text)


async def test_sorting_by_a_click_and_back_by_another() -> None:
    async with session((132, 43)) as s:
        await s.push(three_servers())
        await s.press("e")
        row = next(row for row in s.rows if " run " in row)
        head = (row.index(" run ") + 2, 0)
        await s.pilot.click(LineTable, offset=head)
        await s.pilot.pause()
        assert order(s) == ["beta", "alpha", "gamma"]
        await s.pilot.click(LineTable, offset=head)
        await s.pilot.pause()
        assert order(s) == ["gamma", "alpha", "beta"]


async def test_a_filter_is_typed_kept_and_left() -> None:
    async with session((132, 43)) as s:
        await s.push(three_servers())
        await s.press("e", "slash", *"LLAMA", "enter")
        assert order(s) == ["beta"]
        await s.push(three_servers())
        assert order(s) == ["beta"]
        await s.press("escape")
        assert s.page == "engines"
        assert order(s) == ["alpha", "beta", "gamma"]
        assert s.app.screen.query_one(Input).has_class("hidden")
        await s.press("escape")
        assert s.page == "dashboard"


def order(s: Session) -> list[str]:
    """The servers of the table from the top."""
    words = [row.split()[0] for row in s.rows[1:-1] if row.strip()]
    return [word for word in words if word in ("alpha", "beta", "gamma")]


async def test_every_device_and_process_has_a_row() -> None:
    async with session((160, 43)) as s:
        await s.push(ALL["h200x8"]())
        await s.press("g")
        assert s.text.count("NVIDIA H200") == 8
        assert s.text.count("VLLM::Worker_TP") == 7
        assert "power cap, thermal" in s.text
        assert re.search(r"LOST.*fell off the bus", s.text)


async def test_the_help_has_every_key_and_scrolls() -> None:
    async with session((100, 20)) as s:
        await s.press("question_mark")
        seen = s.text
        for _ in range(6):
            await s.press("pagedown")
            seen += s.text
        for words in ("Ctrl+L", "Screenshot", "low-water", "the source did not say"):
            assert words in seen


async def test_the_help_of_a_narrow_screen_has_its_texts() -> None:
    async with session((40, 12)) as s:
        await s.press("question_mark")
        assert re.search(r"l +Load\s+Plan a load test of the selected\s+server;", s.text)
        assert "…" not in "".join(s.rows[1:])


async def test_the_screen_does_not_change_while_nothing_does() -> None:
    async with session((132, 43)) as s:
        snapshot = busy()
        await s.push(snapshot)
        before = s.rows
        await s.push(replace(snapshot, time=snapshot.time))
        assert [row for row in s.rows if row not in before] == []


class Gauge:
    """A machine whose headroom is what the test says, read by the real poller."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.available = total
        self.dips: dict[str, Dip] = {}

    def start(self) -> None:
        """Nothing to open."""

    def sample(self) -> MachineSample:
        """What is available now, and the dip since the last reading."""
        dips, self.dips = self.dips, {}
        mem = MemInfo(total=self.total, available=self.available, free=self.available)
        device = Device(0, "GPU-x", "NVIDIA GB10", unified=True)
        return MachineSample(time.time(), mem=mem, devices=(device,), dips=dips)

    def ready(self) -> bool:
        """Always."""
        return True

    def stop(self) -> None:
        """Nothing to close."""


async def test_a_mark_begins_a_new_low_water_epoch() -> None:
    machine = Gauge(120 * GIB)
    app = LlmtopApp(settings := replace(Settings(), interval_s=0.2), Live(settings, machine))
    async with app.run_test(size=(132, 43)) as pilot:
        s = Session(app, pilot)
        machine.dips = {"unified": Dip(10 * GIB, time.time())}
        await until(s, lambda: "low-water 10.0" in s.text)
        machine.available = 50 * GIB
        await until(s, lambda: "headroom 50.0 of 120.0 GiB" in s.text)
        assert "low-water 10.0" in s.text
        await s.press("m")
        await until(s, lambda: "low-water 50.0" in s.text)
        assert [mark.kind for _, mark in app.history.marks] == ["mark"]
        machine.available = 40 * GIB
        await until(s, lambda: "low-water 40.0" in s.text)


async def until(s: Session, condition: Callable[[], bool], patience_s: float = 10.0) -> None:
    """Wait until a condition holds; fail with the screen otherwise."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, s.text
        await s.pilot.pause(0.02)


async def test_faster_and_slower_reach_the_poller() -> None:
    machine = Gauge(GIB)
    app = LlmtopApp(settings := replace(Settings(), interval_s=60.0), Live(settings, machine))
    async with app.run_test(size=(80, 24)) as pilot:
        s = Session(app, pilot)
        await until(s, lambda: app.latest is not None)
        first = app.latest
        await s.press(*["plus"] * 8)
        assert app.interval_s == 0.2
        await until(s, lambda: app.latest is not first and len(app.history.columns("pool", "x", 1.0, 1)) == 1)
        second = app.latest
        await until(s, lambda: app.latest is not second)


async def test_a_dead_poller_is_a_crash_and_not_a_silent_screen() -> None:
    class Broken(Gauge):
        def sample(self) -> MachineSample:
            raise ZeroDivisionError("a bug")

    app = LlmtopApp(Settings(), Live(Settings(), Broken(GIB)))
    with pytest.raises(ZeroDivisionError):
        async with app.run_test(size=(80, 24)) as pilot:
            await until(Session(app, pilot), lambda: not app.is_running)


@pytest.mark.parametrize("size", [(10, 3), (19, 30), (100, 7)])
async def test_a_tiny_terminal_has_no_list_of_commands(size: tuple[int, int]) -> None:
    async with session(size) as s:
        await s.push(busy())
        await s.press("ctrl+p", "pagedown", "pagedown")
        assert isinstance(s.app.screen, DashboardScreen)


async def test_the_list_of_commands_closes_when_its_room_goes() -> None:
    async with session((80, 24)) as s:
        await s.push(busy())
        await s.press("ctrl+p")
        assert not isinstance(s.app.screen, DashboardScreen)
        await s.pilot.resize_terminal(10, 3)
        await s.press("pagedown", "pagedown")
        assert isinstance(s.app.screen, DashboardScreen)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(), "looking for model servers on this host"),
        (Settings((parse_target("http://you:pass@gpu7:8000"),)), "asking gpu7:8000"),
        (Settings((Target("http://a:1"), Target("http://b:2")), found=True), "looking for model servers on this host"),
        (Settings((Target("http://a:1"),), (parse_node("ssh://me@box"),)), "asking a:1 and 1 more"),
        (
            Settings(fleet=FleetAddress(parse_target("https://me:pass@mimir/prom"))),
            "asking Prometheus at https://mimir/prom",
        ),
    ],
    ids=["found", "named", "discovered", "node", "fleet"],
)
def test_before_the_first_answer_it_says_who_is_asked(settings: Settings, words: str) -> None:
    assert asking(settings) == words
