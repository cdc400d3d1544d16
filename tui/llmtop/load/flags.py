"""Why a level's numbers may not be trusted: named flags, each with its reason, and the check of the counters."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.contract.units import seconds
from llmtop.load import stats
from llmtop.load.completion import Outcome
from llmtop.load.counters import delta, restarted, server_mean
from llmtop.load.results import CrossCheck, Flag, Totals
from llmtop.load.summary import LevelRaw

CPU_SHARE = 0.6
WAIT_SHARE = 0.02
START_SKEW_S = 0.010
FOREIGN_SHARE = 0.005
CACHE_SHARE = 0.01
SAMPLES = 100
PROMPT_SHARE = 0.02
_COUNTED = ("generation", "prompt", "requests")
_FOREIGN = {"generation": "output tokens", "requests": "finished requests"}


def flags(raw: LevelRaw) -> list[Flag]:
    """All doubts about a level, the gravest first."""
    checks = (_restarted, _load, _client, _not_alone, _counters, _cache, _clumped, _lengths, _server, _samples)
    return [flag for check in checks for flag in check(raw)]


def cross_check(raw: LevelRaw) -> CrossCheck:
    """Our totals beside what the server counted.

    Tokens of failed requests are in the server's count as far as it made them, so ours are added as received.
    """
    ours = Totals(
        sum(record.output for record in raw.records),
        sum(record.prompt_tokens or record.asked_prompt for record in raw.records if record.chunks),
        sum(record.ok or record.outcome is Outcome.SHORT for record in raw.records),
    )
    if raw.before is None or raw.after is None:
        return CrossCheck(client=ours)
    server = Totals(*(delta(getattr(raw.before, name), getattr(raw.after, name)) for name in _COUNTED))
    return CrossCheck(server.generation is not None, ours, server)


def _pairs(raw: LevelRaw) -> Iterator[tuple[str, int, int]]:
    """What both sides have counted: its name, our count, the server's."""
    checked = cross_check(raw)
    for name in _COUNTED:
        ours, theirs = getattr(checked.client, name), getattr(checked.server, name)
        if ours is not None and theirs is not None:
            yield name, ours, theirs


def _restarted(raw: LevelRaw) -> Iterator[Flag]:
    if raw.before and raw.after and restarted(raw.before, raw.after):
        yield Flag("server restarted", "its counters fell or its start time changed during the level")


def _load(raw: LevelRaw) -> Iterator[Flag]:
    """Whether what was asked is what ran: as many users, at such a rate."""
    level = raw.level
    if level.request_rate is None:
        users = stats.peak_concurrency(raw.records)
        if 0 < users < level.concurrency and len(raw.records) >= level.num_prompts:
            words = f"{users} at once, not {level.concurrency}: {level.num_prompts} requests are too few"
            yield Flag("fewer users", words)
        return
    late = [record.late_s for record in raw.records if record.late_s > 0.05]
    if late:
        words = f"{len(late)} requests waited up to {seconds(max(late))} for one of {level.concurrency} slots"
        yield Flag("delayed", f"{words}: raise --max-concurrency, or the rate is more than the server does")
    pacing = stats.pacing(raw.records)
    if pacing.saturated and pacing.achieved_s is not None:
        yield Flag("saturated", f"{pacing.achieved_s:.1f} requests/s done of {level.request_rate:g}: it falls behind")


def _client(raw: LevelRaw) -> Iterator[Flag]:
    """What this machine, not the server, may have added to the times."""
    itl = stats.mean([gap for t in raw.timings for gap in t.itls_s]) or 0.0
    lag_limit = max(0.005, 0.05 * itl)
    reasons: list[str] = []
    for vitals in raw.workers:
        if (vitals.cpu_share or 0.0) > CPU_SHARE:
            reasons.append(f"worker CPU {vitals.cpu_share:.0%}")
        if (vitals.wait_share or 0.0) > WAIT_SHARE:
            reasons.append(f"waited for a core {vitals.wait_share:.1%} of the time")
        if (vitals.lag_p99_s or 0.0) > lag_limit:
            reasons.append(f"loop lag P99 {seconds(vitals.lag_p99_s)}")
    starts = [record.start_s for record in raw.records if record.first_wave]
    if starts and max(starts) - min(starts) > START_SKEW_S:
        reasons.append(f"first wave spread over {seconds(max(starts) - min(starts))}")
    if reasons:
        yield Flag("client-limited", "; ".join(dict.fromkeys(reasons)))


def _not_alone(raw: LevelRaw) -> Iterator[Flag]:
    reasons: list[str] = []
    if raw.before and raw.before.running:
        reasons.append(f"{raw.before.running} requests of others were running before the start")
    for name, ours, theirs in _pairs(raw):
        if name in _FOREIGN and theirs > ours * (1 + FOREIGN_SHARE) and not _broken_off(raw):
            reasons.append(f"the server counts {theirs:,} {_FOREIGN[name]}, ours are {ours:,}")
    if reasons:
        yield Flag("not alone", "; ".join(reasons))


