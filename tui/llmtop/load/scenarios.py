"""The eight scenarios, the plans they make, and the `vllm bench serve` commands that do the same."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from llmtop.load.plan import DEFAULT_SLO, ROUTES, Level, Plan

_SOAK_TOKENS = 40_000_000
_DOUBLING = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may change of a scenario; None keeps the scenario's own default."""

    concurrencies: tuple[int, ...] | None = None
    num_prompts: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    request_rates: tuple[float, ...] | None = None  # inf: all at once
    burstiness: float = 1.0
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named kind of load test: what it is called, what it shows, how it makes its levels."""

    name: str
    title: str
    shows: str
    levels: Callable[[Options], list[Level]]
    adaptive: bool = False
    refine: int = 0  # levels between the last good and the first bad one, where nobody names the users
    climbs: bool = True  # its levels differ in load alone, so that one of them can be the sweet spot
    fields: tuple[str, ...] = ()  # of the form, those that it uses; empty = all


def _closed(options: Options, c: int, prompts: int, size: tuple[int, int], name: str | None = None) -> Level:
    """A closed-loop level; `size` is the scenario's own input and output length."""
    return Level(
        name=name or f"c={c}",
        concurrency=c,
        num_prompts=options.num_prompts or prompts,
        input_len=options.input_len or size[0],
        output_len=options.output_len or size[1],
        duration_s=options.duration_s,
    )


def _sweep(options: Options) -> list[Level]:
    return [_closed(options, c, max(64, 3 * c), (2048, 128)) for c in options.concurrencies or (1, 4, 8, 16, 32)]


def _quick(options: Options) -> list[Level]:
    levels = [_closed(options, c, 4 * c, (2048, 128)) for c in options.concurrencies or _DOUBLING]
    return [replace(level, duration_s=options.duration_s or 20.0) for level in levels]


def _single(options: Options) -> list[Level]:
    """Like llama-bench: prompt processing at three sizes and generation at three depths."""
    repeats, c = options.num_prompts or 5, 1
    sizes = [("pp512", 512, 1), ("pp2048", 2048, 1), ("pp8192", 8192, 1)]
    output = options.output_len or 128
    sizes += [(f"tg{output}@d{depth}", max(depth, 16), output) for depth in (0, 2048, 8192)]
    return [Level(name, c, repeats, tokens_in, tokens_out) for name, tokens_in, tokens_out in sizes]


def _output(options: Options) -> list[Level]:
    lengths = (64, 128, 256, 512, 1024) if options.output_len is None else (options.output_len,)
    return [
        _closed(replace(options, output_len=n), c, 4 * c, (256, n), f"out {n} c={c}")
        for c in options.concurrencies or (1, 4)
        for n in lengths
    ]


def _context(options: Options) -> list[Level]:
    lengths = (5000, 10_000, 20_000, 32_000) if options.input_len is None else (options.input_len,)
    return [
        _closed(replace(options, input_len=n), c, 3 * c, (n, 128), f"in {n} c={c}")
        for n in lengths
        for c in options.concurrencies or (1, 4)
    ]


