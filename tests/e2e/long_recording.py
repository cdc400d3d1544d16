"""Ten minutes of a real vLLM under changing load, recorded, and replayed line by line as it was shown live.

`python tests/e2e/long_recording.py [--seconds 600]` starts a real vLLM on the CPU, puts levels of one to eight users on
it again and again, watches it with `--json --record`, and compares the hash of every live line with that of the same
line of `llmtop replay --json`. It ends with 1 on any difference.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from e2e.test_real_vllm import Vllm
from program import COMMAND, environment

USERS = (1, 4, 2, 8)
PAUSE_S = 5.0


def watched(vllm: Vllm, seconds: float, folder: Path) -> tuple[list[str], Path]:
    """The lines that were shown live, and their recording."""
    recording, live = folder / "run.jsonl", folder / "live.jsonl"
    with live.open("w") as shown:
        words = [COMMAND, vllm.url, "--json", "--record", str(recording)]
        watcher = subprocess.Popen(words, stdout=shown, env=environment(folder))
        try:
            put_under_load(vllm.url, time.monotonic() + seconds, folder)
        finally:
            watcher.terminate()
            watcher.wait(10)
    return live.read_text().splitlines(), recording


def put_under_load(url: str, until: float, folder: Path) -> None:
    """One level after the other, with a pause in between, until the time is over."""
    for users in itertools.cycle(USERS):
        left = until - time.monotonic()
        if left <= 0:
            return
        size = ["--random-input-len", "64", "--random-output-len", "128", "--num-prompts", str(16 * users)]
        words = ["load", url, "--yes", "--json", "--no-files", "--max-concurrency", str(users), *size]
        subprocess.run([COMMAND, *words], env=environment(folder), stdout=subprocess.DEVNULL, check=False)
        time.sleep(min(PAUSE_S, max(0.0, until - time.monotonic())))


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
        folder = Path(name)
        vllm = Vllm(folder / "vllm.log")
        try:
            vllm.start()
            live, recording = watched(vllm, args.seconds, folder)
        finally:
            vllm.stop()
        again = replayed(recording, folder)
        size = recording.stat().st_size
    different = [place for place, (a, b) in enumerate(zip(live, again, strict=False)) if digest(a) != digest(b)]
    print(f"{len(live)} lines live, {len(again)} replayed, {len(different)} different, {size / 2**20:.1f} MiB")
    return 0 if live and len(live) == len(again) and not different else 1


if __name__ == "__main__":
    sys.exit(main())
