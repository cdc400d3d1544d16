"""One request on the wire: joins a connection, the reading of the reply, and the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from llmtop.load.completion import Outcome, Reply
from llmtop.net.connection import End


class Meter:
    """Token chunks received so far, of everything that shares it."""

    __slots__ = ("chunks",)

    def __init__(self) -> None:
        self.chunks = 0


class Exchange:
    """A transport handler that ends as soon as the reply is complete, failed or given up."""

    __slots__ = ("_meter", "end_s", "finished", "got_bytes", "outcome", "reply", "start_s")

    def __init__(self, reply: Reply, meter: Meter, start_s: float) -> None:
        self.reply = reply
        self.start_s = start_s
        self.end_s = start_s
        self.got_bytes = False
        self.outcome: Outcome | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._meter = meter

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """The transport's: status and headers came."""
        self.got_bytes = True
        encoding = headers.get("content-encoding", "").lower()
        self.reply.head(status, encoding, headers.get("retry-after", ""), headers.get("location", ""))

    def on_body(self, data: bytes, now: float) -> None:
        """The transport's: body bytes read at `now`."""
        if self.outcome is not None:
            return
        before = len(self.reply.times)
        enough = self.reply.body(data, now)
        self._meter.chunks += len(self.reply.times) - before
        if enough:
            self._end("complete", now)

    def on_end(self, end: End, now: float) -> None:
        """The transport's: the response ended, or the connection did."""
        self._end(end, now)

    def give_up(self, outcome: Outcome, now: float) -> None:
        """The client's: a timeout or a stop."""
        self._end(outcome, now)

    def overdue(self, now: float, last_read: float, ttft_s: float, idle_s: float) -> Outcome | None:
        """The timeout that has passed: no token in `ttft_s`, or silence for `idle_s` after the first."""
        if not self.reply.times:
            return Outcome.TIMEOUT_TTFT if now - self.start_s > ttft_s else None
        return Outcome.TIMEOUT_IDLE if now - last_read > idle_s else None

    def _end(self, end: End | Outcome, now: float) -> None:
        if self.outcome is None:
            self.outcome = self.reply.verdict(end, now)
            self.end_s = now
            self.finished.set_result(None)
