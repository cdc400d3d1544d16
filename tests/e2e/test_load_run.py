"""Whole runs against a server of known speed: the runner, its thread, and `llmtop load`."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import build, environment
from fakes.truth import TruthServer
from llmtop import cli
from llmtop.load.events import (
    Draining,
    Event,
    Finished,
    LevelDone,
    LevelPreparing,
    LevelStarted,
    Preflighted,
    Progress,
    RequestDone,
)
from llmtop.load.plan import Level, Plan, Timeouts
from llmtop.load.results import values_of
from llmtop.load.runner import LoadError, LoadRun, LoadThread, RunOptions
from load_processes import children, running, until

CONTRACT = (
    "concurrency user_tok_s decode_tok_s ttft_burst ttft_steady attainment kv_max waiting_max headroom_min_bytes "
    "flags errors date backend model_id num_prompts request_rate burstiness max_concurrency duration completed "
    "failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput "
    "total_token_throughput latencies queue_times max_output_tokens_per_s max_concurrent_requests mean_ttft_ms "
    "p99_ttft_ms median_tpot_ms std_itl_ms p99_e2el_ms"
)


pytestmark = pytest.mark.usefixtures("state")


def plan(server: TruthServer, *levels: Level, **more: Any) -> Plan:
    quick = Timeouts(connect_s=1.0, ttft_s=5.0, idle_s=5.0)
    return Plan(url=server.url, levels=levels, **({"timeouts": quick} | more))


def sweep(*concurrencies: int, prompts: int = 12, size: tuple[int, int] = (64, 16)) -> tuple[Level, ...]:
    return tuple(Level(f"c={c}", c, prompts, *size) for c in concurrencies)


def play(plan: Plan, **options: Any) -> tuple[dict[str, Any], list[Event]]:
    events: list[Event] = []
    return values_of(asyncio.run(LoadRun(plan, RunOptions(**options), events.append).run())), events


def test_a_sweep_finds_where_a_server_of_known_speed_stops_to_serve(truth: TruthServer) -> None:
    """Prompts queue at 2,000 tok/s: the burst of c users waits c x 64 / 2000 s, 16 of them over 0.4 s."""
    truth.script(ttft_s=0.005, itl_s=0.004, prefill_tok_s=2000.0)
    slo = {"ttft_p99": 0.4}
    result, events = play(plan(truth, *sweep(1, 4, 16, prompts=32), slo=slo))
    assert [level["completed"] for level in result["levels"]] == [32, 32, 32]
    assert (result["sweet_spot"], result["first_fail"]["concurrency"]) == (4, 16)
    assert result["first_fail"]["criterion"] == "ttft_p99"
    assert 0.45 < result["first_fail"]["value"] < 0.8
    for level in result["levels"]:
        checked = level["counters"]
        assert checked["client"] == checked["server"] == {"generation": 512, "prompt": 2048, "requests": 32}
        assert level["ttft_burst"] == pytest.approx(level["concurrency"] * 64 / 2000, abs=0.08)
        assert level["kv_max"] is not None
        assert not {"not alone", "counters differ", "not checked", "cache", "server restarted"} & set(level["flags"])
    kinds = [type(event) for event in events]
    assert kinds[0] is Preflighted
    assert kinds[-1] is Finished
    assert kinds.count(LevelStarted) == kinds.count(LevelDone) == 3
    assert kinds.count(RequestDone) == 96
    fractions = [event.fraction for event in events if isinstance(event, Progress)]
    assert fractions == sorted(fractions)


def test_a_level_too_short_for_a_page_of_its_own_knows_no_peak(truth: TruthServer) -> None:
    truth.script(ttft_s=0.001, itl_s=0.0)
    result, _ = play(plan(truth, *sweep(2, prompts=2, size=(64, 2))), write=False)
    (level,) = result["levels"]
    assert level["completed"] == 2
    assert (level["kv_max"], level["waiting_max"]) == (None, None)
    assert level["counters"]["client"] == level["counters"]["server"]  # the pages before and after are counted


def test_files_of_a_run(truth: TruthServer, state: Path) -> None:
    truth.script(ttft_s=0.002, itl_s=0.001)
    result, _ = play(plan(truth, *sweep(1, 2, prompts=4)))
    directory = Path(result["directory"])
    assert directory.parent == state / "llmtop" / "runs"
    assert json.loads((directory / "run.json").read_text())["levels"][1]["completed"] == 4
    assert len((directory / "requests.jsonl").read_text().splitlines()) == 8
    assert len(json.loads((directory / "summary.json").read_text())) == 2


def test_a_quick_sweep_stops_when_gains_end(truth: TruthServer) -> None:
    truth.script(ttft_s=0.001, itl_s=0.0, prefill_tok_s=2000.0)  # the prefill bounds everything: no gain from users
    levels = sweep(1, 2, 4, 8, prompts=8, size=(64, 2))
    result, _ = play(plan(truth, *levels, adaptive=True, slo={}), write=False)
    assert 2 <= len(result["levels"]) < 4
    assert result["notes"][-1].startswith("more users were not tried: ")
    assert result["directory"] is None


def test_a_quick_sweep_climbs_on_while_its_limits_hold(truth: TruthServer) -> None:
    truth.script(ttft_s=0.001, itl_s=0.0, prefill_tok_s=2000.0)
    levels = sweep(1, 2, 4, 8, prompts=8, size=(64, 2))
    result, _ = play(plan(truth, *levels, adaptive=True, slo={"ttft_p99": 60.0}), write=False)
    assert [level["concurrency"] for level in result["levels"]] == [1, 2, 4, 8]


def test_between_the_last_good_and_the_first_bad_level_a_quick_sweep_looks_closer(truth: TruthServer) -> None:
    """Prompts queue at 800 tok/s, so that c users wait c x 0.08 s: 10 keep a limit of 0.88 s, and 12 do not."""
    truth.script(ttft_s=0.001, itl_s=0.001, prefill_tok_s=800.0)
    levels = tuple(Level(f"c={c}", c, 2 * c, 64, 4) for c in (2, 4, 8, 16, 32, 64))
    slo = {"ttft_p99": 0.88}
    result, events = play(plan(truth, *levels, adaptive=True, refine=2, slo=slo))
    played = [level["concurrency"] for level in result["levels"]]
    assert (played[:4], played[-2:]) == ([2, 4, 8, 16], [12, 10])  # and 32 only if 16 still brought something
    assert [level["num_prompts"] for level in result["levels"][-2:]] == [24, 20]
    assert (result["sweet_spot"], result["first_fail"]["concurrency"]) == (10, 12)
    assert result["levels"][-1]["counters"]["client"]["requests"] == 20
    followed = plan(truth, *levels, refine=2)
    for event in events:
        if isinstance(event, LevelPreparing):
            followed = followed.with_level(event.index, event.level)
    written = json.loads((Path(result["directory"]) / "plan.json").read_text())
    assert [level["concurrency"] for level in written["levels"]] == played
    assert [level.name for level in followed.levels] == [level["name"] for level in written["levels"]]


def test_no_more_is_sent_between_levels_than_was_said(truth: TruthServer) -> None:
    truth.script(ttft_s=0.001, itl_s=0.001, prefill_tok_s=800.0)
    levels = tuple(Level(f"c={c}", c, 2 * c, 64, 4) for c in (8, 16))
    result, _ = play(plan(truth, *levels, adaptive=True, refine=2, slo={"ttft_p99": 0.88}), write=False)
    assert [level["concurrency"] for level in result["levels"]] == [8, 16]


def test_foreign_load_is_noticed(truth: TruthServer) -> None:
    truth.script(ttft_s=0.001, itl_s=0.005)
    body = json.dumps({"prompt": [1] * 8, "max_tokens": 20_000, "stream": True})
    other = subprocess.Popen(
        ["curl", "-s", "-o", os.devnull, "-d", body, f"{truth.url}/v1/completions"], stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: truth.state()["running"] == 1)
        result, _ = play(plan(truth, *sweep(2, prompts=8)), write=False)
    finally:
        other.kill()
        other.wait()
    (level,) = result["levels"]
    assert "1 requests of others" in level["flag_reasons"]["not alone"]


def test_stop_from_another_thread_leaves_nothing_behind(truth: TruthServer) -> None:
    truth.script(ttft_s=0.01, itl_s=0.05)
    events: list[Event] = []
    endless = plan(truth, *sweep(4, 8, prompts=40, size=(16, 500)), warm_up=False)
    load = LoadThread(endless, RunOptions(), events.append)
    load.start()
    until(lambda: truth.state()["running"] == 4)
    load.stop()
    until(lambda: truth.state()["running"] == 0, 1.0)
    assert load.join(10.0)
    assert load.error is None
    assert load.result is not None
    assert load.result.interrupted
    (level,) = load.result.levels
    assert (level.interrupted, level.errors) == (True, {"cancelled": 4})
    drained = [event for event in events if isinstance(event, Draining)]
    assert (drained[-1].running, drained[-1].drained) == (0, True)


def test_a_worker_that_writes_what_is_no_event_is_a_failure(
    truth: TruthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho hello\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(LoadError, match="no event"):
        play(plan(truth, *sweep(1)), write=False)


@pytest.mark.parametrize("moment", ["before", "preflight"])
def test_stop_before_any_level(truth: TruthServer, moment: str) -> None:
    truth.script(ttft_s=2.0)
    load = LoadThread(plan(truth, *sweep(2)), RunOptions(write=False), lambda event: None)
    if moment == "before":
        load.stop()
    load.start()
    if moment == "preflight":
        until(lambda: truth.state()["running"] == 1)
        load.stop()
    assert load.join(5.0)
    until(lambda: truth.state()["running"] == 0)
    assert load.result is not None
    assert (load.result.levels, load.result.interrupted) == ((), True)


def test_one_run_at_a_time(truth: TruthServer) -> None:
    truth.script(ttft_s=0.01, itl_s=0.05)
    first = LoadThread(plan(truth, *sweep(1, size=(16, 500))), RunOptions(write=False), lambda event: None)
    first.start()
    until(lambda: truth.state()["running"] == 1)
    try:
        with pytest.raises(LoadError, match=f"running already .pid {os.getpid()}"):
            play(plan(truth, *sweep(1)), write=False)
    finally:
        first.stop()
        assert first.join(10.0)
    truth.script(ttft_s=0.001, itl_s=0.0)
    play(plan(truth, *sweep(1, prompts=1)), write=False)


def test_a_soak_that_a_person_ends_is_a_result(truth: TruthServer) -> None:
    truth.script(ttft_s=0.005, itl_s=0.001)
    load = LoadThread(plan(truth, *sweep(2, prompts=10_000), scenario="soak"), RunOptions(write=False), lambda e: None)
    load.start()
    until(lambda: truth.state()["requests"] > 40)
    load.stop()
    assert load.join(10.0)
    assert load.result is not None
    (level,) = load.result.levels
    assert (level.interrupted, load.result.interrupted) == (False, False)
    assert level.completed >= 30
    assert level.drift_tok_s is not None


def test_two_workers_share_a_level(truth: TruthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    truth.script(ttft_s=0.01, itl_s=0.002)
    many = Level("c=260", 260, 300, 16, 4)
    result, events = play(replace(plan(truth, many), slo={}), write=False)
    records = [event.record for event in events if isinstance(event, RequestDone)]
    assert sorted(record.index for record in records) == list(range(300))
    assert len({record.slot for record in records}) == 260
    (level,) = result["levels"]
    assert (level["completed"], level["counters"]["server"]["generation"]) == (300, 1200)


# llmtop load


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "llmtop", "load", *args]


SMALL = (
    "--yes",
    "--num-prompts",
    "6",
    "--random-input-len",
    "32",
    "--random-output-len",
    "8",
    "--max-concurrency",
    "1,2",
)


def call(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    both = {**os.environ, **(env or {})}
    return subprocess.run(
        command(*args), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, env=both
    )


def test_json_ends_with_the_result(truth: TruthServer) -> None:
    truth.script(ttft_s=0.01, itl_s=0.002)
    done = call(truth.url, *SMALL, "--json", "--goodput", "ttft:500", "--metadata", "host=spark-a")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    result = lines[-1]
    assert {"schema", "scenario", "interrupted", "levels", "sweet_spot", "first_fail", "knee"} <= result.keys()
    assert (result["scenario"], result["sweet_spot"], result["first_fail"]) == ("sweep", 2, None)
    for level in result["levels"]:
        assert not set(CONTRACT.split()) - level.keys()
        assert (level["completed"], level["errors"], level["host"]) == (6, {}, "spark-a")
        assert level["request_goodput"] > 0
    assert {line["event"] for line in lines[:-1]} >= {"level", "level_done"}


def test_the_table_and_the_answer_are_on_stdout(truth: TruthServer) -> None:
    truth.script(ttft_s=0.01, itl_s=0.002)
    done = call(truth.url, *SMALL)
    assert done.returncode == 0
    head, one, two, *_ = done.stdout.splitlines()
    assert head.split()[:5] == ["level", "tok/s", "x1", "xdec", "/user"]
    assert (one.split()[0], two.split()[0]) == ("c=1", "c=2")
    assert "P99 TTFT" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--slo", "user_tok_s=100000"], 1, ""),
        (["--slo", "ttft_p99=30s"], 0, ""),
        (["--slo", "nonsense"], 2, "write NAME=LIMIT"),
        (["--max-concurrency", "513", "--num-prompts", "600"], 2, "513"),
        (["--max-concurrency", "0"], 2, ""),
        (["--scenario", "nonsense"], 2, ""),
        (["--metadata", "x"], 2, "KEY=VALUE"),
    ],
)
def test_exit_codes(truth: TruthServer, args: list[str], code: int, words: str) -> None:
    truth.script(ttft_s=0.005, itl_s=0.001)
    done = call(truth.url, *SMALL, "--json", *args)
    assert done.returncode == code
    assert words in done.stderr
    assert (done.stdout == "") == (code == 2)


def test_without_yes_and_without_a_terminal_nothing_is_sent(truth: TruthServer) -> None:
    truth.script()
    done = call(truth.url, *SMALL[1:])
    assert (done.returncode, done.stdout) == (2, "")
    assert "--yes" in done.stderr
    assert truth.state()["requests"] == 0


@pytest.mark.parametrize("more", [["--yes"], ["--yes", "--json"]])
def test_public_hosts_are_refused_before_anything_is_sent(
    more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", connect)
    assert cli.run(["load", "http://8.8.8.8:8000", *more]) == 2
    printed = capsys.readouterr()
    assert "--allow-remote-load" in printed.err
    assert printed.out == ""


def test_a_dry_run_shows_the_plan_and_the_equal_commands_and_sends_nothing(truth: TruthServer) -> None:
    truth.script()
    done = call(truth.url, "--dry-run", "--seed", "5", "--api-key-env", "SECRET_KEY", env={"SECRET_KEY": "hidden"})
    assert done.returncode == 0
    assert "352 requests, 720,896 prompt + 45,056 output tokens" in done.stdout
    assert done.stdout.count("vllm bench serve") == 5
    assert "hidden" not in done.stdout
    assert truth.state()["requests"] == 0


def test_no_server_is_no_result() -> None:
    done = call("http://127.0.0.1:9", *SMALL, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout.splitlines()[-1])["levels"] == []
    assert "127.0.0.1:9" in done.stderr


@pytest.mark.parametrize(
    ("script", "errors", "words"),
    [
        ({"fail": "error", "fail_after": 2}, [{"stream_error": 6}], "scripted error"),
        ({"fail": "truncate", "fail_after": 2}, [{"truncated": 6}], "truncated"),
        ({"fail": "503"}, [], "HTTP 503 from /v1/completions: scripted 503"),  # nothing is sent to it
        ({"fail": "400"}, [], "scripted 400"),
    ],
)
def test_a_server_that_only_fails_says_how(
    truth: TruthServer, script: dict[str, Any], errors: list[dict[str, int]], words: str
) -> None:
    truth.script(ttft_s=0.001, itl_s=0.0, **script)
    done = call(truth.url, *SMALL, "--json")
    *events, result = (json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 3
    assert [level["errors"] for level in result["levels"]] == errors  # no second level after one without success
    assert words in (result["error"] or " ".join(event.get("text", "") for event in events))


def on_a_terminal(url: str, *answers: str) -> tuple[int, str]:
    """`llmtop load` on a terminal of its own, each question answered in turn: exit code and what was printed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command(url, *SMALL[1:], "--no-files"))
    printed = ""
    for answer in answers:
        seen = len(printed)
        while "[y/N] " not in printed[seen:] and "its name" not in printed[seen:]:
            printed += os.read(terminal, 65536).decode()
        os.write(terminal, answer.encode() + b"\n")
    try:
        while data := os.read(terminal, 65536):
            printed += data.decode()
    except OSError:  # the other side has closed
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), printed


