"""The answer before the evidence: whether it is well, what limits it, how many more fit, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from llmtop.contract.snapshot import Finding, Pool, ServerView, Snapshot, State
from llmtop.contract.units import count, gib, percent
from llmtop.machine.tightest import tightest_pool
from llmtop.ui.panels.server import KV_FULL
from llmtop.ui.panels.view import STATE_STYLE, View
from llmtop_widgets import glyphs
from llmtop_widgets.text import Line, Span, crop, line, text_width, wrap


@dataclass(frozen=True, slots=True)
class VerdictWords:
    """A headline in a style of state, what shows it, and what to do about it."""

    style: str
    headline: str
    evidence: str = ""
    advice: str = ""


MOST_NAMED = 4  # engines
_STATES = {
    State.DOWN: ("SERVER DOWN", "is it up, and the port right?"),
    State.AUTH: ("KEY WANTED", "name the variable that holds it: --api-key-env NAME"),
    State.NO_ENGINE_METRICS: ("NO ENGINE METRICS", "started with --disable-log-stats? wrong port?"),
    State.STALE: ("NO FRESH FIGURES", ""),
    State.STALLED: ("STALLED", "a 1-token request tells a hang from stale gauges; a dead engine needs a restart"),
    State.SLEEPING: ("SLEEPING", "POST /wake_up wakes it"),
    State.STARTING: ("STARTING", "w shows the start-up phase by phase"),
}
_LIMITS = {
    "SEQ_CAP": ("BATCH IS FULL", "raise --max-num-seqs, or fewer users"),
    "STATE_POOL": ("STATE POOL IS THE LIMIT", "fewer users, or a larger --mamba-full-memory-ratio"),
    "DEFERRED": (
        "REQUESTS ARE DEFERRED",
        "not for the cache: for a KV transfer, a grammar, a LoRA",
    ),
    "MIXED": ("QUEUE COMES AND GOES", ""),
}
MEANINGS = {
    "KV_PRESSURE": "KV CACHE FULL",
    **{code: words for code, (words, _) in _LIMITS.items()},
    "UNDERLOADED": "ROOM FOR n MORE",
}


def verdict(view: View) -> VerdictWords:
    """What a glance should tell of the selected server and its machine."""
    snapshot, server = view.snapshot, view.server
    if snapshot is None:
        return VerdictWords("info", "LOOKING", view.asking.removeprefix("looking "))
    pool = tightest_pool(snapshot)
    if server is None:
        return VerdictWords("low", "NO SERVER", "none found on this host", "llmtop URL watches one elsewhere")
    if server.state in _STATES:
        headline, advice = _STATES[server.state]
        if server.state is State.NO_ENGINE_METRICS and server.engine:
            advice = ""  # the reason says what that engine needs
        return VerdictWords(STATE_STYLE[server.state], headline, server.reason or "", advice)
    if pool is not None and pool.state == "critical":
        return _memory(pool, snapshot)
    frozen = [row.engine for row in server.engines if row.state is State.STALLED]
    if frozen:
        which = ", ".join(frozen) if len(frozen) <= MOST_NAMED else f"{len(frozen)} OF {len(server.engines)}"
        headline = f"ENGINE{'S' if len(frozen) > 1 else ''} {which} STALLED"
        return VerdictWords("critical", headline, server.reason or "", _STATES[State.STALLED][1])
    if server.limited_by == "KV_PRESSURE":
        return _kv_pressure(server)
    if server.limited_by in _LIMITS:
        headline, advice = _LIMITS[server.limited_by]
        return VerdictWords("low", headline, _evidence(server), advice)
    if pool is not None and pool.state == "low":
        return _memory(pool, snapshot)
    return _calm(server)


def _memory(pool: Pool, snapshot: Snapshot) -> VerdictWords:
    critical = pool.state == "critical"
    left = f"{gib(pool.headroom_bytes)} of {gib(pool.total_bytes)} GiB left"
    said = next((f for f in snapshot.findings if f.id == f"memory:{pool.name}"), None)
    why = f"{left}, {pool.reason}" if pool.reason else left
    return VerdictWords(
        "critical" if critical else "low",
        "MEMORY CRITICAL" if critical else "MEMORY LOW",
        why,
        (said.advice if said else None) or "lower --gpu-memory-utilization, or stop what else holds memory",
    )


def _evidence(server: ServerView) -> str:
    """The figures behind a limit; of a queue that came and went its share of the time first."""
    figures, _, held = (server.limited_by_evidence or "").partition("; ")
    if server.limited_by != "MIXED" or not held:
        return server.limited_by_evidence or ""
    return f"somebody waited {held.removeprefix('a queue in ')}; {figures}"


def _kv_pressure(server: ServerView) -> VerdictWords:
    full = server.kv_usage is not None and server.kv_usage >= KV_FULL
    waiting = f"{count(server.waiting)} wait, " if server.waiting else ""
    held = (server.limited_by_evidence or "").partition("; ")[2]
    return VerdictWords(
        "critical" if full else "low",
        "KV CACHE FULL" if full else "KV CACHE IS THE LIMIT",
        f"{waiting}{percent(server.kv_usage, 0)} used; {held}".rstrip("; "),
        "lower --max-model-len, or fewer users",
    )


def _calm(server: ServerView) -> VerdictWords:
    """Nobody waits for long: how many more fit, as far as that is known."""
    room = more_users(server)
    if server.waiting:
        return VerdictWords("low", f"{server.waiting} WAITING", _evidence(server) or "no cause in sight", "")
    if server.running == 0:
        size = (
            f" of {count(server.max_model_len)} tokens" if room == server.room_requests else ", as many as run at once"
        )
        fit = f"room for {room} requests{size}" if room is not None else ""
        return VerdictWords("ok", "IDLE", fit, "l finds how many users it can serve")
    evidence = server.limited_by_evidence or f"{count(server.running)} run, nobody waits"
    if room == 0:
        long = " of full length" if server.room_requests == 0 else ""
        return VerdictWords("low", "FULL", evidence, f"the next request{long} would wait")
    if server.limited_by != "UNDERLOADED":
        return VerdictWords("ok", "SERVING", evidence)
    return VerdictWords("ok", "ROOM FOR MORE" if room is None else f"ROOM FOR {room} MORE", evidence, "")


def more_users(server: ServerView) -> int | None:
    """How many more requests of full length fit: the room of the cache, and what a known cap of one engine leaves."""
    room = server.room_requests
    cap = server.max_num_seqs if len(server.engines) < 2 else None
    if cap is None or server.running is None:
        return room
    left = max(0, cap - server.running)
    return left if room is None else min(room, left)


def verdict_line(view: View, cells: int) -> Line:
    """`● HEADLINE  evidence → what to do`; the evidence gives way clause by clause, then the advice goes."""
    return told(verdict(view), cells)


def told(said: VerdictWords, cells: int) -> Line:
    """A verdict in one line."""
    arrow = glyphs.current().arrow_right
    head = (Span(glyphs.current().dot + " ", said.style.replace("critical", "alarm")), Span(said.headline, _loud(said)))
    room = cells - sum(text_width(span.text) for span in head)
    advice = f" {arrow} {said.advice}" if said.advice else ""
    evidence = f"  {said.evidence}" if said.evidence else ""
    short = _shorter(evidence, room - text_width(advice))
    if text_width(short) + text_width(advice) > room:
        short, advice = _shorter(evidence, room), ""
    evidence = short
    return crop(line(*head, Span(evidence, ""), Span(advice, "bold")), cells)


def _shorter(text: str, room: int) -> str:
    """As many clauses as there is room for, the first always."""
    for end in (";", ", "):
        while text_width(text) > room and end in text:
            text = text.rpartition(end)[0]
    return text


def _loud(said: VerdictWords) -> str:
    return said.style if said.style == "critical" else f"bold {said.style}"


def beyond_verdict(view: View) -> list[Finding]:
    """The findings that the verdict does not say already."""
    snapshot, server = view.snapshot, view.server
    if snapshot is None or server is None:
        return list(snapshot.findings) if snapshot else []
    code = {"KV_PRESSURE": "kv", "SEQ_CAP": "seq-cap"}.get(server.limited_by or "")
    said = {f"{name}:{server.url}" for name in ("unreachable", "stalled", code) if name}
    headline = verdict(view).headline
    if headline.endswith(" STALLED"):
        said = {f"stalled-engine:{server.url}"}
    elif headline.startswith("MEMORY"):
        pool = tightest_pool(snapshot)
        said = {f"memory:{pool.name}"} if pool is not None else set()
    elif server.limited_by not in ("KV_PRESSURE", "SEQ_CAP") and headline not in _SAID:
        said = set()
    return [finding for finding in snapshot.findings if finding.id not in said]


_SAID = frozenset(words for words, _ in _STATES.values())


def finding_lines(finding: Finding, cells: int, most: int) -> list[Line]:
    """A finding in at most `most` lines: its word, its text and evidence, and what to do, never cut in mid-advice."""
    word, style = LEVEL_WORDS[finding.level]
    indent = len(word) + 3
    advice = f"{glyphs.current().arrow_right} {finding.advice}" if finding.advice else ""
    head = (Span(f" {word} ", style), Span(f" {finding.text}", "bold"))
    full = line(*head, Span(f"  {finding.evidence or ''}".rstrip(), "dim"), Span(f"  {advice}".rstrip()))
    if sum(text_width(span.text) for span in full) <= cells:
        return [full]
    without = line(*head, Span(f"  {advice}".rstrip()))
    if sum(text_width(span.text) for span in without) <= cells:
        return [without]
    if most < 2:
        return [crop(line(*head, Span(f"  {finding.evidence or ''}".rstrip(), "dim")), cells)]
    first = crop(line(*head, Span(f"  {finding.evidence or ''}".rstrip(), "dim")), cells)
    rest = wrap(advice, max(1, cells - indent))
    if len(rest) > most - 1 and ";" in advice:  # its second half goes before it is cut
        rest = wrap(advice.partition(";")[0], max(1, cells - indent))
    if len(rest) > most - 1:  # without the evidence there is more room for it
        begun, *rest = wrap(f"{finding.text}  {advice}", max(1, cells - indent))[:most]
        first = line(Span(f" {word} ", style), Span(f" {begun}", "bold"))
    return [first, *(crop(line(Span(" " * indent + text)), cells) for text in rest)]


LEVEL_WORDS = {"critical": ("CRITICAL", "critical"), "warning": ("LOW", "low"), "info": ("NOTE", "info")}
