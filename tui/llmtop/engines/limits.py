"""What holds a server back now, with the share of the recent pages that show it as evidence."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from llmtop.contract.snapshot import ServerView

WINDOW_S = 30.0
KV_FULL = 0.95
PLATEAU_POLLS = 3


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, the share (0..1) of the window in which it held, and that in words."""

    code: str
    share: float
    evidence: str


@dataclass(frozen=True, slots=True)
class _Look:
    t: float
    code: str | None
    view: ServerView


class LimitWindow:
    """The verdicts of the last `WINDOW_S` seconds, one per page."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()

    def clear(self) -> None:
        """Forget everything: the server restarted."""
        self._looks.clear()

    def push(self, view: ServerView) -> None:
        """Judge one page; `view.age_s` carries its monotonic time."""
        t = view.age_s or 0.0
        self._looks.append(_Look(t, self._judge(view), view))
        while self._looks[0].t < t - WINDOW_S:
            self._looks.popleft()

    def _judge(self, view: ServerView) -> str | None:
        running, waiting = view.running, view.waiting
        if running is None or waiting is None:
            return None
        last = self._looks[-1].view if self._looks else None
        preempted = (
            last is not None
            and view.preemptions_total is not None
            and last.preemptions_total is not None
            and view.preemptions_total > last.preemptions_total
        )
        full = view.kv_usage is not None and view.kv_usage > KV_FULL
        if preempted or (full and waiting):
            return "KV_PRESSURE"
        deferred = view.waiting_by_reason.get("deferred", 0)
        if waiting and deferred * 2 > waiting:
            return "DEFERRED"
        if waiting and self._on_plateau(view):
            return "SEQ_CAP"
        return None if waiting else "UNDERLOADED"

    def _on_plateau(self, view: ServerView) -> bool:
        """Running has stopped at max_num_seqs, or at one value for some pages while requests wait."""
        if view.max_num_seqs is not None and view.running is not None and view.running >= view.max_num_seqs:
            return True
        recent = [look.view for look in list(self._looks)[-(PLATEAU_POLLS - 1) :]]
        steady = all(past.running == view.running and past.waiting for past in recent)
        return steady and len(recent) == PLATEAU_POLLS - 1 and bool(view.running)

    def verdict(self) -> Limit | None:
        """The most frequent limit of the window; None while nothing can be said."""
        codes = Counter(look.code for look in self._looks if look.code)
        if not codes:
            return None
        pressing = [code for code in codes if code != "UNDERLOADED"]
        # a queue that stood for a fifth of the window says more than the quiet rest of it
        code = max(pressing, key=lambda c: codes[c], default="UNDERLOADED")
        if code != "UNDERLOADED" and codes[code] < 0.2 * len(self._looks):
            code = codes.most_common(1)[0][0]
        share = codes[code] / len(self._looks)
        return Limit(code, share, self._evidence(code, share))

    def _evidence(self, code: str, share: float) -> str:
        view = self._looks[-1].view
        span = self._looks[-1].t - self._looks[0].t
        held = f"{share * 100:.0f} % of the last {span:.0f} s"
        if code == "KV_PRESSURE":
            kv = "–" if view.kv_usage is None else f"{view.kv_usage * 100:.0f} %"
            return f"KV {kv}, waiting {view.waiting}, preempted {view.preemptions_total or 0}; {held}"
        if code == "SEQ_CAP":
            cap = f" of {view.max_num_seqs}" if view.max_num_seqs else ", not rising,"
            return f"running {view.running}{cap} with {view.waiting} waiting and free KV; {held}"
        if code == "DEFERRED":
            return f"{view.waiting_by_reason.get('deferred', 0)} of {view.waiting} waiting are deferred; {held}"
        return f"no queue for {held}"
