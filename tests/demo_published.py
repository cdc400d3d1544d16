"""What people published about these machines, beside what their profiles make of it.

`PYTHONPATH=tests python -m demo_published` prints the table in Markdown. Levels run in virtual time, so the
whole table takes about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from demo_fidelity import Level, run_level
from llmtop.demo import profile as profiles
from llmtop.demo.profile import MachineProfile

TOLERANCE = 0.10
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure (a range where several were published) and the simulated one."""

    machine: str
    what: str
    unit: str
    low: float
    high: float
    simulated: float

    @property
    def deviation(self) -> float:
        """Relative distance to the published figure or range; 0 inside a range."""
        if self.low <= self.simulated <= self.high:
            return 0.0
        nearest = self.low if self.simulated < self.low else self.high
        return self.simulated / nearest - 1

    @property
    def holds(self) -> bool:
        """Whether it is within the tolerance."""
        return abs(self.deviation) <= TOLERANCE


def figures() -> Iterator[Figure]:
    """Every published figure, simulated now."""
    yield from _gb10()
    yield from _gb10_memory()
    yield from _llamacpp()
    yield from _gh200()
    yield from _compared()


def _gb10() -> Iterator[Figure]:
    row = _rows("gb10")
    profile = profiles.load("gb10")
    alone = decode_speed(profile)
    yield row("decode alone", "tok/s", 34.33, alone)
    yield row("prefill 2048", "tok/s", 4092.79, prefill_speed(profile, 2048))
    yield row("prefill 8192", "tok/s", 3547.65, prefill_speed(profile, 8192))
    levels = {c: run_level(profile, Level(c, 64, 2048, 128)) for c in (8, 16, 32)}
    yield row("8 users, each", "tok/s", 11.78, levels[8].per_user_tok_s)
    yield row("8 users, total / decode alone", "×", 2.71, levels[8].output_tok_s / alone)
    yield row("8 users, P99 TTFT", "s", 3.93, levels[8].ttft_p99)
    yield row("16 users, each", "tok/s", 7.06, levels[16].per_user_tok_s)
    yield row("16 users, P99 TTFT", "s", 8.0, levels[16].ttft_p99)
    yield row("32 users, total / decode alone", "×", 4.20, levels[32].output_tok_s / alone)


def _gb10_memory() -> Iterator[Figure]:
    row = _rows("gb10")
    profile = profiles.load("gb10")
    phases = {phase.phase: phase.seconds for phase in profile.warmup}
    init = sum(phases[name] for name in ("compile", "profile", "kv", "warmup", "graphs"))
    engine = profile.engine
    yield row("KV cache", "GiB", 16.48, engine.kv_bytes / _GIB)
    yield row("KV cache", "tokens", 849_942, engine.kv_tokens)
    yield row("requests of 32,768 that fit", "×", 25.94, engine.kv_tokens / profile.model.max_model_len)
    yield row("resident", "MiB", 85_930, profile.engine_bytes / 2**20)
    yield row("ready after", "s", 681, sum(phases.values()))
    yield row("reading 15 shards", "s", 591, phases["weights"])
    yield row("engine init", "s", 30.13, init)
    yield row("graph capture", "s", 10.84, phases["graphs"])
    beside = profiles.load("gb10-32b")
    yield row("two models, a 32B beside it", "GiB", 103.5, (profile.engine_bytes + beside.engine_bytes) / _GIB)
    for model, context in ((profile, 32_768), (beside, 16_384)):
        room = min(model.model.max_model_len, model.engine.kv_tokens)
        yield row(f"context of {model.model.name}", "tokens", context, room)


def _llamacpp() -> Iterator[Figure]:
    row = _rows("gb10-llamacpp")
    profile = profiles.load("gb10-llamacpp")
    yield row("decode alone", "tok/s", 58.59, decode_speed(profile))
    yield row("prefill 2048", "tok/s", 1922.66, prefill_speed(profile, 2048))
    yield row("prefill 8192", "tok/s", 1899.19, prefill_speed(profile, 8192))


def _gh200() -> Iterator[Figure]:
    row = _rows("gh200")
    profile = profiles.load("gh200")
    outputs = {64: (260, 260), 128: (519, 519), 256: (887, 1180), 512: (936, 1053), 1024: (1011, 1011)}
    for tokens, speeds in outputs.items():
        result = run_level(profile, Level(1, 1, SHORT, tokens))
        yield row(f"{tokens} tokens out", "tok/s", speeds, result.output_tok_s)
    for context, speed, seconds in ((5_000, 104, 0.61), (10_000, 66, 0.97), (20_000, 39, 1.63), (32_000, 4.0, 15.9)):
        result = run_level(profile, Level(1, 1, context, 64))
        yield row(f"{context // 1000}K context, 64 out", "tok/s", speed, result.output_tok_s)
        yield row(f"{context // 1000}K context, 64 out", "s", seconds, result.duration_s)
    together = run_level(profile, Level(4, 4, SHORT, 25))
    yield row("4 short ones at once", "tok/s", 256, together.output_tok_s)
    yield row("4 short ones at once", "s", 0.39, together.duration_s)
    yield row("a short one alone", "s", (0.06, 0.12), run_level(profile, Level(1, 1, SHORT, 25)).duration_s)


def _compared() -> Iterator[Figure]:
    row = _rows("m2max")
    profile = profiles.load("m2max")
    yield row("256 tokens out", "tok/s", 14.7, run_level(profile, Level(1, 1, SHORT, 256)).output_tok_s)
    yield row("best", "tok/s", 31.6, run_level(profile, Level(1, 1, SHORT, 64)).output_tok_s)
    yield row("a short one alone", "s", 1.5, run_level(profile, Level(1, 1, SHORT, 25)).duration_s)
    yield row("4 short ones at once", "tok/s", 1.4, run_level(profile, Level(4, 4, SHORT, 25)).output_tok_s)
    row = _rows("ornith-35b")
    profile = profiles.load("ornith-35b")
    yield row("decode alone", "tok/s", 31, decode_speed(profile))
    yield row("prefill 2048", "tok/s", (3000, float("inf")), prefill_speed(profile, 2048))


SHORT = 30
"""Tokens of a short prompt."""


def decode_speed(profile: MachineProfile) -> float:
    """Tokens per second of one request after its first token."""
    result = run_level(profile, Level(1, 1, 1, 129))
    return 128 / (result.latencies[0] - result.ttfts[0])


def prefill_speed(profile: MachineProfile, tokens: int) -> float:
    """Prompt tokens per second until the first token of one request."""
    return tokens / run_level(profile, Level(1, 1, tokens, 1)).ttfts[0]


def _rows(machine: str) -> Callable[[str, str, float | tuple[float, float], float], Figure]:
    def row(what: str, unit: str, published: float | tuple[float, float], simulated: float) -> Figure:
        low, high = published if isinstance(published, tuple) else (published, published)
        return Figure(machine, what, unit, low, high, simulated)

    return row


def markdown() -> Iterator[str]:
    """The table, line by line."""
    yield "| machine | figure | published | simulated | off by |"
    yield "|---|---|---:|---:|---:|"
    for f in figures():
        published = _number(f.low) if f.low == f.high else f"{_number(f.low)}–{_number(f.high)}"
        if f.high == float("inf"):
            published = f"> {_number(f.low)}"
        simulated = f"{_number(f.simulated)} {f.unit}"
        yield f"| {f.machine} | {f.what} | {published} {f.unit} | {simulated} | {f.deviation:+.1%} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    print("\n".join(markdown()))
