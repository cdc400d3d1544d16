"""The demo's own light traffic: people chatting, more by day than by night, and now and then a burst that
queues.

A conversation opens with one of a few system prompts that everybody shares, at times with a long document;
each turn sends the whole conversation before it. So the prefix cache gets hits and the KV cache fills as
they would in real life.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine, Sequence

from llmtop.demo.engine import Output
from llmtop.demo.runtime import Ticket
from llmtop.demo.server import DemoServer
from llmtop.demo.tokens import VOCABULARY

MAX_USERS = 40
MIN_USERS = 4
_DAY_S = 240.0  # from one quiet hour to the next
_MORNING = 0.2  # the part of a day at which the demo begins
_BURST_S = (70.0, 140.0)  # between bursts
_LARGEST_BURST = 48
_READ_S = 6.0  # mean time between an answer and the next turn
_TURNS = 6
_SYSTEM_SHARES = (1 / 64, 1 / 32, 1 / 16)  # of the longest request, tokens
_DOCUMENT_SHARES = (1 / 8, 1 / 2)
_DOCUMENTS = 0.4  # share of conversations that open with one
_QUIET_S = 15.0  # after the last client's answer
_LOOK_S = 0.2
_WAIT_S = 5.0  # how often a user looks whether its engine still exists


class Traffic:
    """Seeded traffic on a server: a third as many users as the engine has places, and one burst at a time.

    It gives way to clients, so that a load test has the engine to itself: what is under way ends when the
    first one asks, and nothing new begins until none has asked for a while.
    """

    def __init__(self, server: DemoServer, seed: int = 0) -> None:
        self._server = server
        self._runtime = runtime = server.runtime
        profile = server.profile
        self._random = random.Random(seed)
        self._longest = profile.model.max_model_len
        self._users = min(max(profile.engine.max_num_seqs // 3, MIN_USERS), MAX_USERS)
        self._burst = min(profile.engine.max_num_seqs * 6 // 5 + 1, _LARGEST_BURST)
        self._speed = runtime.speed
        self._tasks: list[asyncio.Task[None]] = []
        self._open: dict[str, tuple[Ticket, asyncio.Event]] = {}
        self._systems = [_random_tokens(self._random, int(share * self._longest)) for share in _SYSTEM_SHARES]

    def start(self) -> None:
        """Begins, inside a running loop."""
        self._server.on_visit = self._give_way
        for number in range(self._users):
            self._spawn(self._user(number))
        self._spawn(self._bursts())

    def stop(self) -> None:
        """Ends; requests under way stay in the engine until they are done."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _user(self, number: int) -> None:
        """One user: present in the busy part of the day only, user 0 always."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        rng = random.Random(self._random.random())
        document = False  # nobody opens with one, or the first thing to see would be a long silence
        while True:
            day = (clock() - begin) * self._speed / _DAY_S + _MORNING
            present = 1 + (self._users - 1) * (0.5 - 0.5 * math.cos(2 * math.pi * day))
            if number < present:
                await self._conversation(rng, document)
                document = rng.random() < _DOCUMENTS
            await self._pause(rng.expovariate(1 / _READ_S))

    async def _conversation(self, rng: random.Random, document: bool) -> None:
        history = list(rng.choice(self._systems))
        if document:
            history += _random_tokens(rng, int(self._longest * rng.uniform(*_DOCUMENT_SHARES)))
        for _ in range(rng.randint(1, _TURNS)):
            history += _random_tokens(rng, int(rng.lognormvariate(5.0, 0.8)))
            output = min(int(rng.lognormvariate(5.0, 0.7)) + 8, 800)
            if len(history) + output > self._longest * 3 // 4:
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
        while self._server.visited_within(_QUIET_S / self._speed):
            await asyncio.sleep(_LOOK_S)
        done = asyncio.Event()

        def sink(result: Output) -> None:
            if result.finish_reason is not None:
                done.set()

        ticket = self._runtime.submit(tuple(prompt), output, None, None, sink)
        self._open[ticket.id] = ticket, done
        while not done.is_set() and ticket.slot in self._runtime.slots:
            try:
                await asyncio.wait_for(done.wait(), _WAIT_S)
            except TimeoutError:
                continue
        self._open.pop(ticket.id, None)

    def _give_way(self) -> None:
        for ticket, done in self._open.values():
            ticket.abort()
            done.set()
        self._open.clear()

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)


def _random_tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(VOCABULARY), k=max(count, 1))
