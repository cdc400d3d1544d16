"""The answer of a load test: in words, the table, the curves, and why not to trust a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmtop.contract.units import UNKNOWN, clean, count, rate, seconds
from llmtop.load.compare import compare
from llmtop.load.earlier import Earlier
from llmtop.load.results import LevelResult, RunResult
from llmtop.load.verdict import criterion_of, failure
from llmtop.ui.load_state import LoadState
from llmtop.ui.panels.load_table import comparison_table, level_table, verdict_marks
from llmtop.ui.panels.view import View, heading
from llmtop_widgets import glyphs
from llmtop_widgets.curve import Limit, Point, scatter_lines
from llmtop_widgets.gauge import gauge_line
from llmtop_widgets.text import Line, Span, beside, crop, line, spread, width, wrap

CURVE_LEAST, CURVE_MOST = 7, 16
DOUBTS = 3  # lines that the curve leaves to them
WIDE = 90
SERIOUS = ("errors", "ended early", "token mismatch", "client limited")  # doubts that come first
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
    """The answer in words, its bars where there is room, the verdict and the table; of many levels the last ones."""
    words = _human(result) or wrap(result.words, cells)
    about = (clean(result.model or ""), "interrupted" if result.interrupted else "")
    lines = [heading("Answer", cells, ", ".join(filter(None, about)))]
    lines += [crop(line(Span(text, "bold" if place == 0 else "")), cells) for place, text in enumerate(words)]
    head, *levels = level_table(result.levels, cells, result.slo, verdict_marks(result)) or [()]
    bars = _bars(result, cells)
    if bars and len(lines) + len(bars) + len(levels) + 4 + DOUBTS <= rows:
        lines += [(), *bars, ()]
    lines.append(_verdict(result))
    return [*lines, (), head, *levels[-max(1, rows - len(lines) - 4) :]] if levels else lines


def _human(result: RunResult) -> list[str]:
    """What a sweep found, as one would say it; nothing where the run has no such answer."""
    sweet = next((level for level in result.levels if level.load == result.sweet_spot), None)
    if sweet is None or sweet.ttft is None:
        return []
    least = "AT LEAST " if result.at_least else ""
    first, together = seconds(sweet.ttft.p99_ms / 1000), " at once" if sweet.request_rate is None else ""
    said = [
        f"{least}{_users(sweet, True)}{together}, each {rate(sweet.user_tok_s)} tok/s, "
        f"first word within {first} (P99 of {sweet.completed})"
    ]
    fail = result.first_fail
    level = next((level for level in result.levels if fail is not None and level.level == fail.level), None)
    if fail is None or level is None:
        return [*said, "every level keeps your limits: more may fit" if result.slo else "no limits were asked"]
    criterion = criterion_of(fail.criterion)
    what = "first word after" if fail.criterion == "ttft_p99" else criterion.words
    limit = "" if fail.criterion == "errors" else f"; your limit is {criterion.show(fail.limit)}"
    reason = f" ({fail.reason})" if fail.reason else ", the first wave alone" if fail.burst_only else ""
    return [*said, f"{_users(level, False)}: {what} {criterion.show(fail.value)}{reason}{limit}"]


def _users(level: LevelResult, loud: bool) -> str:
    """`8 users`, `2 requests a second`."""
    unit = "requests a second" if level.request_rate is not None else "user" if level.load == 1 else "users"
    return f"{level.load:g} {unit.upper() if loud else unit}"


def _bars(result: RunResult, cells: int) -> list[Line]:
    """A bar of tok/s per level, its first word, and whether it keeps the limits; only where levels differ in load."""
    levels = [level for level in result.levels if level.completed]
    if (result.sweet_spot is None and result.first_fail is None) or len({level.load for level in levels}) < 2:
        return []
    most = max(level.tok_s for level in levels) or 1.0
    unit = "req/s" if levels[0].request_rate is not None else "users"
    bar = max(8, min(48, cells - 52))
    lines: list[Line] = []
    for place, level in enumerate(levels):
        fail = failure(level, result.slo)
        word = criterion_of(fail.criterion).words if fail else "ok"
        star = f" {glyphs.current().star}" if level.load == result.sweet_spot else ""
        first = seconds(level.ttft.p99_ms / 1000) if level.ttft else UNKNOWN
        sign = f"{glyphs.current().cross} " if fail else ""
        lines.append(
            line(
                Span(f"{unit if not place else '':<6}", "label"),
                Span(f"{level.load:>5g} ", "bold" if star else ""),
                *gauge_line(level.tok_s / most, bar, "low" if fail else "bar", track="axis"),
                Span(f"{rate(level.tok_s):>7}"),
                Span(" tok/s ", "label"),
                Span(f"{first:>8}  "),
                Span(f"{sign}{word}{star}", "low" if fail else "ok"),
            )
        )
    return lines


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
        spans += [
            Span(f"   {glyph.cross} first fail ", "label"),
            Span(f"{fail.level}: {criterion_of(fail.criterion).words}", "low"),
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
    found.sort(key=lambda doubt: SERIOUS.index(doubt[0]) if doubt[0] in SERIOUS else len(SERIOUS))
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
