"""What kills processes of this machine when memory runs short, and at which headroom: earlyoom, Ray's monitor.

Only what runs counts: the settings of a program that was never started kill nobody. What cannot be read is unknown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmtop.contract.snapshot import Killer
from llmtop.machine.sample import MemInfo
from llmtop.machine.tree import Files

SETTINGS = "etc/default/earlyoom"
RAY_LOG = "tmp/ray/session_latest/logs/raylet.out"
RAY_DEFAULT = 0.95
PROGRAMS = ("earlyoom", "raylet")
_ARGS = re.compile(r"^\s*EARLYOOM_ARGS=(.*)$", re.MULTILINE)
_RAY_LINE = re.compile(r"MemoryMonitor initialized with usage threshold at (\d+) bytes \(([\d.]+)% of system memory\)")
_RAY_OFF = re.compile(r"Memory ?Monitor disabled")
_SHORT = re.compile(r"^-([mMsS])(.*)$")
_OTHER_SIZE = 0.02  # by which a size may differ from the machine's and be its own


@dataclass(frozen=True, slots=True)
class KillRule:
    """When a program kills: below so much of all memory, or so many bytes, and (earlyoom) so much of the swap."""

    name: str
    said: str
    share: float | None = None
    size: int | None = None
    swap_share: float | None = None
    swap_size: int | None = None

    def of(self, mem: MemInfo) -> Killer:
        """The rule in bytes of this machine's headroom."""
        sizes = [] if self.size is None else [self.size]
        if self.share is not None and mem.total:
            sizes.append(int(self.share * mem.total))
        return Killer(self.name, min(sizes, default=None), self.said, self._armed(mem))

    def _armed(self, mem: MemInfo) -> bool | None:
        if self.swap_share is None and self.swap_size is None:
            return True
        if mem.swap_total is None or mem.swap_free is None:
            return None
        limits: list[float] = [] if self.swap_size is None else [self.swap_size]
        limits += [] if self.swap_share is None else [self.swap_share * mem.swap_total]
        return mem.swap_free <= min(limits)


def lines(rules: Iterable[KillRule], mem: MemInfo) -> tuple[Killer, ...]:
    """What kills on a machine with this memory, first what strikes first."""
    return tuple(sorted((rule.of(mem) for rule in rules), key=lambda killer: -(killer.headroom_bytes or 0)))


class KillerReader:
    """Looks for them in a /proc and the settings beside it."""

    def __init__(self, procfs: str, files: Files) -> None:
        self._procfs, self._files = procfs, files
        self._root = procfs.rpartition("/")[0]

    def rules(self, total: int | None) -> tuple[KillRule, ...]:
        """What runs now; `total` is the machine's memory in bytes."""
        pids = [name for name in self._files.names(self._procfs) if name.isdecimal()]
        found = {pid: words for pid in pids if (words := self._words(pid)) and _program(words) in PROGRAMS}
        rules = [rule for pid, words in found.items() if (rule := self._rule(pid, words, total)) is not None]
        if not pids and (settings := self._args()):  # processes cannot be seen
            rules.append(earlyoom(settings, f"; {SETTINGS}, its process is not seen"))
        return tuple({rule.name: rule for rule in rules}.values())

    def _rule(self, pid: str, words: Sequence[str], total: int | None) -> KillRule | None:
        if _program(words) == "earlyoom":
            told = words[1:] if any(map(_SHORT.match, words[1:])) else self._args()
            return None if "--dryrun" in words else earlyoom(told, "")
        inside = self._text(f"{self._procfs}/{pid}/root/{RAY_LOG}")
        return ray(inside or self._text(f"{self._root}/{RAY_LOG}"), self._environ(pid), total)

    def _words(self, pid: str) -> list[str]:
        raw = self._files.read(f"{self._procfs}/{pid}/cmdline", whole=False) or b""
        return raw.decode("utf-8", "replace").rstrip("\0").split("\0") if raw else []

    def _args(self) -> list[str]:
        match = _ARGS.search(self._text(f"{self._root}/{SETTINGS}") or "")
        try:
            return shlex.split(" ".join(shlex.split(match[1], comments=True))) if match else []
        except ValueError:
            return []

    def _environ(self, pid: str) -> dict[str, str] | None:
        raw = self._files.read(f"{self._procfs}/{pid}/environ")
        pairs = (word.partition("=") for word in (raw or b"").decode("utf-8", "replace").split("\0"))
        return {name: value for name, _, value in pairs} if raw else None

    def _text(self, path: str) -> str | None:
        raw = self._files.read(path, whole=False)
        return None if raw is None else raw.decode("utf-8", "replace")


def _program(words: Sequence[str]) -> str:
    return words[0].rpartition("/")[2]


def earlyoom(words: Sequence[str], more: str) -> KillRule:
    """By its arguments; SIGTERM comes at the first number of each, and both memory and swap must be short."""
    given = dict(_limits(words))
    size, swap_size = (None if name not in given else int(given[name] * 1024) for name in "MS")
    share = given.get("m", None if size is not None else 10.0)
    swap_share = given.get("s", None if swap_size is not None else 10.0)
    limits = [] if share is None else [f"{share:g} %"]
    limits += [] if size is None else [f"{size / 2**30:.3g} GiB"]
    memory = " or ".join(limits)
    swap = f"{swap_share:g} %" if swap_share is not None else f"{(swap_size or 0) / 2**30:.3g} GiB"
    return KillRule(
        "earlyoom",
        f"earlyoom: available ≤ {memory} and free swap ≤ {swap}{more}",
        None if share is None else share / 100,
        size,
        None if swap_share is None else swap_share / 100,
        swap_size,
    )


def _limits(words: Sequence[str]) -> Iterator[tuple[str, float]]:
    for place, word in enumerate(words):
        match = _SHORT.match(word)
        if match is not None:
            text = (match[2] or "".join(words[place + 1 : place + 2])).partition(",")[0]
            if re.fullmatch(r"\d{1,12}(\.\d{1,6})?", text):
                yield match[1], float(text)


def ray(log: str | None, environ: Mapping[str, str] | None, total: int | None) -> KillRule | None:
    """Ray's memory monitor: as its log says, else as its variables do; None where it is off."""
    name = "Ray"
    said = [*_RAY_LINE.finditer(log or "")]
    if not said and _RAY_OFF.search(log or ""):
        return None
    if said:
        used, percent = int(said[-1][1]), float(said[-1][2])
        size = round(used / percent * 100) if percent else 0
        words = f"Ray's memory monitor: {percent:g} % used"
        if total and abs(size - total) > _OTHER_SIZE * total:
            return KillRule(name, f"{words} of its container's {size / 2**30:.1f} GiB")
        return KillRule(name, f"{words} (its log)", size=max(0, (total or size) - used))
    if environ is None:
        return KillRule(name, "Ray runs; whether its memory monitor kills, and at what, may not be read")
    if environ.get("RAY_memory_monitor_refresh_ms", "").strip() == "0":
        return None
    told = environ.get("RAY_memory_usage_threshold", "")
    share = float(told) if re.fullmatch(r"[01](\.\d{1,6})?|\.\d{1,6}", told) else RAY_DEFAULT
    basis = "RAY_memory_usage_threshold" if told else "Ray's default"
    return KillRule(name, f"Ray's memory monitor: {100 * share:g} % used ({basis})", share=1 - share)
