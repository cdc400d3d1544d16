"""What holds a server back: the verdict, its share of the window, its evidence."""

from __future__ import annotations

import pytest

from crank import Crank, vllm_page
from llmtop.contract.snapshot import ServerView, State
from llmtop.engines.limits import Bottleneck, EngineLoad, LimitWindow
from llmtop.engines.page_record import Page, RowSample
from llmtop.engines.tracker import Identity


def load(
    running: int | None = 4,
    waiting: int | None = 0,
    kv: float | None = 0.5,
    preempted: int = 0,
    cap: int | None = None,
    deferred: int = 0,
    name: str = "0",
) -> EngineLoad:
    """One engine on one page."""
    return EngineLoad(name, running, waiting, kv, preempted, cap, {"deferred": deferred} if deferred else {})


def verdict(*looks: EngineLoad | tuple[EngineLoad, ...], room: int | None = None) -> Bottleneck | None:
    """The verdict after these pages, a second apart."""
    window = LimitWindow()
    for t, look in enumerate(looks):
        window.push(float(t), look if isinstance(look, tuple) else (look,))
    return window.verdict(room=room)


def code(*looks: EngineLoad | tuple[EngineLoad, ...], room: int | None = None) -> str | None:
    found = verdict(*looks, room=room)
    return found.code if found else None


def told(*looks: EngineLoad | tuple[EngineLoad, ...]) -> Bottleneck:
    found = verdict(*looks)
    assert found is not None
    return found


PRESSED = load(kv=0.97, waiting=6)
CALM = load()
CAPPED = load(running=32, waiting=9, cap=32)


def test_nothing_is_said_without_numbers() -> None:
    assert LimitWindow().verdict() is None
    assert code(load(running=None, waiting=None)) is None


def test_nothing_is_said_while_nothing_runs() -> None:
    assert code(*[PRESSED] * 20, load(running=0)) is None
    assert code(*[load(running=0, waiting=5, kv=0.99)] * 20) is None


def test_nobody_waits() -> None:
    found = told(*[load(running=8, cap=32)] * 5)
    assert (found.code, found.share) == ("UNDERLOADED", 1.0)
    assert found.evidence.startswith("running 8 of 32, KV 50 %; nobody waited")


def test_moments_in_which_nothing_ran_count_in_the_share() -> None:
    found = told(*[load(running=0)] * 15, *[CALM] * 5)
    assert (found.code, found.share) == ("UNDERLOADED", 0.25)


@pytest.mark.parametrize("full", [load(kv=0.99), load(running=32, cap=32)])
def test_where_one_more_would_wait_nobody_is_invited(full: EngineLoad) -> None:
    assert code(*[full] * 5) is None


def test_without_a_cache_or_a_cap_it_is_not_known_what_would_fit() -> None:
    assert code(*[load(kv=None)] * 5) is None
    assert code(*[load(kv=None, cap=8)] * 5) == "UNDERLOADED"


def test_no_room_invites_nobody() -> None:
    assert code(*[CALM] * 5, room=0) is None
    assert code(*[CALM] * 5, room=1) == "UNDERLOADED"


def test_a_full_cache_with_a_queue() -> None:
    found = told(*[PRESSED] * 10)
    assert (found.code, found.share) == ("KV_PRESSURE", 1.0)
    assert found.evidence == "KV 97 %, waiting 6, preempted 0; 100 % of the last 9 s"


def test_preemptions_are_pressure_even_without_a_queue() -> None:
    assert code(*(load(preempted=t) for t in range(5))) == "KV_PRESSURE"
    assert code(*[load(preempted=7)] * 5) == "UNDERLOADED"  # old ones are not
    assert "preempted 4;" in told(*(load(preempted=100 + t) for t in range(5))).evidence


def test_a_queue_with_free_cache_at_the_cap() -> None:
    found = told(*[CAPPED] * 5)
    assert found.code == "SEQ_CAP"
    assert found.evidence.startswith("running 32 of 32, waiting 9, KV 50 %")


def test_a_request_that_has_just_ended_leaves_the_server_at_its_cap() -> None:
    assert code(CAPPED, CAPPED, CAPPED, load(running=31, waiting=5, cap=32)) == "SEQ_CAP"
    assert code(*[load(running=31, waiting=5, cap=32)] * 5) == "QUEUE"


def test_below_a_known_cap_the_cap_is_not_the_limit() -> None:
    looks = [load(running=8, waiting=3, cap=32)] * 10
    assert code(*looks) == "QUEUE"
    assert told(*looks).evidence == (
        "running 8 of 32, waiting 3, KV 50 %: the page does not tell why; a queue in 100 % of the last 9 s"
    )
    tight = verdict(*looks, room=0)
    assert tight is not None
    assert "KV 50 %: no request of full length fits" in tight.evidence


def test_a_plateau_is_a_cap_that_nobody_told() -> None:
    assert code(*[load(running=16, waiting=3)] * 20) == "SEQ_CAP"
    assert code(*(load(running=10 + t, waiting=3) for t in range(6))) == "QUEUE"  # still rising
    assert code(*[load(running=16, waiting=3, kv=0.9)] * 20) == "QUEUE"  # or is it the cache?