def _soak(options: Options) -> list[Level]:
    boxed = replace(options, duration_s=options.duration_s or 1800.0)
    size = options.input_len or 2048, options.output_len or 128
    prompts = min(20_000, _SOAK_TOKENS // sum(size))
    return [_closed(boxed, c, prompts, size) for c in options.concurrencies or (8,)]


def _rate(options: Options) -> list[Level]:
    return [_rated(options, rate) for rate in options.request_rates or (0.5, 1.0, 2.0)]


def _rated(options: Options, rate: float) -> Level:
    """Requests at a rate; an infinite one sends them all at once, as far as the cap lets it."""
    cap = max(options.concurrencies or (256,))
    level = _closed(options, cap, 64, (2048, 128), f"{rate:g} req/s")
    if math.isinf(rate):
        return replace(level, concurrency=min(cap, level.num_prompts))
    return replace(level, request_rate=rate, burstiness=options.burstiness)


def _burst(options: Options) -> list[Level]:
    return [_closed(options, c, c, (2048, 128)) for c in options.concurrencies or (1, 4, 8, 16, 32)]


SCENARIOS: Mapping[str, Scenario] = {
    s.name: s
    for s in (
        Scenario(
            "sweep",
            "Concurrency sweep",
            "how many users at once; the figures of vllm bench serve",
            _sweep,
            fields=("users", "prompts", "input", "output", "slo"),
        ),
        Scenario(
            "quick",
            "Quick sweep",
            "doubles the users until limits fail or gains end, then tries between",
            _quick,
            adaptive=True,
            refine=2,
            fields=("users", "input", "output", "seconds", "slo"),
        ),
        Scenario(
            "single",
            "Single user",
            "prompt and generation speed for one user, as llama-bench",
            _single,
            climbs=False,
            fields=("prompts", "output"),
        ),
        Scenario(
            "output",
            "Output length",
            "short to long answers, one after another and four at once",
            _output,
            climbs=False,
            fields=("users", "prompts", "input", "output"),
        ),
        Scenario(
            "context",
            "Context length",
            "long prompts, one after another and four at once",
            _context,
            climbs=False,
            fields=("users", "prompts", "input", "output"),
        ),
        Scenario(
            "soak",
            "Soak",
            "drift of speed, heat and errors under steady load",
            _soak,
            fields=("users", "input", "output", "seconds", "slo"),
        ),
        Scenario(
            "rate",
            "Request rate",
            "requests at a given rate, latency from the scheduled time",
            _rate,
            fields=("rates", "users", "prompts", "input", "output", "slo"),
        ),
        Scenario(
            "burst",
            "Burst",
            "everybody at once: what the first wave waits",
            _burst,
            fields=("users", "input", "output", "slo"),
        ),
    )
}


def build(scenario: str, base: Plan, options: Options | None = None) -> Plan:
    """`base` with the levels of `scenario`; raises `KeyError` for an unknown name.

    The default limits are about users at once: where levels differ in size, only limits asked for remain.
    """
    chosen, options = SCENARIOS[scenario], options or Options()
    levels = _once(chosen.levels(options))
    if chosen.adaptive:
        levels = _affordable(levels, base.caps.tokens)
    slo = base.slo if chosen.climbs or base.slo != DEFAULT_SLO else {}
    refine = chosen.refine if options.concurrencies is None else 0
    return replace(base, scenario=scenario, levels=tuple(levels), adaptive=chosen.adaptive, refine=refine, slo=slo)


def _once(levels: Iterable[Level]) -> list[Level]:
    """The levels without those that were named before."""
    out: dict[str, Level] = {}
    for level in levels:
        out.setdefault(level.name, level)
    return list(out.values())


def _affordable(levels: list[Level], tokens: int) -> list[Level]:
    """As many levels of a climb as the cap on tokens allows, one at least."""
    costs = accumulate(level.num_prompts * (level.input_len + level.output_len) for level in levels)
    return levels[: max(1, sum(cost <= tokens for cost in costs))]


class TooLong(ValueError):
    """An answer that leaves no room for a prompt."""


def fit(plan: Plan, max_model_len: int | None) -> Plan:
    """The plan with prompts cut to what the model takes beside the answer, and the chat template's tokens.

    Raises `TooLong` where the answer alone fills the model.
    """
    if max_model_len is None:
        return plan
    takes = max_model_len - (256 if plan.api == "chat" else 0)
    longest = max((level.output_len for level in plan.levels), default=0)
    if longest >= takes:
        raise TooLong(f"answers of {longest:,} tokens leave no room for a prompt: the model takes {max_model_len:,}")
    levels = (level if level.input_len <= takes - level.output_len else _cut(level, takes) for level in plan.levels)
    return replace(plan, levels=tuple(_once(levels)))


def cuts(plan: Plan, max_model_len: int | None) -> str | None:
    """What `fit` does to a plan, in words; None when nothing is cut."""
    if max_model_len is None or fit(plan, max_model_len).levels == plan.levels:
        return None
    asked, left = (max(level.input_len for level in p.levels) for p in (plan, fit(plan, max_model_len)))
    return f"prompts cut from {asked:,} to {left:,} tokens: the model takes {max_model_len:,} with the answer"


def _cut(level: Level, takes: int) -> Level:
    name, room = level.name, takes - level.output_len
    for shown in (f"pp{level.input_len}", f"in {level.input_len}"):
        name = name.replace(shown, shown.replace(str(level.input_len), str(room)))
    return replace(level, input_len=room, name=name.replace(f"@d{level.input_len}", f"@d{room}"))


def bench_commands(plan: Plan, model: str | None = None) -> list[str]:
    """The `vllm bench serve` command of each level, to be pasted into a shell; a key is never in it.

    Seeds differ per level: with one seed, vLLM's prefix cache would serve the prompts of the level before.
    """
    return [_bench_command(plan, level, i, model or plan.model) for i, level in enumerate(plan.levels)]


def _bench_command(plan: Plan, level: Level, index: int, model: str | None) -> str:
    chat = plan.api == "chat"
    words = ["vllm", "bench", "serve", "--backend", "openai-chat" if chat else "vllm"]
    words += ["--base-url", plan.url, "--endpoint", ROUTES[plan.api]]
    words += ["--model", model] if model else []
    words += ["--dataset-name", "random", "--random-input-len", str(level.input_len)]
    words += ["--random-output-len", str(level.output_len), "--num-prompts", str(level.num_prompts)]
    words += ["--max-concurrency", str(level.concurrency), "--seed", str(plan.seed + index)]
    if level.request_rate is not None:
        words += ["--request-rate", f"{level.request_rate:g}", "--burstiness", f"{level.burstiness:g}"]
    words += ["--ignore-eos"] if plan.ignore_eos else []
    words += ["--temperature", f"{plan.extra_body.get('temperature', 0)}"]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"]
    if plan.goodput_ms:
        words += ["--goodput", *(f"{name}:{limit:g}" for name, limit in plan.goodput_ms.items())]
    return shlex.join([*words, "--save-result", "--save-detailed"])
