"""The table of levels as text cells: the same columns on the screen, in the terminal and in `report.md`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmtop.contract.units import UNKNOWN, clean, count, gib, percent, rate, seconds
from llmtop.load.plan import ROUTES
from llmtop.load.results import LevelResult, Outside, RunResult, Spread, Totals
from llmtop.load.verdict import times_decode, times_one


@dataclass(frozen=True, slots=True)
class LevelColumn:
    """A column: its short head, what it means, and its cell for a level, given all levels."""

    head: str
    meaning: str
    cell: Callable[[LevelResult, Sequence[LevelResult]], str]


def _column(head: str, meaning: str, cell: Callable[[LevelResult], str]) -> LevelColumn:
    return LevelColumn(head, meaning, lambda level, _: cell(level))


def _ms(spread: Spread | None) -> str:
    return seconds(spread.mean_ms / 1000 if spread is not None else None)


def _p99(level: LevelResult) -> str:
    return f"{seconds(level.ttft.p99_ms / 1000)} ({level.completed})" if level.ttft is not None else UNKNOWN


def _times_one(level: LevelResult, levels: Sequence[LevelResult]) -> str:
    return _fixed(times_one(level, levels), 1)


def _times_decode(level: LevelResult, levels: Sequence[LevelResult]) -> str:
    return _fixed(times_decode(level, levels), 2)


def _fixed(value: float | None, places: int) -> str:
    return UNKNOWN if value is None else f"{value:.{places}f}"


COLUMNS: tuple[LevelColumn, ...] = (
    _column("level", "what was sent: users at once, or sizes, or requests a second", lambda x: x.level),
    _column("tok/s", "output tokens of all users per second, ramp and drain included", lambda x: rate(x.tok_s)),
    LevelColumn("x1", "tok/s as a multiple of one user's of the same size", _times_one),
    LevelColumn("xdec", "tok/s as a multiple of what one user decodes alone (1/TPOT)", _times_decode),
    _column("/user", "tok/s divided by the users: what each gets, end to end", lambda x: rate(x.user_tok_s)),
    _column("decode", "tok/s of one user after the first token: 1/TPOT", lambda x: rate(x.decode_tok_s)),
    _column("req/s", "requests done per second, where a rate was asked", lambda x: rate(x.achieved_req_s)),
    _column("TTFT", "mean time to first token", lambda x: _ms(x.ttft)),
    _column("P99 (n)", "99th percentile of the TTFT, and of how many", _p99),
    _column("burst", "P99 TTFT of the first wave, which is sent all at once", lambda x: seconds(x.ttft_burst)),
    _column("steady", "P99 TTFT of requests after the first wave", lambda x: seconds(x.ttft_steady)),
    _column("in SLO", "share of requests within the TTFT limit, failures included", lambda x: percent(x.attainment, 0)),
    _column("TPOT", "mean time per output token after the first", lambda x: _ms(x.tpot)),
    _column("E2EL", "mean end-to-end latency", lambda x: _ms(x.e2el)),
    _column("err", "failed requests", lambda x: count(x.failed)),
    _column("KV max", "fullest KV cache seen at the server", lambda x: percent(x.kv_max, 0)),
    _column("wait", "longest queue seen at the server", lambda x: count(x.waiting_max)),
    _column("head GiB", "least memory headroom", lambda x: gib(x.headroom_min_bytes)),
    _column("W", "mean power", lambda x: _fixed(x.power_w, 0)),
    _column("J/tok", "energy per output token", lambda x: _fixed(x.joules_per_token, 2)),
    _column("flags", "why not to trust the row", lambda x: ", ".join(flag.name for flag in x.flags) or "-"),
)


def facts(result: RunResult) -> list[str]:
    """What the table does not say: what was loaded, how requests failed, what ended early, goodput and knee."""
    route = ROUTES.get("chat" if result.api == "chat" else "completions")
    lines = [f"model {clean(result.model or UNKNOWN)} at {result.url}{route}, prompts as {result.prompts}"]
    for level in result.levels:
        lines += [f"{level.level}: failed: {level.failures}"] if level.failures else []
        lines += [f"{level.level}: ended early: {level.stopped}"] if level.stopped else []
        if level.goodput_s is not None:
            limits = " ".join(f"{name}:{limit:g}" for name, limit in result.goodput_ms.items())
            share = f"{percent(level.goodput_share, 0)} of the requests keep {limits}: " if limits else ""
            per_s = f"goodput {rate(level.goodput_s)} of {rate(level.requests_s)} requests/s"
            lines.append(f"{level.level}: {share}{per_s}")
    if result.knee is not None and len(result.levels) > 1:
        lines.append(f"knee: {result.knee:g} is the least load with 90 % of the best tok/s")
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"beside the levels, in no figure: {words}"] if (words := _outside(result.outside)) else []
    return lines


def _outside(outside: Outside) -> str:
    """What was answered beside the levels, in words; empty where nothing was."""
    parts = (("preflight", outside.preflight), ("measurement", outside.measurement), ("warm-up", outside.warm_up))
    return ", ".join(f"{name} {_totals(part)}" for name, part in parts if part.requests != 0)


def _totals(part: Totals) -> str:
    if part.requests is None:
        return "not known"
    unit = "request" if part.requests == 1 else "requests"
    return f"{part.requests} {unit} ({count(part.prompt)} prompt + {count(part.generation)} output tokens)"


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
    doubts = [f"  {level.level}: {flag.name}: {flag.reason}" for level in levels for flag in level.flags]
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
