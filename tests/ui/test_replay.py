"""A recording on the screen: what the keys do, and that it looks as it did live."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from cranked_app import Session, session
from fakes.snapshots import BUSY_SERVER, busy
from llmtop.contract.settings import Settings
from llmtop.contract.snapshot import Mark, Snapshot
from llmtop.load import recorded
from llmtop.load.events import LevelStarted
from llmtop.load.plan import Level, Plan
from llmtop.recording.read import open_recording
from llmtop.recording.write import Recorder
from llmtop.ui.keys import REPLAY_KEYS
from llmtop.ui.replay import ReplayApp
from llmtop.warmup import recorded as startups
from llmtop.warmup.evidence import evidence
from llmtop.warmup.recorded import StartupView
from llmtop.warmup.report import make_report
from llmtop.warmup.tracker import read_log
from llmtop_widgets.statusbar import KeyBar

URL = BUSY_SERVER.url


def minute() -> list[Snapshot]:
    """A minute in which the running requests count the seconds, with marks at 20 and 40."""
    return [
        replace(
            busy(),
            time=busy().time + second,
            servers=(replace(BUSY_SERVER, running=second),),
            marks=(Mark("mark", "mark", busy().time + second),) if second in (20, 40) else (),
        )
        for second in range(60)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    recorder = Recorder(tmp_path / "run.jsonl", interval_s=1.0)
    for snapshot in minute():
        recorder.write(snapshot)
    recorder.close()
    return recorder.path


@asynccontextmanager
async def replaying(path: Path, at: int, size: tuple[int, int] = (100, 30)) -> AsyncIterator[Session]:
    """The recording on the screen, paused at a second."""
    app = ReplayApp(Settings(), open_recording(path), at=at, speed=0.25)
    app.player.toggle()
    async with app.run_test(size=size) as pilot:
        s = Session(app, pilot)
        await until(s, lambda: app.latest is not None)
        yield s


async def until(s: Session, holds: Callable[[], object]) -> None:
    """Wait until something holds of the app."""
    async with asyncio.timeout(10):
        while not holds():
            await s.pilot.pause(0.01)
    await s.pilot.pause()


async def at(s: Session, second: int) -> None:
    """Wait until the screen shows a second of the recording."""
    await until(s, lambda: s.app.server is not None and s.app.server.running == second)
    assert f"running {second} " in s.text


async def test_it_shows_what_was_shown_live(path: Path) -> None:
    async with session((100, 30)) as live:
        await live.push(*minute()[:31])
        wanted = live.rows[1:-1]  # without header and keys
    async with replaying(path, 30) as s:
        await at(s, 30)
        assert s.rows[1:-1] == wanted
        assert "REPLAY" in s.rows[0]
        assert "PAUSED" in s.rows[0]
        assert "30s/59s" in s.rows[0]


async def test_every_key_of_a_replay(path: Path) -> None:
    async with replaying(path, 30) as s:
        for key, second in (
            ("left", 20),
            ("right", 30),
            ("greater_than_sign", 40),
            ("less_than_sign", 20),
            ("full_stop", 21),
        ):
            await s.press(key)
            await at(s, second)
        await s.press("L")
        assert " loop " in s.rows[0]
        await s.press("plus", "plus")
        assert " 1x " in s.rows[0]
        await s.press("minus")
        assert " 0.5x " in s.rows[0]
        await s.press("space")
        assert "PAUSED" not in s.rows[0]


async def test_charts_show_what_was_before_the_moment(path: Path) -> None:
    async with replaying(path, 50) as s:
        await at(s, 50)
        await s.press("left")
        await at(s, 40)
        assert s.app.history.columns(URL, "running", 1.0, 5) == [36.0, 37.0, 38.0, 39.0, 40.0]
        assert len(s.app.history.marks) == 2
        await s.press("right")
        await at(s, 50)
        assert s.app.history.columns(URL, "running", 1.0, 12) == [float(second) for second in range(39, 51)]


async def test_nothing_is_done_to_the_past(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with replaying(path, 30) as s:
        before = s.rows
        await s.press("l", "w", "m", "r")
        assert s.page == "dashboard"
        assert s.rows == before
        assert list(tmp_path.iterdir()) == [path]
        assert not [hint for hint in ("l Load", "w Warm-up", "m Mark", "r Record") if hint in s.rows[-1]]


KINDS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
RESULT: dict[str, object] = {  # as recordings hold it
    "level": "c=8",
    "concurrency": 8,
    "output_throughput": 93.4,
    "user_tok_s": 11.7,
    "completed": 64,
    "failed": 0,
    **{f"{kind}_{name}_ms": 80.0 for kind in KINDS for name in ("tpot", "itl")},
    **{f"{kind}_e2el_ms": 10900.0 for kind in KINDS},
    **{f"{kind}_ttft_ms": 1500.0 for kind in KINDS},
    "p99_ttft_ms": 3930.0,
    "flag_reasons": {},
    "interrupted": False,
    "stopped": None,
}


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    """The minute with a load test."""
    return with_load(tmp_path / "loaded.jsonl", RESULT)


def with_load(path: Path, result: dict[str, object]) -> Path:
    """The minute with a load test from 10 on, whose only level ends at 30."""
    level = Level("c=8", 8, 64, 2048, 128)
    begun = [recorded.to_values(item) or {} for item in (Plan(URL, (level,)), LevelStarted(0, level, 0.0))]
    load = {10: begun, 30: [{"what": "LevelDone", "values": {"index": 0, "result": result}}]}
    recorder = Recorder(path, interval_s=1.0)
    for second, snapshot in enumerate(minute()):
        for values in load.get(second, ()):
            recorder.event(recorded.KIND, values | {"time": snapshot.time - 0.1})
        recorder.write(snapshot)
    recorder.close()
    return path


async def test_a_load_test_is_where_it_was(loaded: Path) -> None:
    async with replaying(loaded, 25, (110, 30)) as s:
        await s.press("l")
        assert s.page == "load"
        assert "Concurrency sweep" in s.text
        assert "93.4" not in s.text
        await s.press("right")
        await until(s, lambda: "93.4" in s.text)
        await s.press("left", "left", "left")
        await until(s, lambda: "no load test at this moment" in s.text)


async def test_results_of_another_version_do_not_end_the_replay(tmp_path: Path) -> None:
    async with replaying(with_load(tmp_path / "odd.jsonl", {"level": 7}), 40) as s:
        await s.press("l")
        assert "Concurrency sweep" in s.text


async def test_a_load_test_of_the_past_cannot_be_started_again(loaded: Path) -> None:
    async with replaying(loaded, 5) as s:
        await s.press("l", "f5", "y", "f6", "f7", "f8", "c", "x")
        assert s.page == "load"
        assert "no load test at this moment" in s.text
        assert not s.app.load.running
        assert "F5" not in s.rows[-1]
        await s.press("escape")
        assert s.page == "dashboard"


async def test_a_click_on_a_hint_of_the_load_page_is_its_key(loaded: Path) -> None:
    async with replaying(loaded, 25, (180, 30)) as s:
        await s.press("l")
        await s.pilot.click(KeyBar, offset=(s.rows[-1].index(" Right On 10 s") + 2, 0))
        await until(s, lambda: "93.4" in s.text)


LOG = Path(__file__).parents[1] / "fixtures/startup/gb10-v0.30-suggestion.log"


def with_startup(path: Path, broken: bool = False) -> Path:
    """The minute with a start-up that is seen first at 10, further on at 20, and ready at 30."""
    ready = read_log(LOG.read_text(encoding="utf-8").splitlines())
    first = busy().time + 10

    def seen(phases: int, state: Literal["starting", "ready"]) -> dict[str, object]:
        known = tuple(replace(phase, began=first) for phase in ready.phases[:phases])
        startup = replace(ready, state=state, phase=known[-1].name, phases=known)
        view = StartupView(make_report(startup, evidence(startup)), active=state == "starting")
        return startups.to_values(view) | ({"report": {"startup": 7}} if broken else {})

    events = {10: seen(2, "starting"), 20: seen(3, "starting"), 30: seen(len(ready.phases), "ready")}
    recorder = Recorder(path, interval_s=1.0)
    for second, snapshot in enumerate(minute()):
        if second in events:
            recorder.event(startups.KIND, events[second] | {"time": snapshot.time - 0.1})
        recorder.write(snapshot)
    recorder.close()
    return path


async def test_a_start_up_is_where_it_was_and_opens_its_page_once(tmp_path: Path) -> None:
    async with replaying(with_startup(tmp_path / "run.jsonl"), 5, (120, 40)) as s:
        await at(s, 5)
        assert s.page == "dashboard"
        await s.press("w")
        assert "no start-up at this moment" in s.text
        await s.press("escape", "right")
        await until(s, lambda: s.page == "warmup")
        assert "STARTING  reading weights" in s.text
        await s.press("right", "right")
        await until(s, lambda: "READY" in s.text)
        await s.press("escape", "left")
        await until(s, lambda: s.app.server is not None and s.app.server.running == 25)
        assert s.page == "dashboard"
        await s.press("w")
        assert "STARTING  compilation for" in s.text
        await s.press("left", "left")
        await until(s, lambda: "no start-up at this moment" in s.text)


async def test_without_a_start_up_there_is_no_page_of_it(path: Path) -> None:
    async with replaying(path, 5) as s:
        await s.press("w")
        assert s.page == "dashboard"
        assert "Warm-up" not in s.rows[-1]


async def test_what_was_seen_after_the_last_snapshot_is_seen_at_the_end(tmp_path: Path) -> None:
    path = with_startup(tmp_path / "run.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    ready = next(place for place, text in enumerate(lines) if '"event":"startup"' in text and '"state":"ready"' in text)
    path.write_text("".join([*lines[: ready - 1], lines[ready]]))  # cut off between the two
    async with replaying(path, 20, (120, 40)) as s:
        await until(s, lambda: s.page == "warmup")
        assert "READY" not in s.text
        await s.press("right")
        await until(s, lambda: "READY" in s.text)


async def test_a_start_up_at_no_time_does_not_end_the_replay(tmp_path: Path) -> None:
    path = with_startup(tmp_path / "run.jsonl")
    odd = re.sub(r'"min_headroom_time":null', '"min_headroom_time":1e17', path.read_text())
    path.write_text(odd)
    async with replaying(path, 15, (120, 40)) as s:
        await until(s, lambda: s.page == "warmup")
        assert "→ reading weights" in s.text  # a time that no clock shows counts as not given


async def test_a_start_up_on_a_narrow_screen_keeps_its_headroom(tmp_path: Path) -> None:
    async with replaying(with_startup(tmp_path / "run.jsonl"), 15, (40, 12)) as s:
        await until(s, lambda: s.page == "warmup")
        assert "headroom 23.3 of 119.6 GiB" in s.text
        assert "GiB left" in s.text
        assert re.search(r"reading weights +\d+\.\d s +–", s.text)


async def test_a_start_up_of_another_version_does_not_end_the_replay(tmp_path: Path) -> None:
    async with replaying(with_startup(tmp_path / "run.jsonl", broken=True), 15) as s:
        await s.press("w")
        assert "no start-up at this moment" in s.text


async def test_a_start_up_of_the_past_is_not_watched(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl")
    recorder.write(replace(busy(), servers=(replace(BUSY_SERVER, state="STARTING"),)))  # type: ignore[arg-type]
    recorder.close()
    async with replaying(recorder.path, 0) as s:
        await until(s, lambda: "STARTING" in s.text)
        assert s.page == "dashboard"
        assert not s.app.warmup.active


async def test_the_help_names_the_keys_and_they_do_nothing_live() -> None:
    async with session((100, 60)) as s:
        await s.push(busy())
        before = s.rows
        for row in REPLAY_KEYS:
            await s.press(row.keys[0])
        assert s.rows == before
        await s.press("question_mark")
        assert all(row.text in s.text for row in REPLAY_KEYS)


async def test_on_a_narrow_screen_the_lengths_are_left_out(path: Path) -> None:
    async with replaying(path, 30, (40, 12)) as s:
        await until(s, lambda: "REPLAY" in s.rows[0])
        assert "/59s" not in s.rows[0]
