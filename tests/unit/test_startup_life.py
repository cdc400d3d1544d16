"""The life of a start-up: one process, its own output, its end; containers that run in the background."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.pages import Engine, PageServer
from llmtop.contract.settings import Settings, Target
from llmtop.contract.snapshot import State
from llmtop.session.server_watch import ServerWatch
from llmtop.warmup import process
from llmtop.warmup.detached import detached_tool, published_port, start_container
from llmtop.warmup.log_source import LogError, container, existing_file
from llmtop.warmup.process import ProcessProbe
from llmtop.warmup.watch import Watch

PROC = Path("/proc")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def step_until(watch: Watch, condition: Callable[[], bool]) -> None:
    def over() -> bool:
        watch.step()
        return condition()

    wait_for(over)


def make_process(procfs: Path, pid: int, port: int) -> None:
    folder = procfs / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"\0".join([b"vllm", b"serve", b"org/m", b"--port", str(port).encode(), b""]))
    (folder / "stat").write_text(f"{pid} (vllm) S 1")


async def poll(watch: ServerWatch) -> None:
    while (due := watch.begin(0.2)) is None:
        await asyncio.sleep(0.01)
    await due
    while watch._task is not None and not watch._task.done():
        await asyncio.sleep(0.01)


async def test_a_process_that_has_served_shuts_down_and_the_next_one_starts(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as server:
        target = Target(server.url)
        make_process(tmp_path, 71, target.port)
        watch = ServerWatch(target, Settings((target,), procfs=tmp_path, sysfs=tmp_path))
        await watch.prepare()
        await poll(watch)
        await poll(watch)
    await poll(watch)
    view = watch.view(time.monotonic(), time.time())
    assert (view.state, "shutting down: process 71" in (view.reason or "")) == (State.DOWN, True)
    (tmp_path / "71").rename(tmp_path / "72")
    watch._next_look = 0.0
    await poll(watch)
    assert watch.view(time.monotonic(), time.time()).state is State.STARTING


def test_output_file_and_beginning_of_a_process(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    before = time.time()
    with log.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=file)
    try:
        assert process.output_file(PROC, child.pid) == log
        began = process.began(PROC, child.pid)
        assert began is not None
        assert abs(began - before) < 5
        log.unlink()
        assert process.output_file(PROC, child.pid) is None
    finally:
        child.communicate(b"\n")
    assert not process.lives(PROC, child.pid)


def test_a_start_without_a_log_ends_with_its_process_and_guesses_no_phase(tmp_path: Path) -> None:
    make_process(tmp_path, 71, 8123)
    watch = Watch(probe=ProcessProbe(tmp_path, "127.0.0.1", 8123), procfs=tmp_path, sysfs=tmp_path)
    watch.start()
    step_until(watch, lambda: watch.rooted)
    started = watch.report().startup
    assert (started.state, started.phase, started.phases) == ("starting", None, ())
    (tmp_path / "71" / "stat").unlink()
    step_until(watch, lambda: watch.done)
    ended = watch.report()
    assert ended.startup.state == "failed"
    assert "memory" not in ended.verdict  # nothing shows that the killer was there
    watch.stop()


def test_the_log_of_a_start_is_the_file_its_process_writes_to(tmp_path: Path) -> None:
    make_process(tmp_path, 71, 8123)
    log = tmp_path / "server.log"
    log.write_text("(APIServer pid=71) INFO 08-21 07:36:02 [a.py:1] vLLM API server version 0.10.1\n")
    (tmp_path / "71" / "fd" / "1").symlink_to(log)
    watch = Watch(probe=ProcessProbe(tmp_path, "127.0.0.1", 8123), procfs=tmp_path, sysfs=tmp_path)
    watch.start()
    step_until(watch, lambda: watch.report().startup.version == "0.10.1")
    watch.stop()


@pytest.mark.parametrize(
    ("command", "tool"),
    [
        ("docker run -d --gpus all vllm/vllm-openai --model m", "docker"),
        ("sudo podman run -itd image", "podman"),
        ("docker run --detach image", "docker"),
        ("docker run --rm -it image", None),
        ("sudo -E docker --context far container run --name v -p 8000:8000 -d image --model m", "docker"),
        ("podman run --detach=true image", "podman"),
        ("docker run --rm --gpus all -v /a:/b image serve -d 2", None),
        ("docker run --name -d image", None),
        ("vllm serve m -dp 2", None),
    ],
)
def test_containers_in_the_background_are_known(command: str, tool: str | None) -> None:
    assert detached_tool(command.split()) == tool


def test_the_published_port_is_asked() -> None:
    assert published_port(["docker", "run", "-d", "-p", "127.0.0.1:8001:8000", "image"], 8000) == 8001
    assert published_port(["docker", "run", "-d", "--publish=9000:8000/tcp", "image"], 8000) == 9000
    assert published_port(["docker", "run", "-d", "--network", "host", "image"], 8000) == 8000


def script(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "docker"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


def test_who_may_not_ask_docker_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "echo 'permission denied while trying to connect to the Docker daemon' >&2; exit 1", monkeypatch)
    with pytest.raises(LogError, match="not allowed to ask docker: be in the docker group or use sudo"):
        container("vllm")
    with pytest.raises(LogError, match="not allowed to ask docker"):
        start_container(["docker", "run", "-d", "image"])


def test_the_id_that_run_prints_is_what_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "echo pulling >&2; echo 0123456789abcdef", monkeypatch)
    assert start_container(["docker", "run", "-d", "image"]) == "0123456789abcdef"


def test_a_log_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="No such file"):
        existing_file(tmp_path / "none.log")
