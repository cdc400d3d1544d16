"""Times an idle server with a few requests, for the estimate of a plan's time."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from llmtop.load.exchange import Exchange
from llmtop.load.pace import MEASURED_TOKENS, Pace, block_measurement, estimate_s, measurement, straight
from llmtop.load.plan import Level
from llmtop.load.probe import Probe
from llmtop.load.prompts import Profile

_PATIENCE_S = 20.0  # a server that takes longer has told how fast it is for one user
_LONGEST_S, _SHARE = 60.0, 0.1  # of a long plan, so much of its time may pass before it


async def measure(probe: Probe, profile: Profile, tell: Callable[[Sequence[Level]], None]) -> Pace | None:
    """How fast an idle server is: one request with a long prompt, then several short ones at once.

    `tell` hears of levels that are asked for instead of these.
    """
    one, *more = measurement(probe.plan)
    alone = await probe.complete(profile, level=one)
    times = alone.reply.times
    if not times or times[0] <= alone.start_s:
        return None
    decoded = _decoded(alone)
    if decoded is None:
        levels = block_measurement(probe.plan)
        tell(levels)
        return await _in_blocks(probe, profile, alone, levels)
    _, half, end, chunks = decoded
    prefill = (alone.reply.prompt_tokens or one.input_len) / (times[0] - alone.start_s)
    steps, most = [(1, (end - half) / chunks)], None
    for level in more:
        found = [d for e in await _together(probe, profile, level, _PATIENCE_S) if (d := _decoded(e)) is not None]
        users = most_at_once(found)
        most = users if 0 < users < level.concurrency else None
        if users > 1:
            steps.append((users, statistics.median((end - half) / chunks for _, half, end, chunks in found)))
    return Pace(prefill, tuple(steps), most)


async def _in_blocks(probe: Probe, profile: Profile, long: Exchange, levels: Sequence[Level]) -> Pace | None:
    """The pace of a server whose answers come in too few parts to see its steps: by whole answers."""
    answers: dict[int, float] = {}
    for number, level in enumerate((level for level in levels if level.concurrency == 1), 100):
        exchange = await probe.complete(profile, level=level, number=number)
        if not exchange.reply.times:
            return None
        answers[level.output_len] = _took(exchange)
    short = answers[levels[0].output_len]
    known = tuple(sorted(answers.items()))
    read_s = max(_took(long) - straight(known, MEASURED_TOKENS), 0.05 * _took(long))
    prompt = long.reply.prompt_tokens or measurement(probe.plan)[0].input_len
    pace = Pace(prompt / read_s, ((1, short),), 1, known)
    return await _climbed(probe, profile, pace, [level for level in levels if level.concurrency > 1])


async def _climbed(probe: Probe, profile: Profile, pace: Pace, levels: Sequence[Level]) -> Pace:
    """The pace with what ever more users at once take, as long as that is worth its time.

    Until the last answer, so that it grows on for users beyond what the server serves at once.
    """
    began = time.perf_counter()
    for level in levels:
        share = _SHARE * (estimate_s(probe.plan, pace) or 0.0)
        left = began + max(_PATIENCE_S, min(share, _LONGEST_S)) - time.perf_counter()
        if 2 * pace.steps[-1][1] > left:
            return pace
        took = max(map(_took, await _together(probe, profile, level, left)), default=left)
        pace = replace(pace, steps=(*pace.steps, (level.concurrency, took)), most=level.concurrency)
    return replace(pace, most=None) if levels else pace


async def _together(probe: Probe, profile: Profile, level: Level, patience_s: float) -> list[Exchange]:
    """The answers of a level, whose requests are sent at once; empty where they take too long."""
    numbers = range(level.concurrency, 2 * level.concurrency)  # no prompt twice, whatever the levels
    work = (probe.complete(profile, level=level, number=number) for number in numbers)
    try:
        return await asyncio.wait_for(asyncio.gather(*work), patience_s)
    except TimeoutError:
        return []


def _took(exchange: Exchange) -> float:
    return exchange.reply.times[-1] - exchange.start_s if exchange.reply.times else 0.0


def _decoded(exchange: Exchange) -> tuple[float, float, float, int] | None:
    """When an answer began, was half there and ended, and the steps between the latter; None where it has too few."""
    times = exchange.reply.times
    half = len(times) // 2
    return (times[0], times[half], times[-1], len(times) - 1 - half) if len(times) >= MEASURED_TOKENS // 2 else None


def most_at_once(decoded: Sequence[tuple[float, float, float, int]]) -> int:
    """How many answers came at the same time: as many as the server serves at once, where more were asked."""
    return max((sum(begin <= at < end for begin, _, end, _ in decoded) for at, _, _, _ in decoded), default=0)
