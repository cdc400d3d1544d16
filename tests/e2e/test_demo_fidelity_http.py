"""The simulated GB10 over real HTTP, loaded by the installed `llmtop load`: the published sweep at 8, 16 and 32 users.

The simulation runs five times faster than its machine; what the client reads is brought back to the machine's time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmtop.demo.child import DemoProcess, launch
from program import COMMAND, environment

SPEED = 5.0
ALONE = 34.33  # tok/s of one user
TRIES = 3
Level = dict[str, Any]


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoProcess]:
    with launch("gb10", no_traffic=True, speed=SPEED) as process:
        yield process


def sweep(demo: DemoProcess, folder: Path, prompts: int, users: int) -> Level:
    """One level of 2048 tokens in and 128 out; again where the machine was too busy to tell."""
    size = ["--random-input-len", "2048", "--random-output-len", "128", "--num-prompts", str(prompts)]
    words = ["load", demo.url, "--yes", "--json", "--no-files", "--max-concurrency", str(users), *size]
    for _ in range(TRIES):
        done = subprocess.run(
            [COMMAND, *words, "--procfs", str(folder), "--sysfs", str(folder)],
            env=environment(folder, {"XDG_STATE_HOME": str(folder / "state")}),
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        (level,) = json.loads(done.stdout.splitlines()[-1])["levels"]
        if "client-limited" not in level["flags"]:
            break
    result: Level = level
    return result


def within(name: str, simulated: float, published: float) -> None:
    print(f"{name}: {simulated:.2f} for {published:.2f} ({simulated / published - 1:+.1%})")
    assert simulated == pytest.approx(published, rel=0.10), name


def test_one_user_alone(demo: DemoProcess, tmp_path: Path) -> None:
    level = sweep(demo, tmp_path, 4, 1)
    within("decode alone, tok/s", level["decode_tok_s"] / SPEED, ALONE)


@pytest.mark.parametrize(
    ("users", "each", "ttft_p99_s"), [(8, 11.78, 3.93), (16, 7.06, 8.0), (32, 4.20 * ALONE / 32, None)]
)
def test_a_level_of_the_published_sweep(
    demo: DemoProcess, tmp_path: Path, users: int, each: float, ttft_p99_s: float | None
) -> None:
    level = sweep(demo, tmp_path, 64, users)
    assert (level["completed"], level["failed"]) == (64, 0)
    within(f"{users} users, each, tok/s", level["output_throughput"] / users / SPEED, each)
    if ttft_p99_s is not None:
        within(f"{users} users, P99 TTFT, s", level["p99_ttft_ms"] / 1000 * SPEED, ttft_p99_s)
