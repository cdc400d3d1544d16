"""Moments worth showing: what is one, what is not, and how often they may come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.snapshots import BUSY_SERVER, GIB, UNIFIED_POOL, busy
from llmtop.contract.snapshot import Mark, Node, Snapshot, State
from llmtop.session.notices import Notices

T0 = busy().time


def at(t: float, speed: float | None = 100.0, *, low: float = 11.8, marks: tuple[Mark, ...] = ()) -> Snapshot:
    """The busy machine after `t` seconds with this speed and this low-water mark (GiB)."""
    server = replace(BUSY_SERVER, rates=replace(BUSY_SERVER.rates, generation_tok_s=speed))
    pool = replace(UNIFIED_POOL, low_water_bytes=int(low * GIB))
    return replace(busy(), time=T0 + t, servers=(server,), pools=(pool,), marks=marks)


def feed(notices: Notices, *snapshots: Snapshot) -> list[tuple[float, str]]:
    """What is announced, and when."""
    return [(snapshot.time - T0, event.text) for snapshot in snapshots for event in notices.push(snapshot)]


def learned() -> Notices:
    """Has seen 100 tok/s and a low-water mark of 11.8 GiB for 30 s."""
    notices = Notices()
    assert feed(notices, *(at(t) for t in range(31))) == []
    return notices


def test_a_new_peak_is_said_with_its_speed() -> None:
    assert feed(learned(), at(31, 105.0)) == [(31, "new peak 105 tok/s")]


def test_less_than_five_percent_more_is_no_peak() -> None:
    assert feed(learned(), at(31, 104.9), at(32, 104.9)) == []


def test_the_first_half_minute_is_learning() -> None:
    notices = Notices()
    assert feed(notices, *(at(t, 10.0 * (t + 1)) for t in range(30))) == []
    assert feed(notices, at(30, 310.0)) == []  # 3 % above the 300 of second 29
    assert feed(notices, at(31, 315.0)) == [(31, "new peak 315 tok/s")]


def test_a_climb_is_said_every_twenty_seconds_and_its_top_is_not_lost() -> None:
    speeds = [110.0, 120.0, 200.0, *([150.0] * 40)]
    said = feed(learned(), *(at(31 + i, speed) for i, speed in enumerate(speeds)))
    assert said == [(31, "new peak 110 tok/s"), (51, "new peak 200 tok/s")]


def test_a_peak_creeping_up_by_small_steps_is_a_peak() -> None:
    said = feed(learned(), *(at(31 + i, 100.0 + i) for i in range(8)))
    assert said == [(36, "new peak 105 tok/s")]


def test_a_mark_begins_anew() -> None:
    notices = learned()
    assert feed(notices, at(31, 50.0, marks=(Mark("mark", "mark", T0),))) == []
    assert feed(notices, *(at(32 + t, 50.0) for t in range(30))) == []
    assert feed(notices, at(62, 60.0)) == [(62, "new peak 60.0 tok/s")]


@pytest.mark.parametrize("mark", [Mark("restart", "mark", T0), Mark("level", "load c8", T0), Mark("note", "mark", T0)])
def test_other_marks_do_not(mark: Mark) -> None:
    notices = learned()
    assert feed(notices, at(31, 50.0, marks=(mark,))) == []
    assert feed(notices, at(90, 60.0)) == []
    assert feed(notices, at(91, 106.0)) == [(91, "new peak 106 tok/s")]


def test_unknown_stale_and_zero_are_no_peak() -> None:
    notices = learned()
    old = replace(at(32, 500.0), servers=(replace(at(32, 500.0).servers[0], state=State.STALE),))
    assert feed(notices, at(31, None), old) == []
    idle = Notices()
    assert feed(idle, *(at(t, 0.0) for t in range(60))) == []


def test_of_several_servers_the_peak_has_a_name() -> None:
    notices = Notices()

    def two(t: float, speed: float) -> Snapshot:
        other = replace(BUSY_SERVER, url="http://b:8000", model="llama")
        return replace(at(t, speed), servers=(*at(t, speed).servers, other))

    assert feed(notices, *(two(t, 100.0) for t in range(31))) == []
    assert feed(notices, two(31, 150.0)) == [(31, "gpt-oss-120b: new peak 150 tok/s")]


def test_a_new_low_water_mark_is_said_when_five_percent_of_the_pool_lower() -> None:
    assert feed(learned(), at(31, low=6.0)) == []  # 5.8 of 119.6 GiB are 4.8 %
    assert feed(learned(), at(31, low=5.8)) == [(31, "new low-water 5.8 of 119.6 GiB (GB10 unified)")]


def test_a_fall_is_said_every_twenty_seconds() -> None:
    notices = Notices()
    assert feed(notices, *(at(t, low=100.0) for t in range(31))) == []
    said = feed(notices, *(at(31 + i, low=93.0 - i) for i in range(41)))
    assert [t for t, _ in said] == [31, 51, 71]
    assert said[-1][1] == "new low-water 53.0 of 119.6 GiB (GB10 unified)"


def test_a_clock_that_was_set_back_is_no_news() -> None:
    assert feed(learned(), at(-3600, 200.0), at(-3599, 200.0)) == []


def test_beside_servers_of_other_machines_the_low_water_mark_says_whose_it_is() -> None:
    def mixed(t: float, low: float) -> Snapshot:
        snapshot = at(t, low=low)
        pools = tuple(replace(pool, node="spark-a") for pool in snapshot.pools)
        return replace(snapshot, pools=pools, nodes=(Node("spark-a"), Node("spark-b", local=False)))

    said = feed(Notices(), *(mixed(t, 11.8) for t in range(31)), mixed(31, 5.8))
    assert said == [(31, "new low-water 5.8 of 119.6 GiB (GB10 unified on spark-a)")]
