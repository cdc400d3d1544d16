"""The page of a start-up: is there room, how much longer, which phase; then where the memory went and what to set."""

from __future__ import annotations

from llmtop.contract.snapshot import Pool, Snapshot
from llmtop.contract.units import UNKNOWN, clean, gib
from llmtop.machine.headroom import pool_key
from llmtop.machine.tightest import tightest_pool
from llmtop.ui.panels.view import LEVEL_STYLE, View, fact, heading, pair
from llmtop.ui.panels.warmup_ledger import advice_lines, ledger_lines, sum_lines
from llmtop.ui.panels.warmup_memory import memory_lines
from llmtop.ui.panels.warmup_phases import TimeAxis, curve_lines, phase_lines, seconds_words, time_axis
from llmtop.warmup.forecast import Forecast, forecast
from llmtop.warmup.recorded import StartupView
from llmtop.warmup.report import WORDS, read_rate
from llmtop.warmup.startup import Startup
from llmtop_widgets import glyphs
from llmtop_widgets.gauge import gauge_line
from llmtop_widgets.text import Line, Span, beside, crop, flow, line, width, wrap

MOST_CHARS = 600  # of a sentence
WIDE = 110
LEDGER = 58  # cells of the ledger beside the phases
LEAST_CURVE = 4


def warmup_page(seen: StartupView | None, view: View, cells: int, rows: int) -> list[Line]:
    """Everything about one start-up, arranged for `cells` x `rows`."""
    if seen is None:
        return [line(), line(Span("no start-up is being watched", "bold")), line(), *_how()]
    report, startup = seen.report, seen.report.startup
    pool = _pool(seen, view.snapshot) if _of_this_machine(startup, seen.active) else None
    ahead = forecast(startup, report.evidence, seen.readings, None if pool is None else pool.headroom_bytes)
    head = [
        *_headline(seen, ahead, cells, 4 if rows >= 16 else 3 if startup.state == "failed" else 2),
        *_room(pool, ahead, startup, cells),
        *memory_lines(report, pool, seen.readings, cells, legend=rows >= 14),
    ]
    if rows >= 28:
        head.append(line())
    wide = cells >= WIDE and not seen.active  # before the end the sums only grow
    left = cells - 3 - LEDGER if wide else cells
    axis = time_axis(startup, ahead.phase_ends_in_s)
    after = [] if seen.active else advice_lines(report, cells, rows)
    room = rows - len(head)
    side = ledger_lines(report, LEDGER, room - len(after)) if wide else []
    if not wide and not seen.active and rows >= 20:
        after = [*sum_lines(report, cells, room - 10 - len(after)), *after]
    block = _phases(seen, axis, left, room - len(after))
    block += _curve(seen, axis, pool, left, room - len(block) - len(after) - _log_rows(startup, rows))
    main = beside([(block, left), (side, LEDGER)], 3) if wide else block
    log = _last_lines(startup, cells, room - len(main) - len(after))
    return [crop(content, cells) for content in [*head, *main, *after, *log][:rows]]


def _how() -> list[Line]:
    """How to get one."""
    ways = (
        ("llmtop warmup -- vllm serve MODEL …", "launch a server and watch its start"),
        ("llmtop warmup --log FILE", "follow a log; also --container NAME, --journal UNIT"),
        ("llmtop warmup --check -- vllm serve MODEL …", "ask before starting whether it will fit"),
        ("llmtop demo gb10 --warmup", "see one without a GPU"),
    )
    return [line(Span(f"  {command:<46}", "key"), Span(words)) for command, words in ways]


def _pool(seen: StartupView, snapshot: Snapshot | None) -> Pool | None:
    """The pool that the readings are of; where that is not told, the tightest one."""
    if seen.pool is None or snapshot is None:
        return tightest_pool(snapshot)
    far = {node.name for node in snapshot.nodes if not node.local}
    return next((p for p in snapshot.pools if pool_key(p) == seen.pool and p.node not in far), None)


def _of_this_machine(startup: Startup, active: bool) -> bool:
    """Whether this machine's memory is the start-up's: a log that was there already may be of any machine."""
    seen_live = any(phase.began is not None for phase in startup.phases)
    return seen_live or (not startup.phases and (active or startup.state == "ready"))


def _headline(seen: StartupView, ahead: Forecast, cells: int, most: int) -> list[Line]:
    """State and, while it starts, the phase with how long it runs and has to go; else the verdict."""
    startup = seen.report.startup
    style = {"ready": "ok", "failed": "critical"}.get(startup.state, "info")
    word = {"ready": "READY", "failed": "FAILED"}.get(startup.state, "STARTING" if seen.active else "ENDED")
    said = _now(startup, ahead) if startup.state == "starting" and startup.phase else seen.report.verdict
    said = said.removeprefix(f"{word.lower()} ")
    room = cells - len(word) - 3
    told = wrap(clean(said, MOST_CHARS), room)
    first, *more = (told if len(told) <= most else wrap(clean(said.partition(";")[0], MOST_CHARS), room)) or [""]
    engine = {"vllm": "vLLM", "sglang": "SGLang"}.get(startup.engine or "", "")
    version = f"{engine} {startup.version}" if startup.version else engine
    head = line(Span(f" {word} ", style), Span(f" {first}", "bold"))
    return [
        pair(head, line(Span(clean(version), "label")), cells),
        *(line(Span(" " * (len(word) + 3) + text, "bold")) for text in more[: most - 1]),
    ]


