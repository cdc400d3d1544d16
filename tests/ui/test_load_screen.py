"""The load page against the simulated server: the plan, the run, the answer, two runs, at every size."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from textual.widgets import Input

from cranked_app import Session, session
from fakes.demo_client import metrics
from fakes.pages import free_port
from fakes.snapshots import BUSY_SERVER, SilentMachine, busy, idle
from fakes.truth import TruthServer, truth_server
from llmtop.config import Settings, Target
from llmtop.load.scenarios import SCENARIOS
from llmtop.sources.base import MachineSource
from llmtop.sources.demo import profile
from llmtop.sources.demo.child import DemoProcess, launch
from llmtop.sources.demo.machine import SimulatedMachine
from llmtop.ui.app import LlmtopApp
from llmtop.ui.screens.load import LoadScreen
from llmtop_widgets.statusbar import KeyBar

SPEED = 20.0
PATIENCE_S = 40.0
SIZES = [(40, 12), (80, 24), (120, 40), (200, 50)]


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoProcess]:
    with launch("gb10", no_traffic=True, speed=SPEED) as process:
        yield process


@pytest.fixture(scope="module")
def truth() -> Iterator[TruthServer]:
    with truth_server() as server:
        yield server


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "llmtop" / "runs"


@asynccontextmanager
async def watching(
    url: str, folder: Path, machine: MachineSource | None = None, size: tuple[int, int] = (100, 30)
) -> AsyncIterator[Session]:
    """The app beside a server, with its first page on the screen and the load page open."""
    settings = Settings(targets=(Target(url, max_num_seqs=32),), interval_s=0.5, procfs=folder, sysfs=folder)
    app = LlmtopApp(settings, machine or SilentButReady())
    async with app.run_test(size=size) as pilot:
        s = Session(app, pilot)
        await until(s, lambda: app.server is not None and app.server.model is not None, "a server with a model")
        await s.press("l")
        yield s


class SilentButReady(SilentMachine):
    """A machine of which nothing is known, and whose driver opens at once."""

    def start(self) -> None:
        pass


async def until(s: Session, holds: Callable[[], object], what: str) -> None:
    """Let the app work until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never {what}:\n{s.text}"
        await s.pilot.pause(0.02)


async def shows(s: Session, *words: str) -> None:
    await until(s, lambda: all(word in s.text for word in words), f"showed {words}")


async def fill(s: Session, **fields: str) -> None:
    """Type into the fields of the plan."""
    for name, text in fields.items():
        s.app.screen.query_one(f"#field-{name}", Input).value = text
    await s.pilot.pause()


async def begin(s: Session, **fields: str) -> None:
    """Start a run of this size, with one yes."""
    await fill(s, **fields)
    await s.press("f5")
    await shows(s, "y yes")
    await s.press("y")
    assert s.app.load.state is not None


def phase(s: Session) -> str:
    assert s.app.load.state is not None
    return s.app.load.state.phase


def asked(demo: DemoProcess) -> float:
    """How many requests have reached the routes that make tokens."""
    found = metrics(demo.url)
    return sum(n for key, n in found.items() if key.startswith("http_requests_total") and "completions" in key)


def assert_fits(s: Session) -> None:
    columns, rows = s.app.size
    strips = s.app.screen._compositor.render_strips(s.app.size)
    assert [strip.cell_length for strip in strips] == [columns] * rows
    for widget in s.app.screen.query("*"):
        if widget.display and widget.region.area:
            assert s.app.screen.region.contains_region(widget.region), widget


# the plan


async def test_opening_and_looking_through_the_scenarios_sends_nothing(demo: DemoProcess, tmp_path: Path) -> None:
    before = asked(demo)
    async with watching(demo.url, tmp_path) as s:
        for scenario in [*list(SCENARIOS.values())[1:], *SCENARIOS.values()]:
            await s.press("f6")
            assert scenario.title in s.text
        assert s.app.load.state is None
    assert asked(demo) == before


