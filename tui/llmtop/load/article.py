"""The table in which articles compare two engines on one machine: prompts read, tokens written, users served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmtop.contract.units import UNKNOWN, clean, rate
from llmtop.load.compare import alike, doubted
from llmtop.load.results import LevelResult, RunResult
from llmtop.load.table import align
from llmtop.load.verdict import single_user


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of two engines, in tokens per second; `ratio` is B's to A's, None where it cannot be said."""

    measure: str
    a: float | None
    b: float | None
    ratio: float | None


def article(a: RunResult, b: RunResult) -> tuple[Measured, ...]:
    """The measures of the levels that both runs played alike."""
    return tuple(line for x, y in alike(a, b) for line in _measures(x, y))


def _measures(x: LevelResult, y: LevelResult) -> Iterator[Measured]:
    sure = not doubted(x, y)
    if x.request_rate is not None:
        return
    if x.level.startswith(("pp", "tg")):
        kind = "prefill" if x.level.startswith("pp") else "decode"
        yield _measured(f"{kind} {x.level}", _alone(x), _alone(y), sure)
        return
    size = f"{x.input_len}/{x.output_len}"
    if x.concurrency == 1:
        yield _measured(f"1 user, decode ({size})", x.decode_tok_s, y.decode_tok_s, sure)
    users = "1 user" if x.concurrency == 1 else f"{x.concurrency} users"
    yield _measured(f"{users}, all ({size})", x.tok_s, y.tok_s, sure)
    if x.concurrency > 1:
        yield _measured(f"{users}, each ({size})", x.user_tok_s, y.user_tok_s, sure)


def _measured(measure: str, a: float | None, b: float | None, sure: bool) -> Measured:
    return Measured(measure, a, b, b / a if a and b is not None and sure else None)


def _alone(level: LevelResult) -> float | None:
    found = single_user([level])
    return found[0].tok_s if found else None


def names(a: RunResult, b: RunResult) -> tuple[str, str]:
    """What to call two runs: by their engines, else models, else addresses, else letters."""
    for one, other in ((a.engine, b.engine), (a.model, b.model), (a.url, b.url)):
        if one and other and one != other:
            return clean(one), clean(other)
    return "A", "B"


def sources(a: RunResult, b: RunResult) -> list[str]:
    """Which run is which: engine, model and address."""
    return [
        f"{letter}  {', '.join(clean(part or UNKNOWN) for part in (run.engine, run.model, run.url))}"
        for letter, run in (("A", a), ("B", b))
    ]


def article_rows(lines: Sequence[Measured], heads: tuple[str, str]) -> list[list[str]]:
    """The table as cells, its head first."""
    shown = [[line.measure, rate(line.a), rate(line.b), _ratio(line.ratio)] for line in lines]
    return [["tok/s", *heads, f"{heads[1]} / {heads[0]}"], *shown]


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}x"


def article_text(lines: Sequence[Measured], heads: tuple[str, str]) -> str:
    """The table in aligned columns."""
    return "\n".join(align(article_rows(lines, heads)))


def article_markdown(lines: Sequence[Measured], heads: tuple[str, str]) -> str:
    """The table in Markdown."""
    head, *rows = ([cell.replace("|", "\\|") for cell in row] for row in article_rows(lines, heads))
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))
