"""Every key of the table, pressed once, and every hint of the key bar, clicked once."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.command import CommandPalette

from cranked_app import Session, session
from fakes.snapshots import BUSY_SERVER, busy, three_servers
from llmtop.load.plan import Plan
from llmtop.ui.keys import KEYS, Key
from llmtop.ui.load_state import LoadState
from llmtop.ui.panels.board import PANELS
from llmtop.ui.themes import THEMES
from llmtop_widgets.statusbar import KeyBar

Act = Callable[[], Awaitable[None]]
Check = Callable[[Session, Act], Awaitable[None]]


def opens(page: str) -> Check:
    """The action shows this page."""

    async def check(s: Session, act: Act) -> None:
        await act()
        assert s.page == page

    return check


async def _mark(s: Session, act: Act) -> None:
    await act()
    assert "mark set" in s.text


async def _record(s: Session, act: Act) -> None:
    await act()
    files = list(Path.cwd().glob("llmtop-*.jsonl"))
    assert len(files) == 1
    assert files[0].stat().st_mode & 0o777 == 0o600
    assert "REC" in s.rows[0]
    await act()
    assert "REC" not in s.rows[0]


async def _dashboard(s: Session, act: Act) -> None:
    await s.press("e")
    assert s.page == "engines"
    await act()
    assert s.page == "dashboard"


async def _panel(s: Session, act: Act) -> None:
    await act()
    assert "What it means" in s.text
    assert " Esc Back " in s.rows[-1]
    await s.press("escape")
    assert "What it means" not in s.text


async def _pause(s: Session, act: Act) -> None:
    await s.run(busy(), 3)
    await act()
    assert "PAUSED" in s.rows[0]
    later = replace(busy(), time=busy().time + 10, servers=(replace(BUSY_SERVER, running=17),))
    await s.push(later)
    assert "running 8 " in s.text
    assert s.app.history.columns(BUSY_SERVER.url, "running", 1.0, 1) == [17.0]
    await act()
    assert "PAUSED" not in s.text
    assert "running 17 " in s.text


def selects(name: str) -> Check:
    """The action shows this one of three servers."""

    async def check(s: Session, act: Act) -> None:
        await s.push(three_servers())
        assert "alpha" in s.rows[0]
        await act()
        assert name in s.rows[0]

    return check


def zooms(step: str) -> Check:
    """The action gives the columns of the charts this width."""

    async def check(s: Session, act: Act) -> None:
        await act()
        assert f"charts: {step} per column" in s.text

    return check


def polls(seconds: str) -> Check:
    """The action sets this interval."""

    async def check(s: Session, act: Act) -> None:
        await act()
        assert f"polling every {seconds} s" in s.text

    return check


async def _theme(s: Session, act: Act) -> None:
    assert s.app.theme == THEMES[0]
    await act()
    assert s.app.theme == THEMES[1]
    assert f"theme {THEMES[1]}" in s.text


async def _save_screen(s: Session, act: Act) -> None:
    await act()
    (file,) = Path.cwd().glob("llmtop-*.svg")
    assert file.read_text().startswith("<svg")
    assert f"saved {file.name}" in s.text


async def _sort(s: Session, act: Act) -> None:
    await s.push(three_servers())
    await s.press("e")
    assert _order(s) == ["alpha", "beta", "gamma"]
    for _ in range(3):  # model, state, then KV, the fullest first
        await act()
    assert _order(s) == ["beta", "alpha", "gamma"]


def _order(s: Session) -> list[str]:
    words = [row.split()[0] for row in s.rows if row.strip()]
    return [word for word in words if word in ("alpha", "beta", "gamma")]


async def _filter(s: Session, act: Act) -> None:
    await s.push(three_servers())
    await s.press("e")
    await act()
    await s.press(*"bet")
    assert _order(s) == ["beta"]


async def _repaint(s: Session, act: Act) -> None:
    before = s.rows
    await act()
    assert s.rows == before


async def _back(s: Session, act: Act) -> None:
    await s.press("g")
    assert s.page == "gpus"
    await act()
    assert s.page == "dashboard"


async def _palette(s: Session, act: Act) -> None:
    await act()
    assert isinstance(s.app.screen, CommandPalette)


async def _leave(s: Session, act: Act) -> None:
    assert s.app.return_code is None
    await act()
    assert s.app.return_code == 0


CHECKS: dict[str, Check] = {
    "load": opens("load"),
    "warmup": opens("warmup"),
    "mark": _mark,
    "record": _record,
    "engines": opens("engines"),
    "nodes": opens("nodes"),
    "gpus": opens("gpus"),
    "dashboard": _dashboard,
    "stage": opens("stage"),
    "panel('{key}')": _panel,
    "pause": _pause,
    "next_server": selects("beta"),
    "previous_server": selects("gamma"),
    "zoom(1)": zooms("5 s"),
    "zoom(-1)": zooms("1 s"),
    "faster": polls("0.5"),
    "slower": polls("2"),
    "theme": _theme,
    "save_screen": _save_screen,
    "sort": _sort,
    "filter": _filter,
    "repaint": _repaint,
    "help": opens("help"),
    "back": _back,
    "command_palette": _palette,
    "leave": _leave,
}


def test_no_key_is_untested() -> None:
    assert set(CHECKS) == {row.action for row in KEYS}


@pytest.mark.parametrize(("row", "key"), [(row, key) for row in KEYS for key in row.keys], ids=lambda x: str(x)[:24])
async def test_every_key_does_what_its_row_says(
    row: Key, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with session() as s:
        await s.push(busy())
        await CHECKS[row.action](s, lambda: s.press(key))


FOOTER = [row for row in KEYS if row.footer or row.screens or row.action == "back"]


@pytest.mark.parametrize("row", FOOTER, ids=lambda row: row.action)
async def test_every_hint_of_the_key_bar_can_be_clicked(
    row: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with session((180, 30)) as s:
        await s.push(busy())

        async def click() -> None:
            hint = f" {row.shown or row.keys[0]} {row.label} "
            assert hint in s.rows[-1]
            await s.pilot.click(KeyBar, offset=(s.rows[-1].index(hint) + 2, 0))
            await s.pilot.pause()

        await CHECKS[row.action](s, click)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50), (40, 12)], ids=str)
async def test_enter_goes_through_the_panels_and_each_has_its_figures_and_its_words(size: tuple[int, int]) -> None:
    async with session(size) as s:
        await s.run(busy(), 90)
        for panel in (*PANELS, PANELS[0]):
            await s.press("enter")
            assert f" {panel.facts(s.app._view(), size[0], 14)[0][0].text} " in s.rows[3]
            assert size[1] < 24 or panel.chart is None or re.search(r"now\s*$", s.text, re.MULTILINE)
            assert size[1] < 24 or panel.terms[0].text.split()[0] in s.text
        await s.press("2")
        assert " Memory " in s.rows[3]
        await s.press("escape", "enter")  # the one that was there last
        assert " Memory " in s.rows[3]


async def test_a_click_on_a_panel_gives_it_the_screen_and_the_next_click_gives_it_back() -> None:
    async with session((200, 50)) as s:
        await s.run(busy(), 3)
        for title in ("KV CACHE", "Latency ──", "Events ──"):
            row = next(place for place, text in enumerate(s.rows) if title in text)
            await s.pilot.click(offset=(s.rows[row].index(title) + 2, row))
            await s.pilot.pause()
            assert "What it means" in s.text
            assert title[:3].title() in s.rows[3].title()
            await s.pilot.click(offset=(50, 20))
            await s.pilot.pause()
            assert "What it means" not in s.text


async def test_a_panels_key_leads_to_its_words_in_the_help() -> None:
    async with session((100, 20)) as s:
        await s.press("question_mark", "5")
        await s.pilot.pause()
        assert "TPOT" in s.text
        assert "(E2EL − TTFT) ÷ (tokens − 1)" in s.text
        await s.press("enter")
        await s.pilot.pause()
        assert "share of the KV blocks" in s.text


async def test_the_least_and_the_longest_interval_are_kept() -> None:
    async with session() as s:
        await s.push(busy())
        await s.press(*["plus"] * 12)
        assert s.app.interval_s == 0.2
        await s.press(*["minus"] * 20)
        assert s.app.interval_s == 60.0


async def test_zooming_ends_at_both_ends() -> None:
    async with session() as s:
        await s.push(busy())
        await s.press(*["right_square_bracket"] * 9)
        assert "charts: 60 s per column" in s.text
        await s.press(*["left_square_bracket"] * 9)
        assert "charts: 1 s per column" in s.text


async def test_keys_typed_into_the_filter_stay_there() -> None:
    async with session() as s:
        await s.push(three_servers())
        await s.press("e", "slash", "q")
        assert s.app.return_code is None
        assert s.page == "engines"
        await s.press("ctrl+c")
        assert s.app.return_code == 0


async def test_a_screenshot_that_cannot_be_written_is_said_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_text", _refuse)
    async with session() as s:
        await s.push(busy())
        await s.press("s")
        assert "No space left on device" in s.text
        assert s.app.return_code is None


def _refuse(path: Path, *args: object) -> int:
    raise OSError(28, "No space left on device", str(path))


async def test_the_command_palette_runs_a_command_of_the_table() -> None:
    async with session() as s:
        await s.push(busy())
        await s.press("ctrl+p", *"gpus")
        await s.press("enter", "enter")
        assert s.page == "gpus"


async def test_a_running_load_test_is_a_badge_and_is_not_ended_by_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with session() as s:
        await s.push(busy())
        s.app.load.state = LoadState(Plan(BUSY_SERVER.url, ()))
        monkeypatch.setattr(type(s.app.load), "running", property(lambda _: True))
        monkeypatch.setattr(s.app.load, "leave", lambda **_: None)
        await s.push(busy())
        assert "LOAD" in s.rows[0]
        await s.press("q")
        assert s.app.is_running
        assert "once more stops it and quits" in s.text
        await s.press("q")
        assert s.app.return_code == 0
