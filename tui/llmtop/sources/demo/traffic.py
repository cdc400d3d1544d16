"""The demo's own light traffic: people chatting, more by day than by night, and now and then a burst that
queues.

Each user sends a turn, reads, and sends the next one with the whole conversation before it, behind one of a
few system prompts that everybody shares: so the prefix cache gets hits as it would in real life.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

from llmtop.sources.demo.engine import Output
from llmtop.sources.demo.profile import Profile
from llmtop.sources.demo.runtime import Runtime
from llmtop.sources.demo.tokens import VOCABULARY

MAX_USERS = 10
_DAY_S = 240.0  # from one quiet hour to the next
_BURST_S = (70.0, 140.0)  # between bursts
_READ_S = 6.0  # mean time between an answer and the next turn
_SYSTEM_PROMPTS = (384, 768, 1536)  # tokens
_TURNS = 6


class Traffic:
    """Seeded traffic on a runtime, at most `MAX_USERS` users and one burst at a time."""

    def __init__(self, runtime: Runtime, profile: Profile, seed: int = 0) -> None:
        self._runtime = runtime
        self._random = random.Random(seed)
        self._longest = profile.model.max_model_len
        self._burst = _burst_size(profile)
        self._speed = runtime.speed
        self._tasks: set[asyncio.Task[None]] = set()
        starts = (0, *_SYSTEM_PROMPTS)
        self._systems = [list(range(sum(starts[: i + 1]), sum(starts[: i + 2]))) for i in range(len(_SYSTEM_PROMPTS))]

    def start(self) -> None:
        """Begins, inside a running loop."""
        for number in range(MAX_USERS):
            self._spawn(self._user(number))
        self._spawn(self._bursts())

    def stop(self) -> None:
        """Ends; requests under way stay in the engine until they are done."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _spawn(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

    async def _user(self, number: int) -> None:
        """One user: present in the busy part of the day only, user 0 always."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        rng = random.Random(self._random.random())
        while True:
            phase = (clock() - begin) * self._speed / _DAY_S
            present = 1 + (MAX_USERS - 1) * (0.5 - 0.5 * math.cos(2 * math.pi * (phase + 0.2)))
            if number < present:
                await self._conversation(rng)
            await self._pause(rng.expovariate(1 / _READ_S))

    async def _conversation(self, rng: random.Random) -> None:
        history = list(rng.choice(self._systems))
        for _ in range(rng.randint(1, _TURNS)):
            history += _random_tokens(rng, int(rng.lognormvariate(5.0, 0.8)))
            output = min(int(rng.lognormvariate(4.7, 0.7)) + 8, 600)
            if len(history) + output > self._longest // 2:
                return
            await self._request(history, output)
            history += _random_tokens(rng, output)
            await self._pause(rng.expovariate(1 / _READ_S))

    async def _bursts(self) -> None:
        rng = random.Random(self._random.random())
        while True:
            await self._pause(rng.uniform(*_BURST_S))
            prompts = [_random_tokens(rng, rng.randint(64, 320)) for _ in range(self._burst)]
            await asyncio.gather(*(self._request(prompt, rng.randint(32, 96)) for prompt in prompts))

    async def _request(self, prompt: Sequence[int], output: int) -> None:
        """One request, until it is done or its engine is thrown away."""
        done = asyncio.Event()

        def sink(result: Output) -> None:
            if result.finish_reason is not None:
                done.set()

        if not self._runtime.slots:
            return
        ticket = self._runtime.submit(tuple(prompt), output, None, None, sink)
        while not done.is_set() and ticket.slot in self._runtime.slots:
            try:
                await asyncio.wait_for(done.wait(), 5.0)
            except TimeoutError:
                continue

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)


def _random_tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(VOCABULARY), k=max(count, 1))


def _burst_size(profile: Profile) -> int:
    """A fifth more than fits into the batch, but no more than 48 requests."""
    return min(profile.engine.max_num_seqs * 6 // 5 + 1, 48)
