"""`llmtop warmup` as a program: a command it launches, a log it reads, a machine it checks."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import build, environment

FAKES = Path(__file__).parents[1] / "fakes"
LOGS = Path(__file__).parents[1] / "fixtures" / "startup"
SERVER = [sys.executable, str(FAKES / "vllm_start.py")]
WARMUP = [sys.executable, "-m", "llmtop", "warmup"]
TIMEOUT_S = 30
SECRET = "s3cr3tVALUE"

H100 = """driver = 580.105.08
nvml = 13.580.105.08
cuda = 13000
count = 1
gpu0.name = NVIDIA H100 80GB HBM3
gpu0.uuid = GPU-11111111-0000-0000-0000-000000000001
gpu0.bus = 00000000:1B:00.0
gpu0.mem.total = 81559M
gpu0.mem.used = 600M
gpu0.mem.reserved = 551M
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number: int = sock.getsockname()[1]
        return number


@pytest.fixture
def empty(tmp_path: Path) -> list[str]:
    """Flags for a machine with nothing to read, so that the test does not depend on the one it runs on."""
    for name in ("proc", "sys"):
        (tmp_path / name).mkdir()
    return ["--procfs", str(tmp_path / "proc"), "--sysfs", str(tmp_path / "sys")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def run(args: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WARMUP, *args], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=env)


