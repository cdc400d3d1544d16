"""Runs engines in real time: one asyncio task per engine, outputs handed to whoever asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from llmtop.demo.engine import Engine, Output, Request, Step
from llmtop.demo.profile import MachineProfile

Sink = Callable[[Output], None]
# A loop that was held up longer than this does not make up for it: the engine was slow, as a real one would be.
_CATCH_UP_S = 0.25


@dataclass(slots=True)
class Slot:
    """One engine (a data-parallel rank) with the requests it serves."""

    rank: str
    engine: Engine
    sinks: dict[str, Sink] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    last_arrival: float = 0.0
    step: Step | None = None
    task: asyncio.Task[None] | None = None

    def effort(self, now: float) -> tuple[float, float]:
        """Seconds busy, and seconds of these with prompts to read, the step under way included."""
        effort, step = self.engine.effort, self.step
        if step is None:
            return effort.busy_s, effort.prefill_s
        spent = max(0.0, min(now, step.end) - step.start)
        return effort.busy_s + spent, effort.prefill_s + (spent if step.work.chunks else 0.0)


@dataclass(slots=True)
class Ticket:
    """A submitted request; `abort` frees what it holds."""

    id: str
    slot: Slot

    def abort(self) -> None:
        """Drops the request, as when its client has gone."""
        self.slot.sinks.pop(self.id, None)
        self.slot.engine.abort(self.id)


class Runtime:
    """`engines` engines of a profile in real time, `speed` times faster; call `start` inside a running
    loop.
    """

    def __init__(self, profile: MachineProfile, speed: float = 1.0, engines: int = 1) -> None:
        self.profile = profile
        self.speed = speed
        self.slots: list[Slot] = []
        self._serial = 0
        self._running = asyncio.Event()
        self._running.set()
        self._count = engines

    def start(self) -> None:
        """Starts the engines with empty counters."""
        self.slots = [Slot(str(i), Engine(self.profile, self.speed)) for i in range(self._count)]
        for slot in self.slots:
            slot.task = asyncio.get_running_loop().create_task(self._drive(slot))

    def stop(self) -> None:
        """Ends the engines; nobody hears from them any more."""
        for slot in self.slots:
            self._end(slot)
        self.slots = []

    def restart(self, engines: int | None = None) -> None:
        """Throws the engines away and starts new ones, of another number when given."""
        self.stop()
        self._count = self._count if engines is None else engines
        self.start()

    def drop_engine(self, rank: str) -> None:
        """Ends one engine and its requests."""
        for slot in [slot for slot in self.slots if slot.rank == rank]:
            self._end(slot)
            self.slots.remove(slot)

    def freeze(self, frozen: bool) -> None:
        """Stops or resumes every engine where it is."""
        if frozen:
            self._running.clear()
        else:
            self._running.set()

    def submit(
        self, prompt: Sequence[int], max_tokens: int, stop_after: int | None, salt: Hashable, sink: Sink
    ) -> Ticket:
        """Queues a request on the least loaded engine (waiting counts four times, as vLLM balances)."""
        slot = min(self.slots, key=lambda s: 4 * s.engine.waiting + s.engine.running)
        self._serial += 1
        slot.last_arrival = time.monotonic()
        request = Request(f"r{self._serial}", prompt, max_tokens, slot.last_arrival, stop_after, salt)
        slot.engine.submit(request)
        slot.sinks[request.id] = sink
        slot.wake.set()
        return Ticket(request.id, slot)

    @staticmethod
    def _end(slot: Slot) -> None:
        if slot.task is not None:
            slot.task.cancel()
        slot.sinks.clear()

    async def _drive(self, slot: Slot) -> None:
        now = time.monotonic()
        while True:
            await self._running.wait()
            step = slot.step = slot.engine.begin(now)
            if step is None:
                slot.wake.clear()
                await slot.wake.wait()
                now = time.monotonic()
                continue
            await asyncio.sleep(step.end - time.monotonic())
            if not self._running.is_set():
                await self._running.wait()
            slot.step = None
            for output in slot.engine.finish(step):
                self._deliver(slot, output)
            late = time.monotonic() - step.end
            now = time.monotonic() if late > _CATCH_UP_S else max(step.end, slot.last_arrival)

    @staticmethod
    def _deliver(slot: Slot, output: Output) -> None:
        done = output.finish_reason is not None
        sink = slot.sinks.pop(output.id, None) if done else slot.sinks.get(output.id)
        if sink is not None:
            sink(output)
