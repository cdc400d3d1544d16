"""One worker's part of one level: slots that send requests, closed or open loop, and record each one."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmtop.load.completion import REFUSED, Outcome, Reply
from llmtop.load.exchange import Exchange, Meter
from llmtop.load.plan import ROUTES, Level, Plan
from llmtop.load.prompts import Profile, Prompts
from llmtop.load.records import RequestRecord
from llmtop.net.connection import Connection, Connector

_PREPARED_BYTES = 64 << 20  # bodies made before the start; beyond, each is made before it is sent
_OPEN_LOOP_READY = 64  # connections opened ahead of an open loop
_WARM_UP = -1
_RUN = secrets.token_hex(4)  # so that our requests can be told apart in the server's log
STOPPED = "stopped"  # the reason when a person ends a level


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part: `slots` users, and of the level's requests every `step`-th from `first`."""

    slots: int
    first: int = 0
    step: int = 1
    warm_up: bool = True


@dataclass(slots=True)
class UserSlot:
    """One slot: its connection and what runs on it."""

    number: int
    connection: Connection | None = None
    exchange: Exchange | None = None
    connect_s: float | None = None
    used: bool = False


def arrivals(level: Level, seed: int) -> list[float]:
    """Seconds after the start at which each request of an open loop is due.

    Gaps are gamma-distributed with shape `burstiness` and the sum is scaled to N/rate, as vLLM does.
    """
    assert level.request_rate is not None
    rng = random.Random(f"{seed}/arrivals")
    gaps = [rng.gammavariate(level.burstiness, 1.0) for _ in range(level.num_prompts)]
    due = list(itertools.accumulate(gaps))
    scale = level.num_prompts / level.request_rate / due[-1]
    return [at * scale for at in due]