@pytest.fixture
def started(port: int, tmp_path: Path, empty: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A launched server whose report is written when it is ready."""
    flags = ["--json", "--log", str(tmp_path / "kept.log"), "--report", str(tmp_path / "report.json"), *empty]
    command = [*SERVER, str(port), "--api-key", SECRET]
    process = subprocess.Popen(
        [*WARMUP, *flags, "--url", f"http://127.0.0.1:{port}", "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def wait_until_ready(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    assert process.stdout is not None
    lines: list[dict[str, Any]] = []
    for line in process.stdout:
        lines.append(json.loads(line))
        if lines[-1]["state"] != "starting":
            break
    return lines


def test_launch_phases_ready_time_and_exit_code(started: subprocess.Popen[str], tmp_path: Path) -> None:
    lines = wait_until_ready(started)
    final = lines[-1]
    assert final["state"] == "ready"
    assert [p["name"] for p in final["phases"]] == [
        "start",
        "weights",
        "compile",
        "profile",
        "kv",
        "graphs",
        "ready",
    ]
    assert not any(p["inferred"] for p in final["phases"])
    assert (final["weights_gib"], final["kv_cache_tokens"], final["max_concurrency"]) == (28.5, 100_000, 24.41)
    assert abs(final["ready_at"] - time.time()) < 1.0
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 3
    assert "stopped" in err
    report = tmp_path / "report.json"
    assert json.loads(report.read_text())["ready_seconds"] == final["ready_seconds"]
    assert SECRET not in out
    assert SECRET not in report.read_text()
    assert "***" in err  # the command's own output is shown as it is, but for this
    assert SECRET not in err


def test_launch_keeps_a_masked_private_log(started: subprocess.Popen[str], tmp_path: Path) -> None:
    wait_until_ready(started)
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=TIMEOUT_S)
    kept = tmp_path / "kept.log"
    text = kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "vLLM API server version 0.32.0" in text
    assert text.endswith("stopped\n")
    assert SECRET not in text


def test_health_is_not_asked_again_after_it_answered(started: subprocess.Popen[str]) -> None:
    wait_until_ready(started)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=TIMEOUT_S)
    assert err.count("health asked") <= 1


def test_failing_start_ends_with_cause_advice_and_code(port: int, tmp_path: Path, empty: list[str]) -> None:
    done = run(["--json", "--log", str(tmp_path / "kept.log"), *empty, "--", *SERVER, str(port), "--fail"])
    assert done.returncode == 7
    final = objects(done.stdout)[-1]
    assert final["failure"]["phase"] == "kv"
    assert final["failure"]["kind"] == "len_too_long"
    assert final["failure"]["numbers"]["estimated_max_len"] == 3072
    assert "--max-model-len 3072" in final["advice"]["text"]


def test_killed_without_a_word(port: int, tmp_path: Path, empty: list[str]) -> None:
    done = run(["--log", str(tmp_path / "kept.log"), *empty, "--", *SERVER, str(port), "--die"])
    assert done.returncode == 137
    assert "failed in reading weights: killed by signal 9" in done.stderr


def test_process_that_vanishes_while_its_log_is_followed(port: int, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen([*SERVER, str(port), "--die", "--pause", "4"], stdout=file)
    done = run(["--log", str(log), "--json"])
    assert server.wait(TIMEOUT_S) == -9
    assert done.returncode == 1
    failure = objects(done.stdout)[-1]["failure"]
    assert (failure["phase"], failure["kind"]) == ("weights", "killed")


@pytest.mark.parametrize(
    ("script", "code"), [("exec >/dev/null 2>&1; sleep 0.5; exit 3", 3), ("true", 0)], ids=("silent", "no server")
)
def test_a_command_that_ends_before_it_serves_has_failed(
    script: str, code: int, tmp_path: Path, empty: list[str]
) -> None:
    done = run(["--json", "--log", str(tmp_path / "kept.log"), *empty, "--", "sh", "-c", script])
    final = objects(done.stdout)[-1]
    assert (done.returncode, final["state"]) == (code, "failed")
    assert final["failure"]["cause"] == f"the process ended with exit code {code} and gave no reason"


def test_what_the_command_makes_of_its_flags_is_its_own_affair(tmp_path: Path, empty: list[str]) -> None:
    words = ["--", "sh", "-c", "exit 9", "--gpu-memory-utilization", "abc"]
    assert run(["--json", "--log", str(tmp_path / "kept.log"), *empty, *words]).returncode == 9


def test_command_that_does_not_exist(tmp_path: Path, empty: list[str]) -> None:
    done = run(["--log", str(tmp_path / "kept.log"), *empty, "--", "no-such-command-anywhere"])
    assert done.returncode == 2
    assert "no-such-command-anywhere: No such file" in done.stderr


def watched_on_a_gpu(port: int, tmp_path: Path, flags: list[str], library: Path) -> dict[str, Any]:
    """The final object of a start whose memory a fake NVML shows: 30 000 MiB of weights, a peak, KV cache, graphs."""
    scenario = tmp_path / "gpu.txt"
    scenario.write_text(H100)
    command = [*SERVER, str(port), "--scenario", str(scenario), "--pause", "0.4"]
    process = subprocess.Popen(
        [*WARMUP, "--json", "--log", str(tmp_path / "kept.log"), *flags, "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(library, scenario),
    )
    final = wait_until_ready(process)[-1]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    return final


def test_the_peak_of_150_ms_is_the_least_headroom_of_the_profile_phase(
    port: int, tmp_path: Path, empty: list[str], library: Path
) -> None:
    free = 81559 - 551
    expected = {"weights": free - 30_000, "profile": free - 66_000, "graphs": free - 72_000}
    for _ in range(3):  # a machine so busy that the sampler does not run for 150 ms hides the peak
        final = watched_on_a_gpu(port, tmp_path, empty, library)
        least = {p["name"]: (p["min_headroom_bytes"] or 0) // 2**20 for p in final["phases"]}
        if {name: least[name] for name in expected} == expected:
            break
    assert {name: least[name] for name in expected} == expected
    # 8.80 GiB were left: 0.92 + (8.80 - 3) / 79.65 = 0.9928, but only 80408 of 81559 MiB were free at the start: 0.9858
    assert final["advice"]["utilization"] == 0.98
    ledger = {line["key"]: line["gib"] for line in final["ledger"]}
    assert ledger["total"] == pytest.approx(81559 / 1024)
    assert ledger["free"] == pytest.approx((free - 72_000) / 1024)


def test_progress_bars_work_on_a_terminal(port: int, tmp_path: Path, empty: list[str]) -> None:
    """With a terminal the command sees a terminal, and its output arrives unchanged."""
    master, slave = pty.openpty()
    script = "import sys; print('terminal', sys.stdout.isatty()); print('Application startup complete')"
    flags = ["--log", str(tmp_path / "kept.log"), *empty]
    process = subprocess.Popen(
        [*WARMUP, *flags, "--", sys.executable, "-c", script], stdin=slave, stdout=slave, stderr=subprocess.PIPE
    )
    os.close(slave)
    _, err = process.communicate(timeout=TIMEOUT_S)
    shown = os.read(master, 4096)
    os.close(master)
    assert process.returncode == 0
    assert b"terminal True\r\n" in shown
    assert b"llmtop: ready" in err


# ------------------------------------------------------------------------------------------ without launching


def test_once_prints_one_object_with_every_name() -> None:
    done = run(["--log", str(LOGS / "gb10-v0.23-silent-warmup.log"), "--once", "--json"])
    assert done.returncode == 0
    (data,) = objects(done.stdout)
    names = (
        "phases weights_gib weights_seconds kv_cache_gib kv_cache_tokens max_concurrency graph_gib graph_seconds "
        "init_seconds ready_seconds version failure workers"
    )
    assert set(names.split()) <= set(data)
    assert set(data["phases"][0]) >= {"name", "start_s", "seconds", "min_headroom_bytes", "inferred"}
    assert data["kv_cache_tokens"] == 849_942
    assert data["verdict"] == "ready in 610 s, 228 s of it kernel warm-up"


def test_once_from_a_pipe_and_a_failed_start() -> None:
    text = (LOGS / "cpu-v0.32.0-fail-not-enough-memory.log").read_bytes()
    done = subprocess.run([*WARMUP, "--log", "-", "--once", "--json"], input=text, capture_output=True, check=False)
    assert done.returncode == 1
    (data,) = objects(done.stdout.decode())
    assert data["failure"]["numbers"]["requested_gib"] == 9.97
    assert data["advice"]["utilization"] == 0.85  # 9.32 / 10.84 = 0.8598


def test_following_a_pipe_ends_with_it(empty: list[str]) -> None:
    text = (LOGS / "h100-v0.11-tp2.log").read_bytes()
    done = subprocess.run(
        [*WARMUP, "--log", "-", *empty], input=text, capture_output=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0
    assert b"ready in" in done.stdout


def test_compare_two_starts() -> None:
    done = run(["--compare", str(LOGS / "gb10-v0.21-ray-tp2.log"), str(LOGS / "gb10-v0.30-suggestion.log")])
    assert done.returncode == 0
    rows = {line.split("  ")[0].strip(): line.split()[-2:] for line in done.stdout.splitlines() if line}
    assert rows["ready after, s"] == ["240.0", "232.0"]
    assert rows["KV cache, tokens"] == ["310,000", "233,296"]


def test_markdown_report(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    run(["--log", str(LOGS / "gb10-v0.30-suggestion.log"), "--once", "--report", str(report)])
    text = report.read_text()
    assert "| weights | 20 s | 180 s | – |" in text
    assert "| requested budget (0.87 x total) | 105.87 | log |" in text


@pytest.mark.parametrize(
    ("share", "code", "words"),
    [("0.92", 0, "will start"), ("0.97", 3, "risky"), ("0.995", 1, "will be refused")],
)
def test_check_by_exit_code(share: str, code: int, words: str, tmp_path: Path, empty: list[str], library: Path) -> None:
    scenario = tmp_path / "gpu.txt"
    scenario.write_text(H100)
    command = ["vllm", "serve", "org/m", f"--gpu-memory-utilization={share}"]
    done = run(["--check", *empty, "--", *command], environment(library, scenario))
    assert done.returncode == code, done.stdout
    assert done.stdout.startswith(words)


@pytest.mark.parametrize(
    "args",
    [
        ["--once"],
        ["--log", "a", "--container", "b"],
        ["--once", "--", "vllm", "serve"],
        ["--container", "--privileged"],
        ["--log", "/no/such/file", "--once"],
        ["--compare", "/no/such/file", "/nor/this"],
        ["--reserve", "-1", "--check"],
        ["--check", "--", "vllm", "serve", "m", "--gpu-memory-utilization", "abc"],
        ["--check", "--", "vllm", "serve", "m", "--gpu-memory-utilization=1.5"],
    ],
)
def test_usage_errors_print_no_object(args: list[str]) -> None:
    done = run([*args])
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr
