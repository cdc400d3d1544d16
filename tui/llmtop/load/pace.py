"""How fast a server is, and how long a plan takes there: what is asked of an idle server, and the arithmetic.

The server's speed is measured by `measure`; here is what it sends, and what follows from what it found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmtop.load.plan import Level, Plan

NEWS = 8  # one user more for every so many is worth another level
GAIN = 1.05  # of the best tok/s so far: what a doubling of the users must bring
CHUNK = 2048  # prompt tokens that a step reads
STEP_GROWTH = 0.07  # of a step by each further user, where only one number of users is known
LONG, LONG_TOKENS = 100, 100_000  # requests and tokens: a shorter plan is over before its length is of interest
SHORT_LEN = 16  # prompt tokens of a request that asks for nothing in particular
MEASURED_TOKENS, BLOCK_TOKENS = 12, 24
_MEASURED_USERS = 32
_WHOLE_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a server is: prompt tokens/s, and seconds of a step by users at once.

    A server that sends an answer in a few blocks shows no steps: there `answers` has the seconds that answers of so
    many tokens take one user, and `steps` those of its shortest one.
    """

    prefill_tok_s: float
    steps: tuple[tuple[int, float], ...]  # by rising users, one at least
    most: int | None = None  # users that the server serves at once; None: all that were seen
    answers: tuple[tuple[int, float], ...] = ()  # by rising tokens

    def step_s(self, users: int) -> float:
        """Seconds per token of each of so many users: straight between what is known, and on after it."""
        if len(self.steps) == 1:
            low, first = self.steps[0]
            return first * (1 + STEP_GROWTH * (users - 1)) / (1 + STEP_GROWTH * (low - 1))
        return max(self.steps[0][1], straight(self.steps, users))

    def answer_s(self, tokens: int, users: int, beside: float = 0.0) -> float:
        """Seconds of an answer after its prompt was read, for each of so many users; `beside` steps come for free."""
        if not self.answers:
            return max(0.0, tokens - 1 - beside) * self.step_s(users)
        alone = max(self.answers[0][1], straight(self.answers, tokens)) if len(self.answers) > 1 else self.answers[0][1]
        return alone * self.step_s(users) / self.steps[0][1]


def straight(points: tuple[tuple[int, float], ...], x: int) -> float:
    """The value at `x` on straight lines through points by rising x, and on beyond them."""
    (low, first), *rest = points
    slope = 0.0
    for high, then in rest:
        slope = (then - first) / (high - low)
        if x <= high:
            break
        low, first = high, then
    return first + slope * (x - low)


