"""The form of a load test: its fields, their defaults, and the plan that they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from llmtop.contract.snapshot import ServerView
from llmtop.contract.units import UNKNOWN, duration
from llmtop.load.plan import Pace, Plan, estimate_s
from llmtop.load.results import LevelResult
from llmtop.load.scenarios import SCENARIOS, Options, TooLong, build, fit
from llmtop.load.verdict import BadLimit, parse_slo

NAMES = tuple(SCENARIOS)
FIELDS = (
    ("users", "Users", "at once, one level each"),
    ("prompts", "Requests", "per level"),
    ("input", "Prompt", "tokens per request"),
    ("output", "Answer", "tokens per request"),
    ("rates", "Rate", "requests per second, one level each"),
    ("seconds", "Seconds", "per level at most"),
    ("slo", "Limits", "the sweet spot keeps them all"),
)
USED: Mapping[str, tuple[str, ...]] = {
    "sweep": ("users", "prompts", "input", "output", "slo"),
    "quick": ("users", "input", "output", "seconds", "slo"),
    "single": ("prompts", "output"),
    "output": ("users", "prompts", "input", "output"),
    "context": ("users", "prompts", "input", "output"),
    "soak": ("users", "input", "output", "seconds", "slo"),
    "rate": ("rates", "users", "prompts", "input", "output", "slo"),
    "burst": ("users", "input", "output", "slo"),
}
_ALL = tuple(name for name, _, _ in FIELDS)
_BY_ITSELF = {"output": ("prompts", "output"), "context": ("prompts", "input"), "single": ("output",)}


def used(scenario: str) -> tuple[str, ...]:
    """The fields that a scenario uses; all of them where nothing is said."""
    return USED.get(scenario, _ALL)


class BadField(Exception):
    """A field that cannot be read, in words."""


def defaults(scenario: str) -> dict[str, str]:
    """What the fields say at first; an empty one leaves its value to the scenario."""
    plan = build(scenario, Plan("", ()), Options())
    first = plan.levels[0]
    values = {
        "users": ",".join(dict.fromkeys(str(level.concurrency) for level in plan.levels)),
        "prompts": str(first.num_prompts),
        "input": str(first.input_len),
        "output": str(first.output_len),
        "rates": ",".join(f"{level.request_rate:g}" for level in plan.levels if level.request_rate is not None),
        "seconds": f"{first.duration_s:g}" if first.duration_s else "",
        "slo": ",".join(f"{name}={limit:g}" for name, limit in plan.slo.items()),
    }
    return values | dict.fromkeys(_BY_ITSELF.get(scenario, ()), "")


def plan_of(scenario: str, texts: Mapping[str, str], server: ServerView | None, seed: int) -> Plan:
    """The plan that the fields ask for; raises `BadField`."""
    if server is None:
        raise BadField("no server is selected")
    text = {name: texts[name].strip() if name in used(scenario) else "" for name in texts}
    try:
        slo = parse_slo(text["slo"]) if text["slo"] else {}
    except BadLimit as error:
        raise BadField(f"limits: {error}") from None
    options = Options(
        concurrencies=_wholes(text["users"], "users"),
        num_prompts=_whole(text["prompts"], "requests"),
        input_len=_whole(text["input"], "prompt"),
        output_len=_whole(text["output"], "answer"),
        request_rates=_numbers(text["rates"], "rate"),
        duration_s=_number(text["seconds"], "seconds"),
    )
    base = Plan(server.url, (), model=server.model, seed=seed, slo=slo)
    try:
        plan = fit(build(scenario, base, options), server.max_model_len)
    except TooLong as error:
        raise BadField(str(error)) from None
    if problems := plan.problems():
        raise BadField("; ".join(problems))
    return plan


def estimate(plan: Plan, server: ServerView | None, levels: Sequence[LevelResult] = ()) -> str:
    """About how long the plan takes, by what the server does now, or did in the levels of a test before."""
    took = estimate_s(plan, _speed(plan, server, levels))
    if took is None:
        return f"{UNKNOWN} (the server has answered nothing yet)"
    return f"about {duration(took)} to {duration(2 * took)}"


def _speed(plan: Plan, server: ServerView | None, levels: Sequence[LevelResult]) -> Pace | None:
    for level in sorted(levels, key=lambda level: level.concurrency):
        if level.ttft is not None and level.tpot is not None and level.tpot.mean_ms:
            return Pace(level.input_len / level.ttft.mean_ms * 1000, level.tpot.mean_ms / 1000)
    latency = server.latency if server is not None else None
    if latency is None or not latency.itl.mean_s or not latency.ttft.mean_s:
        return None
    # TTFT under other people's load holds a wait of about its own length
    return Pace(max(200.0, plan.levels[0].input_len / latency.ttft.mean_s / 2), latency.itl.mean_s)


def _wholes(text: str, what: str) -> tuple[int, ...] | None:
    return tuple(value for part in text.split(",") if (value := _whole(part, what)) is not None) or None


def _numbers(text: str, what: str) -> tuple[float, ...] | None:
    return tuple(value for part in text.split(",") if (value := _number(part, what)) is not None) or None


def _whole(text: str, what: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text[:12]) > 0 and len(text) <= 12):
        raise BadField(f"{what}: {text!r} is no whole number above 0")
    return int(text)


def _number(text: str, what: str) -> float | None:
    text = text.strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (0 < value < 1e9 or (what == "rate" and value == math.inf)):
        raise BadField(f"{what}: {text!r} is no number above 0")
    return value
