"""A start-up without a log: what memory and the port show."""

from __future__ import annotations

import pytest

from llmtop.warmup.startup_infer import Reading, infer

GIB = 2**30
TOTAL = 80 * GIB


def readings(*steps: tuple[float, float], until: float, every: float = 0.1) -> list[Reading]:
    """Headroom as steps of (seconds, GiB in use), read ten times a second."""
    out: list[Reading] = []
    for index in range(int(until / every) + 1):
        now = index * every
        used = next(u for t, u in reversed(steps) if t <= now + 1e-9)
        out.append((1000 + now, TOTAL - int(used * GIB)))
    return out


H100 = readings(
    (0, 0.6), (5, 8), (10, 24), (15, 40), (25, 58), (30, 66), (30.2, 58), (33, 71), (36, 71.4), (45, 72.8), until=50
)


def test_phases_from_memory_and_health() -> None:
    s = infer(H100, TOTAL, 1000.0, 1048.0, 1050.0)
    assert [(p.name, p.start_s, p.seconds) for p in s.phases] == [
        ("start", 0.0, pytest.approx(5.0)),
        ("weights", pytest.approx(5.0), pytest.approx(25.0)),
        ("profile", pytest.approx(30.0), pytest.approx(3.0)),
        ("kv", pytest.approx(33.0), pytest.approx(15.0)),
        ("ready", 48.0, 0.0),
    ]
    assert all(p.inferred for p in s.phases)
    assert (s.state, s.ready_seconds, s.ready_at) == ("ready", 48.0, 1048.0)


def test_nothing_seen_yet() -> None:
    s = infer([], None, 1000.0, None, 1003.0)
    assert [(p.name, p.seconds) for p in s.phases] == [("start", 3.0)]
    assert s.state == "starting"
    assert s.ready_seconds is None


def test_weights_alone_are_no_kv_cache() -> None:
    s = infer(readings((0, 1), (2, 40), until=10), TOTAL, 1000.0, None, 1010.0)
    assert [p.name for p in s.phases] == ["start", "weights"]


def test_noise_is_no_start() -> None:
    s = infer(readings((0, 1), (2, 1.3), (4, 1.1), until=6), TOTAL, 1000.0, None, 1006.0)
    assert [p.name for p in s.phases] == ["start"]