def test_a_person_is_shown_the_plan_and_asked_once(truth: TruthServer) -> None:
    truth.script(ttft_s=0.002, itl_s=0.001)
    code, printed = on_a_terminal(truth.url, "n")
    assert (code, truth.state()["requests"]) == (2, 0)
    assert "12 requests, 384 prompt + 96 output tokens" in printed
    code, printed = on_a_terminal(truth.url, "y")
    assert (code, "P99 TTFT" in printed) == (0, True)


def test_a_busy_server_asks_again(truth: TruthServer) -> None:
    truth.script(ttft_s=0.001, itl_s=0.02)
    body = json.dumps({"prompt": [1] * 8, "max_tokens": 2000, "stream": True})
    with subprocess.Popen(["curl", "-s", "-o", os.devnull, "-d", body, f"{truth.url}/v1/completions"]) as other:
        until(lambda: truth.state()["running"] == 1)
        code, printed = on_a_terminal(truth.url, "y", "n")
        other.kill()
    assert code == 2
    assert "1 running, 0 waiting" in printed
    assert truth.state()["requests"] == 1


def test_ctrl_c_ends_the_load_and_keeps_what_there_is(truth: TruthServer) -> None:
    truth.script(ttft_s=0.01, itl_s=0.05)
    size = ("--max-concurrency", "1", "--num-prompts", "8", "--random-output-len", "500")
    args = (truth.url, "--yes", "--json", *size, "--no-warm-up")
    process = subprocess.Popen(command(*args), stdout=subprocess.PIPE, text=True)
    until(lambda: truth.state()["requests"] == 2 and truth.state()["running"] == 1, 10.0)  # the first is preflight's
    process.send_signal(signal.SIGINT)
    until(lambda: truth.state()["running"] == 0, 1.0)
    output, _ = process.communicate(timeout=15)
    result = json.loads(output.splitlines()[-1])
    assert (process.returncode, result["interrupted"]) == (3, True)
    assert result["levels"][0]["errors"] == {"cancelled": 1}


