"""From the table of levels to the answer: sweet spot, first failing level, knee, and the words for them.

Works on level results (see `summary`). Limits are named criteria: `>=` for speeds, `<=` for times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from llmtop.contract.units import rate, seconds
from llmtop.load.results import FirstFail, LevelResult, RunResult, Spread

KNEE_SHARE = 0.9


class BadLimit(ValueError):
    """A limit that cannot be read or is not a known criterion."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One measurable property of a level; `value` reads it in the limit's unit, None = unknown."""

    value: Callable[[LevelResult], float | None]
    least: bool  # True: at least the limit; False: at most
    words: str
    time: bool = False
    whole: bool = False  # a count

    def met(self, level: LevelResult, limit: float) -> bool:
        """Whether the level keeps the limit; an unknown value does not."""
        value = self.value(level)
        return value is not None and (value >= limit if self.least else value <= limit)

    def show(self, value: float | None) -> str:
        """The value in words, with its unit."""
        if self.time:
            return seconds(value)
        return f"{value:g}" if self.whole and value is not None else rate(value)


def _latency(name: str, kind: str) -> Callable[[LevelResult], float | None]:
    def value(level: LevelResult) -> float | None:
        spread: Spread | None = getattr(level, name)
        return getattr(spread, f"{kind}_ms") / 1000 if spread is not None else None

    return value


def _latencies() -> dict[str, Criterion]:
    """`ttft_p99` and its like: every latency by mean and percentile, in seconds."""
    names = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "e2e": "E2EL"}
    kinds = {"mean": "mean", "p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99"}
    return {
        f"{name}_{kind}": Criterion(_latency(shown.lower(), kind), False, f"{words} {shown}", time=True)
        for name, shown in names.items()
        for kind, words in kinds.items()
    }


CRITERIA: Mapping[str, Criterion] = {
    "user_tok_s": Criterion(lambda level: level.user_tok_s, True, "tok/s per user"),
    "decode_tok_s": Criterion(lambda level: level.decode_tok_s, True, "decode tok/s per user"),
    "tok_s": Criterion(lambda level: level.tok_s, True, "tok/s"),
    "attainment": Criterion(lambda level: level.attainment, True, "attainment"),
    "ttft_burst": Criterion(lambda level: level.ttft_burst, False, "burst TTFT", time=True),
    "ttft_steady": Criterion(lambda level: level.ttft_steady, False, "steady TTFT", time=True),
    "req_s": Criterion(lambda level: level.achieved_req_s, True, "requests done per second"),
    "errors": Criterion(lambda level: level.failed, False, "errors", whole=True),
    **_latencies(),
}


def criterion_of(name: str) -> Criterion:
    """Look up a criterion by name; one that a newer version wrote into a recording has its name for words."""
    return CRITERIA.get(name) or Criterion(lambda _: None, False, name)


_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0}


def parse_slo(text: str) -> dict[str, float]:
    """Limits of `ttft_p99=4s,user_tok_s=6`; times in seconds; raises `BadLimit`."""
    limits: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = part.partition("=")
        name = name.strip().lower()
        if not sign or name not in CRITERIA:
            known = " ".join(CRITERIA)
            raise BadLimit(f"{part!r}: write NAME=LIMIT with a NAME of {known}")
        limits[name] = _limit(value.strip(), CRITERIA[name])
    if not limits:
        raise BadLimit("no limit given")
    return limits


