"""Three minutes of the demo at five polls a second; tests/e2e/soak.py does the same for an hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.soak import Recorded, Soaked, soak

SECONDS, HZ = 180.0, 5.0


def write(path: Path, spells: list[tuple[str, int, int]], seconds: int = 60) -> Recorded:
    """What a recording of a snapshot a second shows, with each finding from one second until before another."""
    lines = [{"schema": 1, "kind": "llmtop-recording"}] + [
        {"time": 1e9 + t, "servers": [], "findings": [{"id": name} for name, a, b in spells if a <= t < b]}
        for t in range(seconds)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recorded = Recorded(path)
    recorded.follow()
    return recorded


def test_a_finding_of_less_than_ten_seconds_flickers(tmp_path: Path) -> None:
    spells = [("kv", 5, 14), ("kv", 20, 30), ("memory", 55, 60)]
    recorded = write(tmp_path / "run.jsonl", spells)
    assert recorded.flickers == ["kv at 5 s"]
    assert (recorded.appeared, recorded.vanished) == ({"kv": 2, "memory": 1}, {"kv": 2})
    assert (recorded.snapshots, recorded.longest_gap_s) == (60, 1.0)


def test_a_line_that_is_still_written_is_read_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorded = write(path, [])
    whole = path.read_bytes()
    line = b'{"time":1000000070.0,"servers":[],"findings":[{"id":"kv"}]}\n'
    for end, snapshots in ((20, 60), (len(line), 61)):
        path.write_bytes(whole + line[:end])
        recorded.follow()
        assert recorded.snapshots == snapshots
    assert recorded.appeared == {"kv": 1}


@pytest.mark.parametrize(
    ("grown", "seconds", "waited_s", "spells", "words"),
    [
        (4_900_000, 60.0, 0.0, [], None),
        (5_000_000, 60.0, 0.0, [], "resident memory grew by 5.0 MB"),
        (0, 66.0, 0.0, [], "6 snapshots are missing"),
        (0, 66.0, 6.0, [], None),
        (0, 60.0, 0.0, [("kv", 5, 6)], "flickers: kv at 5 s"),
    ],
)
def test_why_a_soak_does_not_pass(
    grown: int, seconds: float, waited_s: float, spells: list[tuple[str, int, int]], words: str | None, tmp_path: Path
) -> None:
    recorded = write(tmp_path / "run.jsonl", spells)
    done = Soaked(seconds, 1.0, 50_000_000, 50_000_000 + grown, 500.0, waited_s, recorded)
    assert done.problems() == ([words] if words else [])


@pytest.mark.parametrize(("waited_s", "busy"), [(3.1, False), (18.0, False), (18.1, True), (113.9, True)])
def test_a_busy_machine_is_one_that_lets_the_program_wait(waited_s: float, busy: bool, tmp_path: Path) -> None:
    recorded = write(tmp_path / "run.jsonl", [])
    assert Soaked(180.0, 5.0, 50_000_000, 50_000_000, 500.0, waited_s, recorded).busy is busy


def test_three_minutes_of_the_demo(tmp_path: Path) -> None:
    done = soak(SECONDS, HZ, tmp_path)
    print(done)
    problems = done.problems()
    if problems and done.busy and all(problem.startswith("flickers") for problem in problems):
        pytest.xfail(f"the machine was busy with other work: {problems}")
    assert problems == []
    assert done.recorded.snapshots > 0
