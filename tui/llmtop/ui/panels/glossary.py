"""What the figures mean and how they are computed: for the help, and for a panel on the whole screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from llmtop.contract.units import UNKNOWN
from llmtop.ui.panels.verdict import MEANINGS
from llmtop_widgets.text import Line, Span, line, width, wrap

LABEL = 20
NARROWEST = 20


class Term(NamedTuple):
    """A word on the screen, what it means, and its formula."""

    name: str
    text: str
    formula: str = ""


KV = (
    Term("KV cache", "share of the KV blocks that live requests hold; of several engines the fullest, never a sum"),
    Term(
        "tokens",
        "used and all that fit; ≈: counted in blocks",
        "share × capacity",
    ),
    Term("room for", "more requests of the full model length", "(capacity − used) ÷ max_model_len, rounded down"),
    Term("full in", "if it goes on rising as it does", "(capacity − used) ÷ growth"),
    Term("preempted", "requests that lost their place in the cache and were computed anew, since the server started"),
    Term("prefix hit", "prompt tokens that the cache had", "hits ÷ queries, over the window"),
)
MEMORY = (
    Term("headroom", "memory left before the next OOM", "GPU: total − reserved − used; unified memory: MemAvailable"),
    Term("low-water", "least headroom since the start or the last mark, sampled ten times a second"),
    Term("CUDA sees", "what an allocation finds on unified memory before the page cache gives way", "MemFree"),
    Term("cache gives back", "page cache that makes way for a process, not always for CUDA", "MemAvailable − MemFree"),
    Term("other", "used, and held by no process that the driver lists", "used − Σ processes"),
)
QUEUE = (
    Term("running", "requests in the batch; of: the most at once (--max-num-seqs)"),
    Term("waiting", "requests without a place in the batch, by reason where the engine tells"),
)
PEAK = Term("peak", "the highest since the start or the last mark (m)")
THROUGHPUT = (
    Term("tok/s", "tokens over the seconds beside the title", "counter delta ÷ time between the two pages"),
    Term("each", "what one user gets", "generated tok/s ÷ running"),
    Term("cached", "prompt tokens that came from the prefix cache and were not computed"),
    PEAK,
)
LATENCY = (
    Term("TTFT", "time to first token: the wait, the prompt, the first token"),
    Term("ITL", "inter-token latency: the gap between two tokens of one user; step: one engine step gives several"),
    Term("TPOT", "time per output token after the first", "(E2EL − TTFT) ÷ (tokens − 1)"),
    Term("E2EL, queue", "the whole request, and its wait, of requests that ended in the window"),
    Term("p50 p95 p99", "<x: in the first bucket, >x: beyond the last, ≈x: in a wide one, ~: too few samples"),
)
GPU = (
    Term("J/token", "module: GPU, CPU and memory of a GH200", "energy counter ÷ tokens of the same window"),
    Term("PSI", "share of the last 10 s in which all processes waited for memory"),
)
LOAD = (
    Term("sweet spot", "the most users of whom each gets what your limits ask, at every level up to it"),
    Term("knee", "where more users hardly give more", "fewest users with 90 % of the best total tok/s"),
    Term("goodput", "requests per second that kept every limit of --goodput"),
    Term("limit", "P99 TTFT, tok/s per user and errors, as the plan asks"),
)
EVENTS = (
    PEAK,
    Term("preemptions", "the first of a burst"),
    Term("over", "a finding that did not come back within 10 s"),
)
SO_FAR = (
    Term("tokens served", "generated, since the start or the last mark", "generated tok/s × time, added up"),
    PEAK,
)
VERDICT = (
    *(Term(words, f"{code} in --json") for code, words in MEANINGS.items()),
    Term(UNKNOWN, "the source did not say; 0 means that it said 0"),
)


def entry(head: Line, text: str, cells: int, style: str = "") -> list[Line]:
    """A text beside its head, below it where there is no room, in as many lines as it takes."""
    if cells - width(head) < NARROWEST:
        return [head, *(line(Span(f"    {part}", style)) for part in wrap(text, cells - 4))]
    first, *more = wrap(text, cells - width(head))
    return [(*head, Span(first, style)), *(line(Span(" " * width(head) + rest, style)) for rest in more)]


def explained(terms: Iterable[Term], cells: int, label: int = LABEL, indent: str = "") -> list[Line]:
    """Each term with its text, and its formula in a line of its own."""
    lines: list[Line] = []
    for term in terms:
        lines += entry(line(Span(f"{indent}{term.name:<{label}}", "bold")), term.text, cells)
        if term.formula:
            lines += entry(line(Span(" " * (len(indent) + label))), f"= {term.formula}", cells, "label")
    return lines
