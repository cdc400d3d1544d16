"""The table of levels as text cells: the same columns on the screen, in the terminal and in `report.md`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmtop.contract.units import UNKNOWN, gib, percent, rate, seconds

LevelResult = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its short head, what it means, and its cell for a level, given all levels."""

    head: str
    meaning: str
    cell: Callable[[LevelResult, Sequence[LevelResult]], str]


def _ms(key: str) -> Callable[[LevelResult, Sequence[LevelResult]], str]:
    return lambda level, _: seconds(level[key] / 1000 if level["completed"] else None)


def _s(key: str) -> Callable[[LevelResult, Sequence[LevelResult]], str]:
    return lambda level, _: seconds(level.get(key))


def _rate(key: str) -> Callable[[LevelResult, Sequence[LevelResult]], str]:
    return lambda level, _: rate(level.get(key))


def _share(key: str) -> Callable[[LevelResult, Sequence[LevelResult]], str]:
    return lambda level, _: percent(level.get(key), 0)


def _whole(key: str) -> Callable[[LevelResult, Sequence[LevelResult]], str]:
    return lambda level, _: UNKNOWN if level.get(key) is None else f"{level[key]:,}"


def _times_one(level: LevelResult, levels: Sequence[LevelResult]) -> str:
    one = next((other["output_throughput"] for other in levels if other["concurrency"] == 1), None)
    return f"{level['output_throughput'] / one:.1f}" if one else UNKNOWN


def _p99(level: LevelResult, _: Sequence[LevelResult]) -> str:
    if not level["completed"]:
        return UNKNOWN
    return f"{seconds(level['p99_ttft_ms'] / 1000)} ({level['completed']})"


def _joules(level: LevelResult, _: Sequence[LevelResult]) -> str:
    value = level.get("joules_per_token")
    return UNKNOWN if value is None else f"{value:.2f}"


COLUMNS: tuple[Column, ...] = (
    Column("level", "what was sent: users at once, or sizes, or requests a second", lambda x, _: x["level"]),
    Column("tok/s", "output tokens of all users per second, ramp and drain included", _rate("output_throughput")),
    Column("x1", "tok/s as a multiple of one user's", _times_one),
    Column("/user", "tok/s divided by the users: what each gets, end to end", _rate("user_tok_s")),
    Column("decode", "tok/s of one user after the first token: 1/TPOT", _rate("decode_tok_s")),
    Column("TTFT", "mean time to first token", _ms("mean_ttft_ms")),
    Column("P99 (n)", "99th percentile of the TTFT, and of how many", _p99),
    Column("burst", "P99 TTFT of the first wave, which is sent all at once", _s("ttft_burst")),
    Column("steady", "P99 TTFT of requests after the first wave", _s("ttft_steady")),
    Column("in SLO", "share of requests within the TTFT limit, failures included", _share("attainment")),
    Column("TPOT", "mean time per output token after the first", _ms("mean_tpot_ms")),
    Column("E2EL", "mean end-to-end latency", _ms("mean_e2el_ms")),
    Column("err", "failed requests", _whole("failed")),
    Column("KV max", "fullest KV cache seen at the server", _share("kv_max")),
    Column("wait", "longest queue seen at the server", _whole("waiting_max")),
    Column("head GiB", "least memory headroom", lambda x, _: gib(x.get("headroom_min_bytes"))),
    Column("W", "mean power", lambda x, _: UNKNOWN if x.get("power_w") is None else f"{x['power_w']:.0f}"),
    Column("J/tok", "energy per output token", _joules),
    Column("flags", "why not to trust the row", lambda x, _: ", ".join(x.get("flags") or ()) or "-"),
)


def rows(levels: Sequence[LevelResult]) -> list[list[str]]:
    """One list of cells per level, in the order of `COLUMNS`."""
    return [[column.cell(level, levels) for column in COLUMNS] for level in levels]


def known_columns(cells: Sequence[Sequence[str]]) -> list[int]:
    """The columns in which some row has a value, so that a narrow place can leave out the empty ones."""
    return [i for i in range(len(COLUMNS)) if not cells or any(row[i] != UNKNOWN for row in cells)]


def markdown(levels: Sequence[LevelResult]) -> str:
    """The table in Markdown, without columns that nothing is known of."""
    cells = rows(levels)
    shown = known_columns(cells)
    lines = [[COLUMNS[i].head for i in shown], ["---"] * len(shown), *([row[i] for i in shown] for row in cells)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def text(levels: Sequence[LevelResult]) -> str:
    """The table in aligned columns; the doubts stand below it, one a line."""
    cells = rows(levels)
    shown = [i for i in known_columns(cells) if COLUMNS[i].head != "flags"]
    doubts = [
        f"  {level['level']}: {name}: {reason}" for level in levels for name, reason in level["flag_reasons"].items()
    ]
    return "\n".join([*align([[COLUMNS[i].head for i in shown], *([row[i] for i in shown] for row in cells)]), *doubts])


def align(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells as lines of text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


COMPARED: tuple[tuple[str, str, bool], ...] = (
    ("tok/s", "output_throughput", True),
    ("/user", "user_tok_s", True),
    ("TTFT mean ms", "mean_ttft_ms", False),
    ("TTFT P99 ms", "p99_ttft_ms", False),
    ("TPOT mean ms", "mean_tpot_ms", False),
    ("E2EL mean ms", "mean_e2el_ms", False),
    ("errors", "failed", False),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one level in two runs; `change` is the relative difference, `better` whether B wins."""

    level: str
    figure: str
    a: float | None
    b: float | None
    change: float | None
    better: bool | None


def compare(a: Sequence[LevelResult], b: Sequence[LevelResult]) -> list[Comparison]:
    """Two runs figure by figure, for every level name that both have."""
    theirs = {level["level"]: level for level in b}
    return [
        _comparison(level["level"], head, level.get(key), theirs[level["level"]].get(key), more)
        for level in a
        if level["level"] in theirs
        for head, key, more in COMPARED
    ]


def _comparison(level: str, figure: str, a: float | None, b: float | None, more: bool) -> Comparison:
    change = (b - a) / a if a and b is not None else None
    better = None if not change else (change > 0) == more
    return Comparison(level, figure, a, b, change, better)


def comparison_text(compared: Sequence[Comparison]) -> str:
    """A comparison in aligned columns, A and B side by side."""
    lines = [["level", "figure", "A", "B", "B/A"]]
    for item in compared:
        change = UNKNOWN if item.change is None else f"{item.change:+.1%}"
        better = {None: "", True: " better", False: " worse"}[item.better]
        lines.append([item.level, item.figure, rate(item.a), rate(item.b), change + better])
    return "\n".join(align(lines))