def _broken_off(raw: LevelRaw) -> bool:
    """Whether requests ended early, so that the server may have made tokens that never came."""
    return any(not record.ok and record.outcome is not Outcome.SHORT for record in raw.records)


def _counters(raw: LevelRaw) -> Iterator[Flag]:
    if not cross_check(raw).checked:
        yield Flag("not checked", "the server's token counters could not be read")
        return
    fewer = [f"{name} {theirs:,} at the server, {ours:,} here" for name, ours, theirs in _pairs(raw) if theirs < ours]
    if fewer:
        yield Flag("counters differ", "; ".join(fewer))


def _cache(raw: LevelRaw) -> Iterator[Flag]:
    if raw.before is None or raw.after is None:
        return
    hits, queries = delta(raw.before.hits, raw.after.hits), delta(raw.before.queries, raw.after.queries)
    if hits is not None and queries and hits >= CACHE_SHARE * queries:
        yield Flag("cache", f"{hits / queries:.1%} of the prompt tokens came from the prefix cache")


def _clumped(raw: LevelRaw) -> Iterator[Flag]:
    """Whether chunks come in heaps, or the server's own clocks disagree with ours."""
    gaps = [gap for t in raw.timings for gap in t.itls_s]
    together = sum(gap < 0.001 for gap in gaps)
    ours_itl, ours_ttft = stats.mean(gaps), stats.mean([t.ttft_s for t in raw.timings])
    itl, ttft = server_mean(raw.before, raw.after, "itl"), server_mean(raw.before, raw.after, "ttft")
    if itl and ours_itl is not None and itl > 0.004 and together > 0.5 * len(gaps):
        yield Flag("clumped", f"{together / len(gaps):.0%} of the chunks came within 1 ms of another")
    elif itl and ours_itl is not None and ours_itl < 0.5 * itl:
        yield Flag("clumped", f"ITL {seconds(ours_itl)} here, {seconds(itl)} at the server")
    if raw.level.request_rate is None and ttft is not None and ours_ttft is not None:
        late = ours_ttft - ttft
        if late > 0.020 + 0.05 * ttft:
            yield Flag("late", f"TTFT {seconds(ours_ttft)} here, {seconds(ttft)} at the server")


def _lengths(raw: LevelRaw) -> Iterator[Flag]:
    short = sum(record.outcome is Outcome.SHORT for record in raw.records)
    if short:
        length = stats.mean([record.output for record in raw.records if record.ok]) or 0.0
        words = (
            f"{short} answers ended before the asked length ({length:.0f} of {raw.level.output_len} tokens on average)"
        )
        yield Flag("short", f"{words}: speeds are of the lengths that came")
    elif "ignore_eos" in raw.profile.refused:
        yield Flag("short", "the server takes no ignore_eos: answers end where the model ends them")
    if any(record.ok and record.output_estimated for record in raw.records):
        yield Flag("tokens estimated", "no usage from the server: each chunk counts as one token")
    hidden = sum(record.hidden_tokens for record in raw.records if record.ok)
    if hidden:
        made = sum(record.output for record in raw.records if record.ok)
        words = f"{hidden:,} of {made:,} output tokens were reasoning that was not sent"
        yield Flag("reasoning", f"{words}: tok/s and TTFT hold them, decode and TPOT do not")
    yield from _prompts(raw)


def _prompts(raw: LevelRaw) -> Iterator[Flag]:
    """Whether prompts had the asked length, by the server's count."""
    counted = [record.prompt_tokens for record in raw.records if record.ok and record.prompt_tokens is not None]
    asked, length = raw.level.input_len, stats.mean(counted)
    if length is None:
        if any(record.ok for record in raw.records) and not raw.profile.use_ids:
            yield Flag("prompt length", f"the server counts no prompt tokens: about {asked:,} were sent")
    elif raw.profile.use_ids and (off := [count for count in counted if count != asked]):
        yield Flag("prompt length", f"{off[0]} prompt tokens for {asked} asked")
    elif abs(length - asked) > max(1.0, PROMPT_SHARE * asked):
        yield Flag("prompt length", f"{length:,.0f} prompt tokens on average, {asked:,} asked")


def _server(raw: LevelRaw) -> Iterator[Flag]:
    """What the server did that bends the numbers: preempted, queued, admitted fewer than we sent."""
    before, after = raw.before, raw.after
    preempted = delta(before.preemptions, after.preemptions) if before and after else None
    if preempted:
        yield Flag("preempted", f"{preempted} preemptions: the KV cache was full")
    if raw.watch.waiting_max:
        yield Flag("queueing", f"up to {raw.watch.waiting_max} requests waited at the server")
    if raw.max_num_seqs is not None and raw.level.concurrency > raw.max_num_seqs:
        yield Flag("measures the queue", f"the server runs {raw.max_num_seqs} requests at once (max_num_seqs)")


def _samples(raw: LevelRaw) -> Iterator[Flag]:
    count = len(raw.timings)
    if count < SAMPLES:
        yield Flag("few samples", f"{count} requests: P99 is about the maximum, it needs {SAMPLES}")
    if raw.first and raw.warm_up is None:
        yield Flag("cold", "the first level ran without a warm-up request")
