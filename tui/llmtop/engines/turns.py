"""Tells a restart from a balancer: several servers that answer in turn at one address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmtop.engines.page_record import Page

REMEMBERED_S = 60.0
SAME_START_S = 0.5
CLOCKS_APART_S = 60.0  # at most, those of two machines
# without a clock a fall and a rise may be a restart and a fast start
TURNS_NEEDED = 2
LEAP = 1000.0  # tokens, steps and requests between two processes
YOUNG = 0.05  # of what the one before had counted: so little is a start, whatever a clock says
MOST_TOK_S = 1e5  # that one engine generates
LONG_RUN = 5  # pages of one process in a row: whoever else was there is gone

Counts = Mapping[tuple[str, str, str], float]


@dataclass(slots=True)
class _Seen:
    """A process that has answered: when it began, as it says, its counters, when it answered last."""

    started: float | None
    counts: Counts
    t: float
    fresh: bool  # it was taken for the one before it, restarted
    run: int = 1  # pages in a row

    def continues(self, started: float | None, counts: Counts) -> bool:
        """Whether a page can be the next one of this process."""
        if self.started is not None and started is not None and abs(started - self.started) > SAME_START_S:
            return False
        if self.counts and counts and self.counts.keys().isdisjoint(counts):
            return False  # of other models
        return all(counts.get(name, before) >= before for name, before in self.counts.items())

    def away(self, counts: Counts) -> float:
        """How far the counters of a page are from its own."""
        return sum(counts[name] - before for name, before in self.counts.items() if name in counts)

    def leapt(self, counts: Counts, t: float) -> bool:
        """Whether a page is further on than one engine comes in the time."""
        rows = [(name, value) for name, value in counts.items() if name[2] == "generation" and name in self.counts]
        return any(value - self.counts[name] > MOST_TOK_S * max(1.0, t - self.t) for name, value in rows)


class Turns:
    """The processes behind one address."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []  # the newest last
        self._turns: list[float] = []
        self._timed = False
        self._engine = ""
        self._clock: float | None = None  # the server's, at the last page

    def take(self, page: Page) -> bool:
        """Take in a page; True when it is of another server than the page before, and not of one that restarted."""
        started, counts = _began(page), _counts(page)
        if page.dialect.partition("-")[0] != self._engine:
            self.forget()  # another engine is another server's start
        self._engine = page.dialect.partition("-")[0]
        self._timed = started is not None
        self._seen = [seen for seen in self._seen if seen.t >= page.t - REMEMBERED_S] or self._seen[-1:]
        self._turns = [t for t in self._turns if t >= page.t - REMEMBERED_S]
        newest = self._seen[-1] if self._seen else None
        if newest is not None and newest.run > LONG_RUN and started is None:
            del self._seen[:-1]
        back = self._nearest(started, counts, page.t, newest)
        other = newest is not None and (
            back is not newest if back is not None else self._was_there(newest, started, page)
        )
        if back is not None:
            self._seen.remove(back)
        fresh = back.fresh if back is not None else newest is not None and not other
        run = newest.run + 1 if newest is not None and back is newest else 1
        self._seen.append(_Seen(started, counts, page.t, fresh, run))
        self._clock = page.clock
        if other:
            self._turns.append(page.t)
        return other

    def _nearest(self, started: float | None, counts: Counts, t: float, newest: _Seen | None) -> _Seen | None:
        """The process that the page is of; None for one that was not there."""
        fitting = [seen for seen in self._seen if seen.continues(started, counts)]
        if newest in fitting and newest is not None and started is None and newest.leapt(counts, t):
            fitting.remove(newest)
        nearest = min(fitting, key=lambda seen: seen.away(counts), default=None)
        if newest not in fitting or nearest is newest or newest is None or nearest is None:
            return nearest
        leapt = started is None and newest.away(counts) - nearest.away(counts) >= LEAP
        return nearest if leapt else newest

    def _was_there(self, newest: _Seen, started: float | None, page: Page) -> bool:
        """Whether a process that is new here ran already when another one answered: no restart of that, then."""
        if self.several() is not None:
            return True
        if started is None or newest.started is None:
            return newest.leapt(_counts(page), page.t)
        if started > newest.started and _young(_counts(page), newest.counts):
            return False
        return started < newest.started or (self._clock is not None and started < self._clock - CLOCKS_APART_S)

    def several(self) -> int | None:
        """How many servers answer in turn; None for one."""
        if len(self._turns) < (1 if self._timed else TURNS_NEEDED):
            return None
        return max(2, len(self._seen))

    def false_restarts(self) -> int:
        """How many restarts, not yet told, were turns; known once several answer."""
        if self.several() is None:
            return 0
        count = sum(seen.fresh for seen in self._seen)
        for seen in self._seen:
            seen.fresh = False
        return count

    def forget(self) -> None:
        """Nobody answers: what comes next may be a restart of any of them."""
        self._seen.clear()
        self._turns.clear()


def _young(counts: Counts, before: Counts) -> bool:
    """Whether a process has hardly counted anything beside the one before it."""
    both = [(counts[name], value) for name, value in before.items() if name in counts and value > 0]
    return bool(both) and all(count <= YOUNG * value for count, value in both)


def _began(page: Page) -> float | None:
    if page.start_time is not None or len(page.rows) != 1:
        return page.start_time
    return page.rows[0].gauges.get("created")


def _counts(page: Page) -> Counts:
    return {(*row.key, name): value for row in page.rows for name, value in row.counters.items()}
