"""Two runs figure by figure, for the levels that both played alike; with what speaks against the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llmtop.contract.units import UNKNOWN, rate
from llmtop.load.results import LevelResult, RunResult
from llmtop.load.table import align

# doubts that change what a level's figures mean, so that neither run can be called better
_GRAVE = frozenset(
    {"cache", "not alone", "server restarted", "counters differ", "short", "prompt length", "tokens estimated"}
    | {"fewer users", "delayed", "clumped"}
)


def _in_ms(name: str, figure: str) -> Callable[[LevelResult], float | None]:
    return lambda level: getattr(getattr(level, name), figure, None)


COMPARED: tuple[tuple[str, Callable[[LevelResult], float | None], bool], ...] = (
    ("tok/s", lambda level: level.tok_s, True),
    ("/user", lambda level: level.user_tok_s, True),
    ("TTFT mean ms", _in_ms("ttft", "mean_ms"), False),
    ("TTFT P99 ms", _in_ms("ttft", "p99_ms"), False),
    ("TPOT mean ms", _in_ms("tpot", "mean_ms"), False),
    ("E2EL mean ms", _in_ms("e2el", "mean_ms"), False),
    ("errors", lambda level: level.failed, False),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one level in two runs; `change` is relative, `better` whether B wins, None = cannot be said."""

    level: str
    figure: str
    a: float | None
    b: float | None
    change: float | None
    better: bool | None


@dataclass(frozen=True, slots=True)
class RunsCompared:
    """Two runs side by side: figures, how their plans differ, the doubts about the levels compared."""

    figures: tuple[Comparison, ...] = ()
    differences: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def compare(a: RunResult, b: RunResult) -> RunsCompared:
    """Two runs, for the levels of one name and one size that ran to their end in both."""
    return RunsCompared(
        tuple(figure for x, y in alike(a, b) for figure in _figures(x, y)),
        (*_plan_differences(a, b), *(words for x, y in _named(a, b) if (words := _difference(x, y)))),
        tuple(
            f"{run} {level.level}: {flag.name}: {flag.reason}"
            for pair in alike(a, b)
            for run, level in zip("AB", pair, strict=True)
            for flag in level.flags
        ),
    )


def _named(a: RunResult, b: RunResult) -> list[tuple[LevelResult, LevelResult]]:
    theirs = {level.level: level for level in b.levels}
    return [(level, theirs[level.level]) for level in a.levels if level.level in theirs]


def alike(a: RunResult, b: RunResult) -> list[tuple[LevelResult, LevelResult]]:
    """The levels of one name and one size that ran to their end in both."""
    return [(x, y) for x, y in _named(a, b) if _shape(x) == _shape(y) and x.whole and y.whole]


def doubted(x: LevelResult, y: LevelResult) -> bool:
    """Whether a doubt about one of two levels forbids to call either better."""
    return any(flag.name in _GRAVE for level in (x, y) for flag in level.flags)


def _shape(level: LevelResult) -> tuple[float | None, ...]:
    return level.concurrency, level.input_len, level.output_len, level.request_rate


def _figures(x: LevelResult, y: LevelResult) -> Iterator[Comparison]:
    unsure = doubted(x, y)
    for head, value, more in COMPARED:
        a, b = value(x), value(y)
        change = (b - a) / a if a and b is not None else None
        yield Comparison(x.level, head, a, b, change, None if unsure or not change else (change > 0) == more)


def _plan_differences(a: RunResult, b: RunResult) -> Iterator[str]:
    for name in ("scenario", "model", "api", "prompts"):
        one, other = getattr(a, name), getattr(b, name)
        if one != other:
            yield f"{name}: {one or UNKNOWN} and {other or UNKNOWN}"
    missing = {level.level for level in a.levels} ^ {level.level for level in b.levels}
    if missing:
        yield f"levels in one run only: {', '.join(sorted(missing))}"


def _difference(x: LevelResult, y: LevelResult) -> str | None:
    """How two levels of one name differ; None when they are alike."""
    if _shape(x) != _shape(y):
        one, other = (f"{level.input_len}/{level.output_len} tokens, {level.concurrency} at once" for level in (x, y))
        return f"{x.level}: {one} and {other}: not compared"
    if not (x.whole and y.whole):
        return f"{x.level}: did not run to its end in both: not compared"
    if x.num_prompts != y.num_prompts:
        return f"{x.level}: {x.num_prompts} and {y.num_prompts} requests"
    return None


def comparison_text(compared: RunsCompared) -> str:
    """A comparison in aligned columns, A and B side by side, with what speaks against it."""
    lines: list[Sequence[str]] = [["level", "figure", "A", "B", "B/A"]]
    for item in compared.figures:
        change = UNKNOWN if item.change is None else f"{item.change:+.1%}"
        better = {None: "", True: " better", False: " worse"}[item.better]
        lines.append([item.level, item.figure, rate(item.a), rate(item.b), change + better])
    differ = [f"the plans differ: {words}" for words in compared.differences]
    return "\n".join([*align(lines), *differ, *(f"doubt: {words}" for words in compared.doubts)])
