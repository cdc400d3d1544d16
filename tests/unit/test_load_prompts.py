"""Prompts: exact length, unique, seeded, and only what the server accepts."""

from __future__ import annotations

import json
import random
from typing import Any

from llmtop.load.plan import Level, Plan
from llmtop.load.prompts import PAGE, Profile, Prompts, single_token_words

LEVEL = Level("c=1", 1, 64, 100, 8)
IDS = Profile(model="m", ids=tuple(range(500)), use_ids=True)


def body(plan: Plan, profile: Profile, request: int = 0, level_index: int = 0) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(Prompts(plan, profile).body(LEVEL, level_index, request))
    return parsed


PLAN = Plan("http://x", (LEVEL,), seed=3)


def test_ids_of_exact_length_from_the_pool() -> None:
    sent = body(PLAN, IDS)
    assert len(sent["prompt"]) == 100
    assert set(sent["prompt"]) <= set(IDS.ids)
    assert {key: sent[key] for key in sent if key != "prompt"} == {
        "model": "m",
        "max_tokens": 8,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_tokens": 8,
    }


def test_every_request_and_level_has_a_prompt_of_its_own_and_the_seed_repeats_it() -> None:
    prompts = {json.dumps(body(PLAN, IDS, request, index)["prompt"]) for request in range(-1, 64) for index in range(3)}
    assert len(prompts) == 65 * 3
    assert body(PLAN, IDS, 5) == body(PLAN, IDS, 5)
    assert body(PLAN, IDS, 5) != body(Plan("http://x", (LEVEL,), seed=4), IDS, 5)


def test_first_blocks_differ_so_that_no_prefix_cache_hits() -> None:
    starts = {tuple(body(PLAN, IDS, request)["prompt"][:16]) for request in range(64)}
    assert len(starts) == 64


def test_what_the_server_refuses_is_not_sent() -> None:
    sent = body(PLAN, Profile(ignore_eos=False, min_tokens=False, stream_usage=False))
    assert sent.keys() == {"prompt", "max_tokens", "temperature", "stream"}
    assert isinstance(sent["prompt"], str)


def test_words_of_one_token_make_texts_of_exact_length() -> None:
    words = tuple(f"word{i}" for i in range(60))
    sent = body(Plan("http://x", (LEVEL,)), Profile(api="chat", ids=IDS.ids, words=words, use_ids=True))
    (message,) = sent["messages"]
    assert message["role"] == "user"
    assert message["content"].startswith(" word")
    assert len(message["content"].split()) == 100


def test_ordinary_words_are_counted_by_their_mean_tokens() -> None:
    text = Prompts(PLAN, Profile(tokens_per_word=1.25)).text(100, random.Random(1))
    assert len(text.split()) == 80


def test_extra_fields_win() -> None:
    sent = body(Plan("http://x", (LEVEL,), extra_body={"temperature": 0.7, "top_k": 5}), IDS)
    assert (sent["temperature"], sent["top_k"]) == (0.7, 5)


def test_single_token_words_of_three_tokenizers() -> None:
    assert single_token_words(["The", "Ġquiet", "Ġhar", "bour", "Ġfog", ",", "Ġand", "Ġold"]) == ("quiet", "and")
    assert single_token_words(["▁quiet", "▁fog", "▁1", "▁old"]) == ("quiet", "fog")
    assert single_token_words([" quiet", " fog"]) == ("quiet",)
    assert single_token_words([]) == ()


def test_the_page_has_enough_different_words() -> None:
    assert len(set(PAGE.split())) > 220
    assert PAGE.isascii()
