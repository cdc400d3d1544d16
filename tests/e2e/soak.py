"""An hour of `llmtop demo` with recording on: memory that does not grow, nothing lost, no finding that flickers.

`python tests/e2e/soak.py [--seconds 3600] [--hz 1]` prints figures every minute and ends with 1 when the resident
memory grew by 5 MB or more after the first tenth (at least a minute), snapshots are missing that no wait for a
processor explains, or a finding came and went within ten seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measured import Measured

MOST_GROWN = 5e6
FLICKER_S = 10.0
LOOK_S = 2.0
REPORT_S = 60.0
WARM_UP_S = 60.0
BUSY_SHARE = 0.1  # five polls a second on a quiet machine of two cores wait for 0.02 of the time


@dataclass
class Recorded:
    """What a recording that is still written has shown so far."""

    path: Path
    snapshots: int = 0
    longest_gap_s: float = 0.0
    appeared: Counter[str] = field(default_factory=Counter)
    vanished: Counter[str] = field(default_factory=Counter)
    flickers: list[str] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)
    _first: float | None = None
    _last: float | None = None
    _place: int = 0

    def follow(self) -> None:
        """Read the whole lines that came since the last time."""
        with self.path.open("rb") as content:
            content.seek(self._place)
            news = content.read()
        whole = news[: news.rfind(b"\n") + 1]
        self._place += len(whole)
        for line in map(json.loads, whole.splitlines()):
            if "servers" in line:
                self._take(line["time"], {finding["id"] for finding in line["findings"]})

    def _take(self, time: float, findings: set[str]) -> None:
        gone, new = self._since.keys() - findings, findings - self._since.keys()
        self._first = self._first or time
        short = [name for name in sorted(gone) if time - self._since[name] < FLICKER_S]
        self.flickers += [f"{name} at {self._since[name] - self._first:.0f} s" for name in short]
        self.vanished.update(gone)
        self.appeared.update(new)
        self._since = {name: self._since.get(name, time) for name in findings}
        self.longest_gap_s = max(self.longest_gap_s, time - (self._last or time))
        self._last = time
        self.snapshots += 1

    @property
    def findings(self) -> str:
        """Every finding and how often it appeared and vanished, and every flicker."""
        each = [f"{name} +{times} -{self.vanished[name]}" for name, times in sorted(self.appeared.items())]
        return f"{', '.join(each) or 'none'}; flickers: {', '.join(self.flickers) or 'none'}"


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a soak showed: its length, memory after the warm-up and at the end (bytes), the wait for a processor."""

    seconds: float
    hz: float
    settled: int
    ended: int
    bytes_s: float
    waited_s: float
    recorded: Recorded

    @property
    def busy(self) -> bool:
        """Whether other work kept the program from running, so that a flicker says little about it."""
        return self.waited_s > BUSY_SHARE * self.seconds

    @property
    def expected(self) -> float:
        """So many snapshots make the run complete."""
        return self.seconds * self.hz

    def problems(self) -> list[str]:
        """Why it did not pass; a program that got no processor is not to blame for what it could not do meanwhile."""
        grown, missing = self.ended - self.settled, self.expected - self.recorded.snapshots
        found = [f"resident memory grew by {grown / 1e6:.1f} MB"] if grown >= MOST_GROWN else []
        if missing > 3 + 0.005 * self.expected + self.waited_s * self.hz:
            found.append(f"{missing:.0f} snapshots are missing")
        return found + [f"flickers: {flicker}" for flicker in self.recorded.flickers]

    def __str__(self) -> str:
        return (
            f"{self.seconds:.0f} s at {self.hz:g} Hz, {self.bytes_s:.0f} B/s to the terminal\n"
            f"resident {self.settled / 1e6:.2f} MB after the warm-up, {self.ended / 1e6:.2f} MB at the end: "
            f"{(self.ended - self.settled) / 1e6:+.2f} MB\n"
            f"{self.recorded.snapshots} snapshots of {self.expected:.0f} expected, the longest gap "
            f"{self.recorded.longest_gap_s:.1f} s; "
            f"waited {self.waited_s:.1f} s for a processor{' (busy)' * self.busy}\n"
            f"findings: {self.recorded.findings}"
        )


def soak(seconds: float, hz: float, folder: Path) -> Soaked:
    """Watch the demo for so long; `folder` gets the recording."""
    recorded = Recorded(folder / "soak.jsonl")
    words = ("demo", "gb10", "-d", f"{1 / hz:g}", "--record", str(recorded.path))
    with Measured(folder, *words, size=(120, 36)) as app:
        app.wait_all("KV cache", "Quit")
        began, sent, waited = time.monotonic(), app.bytes, waited_s(app.process.pid)
        sizes = list(watched(app, recorded, seconds))
        took, sent, waited = time.monotonic() - began, app.bytes - sent, waited_s(app.process.pid) - waited
        app.press("q")
        assert app.end() == 0
    recorded.follow()
    warm = min(max(WARM_UP_S, seconds / 10), seconds / 2)
    settled = next(size for at, size in sizes if at >= warm)
    return Soaked(took, hz, settled, sizes[-1][1], sent / took, waited, recorded)


def watched(app: Measured, recorded: Recorded, seconds: float) -> Iterator[tuple[float, int]]:
    """Resident memory every few seconds; a line of figures every minute."""
    began, at, bytes_before, report = time.monotonic(), 0.0, app.bytes, REPORT_S
    while at < seconds:
        app.look(min(LOOK_S, seconds - at))
        at, size = time.monotonic() - began, resident(app.process.pid)
        yield at, size
        if at >= report:
            report += REPORT_S
            recorded.follow()
            speed = (app.bytes - bytes_before) / at
            so_far = f"{recorded.snapshots} snapshots  {speed:.0f} B/s  findings: {recorded.findings}"
            so_far += f"  waited {waited_s(app.process.pid):.1f} s"
            print(f"{at:6.0f} s  {size / 1e6:.2f} MB  {so_far}", flush=True)


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def waited_s(pid: int) -> float:
    """How long the program and its server stood in line for a processor: of each the thread that waited most."""
    return sum(max(waits(process.pid), default=0) for process in family(pid)) / 1e9


def family(pid: int) -> list[psutil.Process]:
    """A process and what it started."""
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def waits(pid: int) -> Iterator[int]:
    """Nanoseconds in line for a processor, of every thread."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread may just have ended
            yield int((task / "schedstat").read_text().split()[1])


def main() -> int:
    """Run it and say how it went; the exit code."""
    parser = argparse.ArgumentParser(description="Watch the demo for an hour.")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--hz", type=float, default=1.0, help="polls and snapshots per second")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = soak(args.seconds, args.hz, Path(folder))
    problems = done.problems()
    print(done, *(problems or ["passed"]), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