def _limit(text: str, criterion: Criterion) -> float:
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz/%")
    unit = text[len(number) :]
    allowed = _UNITS if criterion.time else {"tok/s": 1.0, "%": 0.01}
    try:
        value = float(number) * (allowed[unit] if unit else 1.0)
    except (ValueError, KeyError):
        raise BadLimit(f"{text!r} is no limit for {criterion.words}") from None
    if not 0 <= value < float("inf"):
        raise BadLimit(f"{text!r} is no limit for {criterion.words}")
    return value


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """Limits of each request as `vllm bench serve --goodput ttft:4000 tpot:100 e2el:9000`, in ms; raises `BadLimit`."""
    limits: dict[str, float] = {}
    for text in texts:
        name, sign, value = text.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            sign = ""
        if not sign or name not in ("ttft", "tpot", "e2el") or not 0 <= limits[name] < float("inf"):
            raise BadLimit(f"{text!r}: write ttft:MS, tpot:MS or e2el:MS")
    return limits


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer; `sweet_spot` and `knee` are users at once (requests/s in an open loop), None where none is.

    With `at_least`, no level broke a limit and `sweet_spot` is a lower bound.
    """

    sweet_spot: float | None
    first_fail: FirstFail | None
    knee: float | None
    met: bool
    words: str
    monotone: bool = True  # no level passes after one that failed
    at_least: bool = False


def failure(level: LevelResult, slo: Mapping[str, float]) -> FirstFail | None:
    """The first limit that a level breaks; errors are never allowed unless a limit says so.

    A level that errors ended has broken that limit whatever it is; so has a rate that the server did not keep up with.
    """
    limits = {"errors": 0.0, **slo}
    if level.stopped is not None:
        return FirstFail(level.level, level.users, "errors", level.failed, limits["errors"], level.failures)
    if level.saturated and level.achieved_req_s is not None and level.request_rate is not None:
        limits = {"req_s": level.offered_req_s or level.request_rate, **limits}
    for name, limit in limits.items():
        criterion = CRITERIA.get(name)  # a recording may name one of another version
        if criterion is not None and not criterion.met(level, limit):
            steady = level.ttft_steady
            burst_only = name.startswith("ttft_") and steady is not None and steady <= limit
            why = level.failures if name == "errors" else None
            return FirstFail(level.level, level.users, name, criterion.value(level), limit, why, burst_only)
    return None


def judge(
    levels: Sequence[LevelResult], slo: Mapping[str, float], climbs: bool = True, ended: str | None = None
) -> Verdict:
    """The verdict on the levels that ran to their end or to their failure, in the order of their load.

    `climbs` says that levels differ in load alone; where they differ in size there is no sweet spot, and `met` asks
    every level instead of the lightest. `ended` says why the run ended before its plan: without a level that fails,
    it then has no answer.
    """
    judged = [
        level for level in levels if level.whole or (level.failed and not level.interrupted and not level.refused)
    ]
    if climbs:
        judged.sort(key=lambda level: level.load)
    fails = [failure(level, slo) for level in judged]
    good = next((i for i, fail in enumerate(fails) if fail is not None), len(judged))
    first = fails[good] if good < len(judged) else None
    answered = bool(judged) and (first is not None or ended is None)
    sweet = judged[good - 1] if climbs and good and answered else None
    clean = [level for level in judged if level.whole and not level.failed and not level.saturated]
    return Verdict(
        sweet_spot=sweet.load if sweet else None,
        first_fail=first,
        knee=_knee(clean) if climbs and answered else None,
        met=answered and (good > 0 if climbs else first is None),
        words=_words(judged, sweet, first, slo, ended),
        monotone=all(fail is not None for fail in fails[good:]),
        at_least=sweet is not None and first is None,
    )


def _knee(levels: Sequence[LevelResult]) -> float | None:
    """The smallest load with 90 % of the best total throughput."""
    best = max((level.tok_s for level in levels), default=0.0)
    if best <= 0:
        return None
    enough = (level for level in levels if level.tok_s >= KNEE_SHARE * best)
    return next(enough).load


def _words(
    levels: Sequence[LevelResult],
    sweet: LevelResult | None,
    first: FirstFail | None,
    slo: Mapping[str, float],
    ended: str | None,
) -> str:
    """One or two sentences: what the sweet spot gives, and what fails after it."""
    parts = [_sweet_words(levels, sweet)] if sweet is not None else []
    if first is not None:
        parts.append(_fail_words(first))
    elif ended is not None:
        kept = f" {levels[-1].level} keeps the limits; whether more would, was not tried." if levels and slo else ""
        parts.append(f"No answer: {ended}.{kept}")
    elif sweet is not None and slo:
        unit = "requests/s" if sweet.request_rate is not None else "users" if sweet.load != 1 else "user"
        parts.append(f"At least {sweet.load:g} {unit}: every level keeps the limits, no limit found.")
    elif levels:
        parts.append("Every level keeps the limits." if slo else "No limits asked.")
    return " ".join(parts) or "No level ran to its end."


def _sweet_words(levels: Sequence[LevelResult], sweet: LevelResult) -> str:
    times, decode = times_one(sweet, levels), times_decode(sweet, levels)
    more = f", {decode:.2f}x its decode alone" if decode is not None else ""
    beside = f" ({times:.1f}x one user{more})" if times is not None and sweet.load != 1 else ""
    p99 = seconds(CRITERIA["ttft_p99"].value(sweet))
    return f"{sweet.level}: {rate(sweet.tok_s)} tok/s{beside}, {rate(sweet.user_tok_s)} each, P99 TTFT {p99}."


def times_one(level: LevelResult, levels: Sequence[LevelResult]) -> float | None:
    """A level's tok/s as a multiple of one user's with requests of the same size; None without such a level."""
    one = _one_user(level, levels)
    return level.tok_s / one.tok_s if one is not None and one.tok_s else None


def times_decode(level: LevelResult, levels: Sequence[LevelResult]) -> float | None:
    """A level's tok/s as a multiple of what one user decodes alone, prompts not counted: the base of articles."""
    one = _one_user(level, levels)
    return level.tok_s / one.decode_tok_s if one is not None and one.decode_tok_s else None


