"""How a load test ends when somebody or something ends it: at once, with words, and nothing left at the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.truth import TruthServer
from llmtop.load.child import Child
from llmtop.load.events import Event, LevelStarted, Measuring
from llmtop.load.pace import measurement
from llmtop.load.plan import Level, Plan, Timeouts
from llmtop.load.results import Totals, values_of
from llmtop.load.runner import LoadRun, LoadThread, RunOptions, read_counters
from load_processes import running, until, workers

COMMAND = Path(sys.executable).with_name("llmtop")
PATIENT = Timeouts(connect_s=1.0, ttft_s=30.0, idle_s=30.0)


pytestmark = pytest.mark.usefixtures("state")


def plan(server: TruthServer, requests: int, output: int, **more: Any) -> Plan:
    """Two levels of four users; from a hundred requests on, a measurement comes before them."""
    levels = tuple(Level(f"c={c}", c, requests // 2, 32, output) for c in (4, 8))
    return Plan(url=server.url, levels=levels, timeouts=PATIENT, **more)


def in_moment(server: TruthServer, moment: str) -> tuple[LoadThread, list[Event]]:
    """A run that has come to a moment: `preflight`, `measurement` or `level`."""
    server.script(ttft_s=0.01, itl_s=0.05)
    if moment == "preflight":
        server.script(ttft_s=30.0)
    events: list[Event] = []
    endless = plan(server, 100 if moment == "measurement" else 60, 500, warm_up=False)
    load = LoadThread(endless, RunOptions(), events.append)
    load.start()
    kind = {"measurement": Measuring, "level": LevelStarted}.get(moment)
    until(lambda: kind is None or any(isinstance(event, kind) for event in events), 20.0)
    until(lambda: server.state()["running"] >= 1)
    return load, events


@pytest.mark.parametrize("moment", ["preflight", "measurement", "level"])
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
def test_a_frozen_or_killed_worker_ends_the_run(truth: TruthServer, how: signal.Signals, moment: str) -> None:
    for _ in range(3):  # a machine that does much else may keep this process waiting
        load, _ = in_moment(truth, moment)
        (worker,) = workers(os.getpid())
        began = time.monotonic()
        os.kill(worker, how)
        until(lambda pid=worker: not running(pid) and truth.state()["running"] == 0)  # type: ignore[misc]
        took = time.monotonic() - began
        assert load.join(10.0)
        if took < 1.0:
            break
    assert took < 1.0
    words = "frozen by a signal" if how is signal.SIGSTOP else f"killed by {how.name}"
    if moment != "level":
        assert words in str(load.error)
        return
    assert load.result is not None
    (level,) = load.result.levels
    assert (level.interrupted, load.result.sweet_spot, load.result.knee) == (True, None, None)
    assert words in (level.stopped or "")
    assert load.result.ended == f"c=4: {level.stopped}"
    assert words in load.result.words
    assert words in (Path(str(load.result.directory)) / "report.md").read_text()


@pytest.mark.parametrize("moment", ["preflight", "measurement", "level"])
def test_a_stop_in_any_moment_with_a_frozen_worker(truth: TruthServer, moment: str) -> None:
    load, _ = in_moment(truth, moment)
    (worker,) = workers(os.getpid())
    os.kill(worker, signal.SIGSTOP)
    load.stop()
    until(lambda: not running(worker) and truth.state()["running"] == 0)
    assert load.join(10.0)
    assert load.result is not None
    assert load.result.interrupted


def test_a_stop_in_the_measurement(truth: TruthServer) -> None:
    load, _ = in_moment(truth, "measurement")
    load.stop()
    until(lambda: truth.state()["running"] == 0)
    sent = truth.state()["requests"]
    assert load.join(10.0)
    assert load.result is not None
    assert (load.result.levels, load.result.interrupted, load.result.sweet_spot) == ((), True, None)
    assert load.result.words == "No answer: stopped before a level ran to its end."
    assert load.result.outside.measurement == Totals()
    assert truth.state()["requests"] == sent


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_in_the_measurement(truth: TruthServer, how: signal.Signals) -> None:
    truth.script(ttft_s=0.01, itl_s=0.3)
    args = ("load", truth.url, "--yes", "--json", "--max-concurrency", "4", "--num-prompts", "100")
    process = subprocess.Popen([COMMAND, *args], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert next(line for line in process.stdout if "measuring" in line)
    until(lambda: truth.state()["running"] >= 1)
    (worker,) = workers(process.pid)
    process.send_signal(how)
    until(lambda: not running(worker) and truth.state()["running"] == 0)
    said, _ = process.communicate(timeout=20)
    if how is signal.SIGKILL:
        return
    result = json.loads(said.splitlines()[-1])
    assert (process.returncode, result["interrupted"], result["levels"], result["error"]) == (3, True, [], None)
    assert result["outside"]["measurement"] == {"generation": None, "prompt": None, "requests": None}


def test_totals_of_a_run_are_those_of_the_server(truth: TruthServer) -> None:
    truth.script(ttft_s=0.005, itl_s=0.001)
    events: list[Event] = []
    asked = plan(truth, 100, 16)
    result = values_of(asyncio.run(LoadRun(asked, RunOptions(write=False), events.append).run()))
    counted = asyncio.run(read_counters(truth.url, RunOptions()))
    assert counted is not None
    (measuring,) = (event for event in events if isinstance(event, Measuring))
    levels, outside = result["levels"], result["outside"]
    assert outside["measurement"]["requests"] == measuring.requests == 1 + 8
    assert (outside["warm_up"]["requests"], outside["preflight"]["requests"]) == (2, 1)
    keys = {"requests": "completed", "prompt": "total_input_tokens", "generation": "total_output_tokens"}
    for name, key in keys.items():
        ours = sum(level[key] for level in levels) + sum(part[name] for part in outside.values())
        assert ours == getattr(counted, name), name


def test_a_server_that_serves_others_is_not_measured(truth: TruthServer) -> None:
    truth.script(ttft_s=0.001, itl_s=0.01)
    body = json.dumps({"prompt": [1] * 8, "max_tokens": 10_000, "stream": True})
    events: list[Event] = []
    with subprocess.Popen(["curl", "-s", "-o", os.devnull, "-d", body, f"{truth.url}/v1/completions"]) as other:
        until(lambda: truth.state()["running"] == 1)
        result = asyncio.run(LoadRun(plan(truth, 100, 2), RunOptions(write=False), events.append).run())
        other.kill()
    assert not [event for event in events if isinstance(event, Measuring)]
    assert result.outside.measurement == Totals(0, 0, 0)


def test_the_measurement_asks_no_more_than_the_plan_does() -> None:
    small = Plan("http://x", (Level("c=2", 2, 200, 20, 4),))
    assert [(level.concurrency, level.input_len, level.output_len) for level in measurement(small)] == [(1, 12, 12)]
    assert measurement(Plan("http://x", (Level("c=2", 2, 99, 20, 4),))) == ()
    assert measurement(Plan("http://x", (Level("c=2", 2, 200, 4, 4),))) == ()


HOSTILE = ("secrets", "httptools", "json", "random", "uvloop", "sitecustomize", "usercustomize", "asyncio", "llmtop")


def test_modules_of_the_current_folder_are_not_executed(truth: TruthServer, tmp_path: Path) -> None:
    truth.script(ttft_s=0.001, itl_s=0.0)
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'executed')!r}, 'w').write({name!r})\nprint('hello')\n"
        )
    args = ("load", truth.url, "--yes", "--json", "--no-files", "--max-concurrency", "2", "--num-prompts", "4")
    done = subprocess.run(
        [COMMAND, *args, "--random-output-len", "4"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["levels"][0]["completed"] == 4
    assert not (tmp_path / "executed").exists()


async def test_a_worker_in_such_a_folder_that_dies_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    child = await Child.start(Plan("http://127.0.0.1:9", (Level("c=1", 1, 1, 8, 8),)), None, {})
    assert (await child.hear("hello"))["event"] == "hello"
    await child.end()
