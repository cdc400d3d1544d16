"""What an engine's entry holds: its metrics, its other pages, its names, its processes, its quirks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal, Protocol

from llmtop.engines.command_line import Process
from llmtop.engines.page_record import Page

Fold = Literal["sum", "max", "min"]
Keys = tuple[str, ...]  # one inside the other
ANY = "*"
Match = tuple[str, str | re.Pattern[str]]  # a label and its value, or `ANY`, or a pattern of it ("" = not there)
AT_END = 100  # the rank from which a counter moves only when a request ends
# what every engine process has: it is a row of the page when these tell it apart
ROW_GAUGES = frozenset({"running", "waiting", "kv_usage", "kv_capacity", "kv_used", "kv_total", "kv_blocks"})


class Kind(Enum):
    """How the value of a series is folded into its row."""

    GAUGE = auto()
    COUNTER = auto()
    BUCKET = auto()
    SUM = auto()
    COUNT = auto()
    REASON = auto()
    SLEEP = auto()
    CONFIG = auto()
    LORA = auto()
    PAGE = auto()


@dataclass(frozen=True, slots=True)
class MetricSource:
    """One place where a signal may live, of the series that `match`.

    `by`: a label whose value becomes part of the signal (`finished:stop`). `scale`: what makes seconds of the value.
    """

    signal: str
    metric: str
    kind: Kind
    fold: Fold = "sum"
    match: Match | None = None
    rank: int = 0
    by: str | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Door:
    """A path with a JSON object, and where in it the names and limits are; of several places the first that has one."""

    path: str
    model: tuple[Keys, ...] = ()
    model_file: Keys = ()
    version: tuple[Keys, ...] = ()
    max_model_len: tuple[Keys, ...] = ()
    max_num_seqs: tuple[Keys, ...] = ()


class Beside(Protocol):
    """A JSON page that is read after every metrics page, because it tells what that one does not."""

    path: str

    def fill(self, page: Page, answer: Any) -> Page:
        """The page with what the answer adds to it; the page itself where the answer says nothing."""


@dataclass(frozen=True, slots=True)
class Instead:
    """A JSON page of an engine that has no metrics, and how it is read; None for what is not its own."""

    path: str
    read: Callable[[Any, float], Page | None]


@dataclass(frozen=True, slots=True)
class Remedies:
    """What to change, in the words of its command line, when requests wait for a place, cache or memory is short."""

    users: str = "let the server run more requests at once"
    cache: str = "fewer users at once, shorter contexts, or more memory for the cache"
    memory: str = "give the server less memory"


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine; adding one takes an entry like this and a line in `registry.ENGINES`.

    Shards of one engine repeat its figures, and the lowest is read; `digits` that it prints of a large counter.
    """

    name: str
    title: str
    sources: tuple[MetricSource, ...] = ()
    model_label: str = "model_name"
    row_labels: tuple[str, ...] = ()  # name a row wherever they stand; any other label does where it differs
    shard_labels: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()  # signals without which its metrics are somebody else's
    digits: int | None = None
    steps_told: int = 1  # its figures are new after so many steps of generation
    own_blocks: bool = False  # `num_gpu_blocks` is of one row, not of all
    late_gauges: bool = False  # they come with the first step: an engine that only counts is idle
    null_block: bool = False  # one block of the cache is never used
    door: Door | None = None
    beside: Callable[[], Beside] | None = None
    read_json: Callable[[bytes, float], Page | None] | None = None  # a metrics page that is JSON
    instead: Instead | None = None
    paths: tuple[str, ...] = ()  # where its metrics are, if not at /metrics
    owner: str | None = None  # what /v1/models says owns a model
    processes: tuple[Process, ...] = ()
    port: int = 8000  # 0: only as the command line tells
    port_options: tuple[str, ...] = ("--port",)
    port_elsewhere: bool = False  # its environment or its settings may name another port
    only_listening: bool = False  # a desktop program, which serves only when asked to
    has_children: bool = False  # serves with processes of other engines, which are no servers of their own
    limit_options: tuple[str, ...] = ()  # of its command line: how many requests may run at once
    prefix: str = ""  # of any metric of its own
    has_slots: bool = False  # a request needs one, so that room in the cache is not yet room for a request
    remedies: Remedies = Remedies()
    without_metrics: str = ""  # what to do, or know, where it answers and has no metrics
    silent_on: str = ""  # what it never tells, in words for the help


def gauge(
    signal: str, *metrics: str, fold: Fold = "sum", match: Match | None = None, rank: int = 0
) -> Iterator[MetricSource]:
    """A gauge by its names, the best first."""
    for place, metric in enumerate(metrics):
        yield MetricSource(signal, metric, Kind.GAUGE, fold, match, rank + place * 10)


def counter(
    signal: str, *metrics: str, match: Match | None = None, rank: int = 0, by: str | None = None
) -> Iterator[MetricSource]:
    """A counter by its exposed names; the spelling without `_total` is accepted after them."""
    for place, metric in enumerate(metrics):
        yield MetricSource(signal, metric, Kind.COUNTER, "sum", match, rank + place * 10, by)
        if metric.endswith("_total"):
            yield MetricSource(
                signal, metric.removesuffix("_total"), Kind.COUNTER, "sum", match, rank + place * 10 + 5, by
            )


def histogram(signal: str, *metrics: str, match: Match | None = None) -> Iterator[MetricSource]:
    """A histogram by its names without suffixes, the best first."""
    for place, metric in enumerate(metrics):
        for suffix, kind in (("_bucket", Kind.BUCKET), ("_sum", Kind.SUM), ("_count", Kind.COUNT)):
            yield MetricSource(signal, metric + suffix, kind, "sum", match, place * 10)


def queue(reason: str, *metrics: str) -> Iterator[MetricSource]:
    """A queue of its own beside others: waiting is the sum of all of them."""
    for metric in metrics:
        yield MetricSource(f"queue:{reason}", metric, Kind.REASON)
