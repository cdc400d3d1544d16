"""Recordings with hostile values at any key, cut anywhere: read, drawn and exported without an exception.

`LLMTOP_FUZZ=5000` makes it long and random; in the gate it is short and always the same.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import snapshots as fakes
from llmtop.commands import text
from llmtop.contract.codec import to_json
from llmtop.contract.settings import UsageError
from llmtop.contract.snapshot import Event, Finding, Mark, Node, ServerView, Snapshot, SourceStatus
from llmtop.load import recorded as loads
from llmtop.recording import export_csv, export_html, prometheus
from llmtop.recording.read import Recording, open_recording
from llmtop.recording.reread import reread
from llmtop.session.history import History
from llmtop.session.notices import Notices
from llmtop.ui.panels.frame import header, page
from llmtop.ui.panels.load import running_page
from llmtop.ui.panels.load_answer import result_page
from llmtop.ui.panels.view import Scales, View
from llmtop.ui.panels.warmup import warmup_page
from llmtop.ui.replay import Tape
from llmtop.warmup import recorded as startups
from unit.test_load_recorded import PROGRESS

hypothesis = pytest.importorskip("hypothesis")
strategies = pytest.importorskip("hypothesis.strategies")

OLD = Path(__file__).parents[1] / "fixtures/recordings/first-format.jsonl"
LONG = os.environ.get("LLMTOP_FUZZ")
SETTINGS = hypothesis.settings(max_examples=int(LONG or 60), deadline=None, derandomize=not LONG, database=None)
PAGE = (Path(__file__).parents[1] / "fixtures/metrics").glob("*/*.txt")
HOSTILE = (
    *("null", "true", "0", "-1", "0.5", "-0.0", "1e-320", "1e17", "1e300", "1e999", "-1e999", "NaN", "Infinity"),
    *("9223372036854775807", "-9223372036854775809", "1" + "0" * 400, "9" * 5000, "99999999999", "100000000000"),
    *('""', '"x"', '"\\ud800"', '"\\u001b[31m\\n\\u0000"', '"NaN"', '"1e5"', '"2026-01-01"', '"http://[::"'),
    *("[]", "{}", "[[]]", "[null]", "[1,2,3]", '{"a":1}', '{"time":1e308}', '[{"url":5}]', "[" * 50 + "]" * 50),
)


def everything() -> Snapshot:
    """A snapshot with something in every part."""
    return replace(
        fakes.busy(),
        nodes=(Node("spark-a", host=fakes.HOST), Node("spark-b", local=False, state="unknown", reason="why")),
        marks=(Mark("mark", "mark", fakes.NOON),),
        events=(Event(fakes.NOON, "restart", "restart m", fakes.URL, "spark-a"),),
        findings=(Finding("x", "warning", "text", "evidence", "advice"),),
        sources=(SourceStatus("nvml", False, "no driver", 1.5),),
    )


def lines() -> list[dict[str, Any]]:
    """What is in a recording: its first line, snapshots of two machines, old marks, pages, a phase, other events."""
    page = next(PAGE).read_text("utf-8")
    made: list[dict[str, Any]] = [
        {"schema": 1, "kind": "llmtop-recording", "llmtop": "0", "time": fakes.NOON, "interval_s": 1.0, "raw": True}
    ]
    for second in range(6):
        snapshot = everything() if second % 2 else fakes.gh200()
        made.append({"event": "page", "time": fakes.NOON + second, "url": fakes.URL, "t": second + 0.5, "text": page})
        made.append(json.loads(to_json(replace(snapshot, time=fakes.NOON + second))))
    made[4]["marks"] = ["mark", "restart old", "load c=8"]
    others = [line for line in map(json.loads, OLD.read_text("utf-8").splitlines()) if "event" in line]
    others.append({"event": "load", **(loads.to_values(PROGRESS) or {})})
    others.append({"event": "gap", "lost": 3})
    return made[:4] + [line | {"time": fakes.NOON + 1.5} for line in others] + made[4:]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside a value."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


LINES = lines()
PLACES = [(number, path) for number, line in enumerate(LINES) for path in places(line)]
WORSE = (  # found by fuzzing
    ("scenario", '"rush"'),
    ("slo", '{"words_per_minute":1}'),
    ("first_fail", '{"level":"c=4","concurrency":4,"criterion":"words_per_minute","value":1,"limit":2}'),
    ("readings", "[[1800000002.5,5],[5,5],[1e10,5]]"),
    ("state", '"asleep"'),
    ("value_s", "0"),
)


def spoiled(number: int, path: tuple[Any, ...], value: str) -> str:
    """The recording with this JSON text in the place of one value."""
    line = copy.deepcopy(LINES[number])
    if not path:
        return value
    owner: Any = line
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = "HERE"
    return json.dumps(line, separators=(",", ":")).replace('"HERE"', value, 1)


def use(path: Path) -> Recording | None:
    """Do with a recording whatever can be done; None when it is refused in one line."""
    found = None
    for anew in (None, reread):
        try:
            recording = open_recording(path, anew)
        except UsageError:
            continue
        show(recording)
        found = found or recording
    return found


def show(recording: Recording) -> None:
    """Replay it as table, line, JSON and screen, and export it in every form."""
    history, notices, scales = History(), Notices(), Scales()
    tape = Tape(recording, 0, 1.0)
    _, told = tape.open(lambda _: None)
    for index, snapshot in enumerate(recording):
        history.push(recording.figures(index))
        notices.push(snapshot)
        assert to_json(snapshot).encode()
        assert text.table(snapshot) + text.line(snapshot)
        for server in (None, *snapshot.servers):
            view = View(snapshot.beside(server), server, history, 1.0, scales, recording.pace_s)
            assert header(view, 80)
            page(view, 80, 22)
            page(view, 160, 48)
        tape.wind(snapshot.time)
        for cells, rows in ((80, 22), (160, 48)):
            warmup_page(told.seen, view, cells, rows)
            if tape.run is not None:
                running_page(tape.run, view, cells, rows)
                result_page(tape.run, view, cells, rows)
    for part in (*export_csv.lines(recording), *export_html.page(recording), *prometheus.openmetrics(recording)):
        part.encode()


def written(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in texts), "utf-8")
    return path


GOOD = [json.dumps(line, separators=(",", ":")) for line in LINES]


def test_a_recording_of_the_first_format_is_understood() -> None:
    recording = use(OLD)
    assert recording is not None
    assert [(place, mark.kind) for place, mark in recording.marks] == [
        (1, "mark"),
        (2, "restart"),
        (3, "level"),
        (3, "level"),
    ]
    assert [snapshot.servers[0].running for snapshot in recording] == [11, 9, 2, 15]
    tape = Tape(recording, 0, 1.0)
    tape.wind(recording.end)
    assert tape.run is not None
    assert [level.concurrency for level in tape.run.done] == [1, 4]
    assert tape.run.result is not None
    assert tape.run.result.sweet_spot == 4
    seen = startups.from_values(recording.events[0].values)
    assert seen is not None
    assert seen.report.startup.state == "ready"


def test_the_recording_itself_is_readable(tmp_path: Path) -> None:
    recording = use(written(tmp_path / "run.jsonl", GOOD))
    assert recording is not None
    assert (len(recording), recording.notes) == (6, [])


def test_hostile_values_at_any_key(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def check(changes: list[tuple[tuple[int, tuple[Any, ...]], str]]) -> None:
        texts = list(GOOD)
        for (number, place), value in changes:
            texts[number] = spoiled(number, place, value)
        recording = use(written(path, texts))
        if recording is not None:
            lost = sum(int(note.split(" ", 1)[0]) for note in recording.notes if note[0].isdigit())
            assert len(recording) + lost >= 6 - len(changes)

    change = strategies.tuples(strategies.sampled_from(PLACES), strategies.sampled_from(HOSTILE))
    SETTINGS(hypothesis.given(strategies.lists(change, min_size=1, max_size=3))(check))()


@pytest.mark.parametrize(("key", "value"), WORSE)
def test_what_was_found_by_fuzzing(key: str, value: str, tmp_path: Path) -> None:
    texts = [
        re.sub(rf'"{key}":(\[\[.*?\]\]|\{{.*?\}}|"[^"]*"|null|[\d.]+)', lambda _: f'"{key}":{value}', line)
        for line in GOOD
    ]
    assert texts != GOOD
    recording = use(written(tmp_path / "run.jsonl", texts))
    assert recording is not None
    assert (len(recording), recording.notes) == (6, [])


def test_a_recording_cut_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    small = [to_json(Snapshot(fakes.NOON + second, (ServerView(fakes.URL),))) for second in (0, 1)]
    whole = "".join(f"{line}\n" for line in (GOOD[0], *small)).encode()
    first, second = (whole.index(b"\n", whole.index(b"\n") + 1), len(whole) - 1)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        try:
            recording = open_recording(path)
        except UsageError:
            assert cut < first
            continue
        assert len(recording) == (cut >= first) + (cut >= second)
        ends = {0, first, first + 1, second, second + 1}
        assert bool(recording.notes) == (cut not in ends)


def test_bytes_changed_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    whole = "".join(f"{line}\n" for line in (GOOD[0], GOOD[2], GOOD[4])).encode()

    def check(place: int, byte: int) -> None:
        path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        use(path)

    SETTINGS(hypothesis.given(strategies.integers(0, len(whole) - 1), strategies.integers(0, 255))(check))()
