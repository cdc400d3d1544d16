"""Many servers that restart now and then, watched on a screen: memory, open files and threads must not grow.

`python tests/e2e/soak_servers.py [--seconds 3600] [--servers 32] [--every 5]` prints figures every minute and ends with
1 when, after the first third, the resident memory grew by 8 MB or more, or open files or threads by more than a few.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fakes.pages import Engine, PageServer
from measured import Measured
from program import bare

MOST_BYTES, MOST_FILES, MOST_THREADS = 8e6, 6, 3
LOOK_S, REPORT_S, AWAY_S = 2.0, 60.0, 3.0


@dataclass(frozen=True, slots=True)
class Size:
    """What a process holds at a moment (s since the start): resident bytes, open files, threads."""

    at: float
    resident: int
    files: int
    threads: int

    def __str__(self) -> str:
        return f"{self.at:6.0f} s  {self.resident / 1e6:.2f} MB  {self.files} files  {self.threads} threads"


def serve(ports: Connection, servers: int, every_s: float) -> None:
    """Serve until killed; every few seconds one goes away, and comes back as a new process would."""
    choice = random.Random(1)
    running = [PageServer([Engine(1000 + 10 * number, model=f"m{number}").page]) for number in range(servers)]
    for server in running:
        server.__enter__()
    ports.send([server.port for server in running])
    while True:
        time.sleep(every_s)
        place = choice.randrange(servers)
        running[place].__exit__(None, None, None)
        time.sleep(min(every_s, AWAY_S))
        running[place] = PageServer([Engine(model=f"m{place}").page], port=running[place].port)
        running[place].__enter__()


def sizes(app: Measured, seconds: float) -> Iterator[Size]:
    """What the program holds, every few seconds."""
    began, at, report = time.monotonic(), 0.0, 0.0
    process = psutil.Process(app.process.pid)
    while at < seconds:
        app.look(LOOK_S)
        at = time.monotonic() - began
        size = Size(at, process.memory_info().rss, process.num_fds(), process.num_threads())
        if at >= report:
            report += REPORT_S
            print(size, flush=True)
        yield size


def grown(seen: list[Size]) -> list[str]:
    """What is more in the last third than in the second one, each taken at its largest."""
    third = len(seen) // 3
    middle, end = seen[third : 2 * third], seen[2 * third :]
    found = []
    for name, most in (("resident", MOST_BYTES), ("files", MOST_FILES), ("threads", MOST_THREADS)):
        before, after = (max(getattr(size, name) for size in part) for part in (middle, end))
        if after - before > most:
            found.append(f"{name} grew from {before} to {after}")
    return found


def main() -> int:
    """Run it and say how it went; the exit code."""
    parser = argparse.ArgumentParser(description="Watch servers that restart.")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--servers", type=int, default=32)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two restarts")
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    child = multiprocessing.Process(target=serve, args=(there, args.servers, args.every), daemon=True)
    child.start()
    with tempfile.TemporaryDirectory() as folder:
        urls = [f"127.0.0.1:{port}" for port in here.recv()]
        with Measured(Path(folder), *urls, *bare(Path(folder)), size=(120, 40)) as app:
            seen = list(sizes(app, args.seconds))
            app.press("q")
            assert app.end() == 0
    child.kill()
    problems = grown(seen)
    print(seen[len(seen) // 3], seen[-1], *(problems or ["passed"]), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