def with_ratios(levels: Sequence[LevelResult]) -> list[LevelResult]:
    """Levels that tell how many times one user's speed theirs is."""
    return [
        replace(level, times_one_user=times_one(level, levels), times_decode_alone=times_decode(level, levels))
        for level in levels
    ]


def _one_user(level: LevelResult, levels: Sequence[LevelResult]) -> LevelResult | None:
    size = level.input_len, level.output_len
    alone = (x for x in levels if x.load == 1 and x.request_rate is None and (x.input_len, x.output_len) == size)
    return next((x for x in alone if x.whole), None)


@dataclass(frozen=True, slots=True)
class SingleSpeed:
    """A line as llama-bench prints it: `pp2048 4170.3 ± 12.1`, tokens per second."""

    name: str
    tok_s: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.name} {self.tok_s:,.1f} ± {self.deviation:.1f}"


def single_user(levels: Sequence[LevelResult]) -> list[SingleSpeed]:
    """Prompt and generation speeds of the single-user scenario, as llama-bench has them.

    A prompt's speed is its length over its time to the first token, by the server's own clock where it tells: so the
    network and this client are not in it, and the step that makes the token is.
    """
    found = (_speed(level) for level in levels if level.completed)
    return [speed for speed in found if speed is not None]


def _speed(level: LevelResult) -> SingleSpeed | None:
    if level.output_len > 1:
        return _speed_of(level.level, 1, level.tpot)
    spent, server = level.ttft, level.server_ttft_s
    if spent is not None and server is not None and 0 < server * 1000 < spent.mean_ms:
        spent = replace(spent, mean_ms=server * 1000)
    return _speed_of(level.level, level.input_len, spent)


def _speed_of(name: str, tokens: int, spent: Spread | None) -> SingleSpeed | None:
    if spent is None or spent.mean_ms <= 0 or tokens <= 0:
        return None
    speed = tokens / spent.mean_ms * 1000
    return SingleSpeed(name, speed, speed * spent.std_ms / spent.mean_ms)


def _fail_words(first: FirstFail) -> str:
    criterion = criterion_of(first.criterion)
    text = f"{first.level} fails: {criterion.words} {criterion.show(first.value)}"
    text += "" if first.criterion == "errors" else f" (limit {criterion.show(first.limit)})"
    text += f": {first.reason}" if first.reason else ""
    return text + (", burst only: the steady TTFT would pass." if first.burst_only else ".")


def announcement(result: RunResult) -> str | None:
    """What a finished load test found, in a few words; None when it found no sweet spot."""
    level = next((level for level in result.levels if level.load == result.sweet_spot), None)
    if level is None:
        return None
    unit = "requests/s" if level.request_rate is not None else "user" if level.load == 1 else "users"
    least = "at least " if result.at_least else ""
    return f"sweet spot: {least}{level.load:g} {unit}, {rate(level.tok_s)} tok/s"