class LevelRun:
    """Plays a share of a level; `emit` gets a record for each request.

    `prepare`, then `run` at a common start time. `stop` may come at any moment.
    """

    def __init__(
        self,
        plan: Plan,
        profile: Profile,
        index: int,
        share: Share,
        connector: Connector,
        headers: Mapping[str, str],
        emit: Callable[[RequestRecord], None],
    ) -> None:
        self.level = plan.levels[index]
        self.stopped: str | None = None
        self.interrupted = False
        self.refused = False
        self.meter = Meter()
        self.sent = self.completed = self.errors = 0
        self._plan, self._index, self._share = plan, index, share
        self._connector, self._headers, self._emit = connector, headers, emit
        self._prompts, self._api = Prompts(plan, profile), profile.api
        self._asked = self.level.output_len if self._prompts.exact_output else None
        self._numbers = iter(range(share.first, self.level.num_prompts, share.step))
        self._slots = [UserSlot(share.first + i * share.step) for i in range(share.slots)]
        self._bodies: dict[int, bytes] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._deadline: float | None = None
        self._connect_errors = 0
        self._failure: BaseException | None = None
        self._tokens = self._chunks = 0
        self._tokens_per_chunk = profile.tokens_per_chunk or 1.0
        self._trail: deque[tuple[float, float]] = deque(maxlen=5)
        self._fresh_ttfts: list[tuple[float, float, bool]] = []

    # before the start

    async def prepare(self) -> RequestRecord | None:
        """Makes the bodies, warms up with a request of the level's size, opens the connections."""
        self._encode()
        record = await self._warm_up() if self._share.warm_up and self._plan.warm_up else None
        ready = self._slots if self.level.request_rate is None else self._slots[:_OPEN_LOOP_READY]
        await asyncio.gather(*(self._connected(slot) for slot in ready))
        return record

    def _encode(self) -> None:
        numbers = range(self._share.first, self.level.num_prompts, self._share.step)
        size = len(self._body(_WARM_UP))
        for number in numbers[: max(len(self._slots), _PREPARED_BYTES // size)]:
            self._bodies[number] = self._body(number)

    def _body(self, number: int) -> bytes:
        ready = self._bodies.pop(number, None)
        if ready is not None:
            return ready
        body = self._prompts.body(self.level, self._index, number)
        headers = {**self._headers, "X-Request-Id": f"llmtop-{_RUN}-{self._index}-{number}"}
        return self._connector.origin.request("POST", ROUTES[self._api], headers, body)

    async def _warm_up(self) -> RequestRecord | None:
        records: list[RequestRecord] = []
        watch = asyncio.create_task(self._watch())
        self._begin(self._request(self._slots[0], _WARM_UP, None, records.append))
        await asyncio.wait(self._tasks)
        watch.cancel()
        self._slots[0].used = False
        self.sent = self.meter.chunks = 0
        return records[0] if records else None

    # the run

    async def run(self, t0: float) -> None:
        """Plays the share from `t0` (time.perf_counter seconds) until all requests ended."""
        level = self.level
        if level.duration_s is not None:
            self._deadline = t0 + level.duration_s
        watch = asyncio.create_task(self._watch(t0 + self._plan.caps.level_s))
        await asyncio.sleep(max(0.0, t0 - time.perf_counter()))
        if level.request_rate is None:
            for slot in self._slots:
                self._begin(self._user(slot))
        else:
            self._begin(self._schedule(t0))
        while self._tasks:
            await asyncio.wait(self._tasks)
        watch.cancel()
        self._close()
        if self._failure is not None:
            raise self._failure

    def stop(self, reason: str, abort: bool = True, interrupted: bool = True) -> None:
        """No new requests from now on; with `abort`, those in flight are cut off at once.

        `interrupted` says that the level then tells nothing about the server.
        """
        if self.stopped is None:
            self.stopped, self.interrupted = reason, interrupted
        if not abort:
            return
        now = time.perf_counter()
        for slot in self._slots:
            if slot.exchange is not None:
                slot.exchange.give_up(Outcome.CANCELLED, now)
        self._close()
        asyncio.get_running_loop().call_later(0.05, self._cancel_rest)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Where the level is, for the screen: counts, tok/s of the last second, a state per slot."""
        tokens = self.meter.chunks * self._tokens_per_chunk
        self._trail.append((now, tokens))
        then, before = self._trail[0]
        fresh, self._fresh_ttfts = self._fresh_ttfts, []
        return {
            "sent": self.sent,
            "completed": self.completed,
            "errors": self.errors,
            "running": sum(slot.exchange is not None for slot in self._slots),
            "tokens": round(tokens),
            "tok_s": (tokens - before) / (now - then) if now > then else None,
            "ttfts": fresh,
            "lanes": [self._slot_state(slot, now) for slot in self._slots],
        }

    def _slot_state(self, slot: UserSlot, now: float) -> tuple[int, str, int, float]:
        exchange = slot.exchange
        if exchange is None:
            return slot.number, "idle", 0, 0.0
        chunks = len(exchange.reply.times)
        tokens = round(chunks * self._tokens_per_chunk)
        return slot.number, "decode" if chunks else "wait", tokens, round(now - exchange.start_s, 3)

    def _close(self) -> None:
        for slot in self._slots:
            if slot.connection is not None:
                slot.connection.abort()
                slot.connection = None

    def _cancel_rest(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self.stop(f"a fault of llmtop: {error!r}")

    # users and schedules

    def _next(self) -> int | None:
        late = self._deadline is not None and time.perf_counter() >= self._deadline
        return None if self.stopped or late else next(self._numbers, None)

    async def _user(self, slot: UserSlot) -> None:
        """One user of a closed loop: the next request when the one before has ended."""
        while (number := self._next()) is not None:
            await self._request(slot, number, None, self._take)

    async def _schedule(self, t0: float) -> None:
        """An open loop: each request at its time, or as soon after as a slot is free."""
        free = asyncio.LifoQueue[UserSlot]()
        for slot in reversed(self._slots):
            free.put_nowait(slot)
        due = arrivals(self.level, self._plan.seed + self._index)
        while (number := self._next()) is not None:
            at = t0 + due[number]
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            slot = await free.get()
            if self.stopped is None:
                self._begin(self._scheduled(slot, number, at, free))

    async def _scheduled(self, slot: UserSlot, number: int, at: float, free: asyncio.LifoQueue[UserSlot]) -> None:
        try:
            await self._request(slot, number, at, self._take)
        finally:
            free.put_nowait(slot)

    # one request

    async def _request(
        self, slot: UserSlot, number: int, at: float | None, take: Callable[[RequestRecord], None]
    ) -> None:
        data, retried = self._body(number), False
        while True:
            reused = slot.connection is not None and slot.connection.usable()
            connection = await self._connected(slot)
            if connection is None:
                take(self._unconnected(slot, number, at))
                return
            exchange = await self._exchange(slot, connection, data)
            if retried or not reused or exchange.got_bytes or exchange.outcome is not Outcome.CUT:
                break
            retried = True  # the server closed an idle connection as we used it
        take(self._recorded(slot, number, at, exchange, retried))
        if exchange.outcome in (Outcome.TIMEOUT_TTFT, Outcome.TIMEOUT_IDLE, Outcome.CANCELLED):
            connection.abort()
        else:
            await connection.settle()

    async def _connected(self, slot: UserSlot) -> Connection | None:
        """The slot's connection, opened anew when it is not usable; None when that fails."""
        if slot.connection is not None and slot.connection.usable():
            return slot.connection
        if slot.connection is not None:
            slot.connection.abort()
        began = time.perf_counter()
        try:
            slot.connection = await self._connector.open()
        except (OSError, TimeoutError):
            slot.connection = None
        slot.connect_s = time.perf_counter() - began
        return slot.connection

    async def _exchange(self, slot: UserSlot, connection: Connection, data: bytes) -> Exchange:
        exchange = Exchange(Reply(self._api == "chat", self._asked), self.meter, 0.0)
        self.sent += 1
        exchange.start_s = connection.send(data, exchange)
        slot.exchange = exchange
        try:
            await exchange.finished
        finally:
            slot.exchange = None
            connection.detach()
        return exchange

    async def _watch(self, end_s: float | None = None) -> None:
        """Gives up on what is overdue, and stops the level at its wall limit."""
        limits = self._plan.timeouts
        ttft_s = limits.first_token_s(self.level)
        while True:
            await asyncio.sleep(min(0.1, limits.ttft_s / 10, limits.idle_s / 10))
            now = time.perf_counter()
            for slot in self._slots:
                if slot.exchange is None or slot.connection is None:
                    continue
                late = slot.exchange.overdue(now, slot.connection.last_read, ttft_s, limits.idle_s)
                if late is not None:
                    slot.exchange.give_up(late, now)
            if end_s is not None and now > end_s:
                self.stop("wall limit of the level", interrupted=False)

    # records

    def _unconnected(self, slot: UserSlot, number: int, at: float | None) -> RequestRecord:
        now = time.perf_counter()
        return RequestRecord(
            index=number,
            slot=slot.number,
            start_s=now if at is None else at,
            end_s=now,
            outcome=Outcome.CONNECT,
            asked_prompt=self.level.input_len,
            asked_output=self.level.output_len,
            connect_s=slot.connect_s,
        )

    def _recorded(
        self, slot: UserSlot, number: int, at: float | None, exchange: Exchange, retried: bool
    ) -> RequestRecord:
        reply, times = exchange.reply, exchange.reply.times
        start = exchange.start_s if at is None else at
        connect_s, slot.connect_s = slot.connect_s, None
        first_wave, slot.used = at is None and not slot.used, True
        metrics = reply.metrics or {}
        return RequestRecord(
            index=number,
            slot=slot.number,
            start_s=start,
            end_s=exchange.end_s,
            outcome=exchange.outcome or Outcome.CANCELLED,
            ttft_s=times[0] - start if times else None,
            latency_s=(times[-1] if times else exchange.end_s) - start,
            itls_s=tuple(round(after - before, 7) for before, after in itertools.pairwise(times)),
            asked_prompt=self.level.input_len,
            asked_output=self.level.output_len,
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.completion_tokens,
            output_estimated=bool(times) and reply.completion_tokens is None,
            first_tokens=reply.tokens_at_first(),
            hidden_tokens=reply.hidden_tokens(),
            content_s=reply.content_s - start if reply.content_s is not None else None,
            finish_reason=reply.finish_reason,
            http_status=reply.status,
            message=reply.message[:500],
            late_s=exchange.start_s - start,
            connect_s=connect_s,
            retried=retried,
            first_wave=first_wave,
            server_ttft_s=_seconds(metrics.get("time_to_first_token_ms")),
            server_queue_s=_seconds(metrics.get("queue_time_ms")),
        )

    def _take(self, record: RequestRecord) -> None:
        """Counts a record, passes it on, and stops the level when errors say so."""
        self._emit(record)
        if record.ttft_s is not None:
            self._fresh_ttfts.append((record.start_s + record.ttft_s, record.ttft_s, record.first_wave))
        if record.outcome is Outcome.CANCELLED:
            return
        self.completed += record.ok
        self.errors += not record.ok
        if record.ok:
            self._tokens += record.output
            self._chunks += record.chunks
            self._tokens_per_chunk = self._tokens / self._chunks
        self._judge(record)

    def _judge(self, record: RequestRecord) -> None:
        caps = self._plan.caps
        self._connect_errors = self._connect_errors + 1 if record.outcome is Outcome.CONNECT else 0
        ended = self.completed + self.errors
        if record.http_status in REFUSED:
            self.refused = True
            self.stop(f"the server refuses load ({record.words})", abort=False, interrupted=False)
        elif self._connect_errors >= caps.connect_errors:
            self.stop(f"{self._connect_errors} connection errors in a row", interrupted=False)
        elif ended >= caps.error_minimum and self.errors > caps.error_share * ended:
            self.stop(f"{self.errors} of {ended} requests failed", interrupted=False)


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else None
