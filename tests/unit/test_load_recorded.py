"""A load test in a recording: what comes back, and what is never written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from llmtop.load import recorded
from llmtop.load.completion import Outcome
from llmtop.load.counters import ServerCounters
from llmtop.load.events import (
    Draining,
    Finished,
    FirstToken,
    Lane,
    LevelDone,
    LevelPreparing,
    LevelStarted,
    Measuring,
    Preflighted,
    Progress,
    RequestDone,
    Warned,
)
from llmtop.load.plan import Level, Plan
from llmtop.load.prompts import Profile
from llmtop.load.records import RequestRecord
from llmtop.load.results import CrossCheck, FirstFail, Flag, LevelResult, Outside, RunResult, Spread, Totals

LEVEL = Level("c=8", 8, 64, 2048, 128)
COUNTERS = ServerCounters(12.5, 8, 3, 0.61, 1000, 2000, 64, 0, itl=(1.5, 100))
PROGRESS = Progress(
    index=0,
    level=LEVEL,
    now_s=100.25,
    sent=40,
    completed=32,
    errors=0,
    running=8,
    tokens=4096,
    tok_s=93.4,
    server_tok_s=None,
    server=COUNTERS,
    lanes=(Lane(0, "decode", 17, 1.25), Lane(1, "wait", 0, 0.5)),
    first_tokens=(FirstToken(99.5, 1.5, True),),
    fraction=0.5,
    eta_s=12.0,
)
DONE = LevelResult("c=8", 8, errors={"cut": 1}, failed=1, completed=2, ttft=Spread(1, 2, 3, 2, 5, 6, 7))
DONE = replace(DONE, flags=(Flag("few samples", "2 requests"),), counters=CrossCheck(True, Totals(1, 2, 3)))
RESULT = RunResult(
    "sweep",
    "well",
    notes=("no counters",),
    outside=Outside(Totals(8, 16, 1)),
    levels=(DONE,),
    sweet_spot=8,
    first_fail=FirstFail("c=9", 9, "errors", 1, 0),
)
PLAN = Plan("http://127.0.0.1:8000", (LEVEL, Level("1/s", 512, 60, 1, 1, request_rate=1.0)), model="m")


def there_and_back(item: recorded.Item) -> recorded.Item | None:
    values = recorded.to_values(item)
    assert values is not None
    return recorded.from_values(json.loads(json.dumps(values)))


@pytest.mark.parametrize(
    "item",
    [
        PLAN,
        Measuring(33, 2560, 396),
        LevelPreparing(0, LEVEL),
        LevelStarted(1, LEVEL, 99.0),
        PROGRESS,
        LevelDone(0, DONE),
        Draining(3, 0, False),
        Warned("no counters"),
        Finished(RESULT),
    ],
    ids=lambda item: type(item).__name__,
)
def test_it_comes_back_equal(item: recorded.Item) -> None:
    assert there_and_back(item) == item


def test_the_names_of_classes_are_not_recorded_and_those_of_earlier_versions_are_understood() -> None:
    values = recorded.to_values(PROGRESS)
    assert values is not None
    assert values["what"] == "progress"
    assert recorded.from_values(values | {"what": "Progress"}) == PROGRESS


def test_of_preflight_only_the_counters_are_kept() -> None:
    assert there_and_back(Preflighted(Profile(words=("secret",)), COUNTERS)) == COUNTERS
    assert recorded.to_values(Preflighted(Profile(), None)) is None


def test_requests_and_what_a_person_adds_to_them_are_not_written() -> None:
    assert recorded.to_values(RequestDone(0, RequestRecord(0, 0, 0.0, 1.0, Outcome.OK))) is None
    plan = Plan(PLAN.url, PLAN.levels, metadata={"who": "me"}, extra_body={"system": "my prompt"})
    assert "my prompt" not in json.dumps(recorded.to_values(plan))
    assert there_and_back(plan) == Plan(PLAN.url, PLAN.levels)


def test_figures_of_single_requests_are_left_out() -> None:
    long = replace(DONE, latencies=(1.0,) * 999, queue_times=(0.0,))
    assert there_and_back(LevelDone(0, long)) == LevelDone(0, DONE)
    assert there_and_back(Finished(replace(RESULT, levels=(long,)))) == Finished(RESULT)


def test_recordings_from_before_the_words_still_play() -> None:
    old = {"level": "c=8", "concurrency": 8, "completed": 2, "output_throughput": 94.0, "errors": {}, "flags": ["x"]}
    old |= {"request_rate": "inf", "request_rate_value": None, "flag_reasons": {"x": "y"}, "latencies": [1.0]}
    done = recorded.from_values({"what": "LevelDone", "values": {"index": 3, "result": old}})
    assert isinstance(done, LevelDone)
    assert (done.index, done.result.tok_s, done.result.flags, done.result.ttft) == (3, 94.0, (Flag("x", "y"),), None)
    ended = recorded.from_values({"what": "Finished", "values": {"result": {"words": "w", "levels": [old]}}})
    assert ended is None  # a result without its scenario is none


def test_a_picture_of_very_many_slots_is_left_out() -> None:
    many = replace(PROGRESS, lanes=tuple(Lane(slot, "wait", 0, 0.0) for slot in range(65)))
    assert there_and_back(many) == replace(PROGRESS, lanes=())


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"what": "done", "values": 7},
        {"what": "Weather", "values": {}},
        {"what": "Progress", "values": []},
        {"what": 7},
    ],
)
def test_what_is_not_known_is_passed_over(values: dict[str, object]) -> None:
    assert recorded.from_values(values) is None