def measurement(plan: Plan) -> tuple[Level, ...]:
    """What an idle server is asked before a long plan, for the estimate of its time; empty where nothing is.

    One request with a long prompt, then several short ones at once: no more than the plan itself asks for.
    """
    longest = max((level.input_len + level.output_len for level in plan.levels), default=0)
    prompt = min(max(CHUNK, longest // 3), longest - MEASURED_TOKENS)
    short = plan.requests() < LONG and sum(plan.tokens()) < LONG_TOKENS
    if short or plan.scenario == "soak" or prompt < 1:
        return ()
    users = min(_MEASURED_USERS, max(level.concurrency for level in plan.levels))
    several = (Level("together", users, users, min(SHORT_LEN, prompt), MEASURED_TOKENS),) if users > 2 else ()
    return (Level("alone", 1, 1, prompt, MEASURED_TOKENS), *several)


def block_measurement(plan: Plan) -> tuple[Level, ...]:
    """What a server is asked beyond the first request of `measurement`, where that came in too few parts to time.

    A short answer, one as long as the plan's, then short ones to ever more users at once.
    """
    users = max(level.concurrency for level in plan.levels)
    whole = min(_WHOLE_TOKENS, max(level.output_len for level in plan.levels))
    prompt = min(SHORT_LEN, max(level.input_len for level in plan.levels))
    short = min(BLOCK_TOKENS, whole)
    return (
        *(Level("alone", 1, 1, prompt, tokens) for tokens in sorted({short, whole})),
        *(Level("together", n, n, prompt, short) for n in (2, 4, 8) if n <= users),
    )


def measurement_words(plan: Plan) -> str | None:
    """What `measurement` sends, in words; None where it sends nothing."""
    sent = replace(plan, levels=measurement(plan))
    prompt, output = sent.tokens()
    size = f"{sent.requests()} requests, {prompt:,} prompt + {output:,} output tokens"
    return f"{size} before it time an idle server; they are in no figure" if sent.levels else None


def estimate_s(plan: Plan, pace: Pace | None) -> float | None:
    """About how long the plan takes, in seconds; None when the server's speed is unknown.

    A level whose first tokens come later than its requests wait for them fails, and is the last; a climb ends as
    `Climb` says.
    """
    if pace is None:
        return None
    took, climb = 0.0, Climb(bool(plan.slo))
    kept: dict[Level, bool] = {}
    for level in plan.levels:
        wait_s = plan.timeouts.first_token_s(level)
        if pace.answers and _first_s(level, pace) > wait_s:
            took += wait_s * math.ceil(plan.caps.error_minimum / level.concurrency)
            break
        took += min(level_s(level, pace, plan.warm_up), plan.caps.level_s)
        speed = _tok_s(level, pace)
        kept[level] = _keeps(level, pace, plan.slo, speed)
        if plan.adaptive and climb.ends(speed, kept[level]):
            break
    for _ in range(plan.refine):
        between = level_between(kept) if plan.slo else None
        if between is not None:
            took += level_s(between, pace, plan.warm_up)
            kept[between] = _keeps(between, pace, plan.slo, _tok_s(between, pace))
    return min(took, plan.caps.run_s)


def level_between(kept: Mapping[Level, bool]) -> Level | None:
    """Half way between the last level that kept the limits and the first that did not; None where that is no news."""
    levels = sorted(kept, key=lambda level: level.concurrency)
    fails = next((i for i, level in enumerate(levels) if not kept[level]), 0)
    if fails == 0:
        return None
    good, bad = levels[fails - 1], levels[fails]
    users = (good.concurrency + bad.concurrency) // 2
    if users - good.concurrency < max(1, good.concurrency // NEWS):
        return None
    requests = good.num_prompts
    if bad.num_prompts != requests:  # so many for each user
        requests = requests * users // good.concurrency
    return replace(good, name=f"c={users}", concurrency=users, num_prompts=requests)


def _tok_s(level: Level, pace: Pace) -> float:
    return level.num_prompts * level.output_len / _busy_s(level, pace)


@dataclass(slots=True)
class Climb:
    """When a climb to ever more users ends: two levels broke a limit, or one did and the last level brought too little.

    Without `limits`, what it brings alone decides.
    """

    limits: bool
    fails: int = 0
    best: float = 0.0

    def ends(self, tok_s: float, keeps: bool) -> bool:
        """Whether it ends with a level of this speed; takes it into account."""
        self.fails += not keeps
        gained, self.best = tok_s >= GAIN * self.best, max(self.best, tok_s)
        return self.fails >= 2 or (not gained and (self.fails > 0 or not self.limits))


def _keeps(level: Level, pace: Pace, slo: Mapping[str, float], tok_s: float) -> bool:
    """Whether a level will keep the limits that follow from the pace."""
    wave_s = _busy_s(level, pace) * level.concurrency / level.num_prompts
    whole = pace.answers or level.concurrency > (pace.most or level.concurrency)  # the last of a wave waits for it all
    first_s = wave_s if whole else level.concurrency * level.input_len / pace.prefill_tok_s
    return tok_s / level.concurrency >= slo.get("user_tok_s", 0.0) and first_s <= slo.get("ttft_p99", math.inf)


def _first_s(level: Level, pace: Pace) -> float:
    """About when the first users of a level have their answers, where those come as a whole."""
    users = min(level.concurrency, level.num_prompts, pace.most or level.concurrency)
    return users * level.input_len / pace.prefill_tok_s + pace.answer_s(level.output_len, users)


def level_s(level: Level, pace: Pace, warm_up: bool = False) -> float:
    """About how long one level takes, in seconds."""
    busy_s = _busy_s(level, pace)
    alone_s = level.input_len / pace.prefill_tok_s + pace.answer_s(level.output_len + 1, 1)
    if level.request_rate is not None:
        busy_s = max(busy_s, level.num_prompts / level.request_rate + alone_s)
    if level.duration_s is not None:  # what is under way then is half done, or still waits
        part = 0.5 if pace.most is None or level.concurrency <= pace.most else 1.0
        busy_s = min(busy_s, level.duration_s + part * busy_s * level.concurrency / level.num_prompts)
    return busy_s + (alone_s if warm_up else 0.0)


def _busy_s(level: Level, pace: Pace) -> float:
    """How long all requests of a level take at once, by a small model of continuous batching.

    Prompts are read one after another; each step that reads a part of one also makes a token for every other user, and
    what is left of the answers takes steps of its own.
    """
    count = level.num_prompts
    users = min(level.concurrency, count, pace.most or count)
    beside = math.ceil(level.input_len / CHUNK) * (users - 1)
    return count * level.input_len / pace.prefill_tok_s + count / users * pace.answer_s(level.output_len, users, beside)
