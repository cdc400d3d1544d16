"""The answer of a load test: in words, the table, the curves, and why not to trust a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmtop.contract.units import UNKNOWN, count
from llmtop.load.compare import compare
from llmtop.load.earlier import Earlier
from llmtop.load.results import LevelResult, RunResult
from llmtop.load.verdict import CRITERIA
from llmtop.ui.load_state import LoadState
from llmtop.ui.panels.load_table import comparison_table, level_table, verdict_marks
from llmtop.ui.panels.view import View, heading
from llmtop_widgets import glyphs
from llmtop_widgets.curve import Limit, Point, scatter_lines
from llmtop_widgets.text import Line, Span, beside, crop, line, spread, width, wrap

CURVE_LEAST, CURVE_MOST = 7, 16
DOUBTS = 3  # lines that the curve leaves to them
WIDE = 90
FAR = 4  # a limit so many times above all points would press them to the floor


def result_page(state: LoadState, view: View, cells: int, rows: int, said: str = "") -> list[Line]:
    """The answer; `said` is what a key could not do."""
    tail = [_tail(state, view, cells)]
    tail[:0] = [line(Span(" NOTE ", "info"), Span(f" {said}"))] if said else []
    room = rows - len(tail)
    lines = _no_result(state, cells) if state.result is None else _answer_page(state, state.result, cells, room)
    lines = lines[: max(0, room)] + [()] * (room - len(lines))
    return [crop(content, cells) for content in (*lines, *tail)]


def _answer_page(state: LoadState, result: RunResult, cells: int, rows: int) -> list[Line]:
    lines = _answer(result, cells, rows)
    doubts = [_doubt(name, words) for name, words in _doubts(state, result)]
    spare = rows - len(lines) - min(len(doubts), DOUBTS)
    curves = _curves(result, cells, min(CURVE_MOST, spare - (spare > CURVE_LEAST + 1)))
    if curves:
        lines += [(), *curves] if spare > len(curves) else curves
    room = max(0, rows - len(lines))
    if len(doubts) > room > 0:
        more = line(Span(f" +{len(doubts) - room} in report.md", "label"))
        doubts[room - 1] = spread(doubts[room - 1], more, cells)
    return lines + doubts[:room]


def _no_result(state: LoadState, cells: int) -> list[Line]:
    words = wrap(state.error or "the load worker ended without a word", cells - 1)
    lines = [heading("Load test", cells), (), line(Span(" no result ", "critical")), ()]
    lines += [line(Span(f" {text}")) for text in words]
    return [*lines, *(line(Span(" NOTE ", "info"), Span(f" {text}")) for text in state.warnings)]


def _answer(result: RunResult, cells: int, rows: int) -> list[Line]:
    """The words, the verdict and the table; of many levels the last ones."""
    words = wrap(result.words, cells)
    lines = [heading("Answer", cells, "interrupted" if result.interrupted else "")]
    lines += [line(Span(text, "bold" if place == 0 else "")) for place, text in enumerate(words)]
    lines.append(_verdict(result))
    head, *levels = level_table(result.levels, cells, result.slo, verdict_marks(result)) or [()]
    return [*lines, (), head, *levels[-max(1, rows - len(lines) - 4) :]] if levels else lines


def _verdict(result: RunResult) -> Line:
    glyph, fail = glyphs.current(), result.first_fail
    spot, knee = result.sweet_spot, result.knee
    spans = [
        Span(f"{glyph.star} sweet spot ", "label"),
        Span("at least " if result.at_least else "", "label"),
        Span(_load(spot), "bold ok" if spot is not None else "bold low"),
        Span(f"   {glyph.diamond} knee ", "label"),
        Span(_load(knee), "bold"),
    ]
    if fail:
        words = CRITERIA[fail.criterion].words if fail.criterion in CRITERIA else fail.criterion
        spans += [
            Span(f"   {glyph.cross} first fail ", "label"),
            Span(f"{fail.level}: {words}", "low"),
        ]
    if not result.monotone:
        spans.append(Span("   a level above it passes", "low"))
    return line(*spans)


def _load(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:g}"


def _tail(state: LoadState, view: View, cells: int) -> Line:
    """Where the files are, and whether the server is back to what it ran before."""
    where = state.result.directory if state.result is not None else None
    right = _drained(state, view)
    left = line(Span("files ", "label"), Span(str(where))) if where else ()
    return spread(crop(left, max(0, cells - width(right) - 2)), right, cells)


def _drained(state: LoadState, view: View) -> Line:
    drain, server = state.drain, view.server
    if drain is None:
        return ()
    running, before = drain.running, drain.before or 0
    if not drain.drained and server is not None and server.url == state.plan.url:
        running = server.running  # what it still ran then may have ended since
    if running is None:
        return line(Span("the server does not say what it runs", "low"))
    if running <= before:
        return line(Span("server back to ", "label"), Span(f"{count(running)} running", "ok"))
    return line(Span(f"server still runs {count(running)}, before {count(before)}", "low"))


# doubts


def _doubts(state: LoadState, result: RunResult) -> list[tuple[str, str]]:
    """Name and words of all that speaks against the numbers, once for all levels that share it."""
    levels = result.levels
    found = list(_failures(levels))
    reasons: dict[str, list[tuple[str, str]]] = {}
    for level in levels:
        for flag in level.flags:
            reasons.setdefault(flag.name, []).append((level.level, flag.reason))
    found += [(name, _shared(said, len(levels))) for name, said in reasons.items()]
    return [*found, *(("note", text) for text in state.warnings)]


def _failures(levels: Sequence[LevelResult]) -> Iterator[tuple[str, str]]:
    """Failed requests by class, and why a level ended before its time."""
    for level in levels:
        if level.failures:
            yield "errors", f"{level.level}: {level.failures}"
        if level.stopped:
            yield "ended early", f"{level.level}: {level.stopped}"


def _shared(said: Sequence[tuple[str, str]], levels: int) -> str:
    """The levels that a doubt is about, and the reason of the last of them."""
    names = [name for name, _ in said]
    who = "all levels" if len(names) == levels > 1 else ", ".join(names) if len(names) <= 4 else f"{len(names)} levels"
    differ = len({reason for _, reason in said}) > 1
    return f"{who}: {said[-1][1]}" + (f" ({names[-1]})" if differ else "")


def _doubt(name: str, words: str) -> Line:
    style = "info" if name == "note" else "critical" if name == "errors" else "low"
    return line(Span(f" {name} ", style), Span(f" {words}", "dim"))


# curves


def _curves(result: RunResult, cells: int, rows: int) -> list[Line]:
    """Total tok/s over tok/s per user, and P99 TTFT over the load with its limit."""
    levels = [level for level in result.levels if level.whole]
    if len(levels) < 2 or rows < CURVE_LEAST or len({level.load for level in levels}) < 2:
        return []
    slo, signs = result.slo, verdict_marks(result)
    speed = [
        Point(level.user_tok_s or 0.0, level.tok_s, level.level, "series2", signs.get(level.level, ""))
        for level in levels
    ]
    least = [Limit("x", slo["user_tok_s"], "limit")] if "user_tok_s" in slo else []
    if cells < WIDE:
        return scatter_lines(speed, cells, rows, x_label="tok/s per user", y_label="total tok/s", marks=least)
    wait = [Point(level.load, level.ttft.p99_ms / 1000, "", "series4") for level in levels if level.ttft]
    highest, limit = max(point.y for point in wait), slo.get("ttft_p99")
    near = limit is not None and limit <= FAR * highest
    late = [Limit("y", limit, "limit")] if limit is not None and near else []
    label = "P99 TTFT, s" if limit is None or near else f"P99 TTFT, s (limit {limit:g})"
    half = (cells - 2) // 2
    unit = "requests per second" if levels[0].request_rate is not None else "users"
    left = scatter_lines(speed, half, rows, x_label="tok/s per user", y_label="total tok/s", marks=least)
    right = scatter_lines(wait, half, rows, x_label=unit, y_label=label, marks=late)
    return beside([(left, half), (right, half)], 2)


# two runs


def comparison_page(state: LoadState, earlier: Earlier, cells: int, rows: int) -> list[Line]:
    """This run beside the one before it of the same scenario."""
    result = state.result
    if result is None:
        return []
    compared = compare(earlier.result, result)
    lines = [heading("This run and the one before", cells, result.scenario)]
    lines += [_run("before", earlier.path.name, earlier.result), _run("now", "this run", result), ()]
    lines += comparison_table(compared.figures, cells)
    lines += [line(Span(f" {words}", "low")) for words in (*compared.differences, *compared.doubts)]
    return [crop(content, cells) for content in lines[:rows]]


def _run(when: str, name: str, result: RunResult) -> Line:
    spans = [
        Span(f"{when:<7}", "label"),
        Span(name, "bold"),
        Span("  sweet spot ", "label"),
        Span(_load(result.sweet_spot), "bold"),
        Span("  interrupted" if result.interrupted else "", "low"),
        Span(f"  {result.model or UNKNOWN}  {result.url}", "dim"),
    ]
    return line(*spans)
