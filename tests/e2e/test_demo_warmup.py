"""The simulated start-up: a closed port, memory that follows the phases, a log that llmtop can read, an OOM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from fakes.demo_client import wait_for
from llmtop.demo import profile as profiles
from llmtop.demo.child import launch
from llmtop.demo.machine import SimulatedMachine
from llmtop.demo.warmup import doomed, free_bytes, grown
from llmtop.warmup.startup import Startup
from llmtop.warmup.tracker import read_log

GIB = 2**30


def startup(log: Path) -> Startup:
    return read_log(log.read_text(encoding="utf-8").splitlines())


def test_a_start_up_from_closed_port_to_serving(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    profile = profiles.load("gb10")
    with launch("gb10", warmup=True, speed=200, log=log, no_traffic=True) as demo:
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{demo.url}/metrics")
        with pytest.raises(OSError, match="400"):
            demo.fault("restart")
        machine = SimulatedMachine(profile, demo.control)
        machine.start()
        wait_for(machine.sample, lambda s: (s.mem.available or 0) < 60 * GIB)
        page = wait_for(lambda: fetch(f"{demo.url}/metrics"), lambda text: text is not None)
        assert page is not None
        assert "vllm:num_requests_running" in page
        ready = wait_for(machine.sample, lambda s: bool(s.devices[0].processes))
        machine.stop()
    assert ready.devices[0].processes[0].memory_bytes == profile.engine_bytes

    read = startup(log)
    assert read.state == "ready"
    assert read.version == "0.32.0"
    assert (read.kv_cache_tokens, read.kv_cache_gib) == (849_942, 16.48)
    assert read.weights_gib == pytest.approx(64.40)
    assert read.weights_seconds == pytest.approx(591 / 200, abs=0.01)
    assert read.init_seconds == pytest.approx(30.14 / 200, abs=0.01)
    assert read.url == demo.url


def fetch(url: str) -> str | None:
    try:
        return httpx.get(url, timeout=2).text
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("machine", ["gb10", "gh200", "h100"])
def test_running_out_of_memory_in_graph_capture(machine: str, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    command = [sys.executable, "-m", "llmtop.demo", machine, "--oom", "--speed", "400", "--log", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr == ""
    assert json.loads(done.stdout)["machine"] == machine
    read = startup(log)
    assert read.state == "failed"
    assert read.phase == "graphs"
    assert "CUDA out of memory" in log.read_text(encoding="utf-8")


@pytest.mark.parametrize("machine", ["gb10", "gh200", "h100"])
def test_the_doomed_profile_fits_until_the_graphs(machine: str) -> None:
    profile = doomed(profiles.load(machine))
    held = 0
    for phase in profile.warmup:
        if phase.phase == "graphs":
            break
        held += grown(profile, phase, 1.0)
    assert 0 < free_bytes(profile, held) < profile.machine.graphs
    assert profile.engine.gpu_memory_utilization <= 1.0


def test_the_transient_peak_comes_and_goes() -> None:
    profile = profiles.load("gb10")
    (phase,) = [p for p in profile.warmup if p.phase == "profile"]
    assert grown(profile, phase, 0.5) > 4 * GIB
    assert grown(profile, phase, 0.2) < GIB
    assert grown(profile, phase, 1.0) == phase.device
