"""Disks that fill and paths that are no files: one clear line, and what was measured before stays."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.pages import Engine, PageServer
from fakes.truth import TruthServer, truth_server
from llmtop.recording.read import open_recording
from program import COMMAND, Program, bare, environment, once

LOG = Path(__file__).parents[1] / "fixtures/startup/cpu-v0.32.0-compile.log"


@pytest.fixture
def truth() -> Iterator[TruthServer]:
    with truth_server() as server:
        server.script(ttft_s=0.001, itl_s=0.0)
        yield server


def full_after(size: int) -> Callable[[], None]:
    """For a child: a file larger than this cannot be written."""

    def limit() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def run(folder: Path, *args: str, size: int | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [COMMAND, *args],
        capture_output=True,
        text=True,
        env=environment(folder, {"XDG_STATE_HOME": str(folder / "state"), "PYTHONDONTWRITEBYTECODE": "1"}),
        stdin=subprocess.DEVNULL,
        preexec_fn=None if size is None else full_after(size),
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def load(folder: Path, url: str, *more: str, size: int | None = None) -> subprocess.CompletedProcess[str]:
    words = ["--yes", "--json", "--max-concurrency", "1,2", "--num-prompts", "30", "--random-input-len", "8"]
    words += ["--random-output-len", "4", "--no-warm-up", "--output-dir", str(folder / "runs"), *more]
    return run(folder, "load", url, *words, *bare(folder), size=size)


def test_a_recording_on_a_full_disk_keeps_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with PageServer([Engine().page]) as server:
        words = [COMMAND, server.url, "--json", "-d", "0.2", "--record", str(file), *bare(tmp_path)]
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path),
            preexec_fn=full_after(20_000),
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                told = [finding["text"] for finding in json.loads(line)["findings"] if "record" in finding["id"]]
                if told:
                    break
            process.terminate()
            _, err = process.communicate(timeout=30)
    assert "too large" in told[0]
    assert err == ""
    kept = open_recording(file)
    assert len(kept) >= 3
    assert kept.notes == []


@pytest.mark.parametrize("size", [0, 300, 3_000, 8_000])
def test_load_results_on_a_full_disk(size: int, truth: TruthServer, tmp_path: Path) -> None:
    done = load(tmp_path, truth.url, size=size)
    *events, result = (json.loads(line) for line in done.stdout.splitlines())
    if size < 1000:  # the plan itself does not fit
        assert (done.returncode, result["levels"]) == (3, [])
        assert "File too large" in done.stderr
        return
    assert [level["completed"] for level in result["levels"]] == [30, 30]
    (trouble,) = [event["text"] for event in events if "on disk" in event.get("text", "")]
    assert trouble.endswith("File too large")
    for file in (tmp_path / "runs").rglob("*.json"):
        json.loads(file.read_text())


@pytest.mark.parametrize("what", ["file", "file in between"])
def test_load_results_where_no_folder_can_be(what: str, truth: TruthServer, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    done = load(tmp_path, truth.url, *(["--output-dir", str(tmp_path / "runs/deep")] if "between" in what else []))
    assert done.returncode == 3
    assert json.loads(done.stdout.splitlines()[-1])["levels"] == []
    assert str(tmp_path / "runs") in done.stderr


@pytest.mark.parametrize("kind", ["folder", "pipe", "no such folder", "file as folder"])
@pytest.mark.parametrize("flag", ["--record", "--prometheus-file"])
def test_files_of_a_watch_that_cannot_be(flag: str, kind: str, tmp_path: Path) -> None:
    path = odd(kind, tmp_path)
    with PageServer([Engine().page]) as server:
        done = once(tmp_path, server.url, "--once", "--json", flag, str(path))
    assert done.returncode in (0, 1, 2)
    if done.returncode == 2:
        assert len(done.stderr.splitlines()) == 1
        assert str(path) in done.stderr
    else:
        assert str(path) in done.stdout  # a finding says so


@pytest.mark.parametrize("kind", ["folder", "pipe", "no such folder", "file as folder"])
@pytest.mark.parametrize("command", ["report", "export", "log", "replay", "compare"])
def test_paths_that_are_no_files(command: str, kind: str, tmp_path: Path) -> None:
    path = str(odd(kind, tmp_path))
    recording = str(Path(__file__).parents[1] / "fixtures/recordings/first-format.jsonl")
    words = {
        "report": ["warmup", "--once", "--log", str(LOG), "--report", path],
        "export": ["export", recording, "--csv", "-o", path],
        "log": ["warmup", "--once", "--log", path],
        "replay": ["replay", path, "--once", "--json"],
        "compare": ["warmup", "--compare", path, path],
    }[command]
    if kind == "pipe" and command != "report":
        return  # a pipe is read or written once somebody is at its other end
    done = run(tmp_path, *words)
    assert done.returncode == 2, done
    (said,) = done.stderr.splitlines()
    assert path in said
    assert not stat.S_ISREG(os.stat(path).st_mode) if kind in ("folder", "pipe") else True


def odd(kind: str, folder: Path) -> Path:
    """A path where no file can be written."""
    path = folder / "odd"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "no such folder":
        path /= "deep/file"
    else:
        path.write_text("")
        path /= "file"
    return path


def test_a_report_and_an_export_on_a_full_disk(tmp_path: Path) -> None:
    recording = str(Path(__file__).parents[1] / "fixtures/recordings/first-format.jsonl")
    for words in (
        ["warmup", "--once", "--log", str(LOG), "--report", str(tmp_path / "a.md")],
        ["export", recording, "--html", "-o", str(tmp_path / "b.html")],
    ):
        done = run(tmp_path, *words, size=100)
        assert done.returncode == 2, done
        assert len(done.stderr.splitlines()) == 1
        assert "File too large" in done.stderr


@pytest.mark.parametrize("content", [b"\xef\xbb\xbfinterval = 0.5\n", b""])
def test_a_configuration_with_a_byte_order_mark_or_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "llmtop").mkdir()
    (tmp_path / "llmtop/config.toml").write_bytes(content)
    with PageServer([Engine().page]) as server, Program(tmp_path, server.url) as program:
        assert program.wait_state("SERVING")["interval_wanted_s"] == (0.5 if content else 1.0)


@pytest.mark.parametrize("kind", ["folder", "pipe", "large", "latin-1"])
def test_a_configuration_that_is_none(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "llmtop/config.toml"
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"# " + b"x" * 2**21 if kind == "large" else 'theme = "ü"'.encode("latin-1"))
    done = run(tmp_path, "127.0.0.1:9", "--once")
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert str(path) in said
