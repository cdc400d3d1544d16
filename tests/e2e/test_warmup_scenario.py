"""A start-up of a minute in full: the memory of an H100 by a fake NVML, its log written beside it as vLLM would."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from crank import FIXTURES
from fakes.nvml import build, environment

MIB = 2**20
FREE = 81559 - 551  # MiB, less what the driver reserves
# seconds since the first reading, in step with the memory of fixtures/nvml/warmup.txt
LOG = (
    (0.0, "APIServer", "vLLM API server version 0.32.0"),
    (4.8, "EngineCore", "Starting to load model org/model..."),
    (24.0, "EngineCore", "Loading weights took 19.20 seconds"),
    (27.0, "EngineCore", "Model loading took 57.4 GiB memory and 22.200000 seconds"),
    (29.0, "EngineCore", "torch.compile took 2.00 s in total"),
    (31.5, "EngineCore", "Initial profiling/warmup run took 2.50 s"),
    (32.5, "EngineCore", "Available KV cache memory: 13.00 GiB"),
    (32.6, "EngineCore", "GPU KV cache size: 100,000 tokens, Maximum concurrency for 4,096 tokens per request: 24.41x"),
    (47.0, "EngineCore", "Graph capturing finished in 11 secs, took 1.80 GiB"),
    (47.1, "EngineCore", "init engine (profile, create kv cache, warmup model) took 20.10 s"),
    (48.0, "APIServer", "Starting vLLM server on http://127.0.0.1:1"),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def play(path: Path, over: threading.Event) -> None:
    """Write the log in step with the clock; every line once its second has come."""
    before = 0.0
    with path.open("a") as log:
        for at, process, text in LOG:
            if over.wait(at - before):
                return
            before = at
            log.write(f"({process} pid=7) INFO 11-30 12:00:{int(at):02d} [core.py:1] {text}\n")
            log.flush()
        log.write("INFO:     Application startup complete.\n")


def test_every_phase_of_a_minute_keeps_its_least_headroom(tmp_path: Path, library: Path) -> None:
    log, over = tmp_path / "vllm.log", threading.Event()
    log.touch()
    for name in ("proc", "sys"):
        (tmp_path / name).mkdir()
    roots = ["--procfs", str(tmp_path / "proc"), "--sysfs", str(tmp_path / "sys")]
    process = subprocess.Popen(
        [sys.executable, "-m", "llmtop", "warmup", "--json", "--log", str(log), *roots],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(library, FIXTURES / "nvml" / "warmup.txt"),
    )
    assert process.stdout is not None
    writer = threading.Thread(target=play, args=(log, over))
    data = None
    try:
        for line in process.stdout:
            if data is None:  # the first line is out: NVML has been opened
                writer.start()
            data = json.loads(line)
            if data["state"] != "starting":
                break
    finally:
        over.set()
        process.kill()
        process.communicate()
    assert data is not None
    assert data["state"] == "ready"
    phases = {phase["name"]: phase for phase in data["phases"]}
    assert list(phases) == ["start", "weights", "compile", "profile", "kv", "warmup", "graphs", "ready"]
    # a phase shorter than the time between two readings may have none
    least = {name: round((phase["min_headroom_bytes"] or 0) / MIB) for name, phase in phases.items()}
    assert least["profile"] == FREE - 66 * 1024  # held for 150 ms
    assert least["weights"] == FREE - 58 * 1024
    assert least["graphs"] == least["ready"] == FREE - round(72.8 * 1024)
