"""The load page beside a server: the run, the answer, two runs, at every size."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cranked_app import Session, session
from fakes.pages import free_port
from fakes.snapshots import idle
from fakes.truth import TruthServer
from llmtop.demo import profile
from llmtop.demo.child import DemoProcess, launch
from llmtop.demo.machine import SimulatedMachine
from llmtop.ui.screens.load import LoadScreen
from llmtop_widgets.statusbar import KeyBar
from load_page import begin, fill, phase, shows, until, watching

SPEED = 10.0
SIZES = [(40, 12), (80, 24), (120, 40), (200, 50)]


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoProcess]:
    with launch("gb10", no_traffic=True, speed=SPEED) as process:
        yield process


# the run


async def test_a_sweep_from_plan_to_comparison(demo: DemoProcess, tmp_path: Path, state: Path) -> None:
    """The simulation reads 4,093 prompt tokens/s x 10: a burst of 4 waits 0.2 s, one of 16 waits 0.8 s."""
    machine = SimulatedMachine(profile.load("gb10"), demo.control)
    async with watching(demo.url, tmp_path, machine) as s:
        await begin(s, users="2,4,16", prompts="16", slo="ttft_p99=0.45,user_tok_s=6")
        await shows(s, "Slots", "Client", "Server", "0 err", "o first wave")
        hollow = re.compile(
            r".{9}[o• ┄]*o[o• ┄]*"
        )  # a row of dots beside the curve; how many share it is up to the machine
        await until(s, lambda: any(hollow.fullmatch(row[:48]) for row in s.rows), "hollow dots")
        assert "F8 Stop" in s.rows[-1]
        await shows(s, "sweet spot 4", "server back to 0 running")
        assert "knee" in s.text
        assert "first fail c=16: P99 TTFT" in s.text
        assert re.search(r"4 USERS at once, each [\d.]+ tok/s, first word within \d+ ms \(P99 of 16\)", s.text)
        assert re.search(r"16 users: first word after .*; your limit is 450 ms", s.text)
        assert "total tok/s" in s.text  # the curve
        assert all(name in s.text for name in ("c=2", "c=4", "c=16"))
        result = json.loads(next(state.glob("*/run.json")).read_text())
        assert [level["completed"] for level in result["levels"]] == [16, 16, 16]
        assert all(level["headroom_min_bytes"] > 2**34 for level in result["levels"])
        marks = {"load c=2", "load c=4", "load c=16", "load ends"}
        await until(
            s,
            lambda: {mark.text for _, mark in s.app.history.marks if mark.kind == "level"} >= marks,
            "marked the charts",
        )
        await s.press("c")
        await shows(s, "no earlier run of 'sweep'")
        await _second_run(s)


async def _second_run(s: Session) -> None:
    """Another run of the same scenario, beside the first."""
    seed = s.app.load.state.plan.seed if s.app.load.state else None
    await s.press("f7")
    await shows(s, "Users", "time    about")
    await begin(s, users="2,6", prompts="4")
    assert s.app.load.state is not None
    assert s.app.load.state.plan.seed != seed
    await shows(s, "F7 New plan", "server back to 0 running")
    await s.press("c")
    await shows(s, "This run and the one before", "before", "now", "TTFT P99 ms")
    assert "c=2" in s.text
    assert not any(row.lstrip().startswith("c=6") for row in s.rows)  # the first run has none to put beside it
    await s.press("f7")
    await shows(s, "Answer")
    await s.press("c")
    await shows(s, "This run and the one before")
    await s.press("escape")
    await shows(s, "Answer")
    await s.press("escape")
    assert s.page == "dashboard"


@pytest.mark.parametrize("moment", ["preflight", "preparing", "level"])
async def test_stop_works_in_every_phase(truth: TruthServer, tmp_path: Path, moment: str) -> None:
    truth.script(ttft_s=0.7, itl_s=0.02)
    async with watching(truth.url, tmp_path) as s:
        await begin(s, users="4", prompts="8", input="16", output="60")
        await until(s, lambda: phase(s) == moment and truth.state()["running"], moment)
        await s.press("f8")
        stopped = time.monotonic()
        await until(s, lambda: truth.state()["running"] == 0, "an idle server")
        assert time.monotonic() - stopped < 1.0
        await until(s, lambda: phase(s) == "finished", "the end")
        requests = truth.state()["requests"]
        await shows(s, "server back to 0 running", "F7 New plan")
        assert s.app.load.state is not None
        assert s.app.load.state.result is not None
        assert s.app.load.state.result.interrupted
        assert truth.state()["requests"] == requests


async def test_leaving_the_page_keeps_the_run_and_coming_back_can_stop_it(truth: TruthServer, tmp_path: Path) -> None:
    truth.script(ttft_s=0.01, itl_s=0.01)
    async with watching(truth.url, tmp_path) as s:
        await begin(s, users="4", prompts="400", input="16", output="100")
        await until(s, lambda: truth.state()["running"] == 4, "four users")
        await s.press("escape")
        assert s.page == "dashboard"
        sent = truth.state()["requests"]
        await until(s, lambda: truth.state()["requests"] > sent, "more requests")
        await s.press("l")
        await shows(s, "Slots", "F8 Stop")
        await s.press("x")
        await shows(s, "interrupted", "server back to 0 running")
    assert truth.state()["running"] == 0


async def test_quitting_stops_the_run(truth: TruthServer, tmp_path: Path) -> None:
    truth.script(ttft_s=0.01, itl_s=0.01)
    async with watching(truth.url, tmp_path) as s:
        await begin(s, users="4", prompts="400", input="16", output="100")
        await until(s, lambda: truth.state()["running"] == 4, "four users")
        workers = [p for p in psutil.Process().children() if "llmtop.load.worker" in p.cmdline()]
        assert len(workers) == 1
        s.app.action_leave()
    deadline = time.monotonic() + 1.0
    while truth.state()["running"] or workers[0].is_running():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_server_that_is_not_there_is_no_result(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with session((100, 30)) as s:
        await s.push(replace(idle(), servers=(replace(idle().servers[0], url=url),)))
        await s.press("l")
        await begin(s)
        await shows(s, "no result", url, "F7 New plan")
        await s.press("c")
        assert "no result" in s.text
        await s.press("f7")
        await shows(s, "Users")


async def test_a_server_that_only_fails_says_how(truth: TruthServer, tmp_path: Path) -> None:
    truth.script(ttft_s=0.001, itl_s=0.0, fail="error", fail_after=2)
    async with watching(truth.url, tmp_path) as s:
        await begin(s, users="2", prompts="6", input="16", output="8")
        await shows(s, "errors  c=2: 6 stream_error", "scripted error", "sweet spot –")


async def test_the_hints_can_be_clicked(demo: DemoProcess, tmp_path: Path) -> None:
    async with watching(demo.url, tmp_path) as s:

        async def click(hint: str) -> None:
            await shows(s, f" {hint} ")
            await s.pilot.click(KeyBar, offset=(s.rows[-1].index(f" {hint} ") + 2, 0))
            await s.pilot.pause()

        await click("F6 Scenario")
        assert "Quick sweep" in s.text
        await click("F5 Start")
        await click("n No")
        await shows(s, "nothing was sent")
        await fill(s, users="1", input="32", output="4", seconds="0.2")
        await click("F5 Start")
        await click("y Yes")
        await click("F7 New plan")
        await shows(s, "Users")
        await click("Esc Back")
        assert s.page == "dashboard"


# sizes


async def test_every_size_in_every_phase(truth: TruthServer, tmp_path: Path) -> None:
    truth.script(ttft_s=0.05, itl_s=0.02)
    async with watching(truth.url, tmp_path) as s:
        await every_size(s)
        await s.press("f5")
        await shows(s, "y yes")
        await every_size(s)
        await s.press("n")
        await begin(s, users="40", prompts="400", input="16", output="100")
        await shows(s, "Slots")
        await every_size(s)
        await s.press("f8")
        await shows(s, "F7 New plan")
        await every_size(s)


async def every_size(s: Session) -> None:
    for size in SIZES:
        await s.pilot.resize_terminal(*size)
        await s.pilot.pause()
        assert isinstance(s.app.screen, LoadScreen)
        assert_fits(s)
    await s.pilot.resize_terminal(100, 30)
    await s.pilot.pause()


def assert_fits(s: Session) -> None:
    columns, rows = s.app.size
    strips = s.app.screen._compositor.render_strips(s.app.size)
    assert [strip.cell_length for strip in strips] == [columns] * rows
    for widget in s.app.screen.query("*"):
        if widget.display and widget.region.area:
            assert s.app.screen.region.contains_region(widget.region), widget
