"""What a command line says of a server: which engine it starts, its port, how many requests run at once.

A process is what it executes. `ssh host vllm serve`, `docker run … vllm serve`, `bash -c 'vllm serve'` start a server
somewhere and are none: where it runs on this machine, it is a process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Options = Mapping[str, str]
_PYTHON = re.compile(r"(^|/)(python|pypy)[\d.]*t?$")
_TAKES_A_WORD = ("-X", "-W", "--check-hash-based-pycs")
_SETTING = re.compile(r"^([A-Za-z][\w-]*)\s*:\s*(.*?)\s*(?:#.*)?$")


@dataclass(frozen=True, slots=True)
class Process:
    """A command line that serves a model: its program's path or module matches, and the words of `verb` follow it."""

    program: re.Pattern[str]
    verb: tuple[str, ...] = ()
    needs: str | None = None  # a word that must be there too
    beside: str | None = None  # a process whose title matches must run too

    def matches(self, name: str, words: Sequence[str]) -> bool:
        """Whether a program with these words behind it is this one; a script's path is a module's name too."""
        if tuple(words[: len(self.verb)]) != self.verb or (self.needs is not None and self.needs not in words):
            return False
        return any(self.program.search(text) for text in (name, name.replace("/", ".")))


def process(pattern: str, *verb: str, needs: str | None = None, beside: str | None = None) -> Process:
    """A process by a pattern of its program."""
    return Process(re.compile(pattern), verb, needs, beside)


def program(argv: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The program of a command line, a path or a module without its suffix, and the words behind it.

    Python's options are looked through: what it executes is the module or the script.
    """
    words = list(argv)
    if words and _PYTHON.search(words[0]):
        words = _executed(words[1:])
    if not words:
        return "", ()
    name = re.sub(r"\.(py|pyc|exe)$", "", words[0]).removesuffix("/__main__")
    return name, words[1:]


def _executed(words: list[str]) -> list[str]:
    place = 0
    while place < len(words) and words[place].startswith("-"):
        word = words[place]
        if word.startswith("-c"):
            return []
        if not word.startswith("--") and word.endswith("m") and word not in _TAKES_A_WORD:
            return words[place + 1 :]
        place += 2 if word in _TAKES_A_WORD else 1
    return words[place:]


def options(words: Sequence[str]) -> dict[str, str]:
    """The options of a command line in dashes; the last one counts, as argparse has it; "" for one without a value."""
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, told, value = word.partition("=")
        follows = words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("-") else ""
        found[name.replace("_", "-")] = value if told else follows
    return found


def settings(text: str) -> dict[str, str]:
    """The plain settings of a YAML file, as options: `port: 9000` is `--port 9000`."""
    lines = (_SETTING.match(line) for line in text.splitlines())
    return {"--" + m[1].replace("_", "-"): m[2].strip("'\"") for m in lines if m is not None and m[2]}


def is_worker(told: Options) -> bool:
    """Whether it is one of several nodes and not the one that opens a port."""
    rank = told.get("--node-rank", told.get("-r", ""))
    return "--headless" in told or (rank.isdecimal() and int(rank) > 0)


def number(told: Options, names: Sequence[str]) -> int | None:
    """The whole number of the first of these options that has one above 0; of `HOST:PORT` the port."""
    for name in names:
        value = told.get(name, "").rpartition(":")[2]
        if value.isdecimal() and 0 < int(value) < 2**31:
            return int(value)
    return None
