"""The past of every figure: columns in time, gaps, marks, peaks, and clocks that jump."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import pytest

from llmtop.contract.snapshot import (
    Device,
    Latency,
    LatencySet,
    Mark,
    Pool,
    Quantile,
    Rates,
    ServerView,
    Snapshot,
    State,
)
from llmtop.session.history import COLUMNS, LONGEST_S, MARKS, STEPS_S, SWEEP_S, History, Series, newest, pool_series

URL = "http://a:8000"
T0 = 1_800_000_000.0
MARK, RESTART = Mark("mark", "mark", T0), Mark("restart", "restart m", T0)
LEVEL = Mark("level", "load c=8", T0)


def snapshot(t: float, *, state: State = State.SERVING, marks: tuple[Mark, ...] = (), **values: object) -> Snapshot:
    """One server with these values at Unix time T0 + t."""
    server = replace(ServerView(URL, state), **values)  # type: ignore[arg-type]
    return Snapshot(T0 + t, (server,), marks=marks)


def filled(*samples: Snapshot) -> History:
    """A history of these snapshots."""
    history = History()
    for sample in samples:
        history.push(sample)
    return history


def test_a_column_without_a_sample_is_a_gap_and_zero_is_zero() -> None:
    history = filled(snapshot(0, running=3), snapshot(1, running=0), snapshot(4, running=5))
    assert history.columns(URL, "running", 1.0, 6) == [None, 3.0, 0.0, None, None, 5.0]


def test_an_unknown_value_is_a_gap() -> None:
    history = filled(snapshot(0, running=3), snapshot(1, running=None), snapshot(2, running=4))
    assert history.columns(URL, "running", 1.0, 3) == [3.0, None, 4.0]


@pytest.mark.parametrize("state", [State.DOWN, State.STALE, State.STARTING, State.AUTH, State.NO_ENGINE_METRICS])
def test_what_is_not_read_from_a_running_engine_is_a_gap(state: State) -> None:
    history = filled(snapshot(0, running=3), snapshot(1, running=3, state=state))
    assert history.columns(URL, "running", 1.0, 2) == [3.0, None]


@pytest.mark.parametrize("state", [State.SERVING, State.IDLE, State.STALLED, State.SLEEPING])
def test_every_live_state_is_drawn(state: State) -> None:
    assert filled(snapshot(0, running=3, state=state)).columns(URL, "running", 1.0, 1) == [3.0]


def test_wider_columns_keep_the_worst_of_the_queue_and_the_last_of_a_rate() -> None:
    speeds = (100.0, 300.0, 200.0, 50.0, 70.0, 60.0)
    waits = (1, 9, 2, 0, 4, 3)
    history = filled(
        *(
            snapshot(second, waiting=wait, rates=Rates(10.0, speed))
            for second, (speed, wait) in enumerate(zip(speeds, waits, strict=True))
        )
    )
    assert history.columns(URL, "waiting", 2.0, 3) == [9.0, 2.0, 4.0]
    assert history.columns(URL, "generation", 2.0, 3) == [300.0, 50.0, 60.0]


def test_headroom_keeps_the_least_of_a_column() -> None:
    pool = Pool("GPU 0 memory", "hbm", "GPU-x", headroom_bytes=30)
    history = History()
    for second, left in enumerate((30, 10, 20)):
        history.push(Snapshot(T0 + second, pools=(replace(pool, headroom_bytes=left),)))
    assert history.columns(pool_series(pool), "headroom", 5.0, 1) == [10.0]


def test_two_pools_of_the_same_kind_are_two_series() -> None:
    first, second = (Pool(f"GPU {i} memory", "hbm", f"GPU-{i}", headroom_bytes=i) for i in range(2))
    history = filled(Snapshot(T0, pools=(first, second)))
    assert pool_series(first) != pool_series(second)
    assert [history.columns(pool_series(pool), "headroom", 1.0, 1) for pool in (first, second)] == [[0.0], [1.0]]


def test_devices_are_series_by_uuid_or_index() -> None:
    history = filled(Snapshot(T0, devices=(Device(0, "GPU-a", util=40.0), Device(1, None, util=70.0))))
    assert history.columns("GPU-a", "util", 1.0, 1) == [40.0]
    assert history.columns("1", "util", 1.0, 1) == [70.0]


def test_devices_without_uuid_are_series_of_their_machine() -> None:
    history = filled(Snapshot(T0, devices=(Device(0, None, util=40.0, node="a"), Device(0, None, util=70.0, node="b"))))
    assert [history.columns(f"{node}:0", "util", 1.0, 1) for node in "ab"] == [[40.0], [70.0]]


def test_a_gap_inside_a_wide_column_does_not_hide_its_samples() -> None:
    history = filled(snapshot(0, running=3), snapshot(1, running=None), snapshot(2, running=5, state=State.DOWN))
    assert history.columns(URL, "running", 5.0, 1) == [3.0]
    history = filled(snapshot(0, running=None), snapshot(1, running=2))
    assert history.columns(URL, "running", 5.0, 1) == [2.0]


def test_a_sample_a_moment_late_makes_no_gap() -> None:
    series = Series(newest)
    for t, value in ((10.95, 1.0), (12.02, 2.0), (13.0, 3.0)):
        series.push(t, value)
    assert series.columns(1.0, 13.0, 4) == [1.0, 2.0, 2.0, 3.0]


def test_a_sample_that_really_failed_makes_one() -> None:
    series = Series(newest)
    series.push(10.1, 1.0)
    series.push(12.9, 2.0)
    assert series.columns(1.0, 12.9, 3) == [1.0, None, 2.0]


def test_the_newest_columns_are_kept() -> None:
    series = Series(newest)
    for second in range(2 * COLUMNS):
        series.push(float(second), float(second))
    columns = series.columns(1.0, 2.0 * COLUMNS - 1, COLUMNS + 40)
    assert columns[:40] == [None] * 40
    assert columns[40:] == [float(second) for second in range(COLUMNS, 2 * COLUMNS)]


@pytest.mark.parametrize("away", [COLUMNS - 1, COLUMNS, COLUMNS + 1, 2 * COLUMNS, 10 * COLUMNS + 7])
@pytest.mark.parametrize("step", STEPS_S)
def test_a_gap_longer_than_what_is_kept_shows_nothing_old(step: float, away: int) -> None:
    series = Series(newest)
    for column in range(COLUMNS):
        series.push(column * step, 7.0)
    now = (COLUMNS - 1 + away) * step
    series.push(now, 8.0)
    kept = [7.0] if away < COLUMNS else []
    assert series.columns(step, now, COLUMNS) == [*kept, *[None] * (COLUMNS - 1 - len(kept)), 8.0]


@pytest.mark.parametrize("ahead", [1, COLUMNS, 3 * COLUMNS + 5])
def test_columns_that_have_no_sample_yet_are_gaps_and_not_what_stood_there_before(ahead: int) -> None:
    series = Series(newest)
    for second in range(2 * COLUMNS):
        series.push(float(second), 7.0)
    at = 2.0 * COLUMNS - 1 + ahead
    held = max(COLUMNS - ahead, 0)
    assert series.columns(1.0, at, COLUMNS) == [7.0] * held + [None] * (COLUMNS - held)


def test_a_look_at_the_past_shows_what_was_there() -> None:
    series = Series(newest)
    for second in range(2 * COLUMNS):
        series.push(float(second), float(second))
    assert series.columns(1.0, COLUMNS + 4.0, 8) == [None] * 3 + [float(COLUMNS + more) for more in range(5)]
    assert series.columns(1.0, 30.0, 3) == [None] * 3


def test_every_step_has_its_columns() -> None:
    series = Series(max)
    for second in range(121):
        series.push(float(second), float(second))
    assert {step: series.columns(step, 120.0, 2) for step in STEPS_S} == {
        1.0: [119.0, 120.0],
        2.0: [119.0, 120.0],
        5.0: [119.0, 120.0],
        10.0: [119.0, 120.0],
        30.0: [119.0, 120.0],
        60.0: [119.0, 120.0],
    }


def test_what_was_never_seen_is_all_gaps() -> None:
    history = filled(snapshot(0))
    assert history.columns("http://other:1", "running", 1.0, 3) == [None] * 3
    assert history.columns(URL, "no such figure", 1.0, 3) == [None] * 3
    assert History().columns(URL, "kv", 1.0, 2) == [None, None]


def test_a_server_that_vanished_leaves_gaps_as_time_goes_on() -> None:
    history = filled(snapshot(0, running=3), Snapshot(T0 + 1), Snapshot(T0 + 2))
    assert history.columns(URL, "running", 1.0, 3) == [3.0, None, None]


def test_a_clock_that_jumps_back_never_turns_time_round() -> None:
    history = filled(*(snapshot(second, running=1) for second in range(10)))
    before = history.now
    for second in range(5):
        history.push(snapshot(-3600 + second, running=7))
    assert history.now > before
    columns = history.columns(URL, "running", 1.0, 12)
    assert columns[-4:] == [7.0] * 4
    assert columns.count(1.0) >= 7
    assert len([value for value in columns if value is None]) == 0


def test_a_clock_that_jumps_ahead_is_a_gap() -> None:
    history = filled(snapshot(0, running=1), snapshot(3600, running=2))
    assert history.columns(URL, "running", 1.0, 3) == [None, None, 2.0]
    assert history.columns(URL, "running", 60.0, 61)[0] == 1.0


@pytest.mark.parametrize("jump", [-1e9, -LONGEST_S - 1, -1.0, LONGEST_S + 1, 1e9])
def test_after_a_jump_of_the_clock_samples_follow_each_other_again(jump: float) -> None:
    history = filled(*(snapshot(second, running=1) for second in range(300)))
    for second in range(300, 310):
        history.push(snapshot(second + jump, running=second))
    assert history.columns(URL, "running", 1.0, 8) == [float(second) for second in range(302, 310)]
    before = history.columns(URL, "running", 1.0, COLUMNS)[: COLUMNS - 10]
    assert set(before) == ({1.0} if jump < 0 else {None})


@pytest.mark.parametrize("jump", [0.0, -3600.0, -1e9, 100.0])
def test_the_mark_of_a_restart_stays_beside_the_samples_of_its_moment(jump: float) -> None:
    history = filled(*(snapshot(second, running=1) for second in range(5)))
    history.push(snapshot(5 + jump, running=9, marks=(RESTART,)))
    for second in range(6, 200):
        history.push(snapshot(second + jump, running=2))
        for step in STEPS_S:
            (place,), texts = history.marks_in(step, COLUMNS)
            assert texts == [RESTART.text]
            assert history.columns(URL, "running", step, COLUMNS)[place] == 9.0


def hours(history: History, first: int, seconds: int, servers: int = 3) -> None:
    """Push a snapshot of these servers and a pool every ten seconds."""
    pool = Pool("GPU 0 memory", "hbm", "GPU-x", headroom_bytes=30 << 30)
    for t in range(first, first + seconds, 10):
        views = tuple(replace(ServerView(f"http://h:{n}", State.SERVING), running=n + t % 7) for n in range(servers))
        history.push(Snapshot(T0 + t, views, pools=(pool,)))


def test_the_past_of_the_same_servers_does_not_grow() -> None:
    tracemalloc.start()
    try:
        history = History()
        hours(history, 0, 300)
        gc.collect()
        early = tracemalloc.get_traced_memory()[0]
        hours(history, 300, 6 * 3600)
        gc.collect()
        late = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert late < 1.1 * early


def test_replicas_that_come_and_go_leave_nothing_behind() -> None:
    history, most = History(), 0
    for number in range(60):
        url = f"http://replica:{number}"
        for second in (0, 600, 1200):
            view = replace(ServerView(url, State.SERVING), running=1, rates=Rates(10.0, 5.0))
            history.push(Snapshot(T0 + number * 1800 + second, (view,)))
        owners = {owner for owner, _ in history._series}
        assert url in owners
        assert owners == {owner for owner, _ in history.peaks} == set(history.served)
        most = max(most, len(owners))
    assert most <= (LONGEST_S + SWEEP_S) / 1800 + 1


def test_what_is_listed_keeps_its_peak_however_long_nobody_looked() -> None:
    history = filled(rate(0, 90.0), rate(2 * LONGEST_S, 10.0))
    assert history.peak(URL) == 90.0
    history.push(Snapshot(T0 + 2 * LONGEST_S + SWEEP_S))
    assert history.peak(URL) == 90.0
    assert history.columns(URL, "generation", 60.0, 12)[0] is None


def test_an_owner_is_kept_as_long_as_one_of_its_columns_shows_it() -> None:
    history = filled(rate(0, 90.0), Snapshot(T0 + LONGEST_S - 60))
    assert history.columns(URL, "generation", 60.0, COLUMNS)[0] == 90.0
    history.push(Snapshot(T0 + LONGEST_S + SWEEP_S))
    assert history.columns(URL, "generation", 60.0, COLUMNS) == [None] * COLUMNS
    assert history.peak(URL) is None


def test_marks_fall_into_columns_and_leave_with_them() -> None:
    history = filled(snapshot(0), snapshot(1, marks=(MARK,)), snapshot(2), snapshot(3, marks=(RESTART,)))
    assert history.marks_in(1.0, 4)[0] == [1, 3]
    assert history.marks_in(1.0, 2)[0] == [1]
    for second in range(4, 40):
        history.push(snapshot(second))
    assert history.marks_in(1.0, 10)[0] == []


def test_two_marks_in_one_column_are_one() -> None:
    history = filled(snapshot(0, marks=(MARK,)), snapshot(1, marks=(RESTART, MARK)))
    assert history.marks_in(10.0, 3)[0] == [2]


def test_marks_are_bounded() -> None:
    history = filled(*(snapshot(second, marks=(MARK,)) for second in range(2 * MARKS)))
    assert len(history.marks) == MARKS


def rate(t: float, speed: float | None, *marks: Mark, state: State = State.SERVING) -> Snapshot:
    """A server that generates at this speed."""
    return snapshot(t, state=state, marks=marks, rates=Rates(10.0, speed))


def test_the_peak_has_its_time() -> None:
    history = filled(rate(0, 50.0), rate(1, 90.0), rate(2, 60.0), rate(3, None))
    assert (history.peaks[URL, "generation"].value, history.peaks[URL, "generation"].time) == (90.0, T0 + 1)


def test_a_mark_set_by_hand_begins_a_new_peak_and_no_other_does() -> None:
    history = filled(rate(0, 90.0), rate(1, 60.0, RESTART), rate(1, 60.0, LEVEL))
    assert history.peaks[URL, "generation"].value == 90.0
    history.push(rate(2, 40.0, MARK))
    assert history.peaks[URL, "generation"].value == 40.0


def test_the_users_and_the_cache_have_peaks_too() -> None:
    history = filled(*(snapshot(second, running=second, kv_usage=1.0 - second / 4) for second in range(3)))
    assert (history.peak(URL, "running"), history.peak(URL, "kv"), history.peak(URL)) == (2.0, 1.0, None)


def test_tokens_served_are_the_rates_added_up_since_the_mark() -> None:
    history = filled(rate(0, 50.0), rate(1, 90.0), rate(3, 60.0), rate(4, 30.0, state=State.STALE), rate(900, 10.0))
    assert history.served[URL] == 90.0 + 2 * 60.0
    history.push(rate(901, 40.0, MARK))
    assert history.served[URL] == 40.0


def test_a_stale_rate_is_no_peak() -> None:
    history = filled(rate(0, 10.0), rate(1, 500.0, state=State.STALE))
    assert history.peaks[URL, "generation"].value == 10.0


def test_a_peak_of_zero_is_one_and_unknown_is_none() -> None:
    assert filled(rate(0, 0.0)).peaks[URL, "generation"].value == 0.0
    assert filled(rate(0, None)).peak(URL) is None


def test_latency_is_drawn_as_its_mean_and_p95() -> None:
    latency = LatencySet(60.0, ttft=Latency(30, 0.4, None, Quantile(1.9), None))
    history = filled(snapshot(0, latency=latency), snapshot(1, latency=LatencySet(60.0, ttft=Latency(0))))
    assert history.columns(URL, "ttft", 1.0, 2) == [0.4, None]
    assert history.columns(URL, "ttft_p95", 1.0, 2) == [1.9, None]
