"""What holds a server back: the verdict, its share of the window, its evidence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llmtop.contract.snapshot import ServerView
from llmtop.engines.limits import Limit, LimitWindow


def look(
    t: float,
    running: int | None = 4,
    waiting: int | None = 0,
    kv: float = 0.5,
    preempted: int = 0,
    cap: int | None = None,
    reasons: Mapping[str, int] | None = None,
) -> ServerView:
    return ServerView(
        "http://s",
        age_s=t,
        running=running,
        waiting=waiting,
        kv_usage=kv,
        preemptions_total=preempted,
        max_num_seqs=cap,
        waiting_by_reason=reasons or {},
    )


def verdict(*views: ServerView) -> Limit | None:
    window = LimitWindow()
    for view in views:
        window.push(view)
    return window.verdict()


def code(*views: ServerView) -> str | None:
    found = verdict(*views)
    return found.code if found else None


def test_nothing_is_said_without_numbers() -> None:
    assert LimitWindow().verdict() is None
    assert verdict(look(0, running=None, waiting=None)) is None


def test_nobody_waits() -> None:
    assert code(*(look(t) for t in range(5))) == "UNDERLOADED"


def test_a_full_cache_with_a_queue() -> None:
    found = verdict(*(look(t, kv=0.97, waiting=6) for t in range(10)))
    assert found is not None
    assert (found.code, found.share) == ("KV_PRESSURE", 1.0)
    assert "KV 97 %" in found.evidence
    assert "waiting 6" in found.evidence


def test_a_full_cache_without_a_queue_is_no_limit() -> None:
    assert code(*(look(t, kv=0.99) for t in range(5))) == "UNDERLOADED"


def test_preemptions_are_pressure_even_without_a_queue() -> None:
    assert code(*(look(t, preempted=t) for t in range(5))) == "KV_PRESSURE"
    assert code(*(look(t, preempted=7) for t in range(5))) == "UNDERLOADED"  # old ones are not


def test_a_queue_with_free_cache_at_the_cap() -> None:
    found = verdict(*(look(t, running=32, waiting=9, cap=32) for t in range(5)))
    assert found is not None
    assert found.code == "SEQ_CAP"
    assert "running 32 of 32" in found.evidence


def test_a_plateau_is_a_cap_that_nobody_told() -> None:
    assert code(*(look(t, running=16, waiting=3) for t in range(6))) == "SEQ_CAP"
    assert code(*(look(t, running=10 + t, waiting=3) for t in range(6))) is None  # still rising


def test_deferred_requests() -> None:
    assert code(*(look(t, waiting=9, reasons={"capacity": 2, "deferred": 7}) for t in range(5))) == "DEFERRED"


@pytest.mark.parametrize(("pressed", "told"), [(1, "UNDERLOADED"), (4, "KV_PRESSURE")])
def test_a_limit_must_hold_for_a_fifth_of_the_window(pressed: int, told: str) -> None:
    views = [look(t) for t in range(12)] + [look(12 + t, kv=0.97, waiting=1) for t in range(pressed)]
    assert code(*views) == told


def test_the_share_is_of_the_window_and_old_pages_leave_it() -> None:
    views = [look(t, kv=0.97, waiting=1) for t in range(15)] + [look(15 + t) for t in range(15)]
    found = verdict(*views)
    assert found is not None
    assert (found.code, found.share) == ("KV_PRESSURE", 0.5)
    assert code(*views, *(look(30 + t) for t in range(40))) == "UNDERLOADED"


def test_a_restart_forgets() -> None:
    window = LimitWindow()
    window.push(look(0, kv=0.99, waiting=5))
    window.clear()
    assert window.verdict() is None
