"""The table in which articles compare two engines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmtop.load.article import article, article_markdown, article_text, names, sources
from llmtop.load.results import Flag, LevelResult, RunResult, Spread


def spread(mean_ms: float) -> Spread:
    return Spread(mean_ms, mean_ms, 0.0, mean_ms, mean_ms, mean_ms, mean_ms)


def level(name: str, users: int = 1, size: tuple[int, int] = (2048, 128), **more: object) -> LevelResult:
    alone = LevelResult(name, users, num_prompts=5, completed=5, input_len=size[0], output_len=size[1])
    return replace(alone, **more)  # type: ignore[arg-type]


VLLM = RunResult(
    "single",
    "",
    levels=(
        level("pp2048", size=(2048, 1), ttft=spread(1024.0)),
        level("pp8192", size=(8192, 1), ttft=spread(4096.0)),
        level("tg128@d0", size=(16, 128), tpot=spread(20.0)),
        level("c=1", decode_tok_s=50.0, tok_s=40.0, user_tok_s=40.0),
        level("c=8", 8, tok_s=200.0, user_tok_s=25.0),
    ),
    url="http://127.0.0.1:8000",
    model="gpt-oss-120b",
    engine="vLLM 0.32.0",
)
LLAMA = replace(
    VLLM,
    levels=(
        level("pp2048", size=(2048, 1), ttft=spread(2048.0)),
        level("pp8192", size=(8192, 1), ttft=spread(4096.0), flags=(Flag("cache", "99 % from the cache"),)),
        level("tg128@d0", size=(16, 128), tpot=spread(16.0)),
        level("c=1", decode_tok_s=60.0, tok_s=48.0, user_tok_s=48.0),
        level("c=8", 8, tok_s=100.0, user_tok_s=12.5),
    ),
    url="http://127.0.0.1:8080",
    engine="llama.cpp b11434",
)


def test_prefill_decode_users_and_ratios() -> None:
    found = {line.measure: (line.a, line.b, line.ratio) for line in article(VLLM, LLAMA)}
    assert found == {
        "prefill pp2048": (2000.0, 1000.0, 0.5),
        "prefill pp8192": (2000.0, 2000.0, None),  # a cache answered
        "decode tg128@d0": (50.0, 62.5, 1.25),
        "1 user, decode (2048/128)": (50.0, 60.0, 1.2),
        "1 user, all (2048/128)": (40.0, 48.0, 1.2),
        "8 users, all (2048/128)": (200.0, 100.0, 0.5),
        "8 users, each (2048/128)": (25.0, 12.5, 0.5),
    }


def test_the_engines_are_named() -> None:
    lines, heads = article(VLLM, LLAMA), names(VLLM, LLAMA)
    assert sources(VLLM, LLAMA)[1] == "B  llama.cpp b11434, gpt-oss-120b, http://127.0.0.1:8080"
    text = article_text(lines, heads).splitlines()
    assert text[0].split("  ")[0] == "tok/s"
    assert "llama.cpp b11434 / vLLM 0.32.0" in text[0]
    assert text[1].split() == ["prefill", "pp2048", "2,000", "1,000", "0.50x"]
    shown = article_markdown(lines, heads).splitlines()
    assert shown[0] == "| tok/s | vLLM 0.32.0 | llama.cpp b11434 | llama.cpp b11434 / vLLM 0.32.0 |"
    assert shown[1] == "| --- | ---: | ---: | ---: |"
    assert shown[3] == "| prefill pp8192 | 2,000 | 2,000 | – |"


@pytest.mark.parametrize(
    ("change", "heads"),
    [
        ({"engine": "vLLM 0.32.0", "model": "other"}, ("gpt-oss-120b", "other")),
        ({"engine": None}, ("http://127.0.0.1:8000", "http://127.0.0.1:8080")),
        ({"engine": None, "url": VLLM.url}, ("A", "B")),
    ],
)
def test_runs_of_one_engine_are_told_apart(change: dict[str, str | None], heads: tuple[str, str]) -> None:
    assert names(VLLM, replace(LLAMA, **change)) == heads  # type: ignore[arg-type]
