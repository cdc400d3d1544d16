"""`llmtop load` and the load page against a real vLLM on the CPU: totals, Stop, and what happens when someone dies.

Nothing is said about speeds: the machine may be busy. `bench_agreement.py` compares them with `vllm bench serve`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.test_real_vllm import INSTALLED, NAMED, Vllm, pytestmark
from llmtop.load.pace import LONG
from measured import Measured
from program import COMMAND, environment

__all__ = ["pytestmark"]

GENERATION, PROMPT = "vllm:generation_tokens_total", "vllm:prompt_tokens_total"
RUNNING = "vllm:num_requests_running"
IMPATIENT = ("--timeout-connect", "1", "--timeout-ttft", "3", "--timeout-idle", "2")


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    assert INSTALLED, f"LLMTOP_REAL_VLLM_VENV is {NAMED}, and there is no bin/vllm in it"
    server = Vllm(tmp_path_factory.mktemp("vllm") / "vllm.log")
    try:
        server.start()
        yield server
    finally:
        server.stop()


class Load:
    """`llmtop load URL ... --json` in the background, in this session."""

    def __init__(self, folder: Path, url: str, *args: str) -> None:
        self._errors = (folder / "load.stderr").open("w+")
        hidden = ("--procfs", str(folder), "--sysfs", str(folder))
        self.process = subprocess.Popen(
            [COMMAND, "load", url, "--yes", "--json", "--output-dir", str(folder / "runs"), *hidden, *args],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(folder, {"XDG_STATE_HOME": str(folder / "state")}),
        )

    def result(self, seconds: float = 120.0) -> dict[str, Any]:
        """The last line, once it has ended."""
        output, _ = self.process.communicate(timeout=seconds)
        self._errors.seek(0)
        assert output, self._errors.read()
        last: dict[str, Any] = json.loads(output.splitlines()[-1])
        return last

    def workers(self) -> list[psutil.Process]:
        return workers_of(self.process.pid)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(15)
        self._errors.close()


def workers_of(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children()
    return [child for child in children if "llmtop.load.worker" in child.cmdline()]


def until(holds: Callable[[], object], what: str, seconds: float) -> float:
    """Wait until something holds; how long it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + seconds, f"never {what} within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - began


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def sized(prompts: int, tokens_in: int, tokens_out: int, *concurrencies: int) -> list[str]:
    words = ["--max-concurrency", ",".join(map(str, concurrencies)), "--num-prompts", str(prompts)]
    return [*words, "--random-input-len", str(tokens_in), "--random-output-len", str(tokens_out)]


def long_run(folder: Path, vllm: Vllm, *args: str) -> Load:
    """Eight users with answers of 600 tokens, on their way; too few requests for a measurement before them."""
    load = Load(folder, vllm.url, *sized(LONG - 4, 64, 600, 8), "--no-warm-up", *args)
    until(lambda: vllm.page()[RUNNING] >= 4, "requests in the engine", 60)
    return load


@pytest.mark.parametrize("prompts", ["ids", "text"])
def test_totals_are_the_servers_counters(vllm: Vllm, tmp_path: Path, prompts: str) -> None:
    before = vllm.settled()
    users = (1, 4, 16, 64) if prompts == "ids" else (4, 16)
    with Load(tmp_path, vllm.url, *sized(64, 48, 24, *users), "--prompts", prompts) as load:
        result = load.result()
    after = vllm.settled()
    assert [level["concurrency"] for level in result["levels"]] == list(users)
    for level in result["levels"]:
        assert (level["completed"], level["errors"]) == (64, {})
        assert level["counters"]["checked"]
        assert level["counters"]["client"] == level["counters"]["server"]
        assert level["total_output_tokens"] == level["counters"]["client"]["generation"] == 64 * 24
        assert not {"not alone", "counters differ", "not checked", "short", "cache"} & set(level["flags"])
        if prompts == "ids":
            assert level["total_input_tokens"] == 64 * 48
    # beside the levels: one request at the beginning, one before each level, and those that measure an idle server
    outside = result["outside"]
    assert [part["requests"] for part in outside.values()] == [1, 1 + min(32, max(users)), len(users)]
    for counter, key in (GENERATION, "generation"), (PROMPT, "prompt"):
        ours = sum(level["counters"]["client"][key] for level in result["levels"])
        assert after[counter] - before[counter] == ours + sum(part[key] for part in outside.values())


