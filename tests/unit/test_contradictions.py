"""No verdict, finding or state contradicts the figures beside it: over captured servers, cases and the demo's story."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from contradictions import contradictions
from crank import EPOCH, FIXTURES, Crank, captured, vllm_page
from llmtop.contract.snapshot import Snapshot
from llmtop.demo import profile as profiles
from llmtop.demo.engine import Engine, Request
from llmtop.demo.exposition import PageOptions, page
from llmtop.demo.families import EngineView
from llmtop.engines.tracker import Failure, Identity
from llmtop.machine.sample import MachineSample
from llmtop.session.assemble import Assembler

CAPTURES = sorted(folder.name for folder in (FIXTURES / "captures").iterdir())
CASES = sorted(folder.name for folder in (FIXTURES / "metrics").iterdir())


class Session:
    """A server that is fed pages, and the snapshots that follow from them."""

    def __init__(self) -> None:
        self.crank, self.assembler = Crank(), Assembler()

    def after(self, answer: bytes | Failure, t: float) -> Snapshot:
        """The snapshot after one more answer."""
        self.crank.feed(answer, t) if isinstance(answer, bytes) else self.crank.take(answer, t)
        return self.assembler.build((self.crank.view(),), MachineSample(EPOCH + t), t, EPOCH + t, {})


def wrong(session: Session, answers: Iterator[tuple[float, bytes | Failure]]) -> list[str]:
    return [f"at {t:.1f}: {words}" for t, answer in answers for words in contradictions(session.after(answer, t))]


@pytest.mark.parametrize("version", CAPTURES)
def test_a_captured_server(version: str) -> None:
    answers = ((t, body) for t, body, _ in captured(version))
    assert wrong(Session(), answers) == []


@pytest.mark.parametrize("name", CASES)
def test_a_case_that_tripped_other_monitors(name: str) -> None:
    bodies = [path.read_bytes() for path in sorted((FIXTURES / "metrics" / name).glob("*.txt"))]
    answers = ((float(t), bodies[min(t // 6, len(bodies) - 1)]) for t in range(6 * max(len(bodies), 1)) if bodies)
    assert wrong(Session(), answers) == []


@pytest.mark.parametrize("name", sorted(folder.name for folder in (FIXTURES / "reports").iterdir()))
def test_a_page_that_other_monitors_were_reported_to_misread(name: str) -> None:
    first, second = ((FIXTURES / "reports" / name / file).read_bytes() for file in ("a.txt", "b.txt"))
    answers = ((float(t), first if t < 5 else second) for t in range(15))
    assert wrong(Session(), answers) == []


_NAMES = {
    "vllm:": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total"),
    "sglang:": ("num_running_reqs", "num_queue_reqs", "token_usage", "generation_tokens_total"),
    "lmdeploy:": ("num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc", "generation_tokens_total"),
    "llamacpp:": ("requests_processing", "requests_deferred", "kv_cache_usage_ratio", "tokens_predicted_total"),
}


def wander(prefix: str, engines: int, chance: random.Random) -> Iterator[tuple[float, bytes | Failure]]:
    """Minutes of engines that are calm, full, hung, empty, gone and back, at random; figures jump between pages."""
    t, generated, label = 0.0, [0] * engines, chance.choice(("engine", "worker_addr", "replica"))
    mood = "calm"
    while t < 240:
        t += chance.choice((1.0, 1.0, 1.0, 2.5))
        if chance.random() < 0.08:
            mood = chance.choice(("calm", "full", "hung", "hung-empty", "idle", "gone"))
        if mood == "gone":
            generated = [0] * engines
            yield t, Failure("refused", "connection refused")
            continue
        lines = []
        for number in range(engines):
            running = {"idle": 0, "hung-empty": 0, "hung": 3}.get(mood, chance.randrange(9))
            waiting = {"idle": 0, "hung": 1, "hung-empty": 5, "calm": 0}.get(mood, chance.randrange(9))
            usage = {"idle": 0.0, "full": chance.uniform(0.9, 1.0), "hung": 0.4}.get(mood, chance.uniform(0, 0.97))
            generated[number] += 0 if mood.startswith("hung") else running * 10
            for name, value in zip(_NAMES[prefix], (running, waiting, usage, generated[number]), strict=True):
                lines.append(f'{prefix}{name}{{{label}="{number}",model_name="m"}} {value}')
            if prefix == "sglang:":
                lines.append(f'sglang:mamba_usage{{{label}="{number}",model_name="m"}} {chance.uniform(0, 1)}')
                lines.append(f'sglang:num_grammar_queue_reqs{{{label}="{number}",model_name="m"}} {waiting // 2}')
                lines.append(f'sglang:max_total_num_tokens{{{label}="{number}",model_name="m"}} 100000')
        yield t, "\n".join([*lines, f"vllm:admission_rejections_total {int(t) // 60 * 7}", ""]).encode()


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("prefix", _NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_servers_of_any_mood(prefix: str, engines: int, seed: int) -> None:
    session = Session()
    session.crank.tracker.identity = Identity("m", None, 4096, 8 if seed else None)
    assert wrong(session, wander(prefix, engines, random.Random(seed))) == []


def story() -> Iterator[tuple[float, bytes | Failure]]:
    """Two minutes of a small engine: calm, more than it can hold, nothing, gone, back."""
    profile = profiles.load("gb10")
    small = replace(profile, engine=replace(profile.engine, kv_tokens=40_000, max_num_seqs=8))
    engine, now, told = Engine(small), 0.0, 0
    for second in range(120):
        arrivals = 1 if second < 20 else 3 if second < 60 else 0
        for number in range(arrivals if second % 2 == 0 else 0):
            engine.submit(Request(f"{second}-{number}", range(told, told + 3000), 300, now))
            told += 3000
        while now < second + 1:
            step = engine.begin(now)
            if step is None:
                now = second + 1.0
                break
            now = step.end
            engine.finish(step)
        yield float(second), page(small, [EngineView("0", engine)], PageOptions("m", EPOCH, EPOCH)).encode()
    for second in range(120, 130):
        yield float(second), Failure("refused", "connection refused")


def test_a_story_of_calm_rush_and_recovery() -> None:
    session = Session()
    session.crank.tracker.identity = Identity("m", "0.32.0", 8192, 8)
    seen: set[str | None] = set()
    for t, answer in story():
        snapshot = session.after(answer, t)
        assert contradictions(snapshot) == [], t
        seen.add(snapshot.limited_by)
    assert "UNDERLOADED" in seen
    assert seen & {"SEQ_CAP", "KV_PRESSURE"}


def test_a_queue_that_nobody_serves_and_one_that_empties() -> None:
    session = Session()
    answers: list[tuple[float, bytes | Failure]] = [(float(t), vllm_page(waiting=5.0, kv=0.1)) for t in range(12)]
    answers += [(12.0 + t, vllm_page(running=5.0, kv=0.1, generation=20.0 * t)) for t in range(20)]
    answers += [(32.0 + t, vllm_page(generation=380.0)) for t in range(10)]
    assert wrong(session, iter(answers)) == []


def test_the_list_of_contradictions_can_fail() -> None:
    session = Session()
    snapshot = session.after(vllm_page(running=2.0, waiting=3.0, generation=1.0), 0.0)
    lying = replace(
        snapshot,
        servers=(replace(snapshot.servers[0], limited_by="UNDERLOADED", limited_by_evidence="x"),),
        limited_by="UNDERLOADED",
    )
    assert contradictions(lying) == ["http://server:8000: more would fit, and 3 wait"]