def test_who_waits_elsewhere_than_in_the_schedulers_queue_does_not_wait_for_its_cap() -> None:
    def queued(**reasons: int) -> EngineLoad:
        return EngineLoad("0", 1, sum(reasons.values()), 0.05, None, None, reasons)

    assert code(*[queued(prealloc=5, transfer=2)] * 12) == "QUEUE"
    assert code(*[queued(queue=5, prealloc=2)] * 12) == "SEQ_CAP"
    assert told(*[queued(queue=1, grammar=4)] * 12).evidence.startswith("4 of 5 waiting are deferred (grammar 4);")


def test_a_queue_beside_states_that_run_short_is_no_cap() -> None:
    assert code(*[EngineLoad("0", 10, 3, 0.2, state_usage=0.85)] * 12) == "QUEUE"


def test_deferred_requests() -> None:
    assert code(*[load(waiting=9, deferred=7)] * 5) == "DEFERRED"


@pytest.mark.parametrize(("pressed", "found"), [(1, "MIXED"), (3, "KV_PRESSURE")])
def test_a_queue_now_never_reads_as_room_for_more(pressed: int, found: str) -> None:
    assert code(*[CALM] * 12, *[load(kv=0.97, waiting=1)] * pressed) == found


def test_a_queue_that_came_and_went_says_so_with_its_own_figures() -> None:
    found = told(*[PRESSED] * 15, *[load(kv=0.3)] * 15)
    assert (found.code, found.share) == ("MIXED", 0.5)
    assert found.evidence == "up to 6 waiting, KV up to 97 %; a queue in 50 % of the last 29 s"


def test_another_cause_than_before_is_mixed_until_it_has_lasted() -> None:
    looks = [PRESSED] * 20
    assert code(*looks, CAPPED) == "MIXED"
    assert code(*looks, *[CAPPED] * 6) == "SEQ_CAP"


def test_a_short_queue_that_is_over_leaves_room_for_a_newcomer() -> None:
    short = load(waiting=2)
    assert code(*[CALM] * 2, *[short] * 2, *[CALM] * 24) == "UNDERLOADED"
    assert code(*[CALM] * 24, *[short] * 2, CALM) == "MIXED"  # it may be coming back
    assert code(*[CALM] * 2, *[short] * 2, *[CALM] * 24, room=0) == "MIXED"
    assert code(*[CALM] * 2, *[load(preempted=30)] * 26) == "MIXED"  # it cost others their places


def test_old_pages_leave_the_window() -> None:
    assert code(*[PRESSED] * 15, *[CALM] * 40) == "UNDERLOADED"


def test_a_restart_forgets() -> None:
    window = LimitWindow()
    window.push(0.0, [PRESSED])
    window.clear()
    assert window.verdict() is None


def test_each_engine_is_judged_by_itself() -> None:
    two = (load(20, 2, cap=32, name="0"), load(20, 3, cap=32, name="1"))
    assert code(*[two] * 10) == "QUEUE"  # 40 run, and no engine is at its cap of 32
    capped = (load(8, 0, cap=32, name="0"), load(32, 5, cap=32, name="1"))
    assert told(*[capped] * 10).evidence.startswith("engine 1: running 32 of 32, waiting 5")
    pressed = (load(8, 0, kv=0.1, name="0"), load(9, 5, kv=0.98, name="1"))
    assert told(*[pressed] * 10).evidence.startswith("engine 1: KV 98 %, waiting 5")


def test_of_calm_engines_the_caps_add_up() -> None:
    two = (load(20, cap=32, name="0"), load(20, cap=32, name="1"))
    assert told(*[two] * 5).evidence.startswith("running 40 of 64")


# --- in the view of a server --------------------------------------------------------------------------------------


def watched(*pages: bytes, cap: int | None = None) -> ServerView:
    crank = Crank()
    crank.tracker.identity = Identity(max_num_seqs=cap)
    for second, page in enumerate(pages):
        crank.feed(page, float(second))
    return crank.view()


def test_the_cap_of_a_server_is_that_of_all_its_engines() -> None:
    pages = [b"".join(vllm_page(engine=str(e), running=20, generation=10.0 * t) for e in range(2)) for t in range(5)]
    view = watched(*pages, cap=32)
    assert (view.running, view.max_num_seqs, [row.max_num_seqs for row in view.engines]) == (40, 64, [32, 32])
    assert view.limited_by == "UNDERLOADED"


@pytest.mark.parametrize(("running", "room"), [(0, 3), (2, 2), (4, 0)])
def test_where_a_request_needs_a_slot_there_is_room_for_no_more_than_free_slots(running: int, room: int) -> None:
    gauges = {"running": float(running), "waiting": 0.0, "kv_usage": 0.2, "kv_capacity": 131072.0}
    crank = Crank()
    crank.tracker.identity = Identity(max_model_len=32768, max_num_seqs=4)
    page = Page(0.0, "llamacpp", (RowSample(("m", "0"), gauges, {"generation": 5.0}),))
    assert crank.take(page, 0.0).view().room_requests == room


def test_a_stalled_server_has_no_limit() -> None:
    view = watched(*[vllm_page(running=4, waiting=9, kv=0.3)] * 10)
    assert (view.state, view.limited_by) == (State.STALLED, None)