def test_chat_is_counted_too(vllm: Vllm, tmp_path: Path) -> None:
    vllm.settled()
    with Load(tmp_path, vllm.url, *sized(16, 48, 24, 4), "--api", "chat") as load:
        (level,) = load.result()["levels"]
    assert (level["completed"], level["errors"]) == (16, {})
    assert level["counters"]["client"] == level["counters"]["server"]


def test_stop_leaves_nothing_behind(vllm: Vllm, tmp_path: Path) -> None:
    vllm.settled()
    with long_run(tmp_path, vllm) as load:
        load.process.send_signal(signal.SIGINT)
        took = until(lambda: vllm.page()[RUNNING] == 0, "an idle server", 1.0)
        result = load.result()
    print(f"running back to 0 {took:.2f} s after Stop")
    assert (load.process.returncode, result["interrupted"]) == (3, True)
    assert result["levels"][0]["errors"] == {"cancelled": 8}


def test_a_killed_screen_takes_its_worker_along(vllm: Vllm, tmp_path: Path) -> None:
    vllm.settled()
    with Measured(tmp_path, vllm.url, "--procfs", str(tmp_path), size=(100, 30)) as app:
        app.wait_for("IDLE")
        app.keys("l")
        app.wait_for("requests, ")
        app.keys("8")
        app.wait_for("levels  c=8")
        app.keys("f5")
        app.wait_for("Send 64 requests")
        app.keys("y")
        app.wait_all("Slots", "1/1 c=8")
        app.drain(lambda: vllm.page()[RUNNING] >= 2, 30)
        workers = workers_of(app.process.pid)
        assert len(workers) == 1
        app.process.kill()
        killed = time.monotonic()
        app.process.wait(5)
        until(lambda: not any(map(alive, workers)), "the end of the worker", 1.0)
        until(lambda: vllm.page()[RUNNING] == 0, "an idle server", killed + 2.0 - time.monotonic())


def test_a_server_that_hangs_ends_the_level_by_its_timeouts(vllm: Vllm, tmp_path: Path) -> None:
    assert vllm.process is not None
    vllm.settled()
    processes = [psutil.Process(vllm.process.pid), *vllm.engines()]
    with long_run(tmp_path, vllm, *IMPATIENT) as load:
        for process in processes:
            process.suspend()
        try:
            result = load.result()
        finally:
            for process in processes:
                process.resume()
    (level,) = result["levels"]
    assert load.process.returncode == 3 if not level["completed"] else 0
    assert level["errors"]["timeout_idle"] >= 1
    assert set(level["errors"]) <= {"timeout_idle", "timeout_ttft", "cancelled"}
    assert "failed" in level["stopped"]
    vllm.settled()  # it goes on, and has let go of what nobody waits for


def test_a_server_told_to_end_ends_the_level(vllm: Vllm, tmp_path: Path) -> None:
    """Its streams fall silent without an end, or it answers that it cannot any more."""
    assert vllm.process is not None
    engines = vllm.engines()
    with long_run(tmp_path, vllm, *IMPATIENT) as load:
        vllm.process.terminate()
        result = load.result()
    (level,) = result["levels"]
    vllm.process.wait(60)
    end(engines)
    known = {"timeout_idle", "timeout_ttft", "connect", "cut", "stream_error", "http_5xx", "cancelled"}
    assert set(level["errors"]) <= known
    assert level["failed"] >= 5
    assert level["stopped"]


def test_a_killed_server_ends_the_level_at_once(vllm: Vllm, tmp_path: Path) -> None:
    vllm.start()
    assert vllm.process is not None
    engines = vllm.engines()
    with long_run(tmp_path, vllm, *IMPATIENT) as load:
        vllm.process.kill()
        killed = time.monotonic()
        result = load.result()
        took = time.monotonic() - killed
    end(engines)
    (level,) = result["levels"]
    assert level["errors"]["cut"] >= 1
    assert level["errors"]["connect"] >= 1  # five in a row, or fewer where ten failures of all kinds come first
    assert set(level["errors"]) == {"cut", "connect"}
    assert 5 <= level["failed"] < 10 + 8  # after the tenth only what the other users had begun
    assert "connection errors" in level["stopped"] or "requests failed" in level["stopped"]
    assert took < 15.0
    assert vllm.process.wait(30) == -signal.SIGKILL


def end(processes: list[psutil.Process]) -> None:
    """What a server that was killed may have left behind."""
    for process in processes:
        if alive(process):
            process.kill()