def test_kill_9_leaves_no_worker_and_no_load(truth: TruthServer) -> None:
    truth.script(ttft_s=0.01, itl_s=0.05)
    args = (truth.url, "--yes", "--json", "--max-concurrency", "4", "--random-output-len", "500", "--no-warm-up")
    process = subprocess.Popen(command(*args), stdout=subprocess.DEVNULL)
    until(lambda: truth.state()["running"] == 4, 10.0)
    workers = children(process.pid)
    assert len(workers) == 1
    process.kill()
    process.wait()
    until(lambda: not any(map(running, workers)) and truth.state()["running"] == 0, 1.0)


def test_headroom_power_and_energy_of_the_host_under_load(truth: TruthServer, tmp_path: Path) -> None:
    fixtures = Path(__file__).parent.parent / "fixtures"
    truth.script(ttft_s=0.05, itl_s=0.02)
    host, env = fixtures / "host" / "gb10-idle", environment(build(tmp_path / "nvml"), fixtures / "nvml" / "gb10.txt")
    roots = ("--procfs", str(host / "proc"), "--sysfs", str(host / "sys"))
    size = ("--num-prompts", "4", "--max-concurrency", "1", "--random-output-len", "50")
    done = call(truth.url, "--yes", "--json", "--no-files", *size, *roots, env=env)
    (level,) = json.loads(done.stdout.splitlines()[-1])["levels"]
    meminfo = dict(line.split(":", 1) for line in (host / "proc" / "meminfo").read_text().splitlines())
    assert level["headroom_min_bytes"] == int(meminfo["MemAvailable"].split()[0]) * 1024
    assert level["power_w"] == pytest.approx(46.11)
    assert level["joules_per_token"] == pytest.approx(46.11 * level["duration"] / 200, rel=0.1)


