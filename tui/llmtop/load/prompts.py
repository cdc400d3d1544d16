"""Prompts of an exact length, different in every request, without a tokenizer on this side.

One `/tokenize` call over a page of English gives a pool of token ids; a prompt is a random draw from it,
which no prefix cache has seen. Chat and servers that refuse ids get words that are one token each.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from typing import Any

from llmtop.engines.models import ListedModel
from llmtop.load.plan import Level, Plan, Route

PAGE = """\
The harbour lay quiet under a thin morning fog while fishermen mended their nets and told old stories about
storms that had carried whole ships beyond the map. A doctor walked slowly along the stone wall, counting
windows, because her mother had always said that a careful count would calm the mind. Near the market square
children were learning numbers from wooden blocks: seven red, twelve green, forty blue, one hundred painted
like small suns. Their teacher explained how water becomes ice, why iron sinks, where rivers begin, and what
happens when light passes through glass. Nobody noticed the stranger who opened a leather book and wrote
down every word. Later that week engineers arrived with copper wire, heavy batteries and a machine that could
measure distance by sound. They worked through the night, drank bitter coffee, argued about pressure, memory,
voltage and trust, then agreed on almost nothing. On Thursday the mayor gave a short speech about money, law,
public health and the future of education, after which an orchestra played until the lamps went out. Farmers
brought bread, cheese, apples, honey and salt; merchants offered silk, paper, tools, maps and medicine from
distant countries. One traveller described a desert where the wind draws letters in the sand, another a forest
so dense that birds must walk. In spring the library bought nine hundred volumes on history, chemistry, music,
weather, geometry, philosophy and the art of cooking. Students read about planets, empires, cells, engines,
prime numbers, ancient poems and modern banks. The oldest among them, who had once been a sailor, kept asking
how a simple question might change the answer before anyone had spoken it. When winter returned the bridge was
closed, prices rose, letters came late, and people shared blankets, soup, candles and news. Yet the clock
above the station never stopped, the bakery smelled of cinnamon, and each evening somebody lit a fire beside the
frozen lake so that skaters could find their way home across the dark."""

FALLBACK_TOKENS_PER_WORD = 1.3
_MIN_WORDS = 50


@dataclass(frozen=True, slots=True)
class Profile:
    """What preflight learned about a server: its names, and what of a request it accepts.

    `ids` is the token pool, `words` are words of one token each; either may be empty. `tokens_per_word`
    sizes texts of ordinary words where neither is known. `refused` names what was dropped, `trouble` says in
    words what is wrong with its answers.
    """

    model: str | None = None
    api: Route = "completions"
    models: tuple[ListedModel, ...] = ()
    max_model_len: int | None = None
    version: str | None = None
    ids: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    tokens_per_word: float = FALLBACK_TOKENS_PER_WORD
    use_ids: bool = False
    ignore_eos: bool = True
    min_tokens: bool = True
    temperature: bool = True
    length_field: str = "max_tokens"
    chunk_usage: bool = False  # usage with every chunk: chunks hold several tokens
    stream_usage: bool = True
    tokens_per_chunk: float | None = None
    prompt_overhead: float = 0.0  # tokens that a template adds to every text
    ttft_s: float | None = None
    tpot_s: float | None = None
    refused: tuple[str, ...] = ()
    trouble: str | None = None
    notes: tuple[str, ...] = ()


def single_token_words(token_strings: list[str]) -> tuple[str, ...]:
    """Words that are one token each, from the token strings of a page (`return_token_strs`).

    A token stands for a whole word when it begins with the mark of a space and so does the next one.
    """
    marks = ("\u0120", "\u2581", " ")  # byte-level BPE, SentencePiece, plain
    found: dict[str, None] = {}
    for token, after in itertools.pairwise(token_strings):
        word = token[1:]
        if token[:1] in marks and after[:1] in marks and word.isascii() and word.isalpha():
            found[word] = None
    return tuple(found)


class Prompts:
    """Request bodies for one plan against one server; deterministic in (seed, level, request)."""

    def __init__(self, plan: Plan, profile: Profile) -> None:
        self._plan = plan
        self._profile = profile
        self._pool = [str(token) for token in profile.ids]
        self.has_words = len(profile.words) >= _MIN_WORDS
        self._words = list(profile.words) if self.has_words else PAGE.split()
        guess = self.has_words and profile.tokens_per_word == FALLBACK_TOKENS_PER_WORD
        self._per_word = 1.0 if guess else max(profile.tokens_per_word, 0.1)

    def body(self, level: Level, level_index: int, request: int) -> bytes:
        """The JSON body of one request; `request` -1 is the warm-up's."""
        rng = random.Random(f"{self._plan.seed}/{level_index}/{request}")
        options = json.dumps(self.options(level))
        return f"{{{self._prompt(level.input_len, rng)}, {options[1:]}".encode()

    def options(self, level: Level) -> dict[str, Any]:
        """Everything of the body but the prompt."""
        profile, out = self._profile, dict[str, Any]()
        if profile.model is not None:
            out["model"] = profile.model
        out |= {profile.length_field: level.output_len, "stream": True}
        if profile.temperature:
            out["temperature"] = 0.0
        if profile.stream_usage:
            every = {"continuous_usage_stats": True} if profile.chunk_usage else {}
            out["stream_options"] = {"include_usage": True, **every}
        if self.exact_output:
            out["ignore_eos"] = True
            if profile.min_tokens:
                out["min_tokens"] = level.output_len
        return out | dict(self._plan.extra_body)

    @property
    def exact_output(self) -> bool:
        """Whether every answer must have exactly the asked length."""
        return self._plan.ignore_eos and self._profile.ignore_eos

    @property
    def vocabulary(self) -> list[str]:
        """The words that texts are drawn from."""
        return self._words

    def sample(self, words: int) -> str:
        """The first words of the vocabulary: all of them have its own mean of tokens per word."""
        return " " + " ".join(self._words[: max(1, words)])

    def prompt_of(self, text: str) -> dict[str, Any]:
        """The part of a body that holds a text."""
        return {"messages": [{"role": "user", "content": text}]} if self._profile.api == "chat" else {"prompt": text}

    def _prompt(self, length: int, rng: random.Random) -> str:
        if self._profile.api == "completions" and self._profile.use_ids:
            return f'"prompt": [{",".join(rng.choices(self._pool, k=length))}]'
        return json.dumps(self.prompt_of(self.text(length, rng)))[1:-1]

    def count_of(self, length: int) -> int:
        """Words in a text of `length` tokens, its template's counted."""
        return round((length - self._profile.prompt_overhead) / self._per_word)

    def text(self, length: int, rng: random.Random) -> str:
        """A text of `length` tokens: exactly, when the pool has words of one token each."""
        return " " + " ".join(rng.choices(self._words, k=max(1, self.count_of(length))))