SUMS = {
    "sweep": "320 requests, 655,360 prompt + 40,960 output tokens",
    "quick": "at most 2,044 requests, 4,186,112 prompt + 261,632 output tokens",
    "single": "35 requests, 105,120 prompt + 1,940 output tokens",
    "output": "100 requests, 25,600 prompt + 39,680 output tokens",
    "context": "40 requests, 670,000 prompt + 5,120 output tokens",
    "soak": "at most 18,382 requests, 37,646,336 prompt + 2,352,896 output tokens",
    "rate": "192 requests, 393,216 prompt + 24,576 output tokens",
    "burst": "61 requests, 124,928 prompt + 7,808 output tokens",
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_plan_says_what_it_would_send(name: str) -> None:
    async with session((120, 30)) as s:
        await s.push(idle())
        await s.press("l", *["f6"] * list(SUMS).index(name))
        assert SCENARIOS[name].title in s.text
        assert SUMS[name] in s.text
        assert "vllm bench serve --backend vllm" in s.text


async def test_the_estimate_follows_from_what_the_server_does() -> None:
    async with session((120, 30)) as s:
        await s.push(idle())
        await s.press("l")
        assert "time    – (the server has answered nothing yet)" in s.text
        await s.push(busy())
        # 655,360 tokens at 2048/0.41/2 a second: 262 s; 64, 16, 8, 4 and 2 waves of 128 steps of 84.2 ms, each
        # further user 7 % more: 690 + 209 + 128 + 88 + 68 s
        assert "time    about 24m05s to 48m11s" in s.text


async def test_levels_above_max_num_seqs_are_marked() -> None:
    async with session((120, 30)) as s:
        await s.push(busy())
        await s.press("l")
        await fill(s, users="16,48,64")
        assert "c=48, c=64: above max_num_seqs 32, measures the queue" in s.text


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("users", "0", "users: '0' is no whole number above 0"),
        ("users", "1,x", "users: 'x' is no whole number above 0"),
        ("users", "513", "concurrency 513 is not within 1..512"),
        ("users", "٣", "is no whole number above 0"),
        ("prompts", "-4", "requests: '-4' is no whole number above 0"),
        ("prompts", "20001", "20001 requests, not within 1..20000"),
        ("input", "1e3", "prompt: '1e3' is no whole number above 0"),
        ("output", "9" * 30, "answer:"),
        ("slo", "ttft=4", "limits: 'ttft=4': write NAME=LIMIT"),
        ("slo", "ttft_p99=fast", "limits: 'fast' is no limit for P99 TTFT"),
    ],
)
async def test_a_bad_field_is_said_in_words_and_starts_nothing(field: str, text: str, words: str) -> None:
    async with session((120, 30)) as s:
        await s.push(idle())
        await s.press("l")
        await fill(s, **{field: text})
        assert "CHECK" in s.text
        assert words in s.text
        await s.press("f5")
        await s.pilot.pause()
        assert "y yes" not in s.text
        assert s.app.load.state is None


async def test_what_is_typed_first_replaces_what_a_field_says() -> None:
    async with session() as s:
        await s.push(idle())
        await s.press("l", "2", "comma", "6", "tab", "9")
        assert "levels  c=2  c=6" in s.text
        assert "18 requests" in s.text
        await s.press("f6", "3")
        assert "levels  c=3" in s.text


async def test_without_a_server_there_is_no_plan() -> None:
    async with session() as s:
        await s.press("l")
        await s.push(replace(idle(), servers=()))
        assert "no server is selected" in s.text
        await s.press("f5", "f9")
        assert s.app.load.state is None


async def test_f9_copies_the_equal_commands() -> None:
    async with session((100, 30)) as s:
        await s.push(idle())
        await s.press("l", "f9")
        commands = s.app.clipboard.splitlines()
        assert len(commands) == 5
        assert all(command.startswith("vllm bench serve") for command in commands)
        assert "5 commands" in s.text


# permission


async def test_no_and_escape_send_nothing(demo: DemoProcess, tmp_path: Path) -> None:
    before = asked(demo)
    async with watching(demo.url, tmp_path) as s:
        for key in ("n", "escape"):
            await s.press("f5")
            await shows(s, "Send 320 requests to 127.0.0.1")
            await s.press(key)
            await shows(s, "not started; nothing was sent", "Users")
        assert s.page == "load"
        await s.press("y")  # no question is open any more
        assert s.app.load.state is None
    assert asked(demo) == before