def test_two_runs_compared(truth: TruthServer, tmp_path: Path) -> None:
    truth.script(ttft_s=0.005, itl_s=0.001)
    for name in ("a", "b"):
        assert call(truth.url, *SMALL, "--output-dir", str(tmp_path / name)).returncode == 0
    runs = [str(next((tmp_path / name).iterdir())) for name in ("a", "b")]
    done = call("--compare", *runs)
    assert done.returncode == 0
    assert "c=2" in done.stdout
    assert "TTFT P99 ms" in done.stdout
    assert "2 users, all (" in done.stdout
    engines = json.loads(call("--compare", *runs, "--json").stdout)["engines"]
    assert engines["a"] == engines["b"]
    assert engines["a"]["engine"].startswith("vLLM")
    assert call("--compare", *runs, "--markdown").stdout.splitlines()[3].startswith("| tok/s |")
    assert call("--compare", runs[0], str(tmp_path)).returncode == 2


def test_two_servers_are_loaded_to_be_compared(truth: TruthServer, tmp_path: Path) -> None:
    truth.script(ttft_s=0.005, itl_s=0.001)
    small = ("--num-prompts", "2", "--max-concurrency", "2", "--random-output-len", "8", "--no-files", "--yes")
    done = call("--compare", truth.url, truth.url, *small)
    assert done.returncode == 0, done.stderr
    measures = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert {"prefill pp2048", "prefill pp8192", "decode tg8@d0", "2 users, all (2048/8)"} <= set(measures)
    refused = call("--compare", "127.0.0.1:1", truth.url, *small)
    assert refused.returncode == 2
    assert "127.0.0.1:1: " in refused.stderr
