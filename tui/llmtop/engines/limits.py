"""What holds a server back now, judged engine by engine, with the figures of the time that the verdict speaks of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

WINDOW_S = 30.0
KV_FULL = 0.95
STATE_FULL = 0.9  # every request holds a state of its own: this many of the most that fit
KV_FREE = 0.8  # up to here a queue is not for the cache's sake
RECENT_LOOKS = 3
LEAST_SHARE = 0.2  # of the window: what holds for less is not what holds the server back

# what requests wait for, as engines say: for their turn, or for what a larger batch or cache would not give them
_TURNS = frozenset({"queue", "capacity"})
_DEFERRED = frozenset({"deferred", "grammar", "transfer", "inflight", "bootstrap"})

Code = Literal["KV_PRESSURE", "STATE_POOL", "DEFERRED", "SEQ_CAP", "QUEUE", "MIXED", "UNDERLOADED"]
_Moment = Literal["KV_PRESSURE", "STATE_POOL", "DEFERRED", "SEQ_CAP", "QUEUE", "CALM", "IDLE"]
_WORST_FIRST: tuple[_Moment, ...] = ("KV_PRESSURE", "STATE_POOL", "DEFERRED", "SEQ_CAP", "QUEUE", "CALM", "IDLE")
_CAUSES: dict[_Moment, Code] = {
    "KV_PRESSURE": "KV_PRESSURE",
    "STATE_POOL": "STATE_POOL",
    "DEFERRED": "DEFERRED",
    "SEQ_CAP": "SEQ_CAP",
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What holds a server back, the share (0..1) of the window in which it did, and both in words."""

    code: Code
    share: float
    evidence: str


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What one engine of a page says of its load; `cap` is the most requests that it runs at once."""

    name: str
    running: int | None
    waiting: int | None
    kv_usage: float | None = None
    preemptions: int | None = None
    cap: int | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)  # who waits, as the engine tells it
    state_usage: float | None = None  # of the pool of states that models without full attention keep

    @property
    def deferred(self) -> int:
        """How many wait for what a larger batch or cache would not give them."""
        return sum(number for reason, number in self.reasons.items() if reason in _DEFERRED)

    @property
    def swapped(self) -> int:
        """How many lost their place in the cache to others and wait to get it back."""
        return self.reasons.get("swapped", 0)

    @property
    def queued(self) -> int:
        """How many wait for their turn, as far as reasons are told."""
        elsewhere = sum(number for reason, number in self.reasons.items() if reason not in _TURNS)
        return max(0, (self.waiting or 0) - elsewhere)

    @property
    def states_full(self) -> bool:
        """Whether the pool of states lets few more in."""
        return bool(self.running) and (self.state_usage or 0.0) > STATE_FULL

    @property
    def measured(self) -> bool:
        """Whether anything tells how much more it could take."""
        return self.cap is not None or self.kv_usage is not None

    @property
    def full(self) -> bool:
        """Whether one more request would have to wait."""
        at_cap = self.cap is not None and self.running is not None and self.running >= self.cap
        return at_cap or (self.kv_usage or 0.0) > KV_FULL or self.states_full


@dataclass(frozen=True, slots=True)
class _Look:
    """One page: its moment, the engine that the moment is of, and all engines by name."""

    t: float
    moment: _Moment | None
    of: EngineLoad | None
    preempted: int
    engines: Mapping[str, EngineLoad]

    @property
    def queued(self) -> bool:
        calm = self.moment in (None, "CALM", "IDLE") or (self.moment == "STATE_POOL" and not self.waiting)
        return not calm

    @property
    def running(self) -> int:
        return sum(load.running or 0 for load in self.engines.values())

    @property
    def waiting(self) -> int:
        return sum(load.waiting or 0 for load in self.engines.values())

    @property
    def of_cap(self) -> str:
        """` of N`, the most that all engines run at once; empty where one does not tell."""
        caps = [load.cap for load in self.engines.values()]
        return f" of {sum(cap for cap in caps if cap)}" if all(caps) else ""

    @property
    def kv_usage(self) -> float | None:
        return max((load.kv_usage for load in self.engines.values() if load.kv_usage is not None), default=None)


class LimitWindow:
    """The looks of the last `WINDOW_S` seconds, one per page."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()

    def clear(self) -> None:
        """Forget everything: the server restarted."""
        self._looks.clear()

    def push(self, t: float, engines: Iterable[EngineLoad]) -> None:
        """Judge the page of monotonic time `t`."""
        loads = {load.name: load for load in engines}
        preempted = {name: self._preempted(load) for name, load in loads.items()}
        moments = [(self._moment(load, preempted[load.name]), load) for load in loads.values()]
        known = [(moment, load) for moment, load in moments if moment is not None]
        moment, of = min(known, key=lambda pair: _WORST_FIRST.index(pair[0]), default=(None, None))
        self._looks.append(_Look(t, moment, of, sum(preempted.values()), loads))
        while self._looks[0].t < t - WINDOW_S:
            self._looks.popleft()

    def _preempted(self, load: EngineLoad) -> int:
        """How many requests the engine has preempted since the look before."""
        before = self._looks[-1].engines.get(load.name) if self._looks else None
        if before is None or before.preemptions is None or load.preemptions is None:
            return 0
        return max(0, load.preemptions - before.preemptions)

    def _moment(self, load: EngineLoad, preempted: int) -> _Moment | None:
        if load.running is None or load.waiting is None:
            return None
        if preempted or load.swapped or (load.waiting and (load.kv_usage or 0.0) > KV_FULL):
            return "KV_PRESSURE"
        if load.states_full:
            return "STATE_POOL"
        if not load.waiting:
            return "CALM" if load.running else "IDLE"
        if load.deferred * 2 > load.waiting:
            return "DEFERRED"
        return "SEQ_CAP" if self._capped(load, load.running) else "QUEUE"

    def _capped(self, load: EngineLoad, running: int) -> bool:
        """Requests wait and as many run as may; without a known cap: no more than before, beside a free cache."""
        past = [look.engines.get(load.name) for look in list(self._looks)[1 - RECENT_LOOKS :]]
        queued = [before.running or 0 for before in past if before is not None and before.waiting]
        if not load.queued:
            return False
        if load.cap is not None:  # one has just ended, and the next has not begun: still at the cap
            return running >= load.cap or (running >= 0.75 * load.cap and max(queued, default=0) >= load.cap)
        steady = len(queued) == RECENT_LOOKS - 1 and set(queued) == {running}
        return steady and running > 0 and max(load.kv_usage or 0.0, load.state_usage or 0.0) <= KV_FREE

    def verdict(self, *, room: int | None = None) -> Bottleneck | None:
        """What holds the server back now; `room` = how many requests of full length still fit.

        None while nothing runs, and while nobody waits and no more would fit. QUEUE = the page does not tell the cause.
        """
        newest = self._looks[-1] if self._looks else None
        if newest is None or newest.moment is None or not newest.running:
            return None
        if newest.moment == "STATE_POOL":
            return self._said("STATE_POOL", self._share("STATE_POOL"), self._pressed(newest, "STATE_POOL"))
        queued = sum(look.queued for look in self._looks) / len(self._looks)
        loads = newest.engines.values()
        fits = room != 0 and any(load.measured for load in loads) and not any(load.full for load in loads)
        if not queued or (fits and self._over(queued)):
            return self._said("UNDERLOADED", self._share("CALM"), self._calm(newest)) if fits else None
        cause = _CAUSES.get(newest.moment)
        stands = len(self._looks) == 1 or self._looks[-2].queued
        if cause and stands and (share := self._share(newest.moment)) >= LEAST_SHARE:
            return self._said(cause, share, self._pressed(newest, cause))
        if queued == 1.0 and not any(look.moment in _CAUSES for look in self._looks):
            return self._said("QUEUE", queued, self._waits(newest, room))
        return self._said("MIXED", queued, self._queue())

    def _over(self, queued: float) -> bool:
        """Whether a queue was short, is over, and cost nobody its place: whoever comes now need not wait."""
        recent = list(self._looks)[-RECENT_LOOKS:]
        return queued < LEAST_SHARE and not self._preemptions() and not any(look.queued for look in recent)

    def _share(self, moment: _Moment) -> float:
        return sum(look.moment == moment for look in self._looks) / len(self._looks)

    def _said(self, code: Code, share: float, figures: str) -> Bottleneck:
        span = self._looks[-1].t - self._looks[0].t
        what = {"UNDERLOADED": "nobody waited, some ran in", "MIXED": "a queue in", "QUEUE": "a queue in"}.get(code)
        held = f"{share * 100:.0f} % of the last {span:.0f} s" if span >= 1.0 else "just now"
        return Bottleneck(code, share, f"{figures}; " + " ".join(filter(None, (what, held))))

    def _pressed(self, look: _Look, cause: Code) -> str:
        assert look.of is not None
        load, label = look.of, f"engine {look.of.name}: " if len(look.engines) > 1 else ""
        if cause == "STATE_POOL":
            states = f"state pool {100 * (load.state_usage or 0.0):.0f} %"
            return f"{label}{states}, waiting {load.waiting}, {_kv(load.kv_usage)}"
        if cause == "DEFERRED":
            named = [
                f"{reason} {number}" for reason, number in load.reasons.items() if reason not in ("deferred", *_TURNS)
            ]
            why = f" ({', '.join(named)})" if named else ""
            return f"{label}{load.deferred} of {load.waiting} waiting are deferred{why}"
        if cause == "SEQ_CAP":
            cap = f" of {load.cap}" if load.cap else ", not rising"
            return f"{label}running {load.running}{cap}, waiting {load.waiting}, {_kv(load.kv_usage)}"
        swapped = f" ({load.swapped} swapped out)" if load.swapped else ""
        return f"{label}{_kv(load.kv_usage)}, waiting {load.waiting}{swapped}, preempted {self._preemptions()}"

    def _queue(self) -> str:
        """The extremes of the moments with a queue."""
        queued = [look for look in self._looks if look.queued]
        kv = max((look.kv_usage for look in queued if look.kv_usage is not None), default=None)
        preempted = f", preempted {count}" if (count := self._preemptions()) else ""
        return f"up to {max(look.waiting for look in queued)} waiting{preempted}, KV up to{_kv(kv)[2:]}"

    def _calm(self, look: _Look) -> str:
        return f"running {look.running}{look.of_cap}, {_kv(look.kv_usage)}"

    def _waits(self, look: _Look, room: int | None) -> str:
        """A queue below every limit that is known."""
        told = sorted({reason for load in look.engines.values() for reason in load.reasons})
        by_reason = [
            f"{reason} {sum(load.reasons.get(reason, 0) for load in look.engines.values())}" for reason in told
        ]
        why = "no request of full length fits" if room == 0 else ", ".join(by_reason) or "the page does not tell why"
        return f"running {look.running}{look.of_cap}, waiting {look.waiting}, {_kv(look.kv_usage)}: {why}"

    def _preemptions(self) -> int:
        return sum(look.preempted for look in self._looks)


def of_all(codes: Iterable[str | None]) -> str | None:
    """What holds the first of several servers back; that one would take more is said when none is held back."""
    said = [code for code in codes if code is not None]
    return next((code for code in said if code != "UNDERLOADED"), said[0] if said else None)


def _kv(usage: float | None) -> str:
    return "KV –" if usage is None else f"KV {usage * 100:.0f} %"
