"""The demo's story: who is there when, what the agents carry, and what an engine remembers before it opens."""

from __future__ import annotations

import random

import pytest

from llmtop.demo import profile as profiles
from llmtop.demo.engine import Engine, Request
from llmtop.demo.traffic import STORY_S, contexts, present, remember


@pytest.mark.parametrize(
    ("second", "share"), [(0, 0.15), (16, 0.15), (22, 0.575), (40, 1.0), (63, 0.575), (80, 0.15), (STORY_S + 40, 1.0)]
)
def test_a_calm_a_rush_and_a_recovery_again_and_again(second: float, share: float) -> None:
    assert present(second) == pytest.approx(share)


@pytest.mark.parametrize("name", profiles.names())
def test_the_agents_together_almost_fill_the_cache_or_the_engine_s_places(name: str) -> None:
    profile = profiles.load(name)
    carried = contexts(profile, random.Random(3))
    held = sum(map(len, carried))
    full = len(carried) >= min(profile.engine.max_num_seqs, 40)
    assert 1 <= len(carried) <= 40
    assert max(map(len, carried)) < profile.model.max_model_len
    assert full or held >= 0.9 * profile.engine.kv_tokens - profile.model.max_model_len
    assert held <= profile.engine.kv_tokens or len(carried) == 1


def test_what_was_remembered_costs_only_what_a_turn_adds() -> None:
    profile = profiles.load("gb10")
    engine = Engine(profile)
    carried = contexts(profile, random.Random(3))
    spent = remember(engine, carried)
    assert spent > 200  # 29 contexts of some 28,000 tokens at 3,000 tok/s
    assert (engine.running, engine.waiting, engine.gauges.kv_usage) == (0, 0, 0.0)
    before = engine.counters.prefix_hits
    engine.submit(Request("turn", (*carried[0], *range(50)), 1, spent))
    step = engine.begin(spent)
    assert step is not None
    assert step.end - spent < 0.2
    assert engine.counters.prefix_hits - before == len(carried[0]) // 16 * 16
