"""The form of a load test: its fields, their defaults, and the plan that they make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from llmtop.contract.snapshot import ServerView
from llmtop.contract.units import UNKNOWN, duration
from llmtop.load import scenarios
from llmtop.load.pace import Pace, estimate_s
from llmtop.load.plan import ROUTES, Api, Plan
from llmtop.load.results import LevelResult
from llmtop.load.scenarios import SCENARIOS, Options, TooLong, build, cuts, fit
from llmtop.load.verdict import BadLimit, parse_goodput, parse_slo

NAMES = tuple(SCENARIOS)
FIELDS = (
    ("users", "Users", "at once, one level each"),
    ("prompts", "Requests", "per level"),
    ("input", "Prompt", "tokens per request"),
    ("output", "Answer", "tokens per request"),
    ("rates", "Rate", "requests per second, one level each"),
    ("seconds", "Seconds", "per level at most"),
    ("slo", "Limits", "the sweet spot keeps them all"),
    ("goodput", "Goodput", "ttft:MS tpot:MS e2el:MS, of each request"),
    ("api", "Route", "auto, completions or chat"),
)
_ALL = tuple(name for name, _, _ in FIELDS)


def used(scenario: str) -> tuple[str, ...]:
    """The fields that a scenario uses; all of them where nothing is said."""
    fields = scenarios.SCENARIOS[scenario].fields
    return (*fields, "goodput", "api") if fields else _ALL


class BadField(Exception):
    """A field that cannot be read, in words."""


def defaults(scenario: str) -> dict[str, str]:
    """What the fields say at first; an empty one leaves its value to the scenario."""
    plan = build(scenario, Plan("", ()), Options())
    levels = plan.levels
    return {
        "users": ",".join(dict.fromkeys(str(level.concurrency) for level in levels)),
        "prompts": _common(level.num_prompts for level in levels),
        "input": _common(level.input_len for level in levels),
        "output": _common(level.output_len for level in levels),
        "rates": ",".join(f"{level.request_rate:g}" for level in levels if level.request_rate is not None),
        "seconds": _common(f"{level.duration_s:g}" for level in levels if level.duration_s),
        "slo": ",".join(f"{name}={limit:g}" for name, limit in plan.slo.items()),
        "goodput": "",
        "api": plan.api,
    }


def _common(values: Iterable[object]) -> str:
    """What all levels have alike; empty where they differ: the scenario then says it."""
    found = {str(value) for value in values}
    return found.pop() if len(found) == 1 else ""


def plan_of(scenario: str, texts: Mapping[str, str], server: ServerView | None, seed: int) -> Plan:
    """The plan that the fields ask for, with prompts that fit the model; raises `BadField`."""
    plan = _asked(scenario, texts, server, seed)
    try:
        plan = fit(plan, server.max_model_len if server is not None else None)
    except TooLong as error:
        raise BadField(str(error)) from None
    if problems := plan.problems():
        raise BadField("; ".join(problems))
    return plan


def cut_note(scenario: str, texts: Mapping[str, str], server: ServerView | None) -> str | None:
    """What does not fit the model, in words; None when all does. The fields must make a plan."""
    return cuts(_asked(scenario, texts, server, 0), server.max_model_len if server is not None else None)


def _asked(scenario: str, texts: Mapping[str, str], server: ServerView | None, seed: int) -> Plan:
    if server is None:
        raise BadField("no server is selected")
    text = {name: texts[name].strip() if name in used(scenario) else "" for name in texts}
    try:
        slo = parse_slo(text["slo"]) if text["slo"] else {}
    except BadLimit as error:
        raise BadField(f"limits: {error}") from None
    try:
        goodput = parse_goodput(_parts(text.get("goodput", "")))
    except BadLimit as error:
        raise BadField(f"goodput: {error}") from None
    options = Options(
        concurrencies=_wholes(text["users"], "users"),
        num_prompts=_whole(text["prompts"], "requests"),
        input_len=_whole(text["input"], "prompt"),
        output_len=_whole(text["output"], "answer"),
        request_rates=_numbers(text["rates"], "rate"),
        duration_s=_number(text["seconds"], "seconds"),
    )
    routes: Mapping[str, Api] = {route: route for route in ROUTES}
    if (api := routes.get(text.get("api") or "auto")) is None:
        raise BadField(f"route: {text['api']!r} is none of {', '.join(ROUTES)}")
    base = Plan(server.url, (), model=server.model, api=api, seed=seed, slo=slo, goodput_ms=goodput)
    return build(scenario, base, options)


def estimate(plan: Plan, server: ServerView | None, levels: Sequence[LevelResult] = ()) -> str:
    """About how long the plan takes, by what the server does now, or did in the levels of a test before."""
    took = estimate_s(plan, _pace(server, levels))
    if took is None:
        return f"{UNKNOWN} (the server has answered nothing yet)"
    return f"about {duration(took)}"


def _pace(server: ServerView | None, levels: Sequence[LevelResult]) -> Pace | None:
    for level in sorted(levels, key=lambda level: level.concurrency):
        if level.ttft is not None and level.tpot is not None and level.tpot.mean_ms:
            return Pace(level.input_len / level.ttft.mean_ms * 1000, ((level.users, level.tpot.mean_ms / 1000),))
    if server is None:
        return None
    latency, rates = server.latency, server.rates
    read = rates.prompt_computed_tok_s or rates.prompt_tok_s
    if not latency.itl.mean_s or not latency.ttft.mean_s or not read or not rates.requests_s:
        return None
    read_s = max(latency.ttft.mean_s - (latency.queue.mean_s or 0.0), 0.1 * latency.ttft.mean_s)
    return Pace(read / rates.requests_s / read_s, ((max(1, server.running or 1), latency.itl.mean_s),))


def _wholes(text: str, what: str) -> tuple[int, ...] | None:
    return tuple(value for part in _parts(text) if (value := _whole(part, what)) is not None) or None


def _parts(text: str) -> list[str]:
    """What stands between commas or blanks."""
    return text.replace(",", " ").split()


def _numbers(text: str, what: str) -> tuple[float, ...] | None:
    return tuple(value for part in _parts(text) if (value := _number(part, what)) is not None) or None


def _whole(text: str, what: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    digits, times = (text[:-1], 1000) if text[-1] in "kK" else (text, 1)
    if not (digits.isascii() and digits.isdecimal() and int(digits[:12]) > 0 and len(digits) <= 12):
        raise BadField(f"{what}: {text!r} is no whole number above 0")
    return int(digits) * times


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
