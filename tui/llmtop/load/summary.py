"""The result of one level: vLLM's figures by vLLM's arithmetic, and llmtop's own beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmtop.contract.units import clean
from llmtop.load import stats
from llmtop.load.completion import Outcome
from llmtop.load.counters import ServerCounters, server_mean
from llmtop.load.plan import Level, Plan
from llmtop.load.prompts import Profile
from llmtop.load.records import RequestRecord
from llmtop.load.results import LevelResult, Totals
from llmtop.load.vitals import Vitals

ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")


@dataclass(frozen=True, slots=True)
class ServerExtremes:
    """Extremes seen at the server during a level; None = unknown.

    `power_w` is the mean of the drivers' readings, `energy_w` the slope of their energy counters.
    """

    kv_max: float | None = None
    waiting_max: int | None = None
    running_max: int | None = None
    headroom_min_bytes: int | None = None
    power_w: float | None = None
    energy_w: float | None = None


@dataclass(frozen=True, slots=True)
class LevelRaw:
    """Everything known about a level that has ended."""

    plan: Plan
    profile: Profile
    level: Level
    first: bool
    records: tuple[RequestRecord, ...]
    t0_s: float
    date: str
    stopped: str | None = None
    interrupted: bool = False
    refused: bool = False
    warm_up: RequestRecord | None = None
    workers: tuple[Vitals, ...] = ()
    before: ServerCounters | None = None
    after: ServerCounters | None = None
    watch: ServerExtremes = ServerExtremes()
    max_num_seqs: int | None = None

    @property
    def timings(self) -> list[stats.Timing]:
        """The timings of the successful requests, in order of index."""
        return [t for record in self.records if (t := stats.timing(record)) is not None]


def level_result(raw: LevelRaw) -> LevelResult:
    """The figures of `vllm bench serve` by its arithmetic, then llmtop's; doubts are added by `flags`."""
    end = max((record.end_s for record in raw.records), default=raw.t0_s)
    timings = raw.timings
    found = stats.measured(timings, max(end - raw.t0_s, 1e-9))
    parts = (_asked, _ended, _by_wave, _with_drift, _at_user, _at_server, _in_open_loop)
    for part in parts:
        found = part(raw, timings, found)
    return found


def _asked(raw: LevelRaw, _: Sequence[stats.Timing], found: LevelResult) -> LevelResult:
    """With what was asked, and of whom."""
    level, plan = raw.level, raw.plan
    return replace(
        found,
        level=level.name,
        concurrency=level.concurrency,
        request_rate=level.request_rate,
        burstiness=level.burstiness,
        num_prompts=level.num_prompts if level.duration_s is None else len(raw.records),
        input_len=level.input_len,
        output_len=level.output_len,
        backend="openai-chat" if raw.profile.api == "chat" else "openai",
        model=raw.profile.model or plan.model,
        date=raw.date,
        metadata=dict(plan.metadata),
    )


def _ended(raw: LevelRaw, _: Sequence[stats.Timing], found: LevelResult) -> LevelResult:
    """With how the level and its requests ended."""
    return replace(
        found,
        interrupted=raw.interrupted,
        stopped=raw.stopped,
        refused=raw.refused,
        errors=dict(Counter(str(r.outcome) for r in raw.records if not r.ok)),
        reasons=_reasons(raw.records),
        failed=sum(not r.ok for r in _counted(raw)),
        retried=sum(record.retried for record in raw.records),
        reasoning_hidden=sum(record.hidden_tokens for record in raw.records if record.ok),
        latencies=tuple(record.latency_s for record in raw.records),
        queue_times=tuple(record.late_s for record in raw.records),
    )


def _at_user(raw: LevelRaw, timings: Sequence[stats.Timing], found: LevelResult) -> LevelResult:
    """With what a user gets, and how many requests were good."""
    peak, tokens = stats.peak_concurrency(raw.records), found.total_output_tokens
    chunks = sum(1 + len(t.itls_s) for t in timings)
    counted, limits = _counted(raw), raw.plan.goodput_ms
    good = stats.good_requests(timings, limits)
    return replace(
        found,
        peak_concurrency=peak,
        user_tok_s=_user_tok_s(raw.level, timings, found, peak),
        decode_tok_s=_decode_tok_s(timings),
        attainment=_attainment(counted, raw.plan.slo),
        goodput_s=good / found.duration if limits else None,
        goodput_share=good / len(counted) if limits and counted else None,
        tokens_per_chunk=tokens / chunks if chunks else None,
    )


def _at_server(raw: LevelRaw, _: Sequence[stats.Timing], found: LevelResult) -> LevelResult:
    """With what was seen at the server and its machine."""
    watch, tokens = raw.watch, found.total_output_tokens
    return replace(
        found,
        server_ttft_s=server_mean(raw.before, raw.after, "ttft"),
        kv_max=watch.kv_max,
        waiting_max=watch.waiting_max,
        running_max=watch.running_max,
        headroom_min_bytes=watch.headroom_min_bytes,
        power_w=watch.power_w,
        joules_per_token=watch.energy_w * found.duration / tokens if watch.energy_w and tokens else None,
    )


