"""Reading recordings: snapshots from JSON, files that are not whole, finding a moment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from fakes import snapshots as fakes
from llmtop.contract.codec import NotGiven, from_json, to_json
from llmtop.contract.settings import UsageError
from llmtop.contract.snapshot import SCHEMA, Event, Finding, Mark, Snapshot, SourceStatus, State
from llmtop.recording.read import Recording, open_recording
from llmtop.session.history import History
from recordings import lived, shown, written

MAKERS: dict[str, Callable[[], Snapshot]] = {
    name: getattr(fakes, name) for name in ("busy", "idle", "data_parallel", "down", "stale", "gh200", "three_servers")
}


@pytest.fixture(params=["run.jsonl", "run.jsonl.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


# from JSON and back


@pytest.mark.parametrize("name", MAKERS)
def test_a_snapshot_comes_back_equal(name: str) -> None:
    before = replace(
        MAKERS[name](),
        findings=(Finding("a:b", "warning", "text", None, "advice"),),
        sources=(SourceStatus("nvml", False, "no driver", 1.5),),
        marks=(Mark("mark", "mark", 5.0), Mark("restart", "restart x", 6.0)),
    )
    after = from_json(json.loads(to_json(before)))
    assert after == before
    assert to_json(after) == to_json(before)


def test_marks_of_earlier_versions_were_words_alone() -> None:
    snapshot = from_json({"time": 5.5, "marks": ["mark", "restart vllm", "load c=8", "lunch"]})
    assert snapshot.marks == (
        Mark("mark", "mark", 5.5),
        Mark("restart", "restart vllm", 5.5),
        Mark("level", "load c=8", 5.5),
        Mark("note", "lunch", 5.5),
    )


def test_every_field_of_a_snapshot_is_rebuilt() -> None:
    rebuilt = from_json(json.loads(to_json(fakes.busy())))
    assert {field.name for field in fields(rebuilt)} == set(json.loads(to_json(fakes.busy())))
    assert isinstance(rebuilt.servers, tuple)
    assert rebuilt.servers[0].state is State.SERVING


def test_unknown_keys_are_ignored_and_missing_ones_have_their_defaults() -> None:
    snapshot = from_json({"time": 5, "servers": [{"url": "http://a:1", "colour": "red"}], "weather": {}})
    assert snapshot.servers[0].state is State.DOWN
    assert snapshot.servers[0].rates.generation_tok_s is None
    assert snapshot.schema == SCHEMA


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("state", "DANCING"),
        ("running", "many"),
        ("running", True),
        ("kv_capacity_approx", 1),
        ("engines", {"engine": "0"}),
        ("engines", [7]),
        ("waiting_by_reason", {"capacity": None}),
        ("joules_scope", "planet"),
        ("latency", []),
    ],
)
def test_a_value_of_the_wrong_kind_counts_as_missing(path: str, value: object) -> None:
    plain = from_json({"time": 1.0, "servers": [{"url": "u"}]})
    assert from_json({"time": 1.0, "servers": [{"url": "u", path: value}]}) == plain


@pytest.mark.parametrize("values", [[], None, "x", {}, {"time": "noon"}, {"time": None}])
def test_what_has_no_time_is_no_snapshot(values: object) -> None:
    with pytest.raises(NotGiven):
        from_json(values)


def test_text_cannot_send_commands_to_the_terminal() -> None:
    snapshot = from_json({"time": 1.0, "servers": [{"url": "u", "model": "a\x1b]0;x\x07\x9bb é–"}]})
    assert snapshot.servers[0].model == "a]0;xb é–"


# reading what is not whole


def test_a_cut_last_line_is_skipped_with_a_note(path: Path) -> None:
    snapshots = lived(5)
    written(path, snapshots, close=False)
    size = path.stat().st_size
    os.truncate(path, size - 20)
    recording = open_recording(path)
    assert shown(recording) == [to_json(snapshot) for snapshot in snapshots[:4]]
    assert recording.notes == ["the last line is cut and was skipped"]


def test_a_last_line_that_only_lacks_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(to_json(snapshot) for snapshot in lived(3)))
    assert len(open_recording(path)) == 3
    assert open_recording(path).notes == []


def test_the_output_of_json_is_a_recording_too(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("".join(to_json(snapshot) + "\n" for snapshot in lived(4)))
    recording = open_recording(path)
    assert len(recording) == 4
    assert recording.pace_s == 1.0


@pytest.mark.parametrize(
    "first", ['{"schema":2,"kind":"llmtop-recording"}', to_json(lived(1)[0]).replace('"schema":1', '"schema":2')]
)
def test_a_newer_schema_is_refused(first: str, tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    path.write_text(f"{first}\n{to_json(lived(1)[0])}\n")
    with pytest.raises(UsageError, match=r"newer llmtop \(schema 2, this one reads up to 1\)"):
        open_recording(path)


def test_an_older_one_is_read_with_what_it_lacks_unknown(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(
        '{"schema":0,"kind":"llmtop-recording"}\n'
        '{"time":100.5,"servers":[{"url":"http://a:1","state":"SERVING","running":3}],"schema":0}\n'
    )
    (snapshot,) = open_recording(path)
    assert (snapshot.servers[0].running, snapshot.servers[0].waiting, snapshot.pools) == (3, None, ())


@pytest.mark.parametrize("content", [b"", b"\n\n", b"hello\n", b"\0" * 999, b"{}\n", b"[1]\n", b"\x1f\x8b\x08garbage"])
def test_what_is_no_recording_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a recording, or it has no snapshot"):
        open_recording(path)


@pytest.mark.parametrize("when", ["1e300", "-5", "1e11"])
def test_a_snapshot_of_no_time_is_a_line_that_cannot_be_read(when: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(f'{{"time":{when},"servers":[]}}\n{{"time":100.0,"servers":[]}}\n')
    recording = open_recording(path)
    assert (list(recording.times), recording.notes) == ([100.0], ["1 line cannot be read (line 1: no time)"])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        open_recording(tmp_path / "x")


def test_a_damaged_line_in_between_is_skipped_with_its_number_and_reason(tmp_path: Path) -> None:
    lines = [to_json(snapshot) for snapshot in lived(3)]
    lines[1] = lines[1].replace('"devices":', '"devices"!')
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(lines) + "\n")
    recording = open_recording(path)
    assert [snapshot.servers[0].running for snapshot in recording] == [0, 2]
    (note,) = recording.notes
    assert note.startswith("1 line cannot be read (line 2: no JSON from character ")


def test_of_many_damaged_lines_the_first_are_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    bad = ['{"time":"now","servers":[]}', '{"time":5,"servers":{}}', "[]", "[", "{}"]
    path.write_text("\n".join([to_json(lived(1)[0]), *bad]) + "\n")
    assert open_recording(path).notes == [
        "5 lines cannot be read (line 2: no time; line 3: no list of servers; line 4: no object; …)"
    ]


def test_lines_of_a_newer_version_in_a_continued_recording_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(to_json(lived(1)[0]) + '\n{"schema":9,"time":5,"servers":[]}\n')
    assert open_recording(path).notes == ["1 line cannot be read (line 2: written by a newer llmtop)"]


def test_a_byte_order_mark_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(to_json(snapshot) + "\n" for snapshot in lived(3)).encode())
    recording = open_recording(path)
    assert (len(recording), recording.notes) == (3, [])


# finding a moment


MARKS = [(20, Mark("mark", "mark", 20.0)), (40, Mark("restart", "restart vllm", 40.0))]


@pytest.fixture
def minute(tmp_path: Path) -> Recording:
    path = tmp_path / "run.jsonl"
    written(path, lived(60, dict(MARKS)))
    return open_recording(path)


def test_marks_are_found(minute: Recording) -> None:
    assert minute.marks == MARKS


@pytest.mark.parametrize(("seconds", "index"), [(-5, 0), (0, 0), (0.9, 0), (1, 1), (30.5, 30), (59, 59), (99, 59)])
def test_what_was_on_screen_at_a_time(seconds: float, index: int, minute: Recording) -> None:
    assert minute.index_at(minute.start + seconds) == index


@pytest.mark.parametrize(("text", "index"), [("0", 0), ("12.5", 12), ("59", 59), ("60", 59)])
def test_at_takes_seconds(text: str, index: int, minute: Recording) -> None:
    assert minute.index_of(text) == index


def test_at_takes_the_time_of_day(minute: Recording) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(minute.start + 17))
    assert minute.index_of(clock) == 17


@pytest.mark.parametrize("text", ["61.5", "12:60:00", "25:00:00", "noon", "-1", "nan", "1e999", ""])
def test_at_refuses_the_rest(text: str, minute: Recording) -> None:
    with pytest.raises(UsageError, match="--at"):
        minute.index_of(text)


def test_a_clock_that_is_set_back_does_not_confuse_seeking(tmp_path: Path) -> None:
    snapshots = lived(10)
    snapshots[5:] = [replace(snapshot, time=snapshot.time - 3600) for snapshot in snapshots[5:]]
    written(tmp_path / "run.jsonl", snapshots)
    recording = open_recording(tmp_path / "run.jsonl")
    assert list(recording.times) == sorted(recording.times)
    assert recording.index_at(recording.end) == 9


def test_charts_are_the_same_from_the_figures_alone(tmp_path: Path) -> None:
    snapshots = [fakes.gh200(), fakes.data_parallel(), fakes.stale(), fakes.three_servers(), fakes.busy()]
    start = fakes.busy().time
    snapshots = [replace(snapshot, time=start + place) for place, snapshot in enumerate(snapshots)]
    happened, mark = Event(start, "restart", "restart m", fakes.URL, "spark-a"), Mark("restart", "restart m", start)
    snapshots[2] = replace(snapshots[2], events=(happened,), marks=(mark,))
    written(tmp_path / "run.jsonl", snapshots)
    recording = open_recording(tmp_path / "run.jsonl")
    full, slim = History(), History()
    for place, snapshot in enumerate(snapshots):
        full.push(snapshot)
        slim.push(recording.figures(place))
    assert slim.peaks == full.peaks
    assert list(slim.events) == list(full.events) == [happened]
    assert list(slim.marks) == list(full.marks)
    assert set(slim._series) == set(full._series)
    for owner, name in full._series:
        assert slim.columns(owner, name, 1.0, 8) == full.columns(owner, name, 1.0, 8)
