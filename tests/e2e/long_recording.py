"""Ten minutes of a real vLLM under changing load, recorded, and replayed line by line as it was shown live.

`python tests/e2e/long_recording.py [--seconds 600]` starts a real vLLM on the CPU, puts levels of one to eight users on
it again and again, watches it with `--json --record`, and compares the hash of every live line with that of the same
line of `llmtop replay --json`. It ends with 1 on any difference, and when a level failed or no load was seen.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from e2e.test_real_vllm import Vllm, wait
from program import COMMAND, environment

USERS = (1, 4, 2, 8)


@dataclass(frozen=True, slots=True)
class Compared:
    """The lines shown live and those of the replay, the size of the recording, and the exit codes of the load."""

    live: Sequence[str]
    again: Sequence[str]
    size: int
    codes: Sequence[int]

    @property
    def unequal(self) -> list[int]:
        """The numbers of the lines that differ or have no partner."""
        pairs = itertools.zip_longest(map(digest, self.live), map(digest, self.again))
        return [place for place, (shown, replayed) in enumerate(pairs) if shown != replayed]

    @property
    def running(self) -> list[int]:
        """How many requests ran, by each live line."""
        return [json.loads(line)["servers"][0]["running"] or 0 for line in self.live]

    @property
    def passed(self) -> bool:
        """Whether there was a changing load, and every line came back."""
        return not self.unequal and not any(self.codes) and len(set(self.running)) > 2

    def __str__(self) -> str:
        equal = len(self.live) - sum(place < len(self.live) for place in self.unequal)
        states = Counter(json.loads(line)["servers"][0]["state"] for line in self.live)
        return (
            f"{len(self.live)} snapshots live, {len(self.again)} replayed: {equal} equal, {len(self.unequal)} unequal"
            f"{f', the first is number {self.unequal[0]}' if self.unequal else ''}\n"
            f"recording {self.size / 2**20:.2f} MiB; {len(self.codes)} levels, {sum(map(bool, self.codes))} failed; "
            f"0 to {max(self.running, default=0)} requests ran; {dict(states)}"
        )


def compare(seconds: float, folder: Path) -> Compared:
    """Record a real server for so long, and replay it."""
    vllm, recording, live = Vllm(folder / "vllm.log"), folder / "run.jsonl", folder / "live.jsonl"
    try:
        vllm.start()
        codes = watched(vllm.url, seconds, recording, live)
    finally:
        vllm.stop()
    return Compared(live.read_text().splitlines(), replayed(recording, folder), recording.stat().st_size, codes)


def watched(url: str, seconds: float, recording: Path, live: Path) -> list[int]:
    """Watch the server while it is under load; the exit codes of the load."""
    settings = environment(live.parent)
    with live.open("w") as shown:
        words = [COMMAND, url, "--json", "--record", str(recording)]
        watcher = subprocess.Popen(words, stdout=shown, stdin=subprocess.DEVNULL, env=settings)
        try:
            codes = list(load(url, seconds, live))
            # right after a line: a line is recorded before it is shown, and the end must not come in between
            shown_before = snapshots(live)
            wait(lambda: snapshots(live) > shown_before, "another line", 30.0)
            return codes
        finally:
            watcher.terminate()
            watcher.wait(10)


def load(url: str, seconds: float, live: Path) -> Iterator[int]:
    """One level after the other until the time is over, each with a rest as long as itself; their exit codes."""
    began = time.monotonic()
    for users in itertools.cycle(USERS):
        before = time.monotonic()
        yield level(url, users, live.parent)
        now = time.monotonic()
        print(f"{now - began:6.0f} s  {users} users  {snapshots(live)} snapshots", flush=True)
        time.sleep(max(0.0, min(now - before, began + seconds - now)))
        if time.monotonic() - began >= seconds:
            return


def snapshots(live: Path) -> int:
    """How many whole lines were shown so far."""
    return live.read_bytes().count(b"\n")


def level(url: str, users: int, folder: Path) -> int:
    """The exit code of one level of so many users."""
    size = ["--random-input-len", "64", "--random-output-len", "128", "--num-prompts", str(16 * users)]
    words = [COMMAND, "load", url, "--yes", "--json", "--no-files", "--max-concurrency", str(users), *size]
    return subprocess.run(words, env=environment(folder), stdout=subprocess.DEVNULL, check=False).returncode


def replayed(recording: Path, folder: Path) -> list[str]:
    """The lines of a replay."""
    words = [COMMAND, "replay", str(recording), "--json"]
    done = subprocess.run(words, env=environment(folder), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def digest(line: str) -> str:
    """The hash of one line."""
    return hashlib.sha256(line.encode()).hexdigest()


def main() -> int:
    """Run it and say how it went; the exit code."""
    parser = argparse.ArgumentParser(description="Record a real vLLM and replay it.")
    parser.add_argument("--seconds", type=float, default=600.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        done = compare(args.seconds, Path(name))
    print(done)
    return 0 if done.passed else 1


if __name__ == "__main__":
    sys.exit(main())