def _now(startup: Startup, ahead: Forecast) -> str:
    phase = next((p for p in startup.phases if p.name == startup.phase), None)
    words = WORDS[startup.phase] if startup.phase else ""
    ran = "" if phase is None or phase.seconds is None else f" for {seconds_words(phase.seconds)}"
    left = "" if ahead.phase_ends_in_s is None else f", about {seconds_words(ahead.phase_ends_in_s)} to go"
    return f"{words}{ran}{left}{f': {startup.waits}' if startup.waits else ''}"


def _room(pool: Pool | None, ahead: Forecast, startup: Startup, cells: int) -> list[Line]:
    """Headroom now and what will be left: after the phase that runs, and when it is ready."""
    if pool is None:
        why = "" if not startup.phases or startup.state == "starting" else "  this log tells of a start that is over"
        return [crop(line(Span("headroom ", "label"), Span(UNKNOWN), Span(why, "dim")), cells)]
    failed = startup.failure
    if failed is not None:  # what is left now is not the start-up's any more
        at = fact("at the failure", gib(failed.margin_bytes, 2), "bold", "GiB")
        now = fact("headroom now", gib(pool.headroom_bytes), "value", f"of {gib(pool.total_bytes)} GiB")
        return [flow([*([at] if failed.margin_bytes is not None else []), now], cells, 3)]
    now = line(
        Span("headroom ", "label"),
        Span(gib(pool.headroom_bytes), "bold"),
        Span(f" of {gib(pool.total_bytes)} GiB ", "label"),
        Span(f" {(pool.state or UNKNOWN).upper()} ", LEVEL_STYLE.get(pool.state or "", "dim")),
    )
    told = _expected(ahead)
    if pool.kind == "unified":
        told += [fact("CUDA sees", gib(pool.cuda_free_bytes), "value")]
        told += [fact("cache gives back", gib(pool.reclaimable_bytes), "value")]
    if pool.falling_bytes_s and pool.falling_bytes_s > 2**26 and startup.state == "starting":
        told.append(fact("falling", gib(pool.falling_bytes_s), "value", "GiB/s"))
    one = flow([now, *told], cells, 3)
    if not told or width(one) >= sum(map(width, [now, *told])):
        return [one]
    return [now, flow(told, cells, 3)]


def _expected(ahead: Forecast) -> list[Line]:
    """What will be left: after the phase as it goes on, and when ready at least, as the budget may not be used up."""
    facts = []
    for sign, amount, when in (
        (glyphs.current().approx, ahead.after_phase_bytes, "after this phase"),
        ("at least", ahead.when_ready_bytes, "when ready"),
    ):
        if amount is not None:
            fits = amount >= 0
            words = when if fits else f"{when}: {'may' if sign == 'at least' else 'does'} not fit"
            facts.append(
                line(
                    Span(f"{sign} {gib(amount)}", "bold" if fits else "low"),
                    Span(f" {words}", "label" if fits else "low"),
                )
            )
    return facts


def _phases(seen: StartupView, axis: TimeAxis, cells: int, rows: int) -> list[Line]:
    """The phases on their axis, and the step that shows how far it is."""
    startup = seen.report.startup
    step = _step(startup, cells)
    return [*phase_lines(startup, axis, cells, rows - len(step)), *step]


def _step(startup: Startup, cells: int) -> list[Line]:
    done = startup.progress
    if done is None or startup.state != "starting":
        return []
    speed = read_rate(startup) if done.phase == "weights" else None
    pace = f"  {speed:.2f} GiB/s" if speed else ""
    words = f"  {clean(done.label)} {done.done}/{done.total}  {done.percent:.0f} %{pace} "
    return [line(Span(words, "label"), *gauge_line(done.percent / 100, min(40, max(4, cells - len(words))), "series1"))]


def _curve(seen: StartupView, axis: TimeAxis, pool: Pool | None, cells: int, rows: int) -> list[Line]:
    if pool is None or pool.total_bytes is None or rows < LEAST_CURVE + 1:
        return []
    drawn = curve_lines(seen.report.startup, seen.readings, axis, pool.total_bytes, cells, min(rows - 1, 16))
    return [line(), *drawn] if drawn else []


def _log_rows(startup: Startup, rows: int) -> int:
    """How many rows the last lines of the log are given before the curve."""
    return 0 if not startup.lines else min(len(startup.lines) + 1, 4 if rows < 34 else 7)


def _last_lines(startup: Startup, cells: int, rows: int) -> list[Line]:
    shown = startup.lines[-(rows - 1) :] if rows > 1 else ()
    return [heading("Log", cells), *(line(Span(text, "dim")) for text in shown)] if shown else []
