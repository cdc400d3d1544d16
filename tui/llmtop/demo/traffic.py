"""The demo's own traffic: a story of a minute and a half that repeats.

Agents that carry long contexts come and go together: calm, a rush that fills the KV cache until requests queue and are
preempted, then recovery. A few people chat all the while. Contexts are in the prefix cache when the server opens, as
they are on one that has been up for a while, so a turn costs what it adds, and holds its whole context while it runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from itertools import pairwise

from llmtop.demo.engine import Engine, Output, Request
from llmtop.demo.profile import MachineProfile
from llmtop.demo.runtime import Ticket
from llmtop.demo.server import DemoServer
from llmtop.demo.tokens import VOCABULARY

STORY_S = 90.0
_PRESENT = ((0.0, 0.15), (16.0, 0.15), (28.0, 1.0), (58.0, 1.0), (68.0, 0.15), (STORY_S, 0.15))
"""(second of the story, share of the agents that are there)"""
_CONTEXT_SHARES = (0.82, 0.88)  # of the longest request, tokens
_LONGEST_SHARE = 0.97  # an agent whose context has grown beyond this begins anew
_FILLING = 0.98  # what the agents' contexts hold together, of the KV cache; what they write is more than the rest
_MOST_AGENTS = 40
_CHATTERS = 3
_GUESTS_SHARE, _MOST_GUESTS = 1 / 6, 16  # people who come with the rush, of the engine's places
_RUSH = 0.9  # the share of agents from which on they come
_SYSTEM_SHARE = 1 / 64
_TURNS = 6
_THINK_S, _READ_S = 2.0, 6.0  # mean time between an answer and the next turn, of agents and of people
_QUIET_S = 15.0  # after the last client's answer
_LOOK_S = 0.2
_WAIT_S = 5.0  # how often a user looks whether its engine still exists


class Traffic:
    """Seeded traffic on a server.

    It gives way to clients, so that a load test has the engine to itself: what is under way ends when the
    first one asks, and nothing new begins until none has asked for a while.
    """

    def __init__(self, server: DemoServer, seed: int = 0) -> None:
        self._server = server
        self._runtime = server.runtime
        self._random = random.Random(seed)
        self._longest = server.profile.model.max_model_len
        self._speed = server.runtime.speed
        self._tasks: list[asyncio.Task[None]] = []
        self._open: dict[str, tuple[Ticket, asyncio.Event]] = {}
        self._contexts = contexts(server.profile, self._random)

    def start(self) -> None:
        """Begin, inside a running loop; the engines have read every agent's context before."""
        for number, slot in enumerate(self._runtime.slots):
            spent = remember(slot.engine, self._contexts[number :: len(self._runtime.slots)])
            self._server.started = min(self._server.started, self._server.created - spent)
        self._server.on_visit = self._give_way
        begin = asyncio.get_running_loop().time()
        for number, context in enumerate(self._contexts):
            self._spawn(self._agent(number, context, begin))
        guests = min(int(self._server.profile.engine.max_num_seqs * _GUESTS_SHARE), _MOST_GUESTS)
        for number in range(_CHATTERS + guests):
            self._spawn(self._chatter(number < _CHATTERS, begin))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _agent(self, number: int, context: Sequence[int], begin: float) -> None:
        """One agent: turn after turn on one context, while the story has it there; the first one always."""
        rng = random.Random(self._random.random())
        history = list(context)
        while True:
            if number < max(1.0, self._present(begin) * len(self._contexts)):
                output = min(max(int(rng.lognormvariate(5.3, 0.5)), 60), 600)
                if len(history) + output + 80 > self._longest * _LONGEST_SHARE:
                    history = list(context)
                history += _random_tokens(rng, rng.randint(20, 80))
                await self._request(history, output)
                history += _random_tokens(rng, output)
            await self._pause(rng.expovariate(1 / _THINK_S))

    async def _chatter(self, always: bool, begin: float) -> None:
        """One person: short conversations that grow with every turn, begun `always` or only in the rush."""
        rng = random.Random(self._random.random())
        system = _random_tokens(rng, int(self._longest * _SYSTEM_SHARE))
        while True:
            history = list(system)
            for _ in range(rng.randint(1, _TURNS) if always or self._present(begin) >= _RUSH else 0):
                history += _random_tokens(rng, int(rng.lognormvariate(4.5, 0.6)))
                output = min(int(rng.lognormvariate(4.6, 0.6)) + 8, 400)
                await self._request(history, output)
                history += _random_tokens(rng, output)
                await self._pause(rng.expovariate(1 / _READ_S))
            await self._pause(rng.expovariate(1 / _THINK_S))

    def _present(self, begin: float) -> float:
        return present((asyncio.get_running_loop().time() - begin) * self._speed)

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


def present(second: float) -> float:
    """The share of the agents that are there at a second of the story."""
    at = second % STORY_S
    for (t0, a), (t1, b) in pairwise(_PRESENT):
        if at <= t1:
            return a + (b - a) * (at - t0) / (t1 - t0)
    return _PRESENT[-1][1]


def contexts(profile: MachineProfile, rng: random.Random) -> list[list[int]]:
    """The agents' contexts: together almost what the KV cache holds, or a few more than the engine has places."""
    low, high = (share * profile.model.max_model_len for share in _CONTEXT_SHARES)
    filling = profile.engine.kv_tokens * _FILLING / ((low + high) / 2)
    count = min(max(int(filling), 1), profile.engine.max_num_seqs * 5 // 4 + 1, _MOST_AGENTS)
    return [_random_tokens(rng, int(rng.uniform(low, high))) for _ in range(count)]


def remember(engine: Engine, prompts: Sequence[Sequence[int]]) -> float:
    """Let an idle engine read prompts one after the other in virtual time; the seconds that this took it."""
    now = 0.0
    for number, prompt in enumerate(reversed(prompts)):  # those that come first are the last to be forgotten
        engine.submit(Request(f"context-{number}", tuple(prompt), 1, now))
        while (step := engine.begin(now)) is not None:
            now = step.end
            engine.finish(step)
    return now


def _random_tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(VOCABULARY), k=max(count, 1))