async def test_a_busy_server_asks_again(truth: TruthServer, tmp_path: Path) -> None:
    truth.script(ttft_s=0.01, itl_s=0.01)
    async with session((100, 30)) as s:
        server = replace(BUSY_SERVER, url=truth.url)
        await s.push(replace(busy(), servers=(server,)))
        await s.press("l", "f5")
        await shows(s, "Send 320 requests")
        await s.press("y")
        await shows(s, "The server is busy: 8 running, 3 waiting. Load it all the same?")
        assert s.app.load.state is None
        await s.press("n")
        await shows(s, "nothing was sent")
    assert truth.state()["requests"] == 0


async def test_another_host_is_loaded_only_by_its_name() -> None:
    async with session((100, 30)) as s:
        await s.push(replace(idle(), servers=(replace(idle().servers[0], url="http://10.1.2.3:8000"),)))
        await s.press("l", "f5")
        await shows(s, "10.1.2.3 is another host: type its name to load it.")
        await s.press("y", "enter")
        await shows(s, "not the name of the host; nothing was sent")
        assert s.app.load.state is None


async def test_a_public_host_is_refused() -> None:
    async with session((100, 30)) as s:
        await s.push(replace(idle(), servers=(replace(idle().servers[0], url="http://8.8.8.8:8000"),)))
        await s.press("l", "f5")
        await shows(s, "8.8.8.8 is a public host; --allow-remote-load permits it.")
        assert s.app.load.state is None


async def test_what_was_asked_is_what_is_started(demo: DemoProcess, tmp_path: Path) -> None:
    async with watching(demo.url, tmp_path) as s:
        await fill(s, users="1", prompts="2", input="32", output="4")
        await s.press("f5")
        await shows(s, "Send 2 requests")
        await fill(s, users="nonsense")
        await s.press("f6", "y")
        await until(s, lambda: phase(s) == "finished", "the end")
        assert s.app.load.state is not None
        assert [level["level"] for level in s.app.load.state.done] == ["c=1"]


# the run


async def test_a_sweep_from_plan_to_comparison(demo: DemoProcess, tmp_path: Path, state: Path) -> None:
    """The simulation reads 4,093 prompt tokens/s x 20: a burst of 8 waits 0.2 s, one of 16 waits 0.4 s."""
    machine = SimulatedMachine(profile.load("gb10"), demo.control)
    async with watching(demo.url, tmp_path, machine) as s:
        await begin(s, users="2,8,16", prompts="16", slo="ttft_p99=0.3,user_tok_s=6")
        await shows(s, "Slots", "Client", "Server", "0 err", "o first wave")
        await until(s, lambda: any("ooo" in row for row in s.rows), "hollow dots")
        assert "F8 Stop" in s.rows[-1]
        await shows(s, "sweet spot 8", "server back to 0 running")
        assert "knee" in s.text
        assert "first fail c=16: P99 TTFT" in s.text
        assert "c=16 fails: P99 TTFT" in s.text
        assert "total tok/s" in s.text  # the curve
        assert all(name in s.text for name in ("c=2", "c=8", "c=16"))
        result = json.loads(next(state.glob("*/run.json")).read_text())
        assert [level["completed"] for level in result["levels"]] == [16, 16, 16]
        assert all(level["headroom_min_bytes"] > 2**34 for level in result["levels"])
        marks = {"load c=2", "load c=8", "load c=16", "load ends"}
        await until(s, lambda: {text for _, text in s.app.history.marks} >= marks, "marked the charts")
        await s.press("c")
        await shows(s, "no earlier run of 'sweep'")
        await _second_run(s)


async def _second_run(s: Session) -> None:
    """Another run of the same scenario, beside the first."""
    seed = s.app.load.state.plan.seed if s.app.load.state else None
    await s.press("f7")
    await shows(s, "Users", "time    about")
    await begin(s, users="2,4", prompts="4")
    assert s.app.load.state is not None
    assert s.app.load.state.plan.seed != seed
    await shows(s, "F7 New plan", "server back to 0 running")
    await s.press("c")
    await shows(s, "This run and the one before", "before", "now", "TTFT P99 ms")
    assert "c=2" in s.text
    assert "c=4" not in s.text  # the first run has none
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
        assert s.app.load.state.result["interrupted"]
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
