"""Small recordings for tests: snapshots a second apart, written and read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fakes import snapshots as fakes
from llmtop.contract.codec import to_json
from llmtop.contract.snapshot import Mark, Snapshot
from llmtop.recording.read import Recording
from llmtop.recording.write import Recorder


def lived(seconds: int = 30, marks: dict[int, Mark] | None = None) -> list[Snapshot]:
    """A snapshot a second, with the running requests counting up and marks at some of them."""
    busy = fakes.busy()
    return [
        replace(
            busy,
            time=busy.time + second,
            servers=(replace(busy.servers[0], running=second),),
            marks=(marks[second],) if marks and second in marks else (),
        )
        for second in range(seconds)
    ]


def written(path: Path, snapshots: list[Snapshot], *, close: bool = True) -> Recorder:
    recorder = Recorder(path, interval_s=1.0)
    for snapshot in snapshots:
        recorder.write(snapshot)
    assert recorder.status is None
    if close:
        recorder.close()
    return recorder


def shown(recording: Recording) -> list[str]:
    return [to_json(snapshot) for snapshot in recording]
