"""The plan of a load test on the screen: what it says, and what must be said before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cranked_app import session
from fakes.snapshots import BUSY_SERVER, busy, idle
from fakes.truth import TruthServer
from llmtop.demo.child import DemoProcess, launch
from llmtop.load import scenarios
from llmtop.load.scenarios import SCENARIOS, Scenario
from llmtop.ui.load_form import defaults, plan_of, used
from load_page import asked, fill, phase, shows, until, watching

SPEED = 50.0


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoProcess]:
    with launch("gb10", no_traffic=True, speed=SPEED) as process:
        yield process


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
    "sweep": "352 requests, 720,896 prompt + 45,056 output tokens",
    "quick": "at most 2,044 requests, 4,186,112 prompt + 261,632 output tokens",
    "single": "30 requests, 105,040 prompt + 1,935 output tokens",
    "output": "100 requests, 25,600 prompt + 39,680 output tokens",
    "context": "60 requests, 1,005,000 prompt + 7,680 output tokens",
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
        # 910 / 0.9 tokens of a prompt in 0.41 - 0.12 s: 720,896 take 207 s; 84.2 ms a step at 8 users and 7 % of a
        # lone one's for each: 459 + 136 + 81 + 52 + 52 s, those beside prompts not counted; five warm-ups of 7.8 s
        assert "time    about 17m05s" in s.text


async def test_goodput_is_asked_as_vllm_writes_it() -> None:
    async with session((160, 40)) as s:
        await s.push(idle())
        await s.press("l")
        await fill(s, goodput="ttft:4000, tpot:100")
        assert "--goodput ttft:4000 tpot:100" in re.sub(r"\s+", " ", s.text)


async def test_levels_above_max_num_seqs_are_marked() -> None:
    async with session((120, 30)) as s:
        await s.push(busy())
        await s.press("l")
        await fill(s, users="16,48,64")
        assert "c=48, c=64: above max_num_seqs 32, measures the queue" in s.text


async def test_what_does_not_fit_the_model_is_said_before_the_start() -> None:
    short = replace(BUSY_SERVER, max_model_len=32_768, running=0, waiting=0)
    async with session((120, 30)) as s:
        await s.push(replace(busy(), servers=(short,)))
        await s.press("l")
        assert "cut" not in s.text
        await fill(s, input="40000")
        words = "prompts cut from 40,000 to 32,640 tokens: the model takes 32,768 with the answer"
        assert words in s.text
        assert "352 requests, 11,489,280 prompt" in s.text
        await s.press("f5")
        await until(s, lambda: "y yes" in s.text, "asked")
        assert words in s.text


async def test_what_is_sent_before_a_long_plan_is_said() -> None:
    async with session((120, 30)) as s:
        await s.push(idle())
        await s.press("l")
        assert "first   33 requests, 2,560 prompt + 396 output tokens before it time an idle server" in s.text
        await fill(s, users="1", prompts="40")
        assert "before it" not in s.text


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
        ("goodput", "ttft=4000", "goodput: 'ttft=4000': write ttft:MS, tpot:MS or e2el:MS"),
        ("goodput", "ttft:inf", "goodput: 'ttft:inf': write ttft:MS"),
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
            await shows(s, "Send 352 requests to 127.0.0.1")
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
        await shows(s, "Send 352 requests")
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


async def test_what_only_ssh_leads_to_is_loaded_from_where_ssh_runs(truth: TruthServer) -> None:
    """The address of such a server is its node's: from elsewhere it may be somebody else's."""
    async with session((100, 30)) as s:
        server = replace(idle().servers[0], url=truth.url, via="ssh")
        await s.push(replace(idle(), servers=(server,)))
        await s.press("l", "f5")
        await shows(s, "ssh alone leads to 127.0.0.1")
        assert s.app.load.state is None
    assert truth.state()["requests"] == 0


async def test_what_was_asked_is_what_is_started(demo: DemoProcess, tmp_path: Path) -> None:
    async with watching(demo.url, tmp_path) as s:
        await fill(s, users="1", prompts="2", input="32", output="4")
        await s.press("f5")
        await shows(s, "Send 2 requests")
        await fill(s, users="nonsense")
        seen = s.app.latest
        await until(s, lambda: s.app.latest is not seen, "a page drawn since")
        await s.press("f6", "y")
        await until(s, lambda: phase(s) == "finished", "the end")
        assert s.app.load.state is not None
        assert [level.level for level in s.app.load.state.done] == ["c=1"]


def test_a_scenario_added_to_the_table_alone_has_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Scenario("nightly", "Nightly", "what a night brings", SCENARIOS["sweep"].levels)
    monkeypatch.setattr(scenarios, "SCENARIOS", {**SCENARIOS, "nightly": added})
    texts = defaults("nightly")
    assert set(used("nightly")) == set(texts)
    plan = plan_of("nightly", texts, BUSY_SERVER, seed=1)
    assert [level.concurrency for level in plan.levels] == [1, 4, 8, 16, 32]


@pytest.mark.parametrize(
    ("typed", "users", "tokens"),
    [("1 4 8", (1, 4, 8), "2k"), ("1,4,8", (1, 4, 8), "2000"), ("1, 4  8", (1, 4, 8), "2K")],
)
def test_numbers_are_taken_as_people_type_them(typed: str, users: tuple[int, ...], tokens: str) -> None:
    texts = defaults("sweep") | {"users": typed, "input": tokens}
    plan = plan_of("sweep", texts, BUSY_SERVER, seed=1)
    assert tuple(level.concurrency for level in plan.levels) == users
    assert {level.input_len for level in plan.levels} == {2000}


async def test_the_arrows_go_through_the_list_of_scenarios() -> None:
    async with session((120, 40)) as s:
        await s.push(idle())
        await s.press("l")
        assert all(row.title in s.text and row.shows[:20] in s.text for row in SCENARIOS.values())
        assert re.search(r"▸ Concurrency sweep", s.text)
        await s.press("down")
        assert re.search(r"▸ Quick sweep", s.text)
        await s.press("up", "up")
        assert re.search(r"▸ Burst", s.text)
