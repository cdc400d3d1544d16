"""Masking of keys, tokens and passwords in text that is shown, recorded or written to a file.

Two ways: a secret that this run was given is hidden wherever it stands, as a server or a log may write it; any other is
known by what stands before it.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote, quote_plus

MASK = "***"
LEAST_CHARS = 8  # a shorter secret may be part of any word

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


_SECRET_NAME = re.compile(r"(?:.*[_-])?(?:(?:api)?key|token|secret|password|passwd|credentials?)", re.I)

_KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "COLUMNS",
    "ROWS",
)
_KEPT_FAMILIES = ("LC_", "PYTHON", "XDG_", "SSL_CERT_", "TEXTUAL_", "TERM_PROGRAM")


def own_environment(environ: Mapping[str, str], *more: str | None) -> dict[str, str]:
    """What a process of this program's own needs of the environment: no keys, and no proxies, which may hold one.

    `more`: variables that it is told to read.
    """
    kept = (*_KEPT, *more)
    return {name: value for name, value in environ.items() if name in kept or name.startswith(_KEPT_FAMILIES)}


def tool_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a tool that is asked something may know: all but what has the name of a secret."""
    return {name: value for name, value in environ.items() if not _SECRET_NAME.fullmatch(name)}


class Known:
    """The secrets of this run, in every way in which they may be written."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._ways: list[str] = []  # the longest first: one may be a part of another
        self._raw: list[bytes] = []

    def add(self, *secrets: str | None) -> None:
        """Remember secrets; one of fewer than `LEAST_CHARS` characters is not told from other text."""
        new = {text for text in secrets if text and len(text) >= LEAST_CHARS} - self._secrets
        if new:
            self._secrets |= new
            ways = {way for secret in self._secrets for way in _ways(secret)}
            self._ways = sorted(ways, key=lambda way: (-len(way), way))
            self._raw = [way.encode("utf-8", "surrogateescape") for way in self._ways]

    def add_header(self, authorization: str | None) -> None:
        """Remember what an `Authorization` header tells."""
        scheme, _, value = (authorization or "").partition(" ")
        name, _, password = (
            b64decode(value).decode("utf-8", "replace").partition(":") if scheme == "Basic" else ("", "", "")
        )
        self.add(value, password or name)

    def add_command(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """Remember what a command is given, by its flags and by the names of its variables."""
        self.add(*_of_flags(words), *(value for name, value in environ.items() if _SECRET_NAME.fullmatch(name)))

    def hide(self, text: str) -> str:
        """The text with `***` for every secret."""
        for way in self._ways:
            if way in text:
                text = _number(way).sub(MASK, text) if way.isdecimal() else text.replace(way, MASK)
        return text

    def hide_bytes(self, data: bytes) -> bytes:
        """The same for bytes, of UTF-8 or not."""
        if any(way in data for way in self._raw):
            return self.hide(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        return data

    @property
    def longest(self) -> int:
        """Bytes of the longest way to write one."""
        return max(map(len, self._raw), default=0)

    def begun(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the beginning of a secret."""
        sizes = range(min(self.longest - 1, len(data)), 0, -1)
        return next((size for size in sizes if any(way.startswith(data[-size:]) for way in self._raw)), 0)


KNOWN = Known()  # of this process


def _number(way: str) -> re.Pattern[str]:
    """A secret of digits alone; one that is a part of a longer number is a figure."""
    return re.compile(rf"(?<!\d)(?<!\d\.){way}(?!\.?\d)")


def _ways(secret: str) -> Iterator[str]:
    """How a text may have a secret: as it is, in JSON or in a string of a program, in a URL, in HTML, in base64."""
    escaped = [json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]]
    escaped += [
        secret.replace("\\", "\\\\").replace("'", "\\'"),
        secret.replace("'", "\\'"),
        secret.replace('"', '\\"'),
    ]
    raw = secret.encode("utf-8", "surrogateescape")  # a variable may hold what is no UTF-8
    in_urls = [quote(raw, safe=""), quote(raw), quote_plus(raw), quote(raw, safe="/:?#[]@!$&'()*+,;=~")]
    in_pages = [html.escape(secret), html.escape(secret, quote=False), html.escape(secret).replace("&#x27;", "&#39;")]
    yield secret
    yield from escaped
    yield from (json.dumps(way)[1:-1] for way in escaped)
    yield from in_urls
    yield from (re.sub("%..", lambda found: found[0].lower(), way) for way in in_urls)
    yield from in_pages
    yield secret.replace("'", "'\"'\"'")  # in a shell
    yield b64encode(raw).decode().rstrip("=")


def _of_flags(words: Iterable[str]) -> Iterator[str]:
    """The values of flags that name a secret: `--api-key A B`, `--api-key=A`, `NAME_TOKEN=A`."""
    follows = False
    for word in words:
        name, told, value = word.partition("=")
        named = _SECRET_NAME.fullmatch(name.lstrip("-")) is not None
        if " " in word:  # of a shell
            yield from _of_flags(part.strip("'\"") for part in word.split())
        elif named and told:
            yield value.strip("'\"")
        elif follows and not word.startswith("-"):
            yield word
        follows = not told and (named if word.startswith("-") else follows)


def mask(text: str) -> str:
    """Return `text` with every key, token and password replaced by `***`; names and flags stay readable."""
    text = KNOWN.hide(text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