def _in_open_loop(raw: LevelRaw, _: Sequence[stats.Timing], found: LevelResult) -> LevelResult:
    """With how requests with scheduled starts went."""
    pacing = stats.pacing(raw.records) if raw.level.request_rate is not None else stats.Pacing()
    return replace(
        found,
        late_max_s=max((record.late_s for record in raw.records), default=None),
        offered_req_s=pacing.offered_s,
        achieved_req_s=pacing.achieved_s,
        saturated=pacing.saturated,
    )


def _counted(raw: LevelRaw) -> list[RequestRecord]:
    """The requests that ended, but for those that a stop cut off."""
    return [record for record in raw.records if record.outcome is not Outcome.CANCELLED]


def spent(record: RequestRecord) -> Totals:
    """What one request took of the server, as far as it was answered."""
    if not record.chunks:
        return Totals(0, 0, 0)
    return Totals(record.output, record.prompt_tokens, int(record.ok))


def total(parts: Sequence[Totals]) -> Totals:
    """The sum of what is known of each; None for a count that one of them lacks."""
    sums = []
    for name in ("generation", "prompt", "requests"):
        values = [getattr(part, name) for part in parts]
        sums.append(None if None in values else sum(values))
    return Totals(*sums)


def _reasons(records: Sequence[RequestRecord]) -> dict[str, str]:
    """The words of the first failure of each class."""
    out: dict[str, str] = {}
    for record in records:
        if not record.ok and record.words:
            out.setdefault(str(record.outcome), clean(record.words, 300))
    return out


def detailed_arrays(raw: LevelRaw) -> dict[str, list[Any]]:
    """vLLM's `--save-detailed`, one entry per request; texts are not kept."""
    records = raw.records
    return {
        "input_lens": [r.asked_prompt if r.prompt_tokens is None else r.prompt_tokens for r in records],
        "output_lens": [r.output if r.ok else 0 for r in records],
        "ttfts": [r.ttft_s or 0.0 for r in records],
        "itls": [list(r.itls_s) for r in records],
        "start_times": [r.start_s for r in records],
        "generated_texts": ["" for _ in records],
        "errors": ["" if r.ok else f"{r.outcome}: {r.message}".rstrip(": ") for r in records],
    }


def _user_tok_s(level: Level, timings: Sequence[stats.Timing], found: LevelResult, peak: int) -> float | None:
    """What one user gets end to end: the total over the users, or in an open loop the mean over requests."""
    if not timings:
        return None
    if level.request_rate is None:
        return found.tok_s / min(level.concurrency, peak or level.concurrency)
    return stats.mean([t.output_tokens / t.latency_s for t in timings if t.latency_s > 0])


def _decode_tok_s(timings: Sequence[stats.Timing]) -> float | None:
    per_token = stats.mean([decode for t in timings if (decode := t.tpot_s) is not None])
    return 1 / per_token if per_token else None


def _by_wave(raw: LevelRaw, timings: Sequence[stats.Timing], found: LevelResult) -> LevelResult:
    """With P99 and mean TTFT of the first wave, and of requests launched after its last first token."""
    window = stats.steady_window(raw.records)
    good = [record for record in raw.records if record.ok and record.ttft_s is not None]
    burst = [record.ttft_s or 0.0 for record in good if record.first_wave]
    steady = [r.ttft_s or 0.0 for r in good if window and not r.first_wave and r.start_s >= window[0]]
    rate = stats.tokens_between(timings, *window) / (window[1] - window[0]) if window else None
    return replace(
        found,
        ttft_burst=stats.percentile(sorted(burst), 99) if burst else None,
        ttft_burst_mean=stats.mean(burst),
        ttft_steady=stats.percentile(sorted(steady), 99) if steady else None,
        ttft_steady_mean=stats.mean(steady),
        ttft_steady_n=len(steady),
        steady_tok_s=rate,
    )


def _with_drift(_: LevelRaw, timings: Sequence[stats.Timing], found: LevelResult) -> LevelResult:
    """With how the last quarter of the level differs from the first, as a share: tok/s and mean TTFT."""
    if len(timings) < 20:
        return found
    ordered = sorted(timings, key=lambda t: t.start_s)
    quarter, begin = len(ordered) // 4, ordered[0].start_s
    span = (ordered[-1].start_s - begin) / 4
    early, late = (stats.tokens_between(ordered, begin + k * span, begin + (k + 1) * span) for k in (0, 3))
    first, last = (stats.mean([t.ttft_s for t in part]) for part in (ordered[:quarter], ordered[-quarter:]))
    return replace(
        found,
        drift_tok_s=late / early - 1 if early else None,
        drift_ttft=last / first - 1 if first and last is not None else None,
    )


def _attainment(records: Sequence[RequestRecord], slo: Mapping[str, float]) -> float | None:
    """The share of requests, failed ones included, whose TTFT keeps the strictest TTFT limit."""
    limits = [limit for name, limit in slo.items() if name.startswith("ttft_")]
    if not limits or not records:
        return None
    limit = min(limits)
    return sum(r.ok and r.ttft_s is not None and r.ttft_s <= limit for r in records) / len(records)
