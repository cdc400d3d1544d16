"""A real vLLM on the CPU, launched by `llmtop warmup --`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from e2e.test_real_vllm import CACHE, HERE, VENV, pytestmark

__all__ = ["pytestmark"]

MODEL = CACHE / "tiny-model"
START_S = 300


def command(port: int, *flags: str) -> list[str]:
    serve = [f"{VENV}/bin/vllm", "serve", str(MODEL), "--host", "127.0.0.1", "--port", str(port)]
    return [*serve, "--block-size", "32", "--max-num-seqs", "8", "--dtype", "float32", "--enforce-eager", *flags]


def launch(log: Path, words: list[str]) -> subprocess.Popen[str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    warmup = [sys.executable, "-m", "llmtop", "warmup", "--json", "--log", str(log), "--"]
    return subprocess.Popen([*warmup, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)


def first_healthy(port: int, found: list[float], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                found.append(time.time())
                return
        except (OSError, urllib.error.URLError):
            stop.wait(0.05)


@pytest.fixture(scope="module", autouse=True)
def _model() -> None:
    """The tiny model, built where no other test has done so yet."""
    if not (MODEL / "model.safetensors").exists():
        subprocess.run([str(VENV / "bin" / "python"), str(HERE / "real_vllm" / "make_tiny.py"), str(MODEL)], check=True)


@pytest.fixture
def port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number: int = sock.getsockname()[1]
        return number


def test_phases_ready_time_and_ctrl_c(port: int, tmp_path: Path) -> None:
    found: list[float] = []
    stop = threading.Event()
    probe = threading.Thread(target=first_healthy, args=(port, found, stop))
    probe.start()
    process = launch(tmp_path / "vllm.log", command(port, "--max-model-len", "1024", "--num-gpu-blocks-override", "96"))
    try:
        assert process.stdout is not None
        for line in process.stdout:
            data = json.loads(line)
            if data["state"] != "starting":
                break
        probe.join(START_S)
        assert data["state"] == "ready"
        names = [p["name"] for p in data["phases"]]
        assert names[:2] == ["start", "weights"]
        assert names[-2:] == ["kv", "ready"]
        assert abs(data["ready_at"] - found[0]) < 1.0
        assert data["kv_cache_tokens"] == 96 * 32
    finally:
        stop.set()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)


def test_model_length_that_does_not_fit(port: int, tmp_path: Path) -> None:
    words = command(port, "--max-model-len", "2048", "--num-gpu-blocks-override", "16")
    process = launch(tmp_path / "vllm.log", words)
    out, _ = process.communicate(timeout=START_S)
    data = json.loads(out.splitlines()[-1])
    assert process.returncode == 1
    assert (data["failure"]["phase"], data["failure"]["kind"]) == ("kv", "len_too_long")
    assert data["advice"]["changes"][0] == "--max-model-len 480"
