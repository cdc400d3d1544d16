"""A toy tokenizer: about four characters a token, a stable vocabulary of pronounceable words, counts that
round-trip.

`encode(decode(ids))` has as many tokens as `ids`, and is `ids` itself. Text that is not made of vocabulary
words keeps its count but not its wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from zlib import crc32

_CONSONANTS = "bcdfghjklmnpqrstvwxz"
_VOWELS = "aeiou"
_SYLLABLES = [c + v for c in _CONSONANTS for v in _VOWELS]
_SYLLABLE_INDEX = {s: i for i, s in enumerate(_SYLLABLES)}
VOCABULARY = len(_SYLLABLES) ** 2

_PIECE = re.compile(r" ?\w{1,6}|[^\w\s]|\s+")


def word(token: int) -> str:
    """The text of one token id, with the space before it."""
    first, second = divmod(token % VOCABULARY, len(_SYLLABLES))
    return " " + _SYLLABLES[first] + _SYLLABLES[second]


def decode(tokens: Iterable[int]) -> str:
    """The text of token ids."""
    return "".join(map(word, tokens))


def encode(text: str) -> list[int]:
    """The token ids of a text."""
    return [_token(piece) for piece in _PIECE.findall(text)]


def _token(piece: str) -> int:
    if len(piece) == 5 and piece[0] == " ":
        first, second = _SYLLABLE_INDEX.get(piece[1:3]), _SYLLABLE_INDEX.get(piece[3:5])
        if first is not None and second is not None:
            return first * len(_SYLLABLES) + second
    return crc32(piece.encode()) % VOCABULARY


def answer(seed: int, first: int, count: int) -> Sequence[int]:
    """Tokens number `first` … `first + count - 1` of the answer that belongs to `seed`."""
    # a multiplicative walk: neighbours differ, the same seed gives the same answer
    return [(seed + i * 7919) * 31 % VOCABULARY for i in range(first, first + count)]
