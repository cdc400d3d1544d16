"""What a sweep at c = 64 may cost the terminal: on its own page, and on the dashboard beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.demo.child import DemoProcess, launch
from measured import Measured

LOAD_BYTES_S, LOAD_FRAMES_S = 12_000, 2.0
DASHBOARD_BYTES_S = {(200, 50): 1500, (80, 24): 800}
LOOK_S = 5.0


@pytest.fixture
def demo() -> Iterator[DemoProcess]:
    with launch("gb10", no_traffic=True, speed=5.0) as process:
        yield process


@pytest.mark.parametrize("size", DASHBOARD_BYTES_S, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_sweep_at_64_users(demo: DemoProcess, tmp_path: Path, size: tuple[int, int]) -> None:
    with Measured(tmp_path, demo.url, size=size) as app:
        app.wait_for("IDLE")
        app.keys("l")
        app.wait_for("requests, ")
        app.keys(*["f6"] * 5)
        app.wait_for("Soak")
        app.keys("64")
        app.wait_for("levels  c=64")
        app.keys("f5")
        app.wait_for("Send 18,382 requests")
        app.keys("y")
        app.wait_for("32 wait, 32 decode")
        app.look(2.0)
        load = app.cost(LOOK_S)
        print(f"{size}: load page {load[0]:.0f} B/s, {load[1]:.2f} frames/s")
        app.keys("escape")
        app.wait_for("KV cache")
        app.look(2.0)
        dashboard = app.cost(LOOK_S)
        print(f"{size}: dashboard {dashboard[0]:.0f} B/s, {dashboard[1]:.2f} frames/s")
        app.keys("l")
        app.wait_for("F8 Stop")
        app.keys("x")
        app.wait_all("Answer", "server back to 0 running")
    assert load[0] <= LOAD_BYTES_S
    assert load[1] <= LOAD_FRAMES_S + 1 / LOOK_S
    assert dashboard[0] <= DASHBOARD_BYTES_S[size]
