"""Recordings: what is written, and what happens when it cannot be."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from fakes import snapshots as fakes
from llmtop.contract.codec import to_json
from llmtop.contract.snapshot import State
from llmtop.recording import write as record
from llmtop.recording.read import open_recording
from llmtop.recording.write import Recorder
from recordings import lived, shown, written


@pytest.fixture(params=["run.jsonl", "run.jsonl.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


# writing and reading


def test_a_recording_is_the_json_lines_after_one_line_that_says_what_it_is(path: Path) -> None:
    snapshots = lived()
    written(path, snapshots)
    first, *lines = text_of(path).splitlines()
    assert json.loads(first) | {"time": 0} == {
        "schema": 1,
        "kind": "llmtop-recording",
        "llmtop": json.loads(first)["llmtop"],
        "time": 0,
        "interval_s": 1.0,
        "raw": False,
    }
    assert first.startswith('{"schema":1,"kind":"llmtop-recording"')
    assert lines == [to_json(snapshot) for snapshot in snapshots]


def test_only_the_owner_can_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        written(path, lived(1))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_line_is_in_the_file_before_it_is_closed(path: Path) -> None:
    snapshots = lived(3)
    recorder = written(path, snapshots, close=False)
    assert shown(open_recording(path)) == [to_json(snapshot) for snapshot in snapshots]
    recorder.close()
    assert open_recording(path).notes == []


def test_events_stand_between_the_snapshots_and_are_no_snapshots(path: Path) -> None:
    recorder = Recorder(path)
    recorder.write(lived(1)[0])
    recorder.event("load_level", {"result": {"concurrency": 8, "rate": float("nan")}})
    recorder.close()
    recording = open_recording(path)
    (event,) = recording.events
    assert (event.kind, event.values["result"]) == ("load_level", {"concurrency": 8, "rate": None})
    assert len(recording) == 1


def test_pages_are_recorded_only_when_asked(path: Path) -> None:
    for raw in (False, True):
        recorder = Recorder(path, raw=raw)
        recorder.write(lived(1)[0])
        recorder.page("http://a:1", b'x{label="\xff"} 1\n', 12.5)
        recorder.close()
        pages = [json.loads(line) for line in text_of(path).splitlines() if '"event":"page"' in line]
        assert [page["text"] for page in pages] == (['x{label="�"} 1\n'] if raw else [])
    assert len(open_recording(path)) == 2


def test_an_existing_recording_is_continued(path: Path) -> None:
    snapshots = lived(6)
    written(path, snapshots[:3])
    path.chmod(0o644)
    written(path, snapshots[3:])
    assert shown(open_recording(path)) == [to_json(snapshot) for snapshot in snapshots]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_recording_that_a_crash_has_cut_is_continued(path: Path) -> None:
    snapshots = lived(6)
    written(path, snapshots[:3], close=False)
    path.write_bytes(path.read_bytes()[:-9])
    written(path, snapshots[3:])
    recording = open_recording(path)
    kept = snapshots[:2] + snapshots[3:]
    assert shown(recording) == [to_json(snapshot) for snapshot in kept]
    (note,) = recording.notes
    assert note.startswith("1 line cannot be read (line 4: no JSON from character ")


def test_a_file_that_is_no_recording_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("do not lose me\n")
    recorder = Recorder(path)
    recorder.open()
    recorder.write(lived(1)[0])
    assert recorder.status is not None
    assert "is no recording" in (recorder.status.reason or "")
    assert path.read_text() == "do not lose me\n"


@pytest.mark.parametrize(
    ("where", "words"),
    [("missing/run.jsonl", "No such file"), ("", "Is a directory"), ("/dev/full", "No space left on device")],
)
def test_trouble_with_the_file_is_a_status(where: str, words: str, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / where)
    recorder.open()
    recorder.write(lived(1)[0])
    recorder.event("x", {})
    assert recorder.status is not None
    assert (recorder.status.name, recorder.status.ok) == ("recording", False)
    assert words in (recorder.status.reason or "")
    recorder.close()


def test_a_pipe_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    recorder = Recorder(tmp_path / "pipe")
    recorder.open()
    assert recorder.status is not None


def test_when_the_disk_has_room_again_recording_goes_on_and_says_what_is_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = lived(9)
    recorder = written(path, snapshots[:3], close=False)
    write = os.write

    def half(fd: int, data: bytes) -> int:
        """A disk that takes half a line and is full then."""
        if len(data) < 40:
            raise OSError(28, "No space left on device")
        return write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    for snapshot in snapshots[3:6]:
        recorder.write(snapshot)
    assert recorder.status is not None
    assert len(open_recording(path)) == 3
    assert open_recording(path).notes == []
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(record, "RETRY_S", 0.0)
    recorder._retry_at = 0.0
    for snapshot in snapshots[6:]:
        recorder.write(snapshot)
    assert recorder.status is None
    recorder.close()
    recording = open_recording(path)
    assert recording.notes == []
    assert shown(recording) == [to_json(snapshot) for snapshot in snapshots[:3] + snapshots[6:]]
    assert [(event.kind, event.values["lost"]) for event in recording.events] == [("gap", 3)]


def test_nothing_secret_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    written(path, lived(2))
    assert not re.search("authorization|bearer|api.?key|prompt_text", path.read_text(), re.I)


def test_values_of_any_kind_of_object_can_be_events(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl")
    values: dict[str, Any] = {"path": Path("/x"), "state": State.IDLE, "record": fakes.busy().host}
    recorder.write(lived(1)[0])
    recorder.event("odd", values)
    recorder.close()
    (event,) = open_recording(tmp_path / "run.jsonl").events
    assert event.values["path"] == "/x"
    assert event.values["state"] == "IDLE"
