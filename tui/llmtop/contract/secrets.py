"""Masking of keys, tokens and passwords in text that is shown, recorded or written to a file."""

from __future__ import annotations

import re

MASK = "***"

# Bounded, so that a long line made to hurt cannot: names have few words.
_NAME = r"(?:[A-Za-z0-9]{1,24}[_-]){0,4}(?:api[_-]?key|apikey|token|secret|password|passwd|credential)"
# Values that carry no secret: masking them would only hide that nothing was set.
_EMPTY = r"(?!(?:None|null|True|False|\*\*\*)\b)"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{4,}", re.I), rf"\1 {MASK}"),
    (re.compile(r"(?<=://)[^\s/@'\"]+@"), f"{MASK}@"),
    (
        re.compile(rf"(?P<flag>--{_NAME})(?P<gap>=|\s+)(?!-)['\"]?[^\s'\"]+['\"]?", re.I),
        rf"\g<flag>\g<gap>{MASK}",
    ),
    (
        re.compile(
            r"(?P<mark>[?&](?:[\w.-]*(?:key|token|secret|passw(?:or)?d|auth|signature|credential)|sig)=)[^&\s'\"#]+",
            re.I,
        ),
        rf"\g<mark>{MASK}",
    ),
    (
        # possessive, and to the end of the line where the list is not closed: nothing is looked at twice
        re.compile(rf"(?P<name>\b{_NAME}['\"]?\s*[=:]\s*)\[[^\]\n]++\]?", re.I),
        rf"\g<name>[{MASK}]",
    ),
    (
        re.compile(rf"(?P<name>\b{_NAME}['\"]?\s*[=:]\s*(?P<quote>['\"]?)){_EMPTY}[^\s'\",;)\]}}&]+", re.I),
        rf"\g<name>{MASK}",
    ),
    (re.compile(r"\bhf_[A-Za-z0-9]{6,}"), f"hf_{MASK}"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{6,}"), f"sk-{MASK}"),
)


def mask(text: str) -> str:
    """Return `text` with every key, token and password replaced by `***`; names and flags stay readable."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def mask_command(words: list[str]) -> list[str]:
    """Mask a command line given as words, where a flag and its value are two words."""
    out: list[str] = []
    hide = False
    for word in words:
        hidden = hide and not word.startswith("-")
        out.append(MASK if hidden else mask(word))
        # A flag may take several values (`--api-key A B`), so masking goes on until the next flag.
        hide = hidden or bool(re.fullmatch(rf"--{_NAME}", word, re.I))
    return out
