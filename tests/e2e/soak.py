"""An hour of `llmtop demo` with recording on: memory that does not grow, nothing lost, no finding that flickers.

`python tests/e2e/soak.py [--seconds 3600] [--interval 1]` prints figures every minute and ends with 1 when the resident
memory grew by 5 MB or more after the first tenth (at least a minute), snapshots are missing, or a finding came and went
within ten seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measured import Measured

MOST_GROWN = 5e6
FLICKER_S = 10.0
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a soak showed: memory after the warm-up and at the end (bytes), and the recording."""

    seconds: float
    settled: int
    ended: int
    bytes_s: float
    times: list[float]
    flickers: list[str]
    spells: dict[str, int]

    def problems(self, interval_s: float) -> list[str]:
        """Why it did not pass."""
        grown = self.ended - self.settled
        found = [f"resident memory grew by {grown / 1e6:.1f} MB"] if grown >= MOST_GROWN else []
        gap = max((b - a for a, b in pairwise(self.times)), default=0.0)
        missing = self.seconds / interval_s - len(self.times)
        if missing > 3 + 0.005 * self.seconds / interval_s:
            found.append(f"{missing:.0f} snapshots are missing, the longest gap is {gap:.1f} s")
        return found + [f"flickers: {name}" for name in self.flickers]


def soak(seconds: float, interval_s: float, folder: Path, report_s: float = 60.0) -> Soaked:
    """Watch the demo for so long; `folder` gets the recording."""
    recording = folder / "soak.jsonl"
    words = ("demo", "gb10", "-d", f"{interval_s:g}", "--record", str(recording))
    with Measured(folder, *words, size=(120, 36)) as app:
        app.wait_all("KV cache", "Quit")
        began = time.monotonic()
        sizes = list(_watched(app, began, seconds, report_s))
        took, sent = time.monotonic() - began, app.bytes
        app.keys("q")
        assert app.process.wait(10) == 0
    warm = max(60.0, seconds / 10) if seconds > 120 else seconds / 3
    settled = max(size for at, size in sizes if at <= warm)
    spells = list(_spells(recording))
    short = [name for name, lasted in spells if lasted < FLICKER_S]
    counted = {name: sum(name == other for other, _ in spells) for name, _ in spells}
    times = [line["time"] for line in _snapshots(recording)]
    return Soaked(took, settled, sizes[-1][1], sent / took, times, short, counted)


def _watched(app: Measured, began: float, seconds: float, report_s: float) -> Iterator[tuple[float, int]]:
    """Resident memory every few seconds; a line of figures every minute."""
    next_report = report_s
    while (at := time.monotonic() - began) < seconds:
        app.look(min(LOOK_S, seconds - at))
        size = _rss(app.process.pid)
        yield at, size
        if at >= next_report:
            next_report += report_s
            print(f"{at:6.0f} s  {size / 1e6:.2f} MB  {app.bytes / at:.0f} B/s", flush=True)


def _rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def _snapshots(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as lines:
        for line in lines:
            values = json.loads(line)
            if "servers" in values:
                yield values


def _spells(path: Path) -> Iterable[tuple[str, float]]:
    """Every finding that came and went, and for how long it was there."""
    since: dict[str, float] = {}
    for line in _snapshots(path):
        now = {finding["id"] for finding in line["findings"]}
        for name in [name for name in since if name not in now]:
            yield name, line["time"] - since.pop(name)
        for name in now:
            since.setdefault(name, line["time"])


def main() -> int:
    """Run it and say how it went; the exit code."""
    parser = argparse.ArgumentParser(description="Watch the demo for an hour.")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--interval", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = soak(args.seconds, args.interval, Path(folder))
    grown = (done.ended - done.settled) / 1e6
    print(f"{done.seconds:.0f} s, {len(done.times)} snapshots, {done.bytes_s:.0f} B/s to the terminal")
    print(
        f"resident {done.settled / 1e6:.2f} MB after the warm-up, {done.ended / 1e6:.2f} MB at the end: {grown:+.2f} MB"
    )
    print(f"findings that came and went: {done.spells or 'none'}")
    problems = done.problems(args.interval)
    print("\n".join(problems) or "passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
