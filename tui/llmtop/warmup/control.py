"""The start-up that is watched beside a server: followed by its log, or inferred from what can be seen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llmtop.contract.settings import Settings
from llmtop.contract.snapshot import ServerView, State
from llmtop.machine.source import MachineTee
from llmtop.session.poller import Feed

if TYPE_CHECKING:
    from llmtop.warmup.log_source import LineSource
    from llmtop.warmup.recorded import StartupView
    from llmtop.warmup.watch import Watch

CALM_HZ = 10.0
REPORT_EVERY_S = 0.5
ROOTLESS_S = 10.0  # a start-up without a log and without a process to be seen is not waited for
TOLD_EVERY_S = 10.0


class WarmupControl:
    """Owns the watch of a start-up; there is one at a time.

    `feed` is told what the server does, and gets for its recording what was seen when a phase begins, at the end, and
    now and then between.
    """

    def __init__(
        self,
        tee: MachineTee,
        feed: Feed,
        settings: Settings,
        lines: LineSource | None = None,
    ) -> None:
        self._tee, self._feed, self._settings = tee, feed, settings
        self._lines = lines
        self._watch: Watch | None = None
        self._reported = self._told = 0.0
        self._seen: StartupView | None = None
        self.wanted = settings.startup
        self.url = settings.targets[0].url if settings.startup else None
        self._noticed = False  # whether the watch was begun because a server was seen to start
        self._begun = 0.0
        self._starting: str | None = None
        self._selected: str | None = None

    @property
    def seen(self) -> StartupView | None:
        """What is known of the start-up that is watched, or was last; None beside another server than its own."""
        return self._seen if self._selected in (None, self.url) or self.url is None else None

    def notice(self, server: ServerView | None) -> bool:
        """Begin to watch a server that starts up; whether that has just begun."""
        if server is None:
            self._starting = None
            return False
        self._selected = server.url
        mine = self.active and self.url == server.url
        if mine and self._noticed and server.state.live and self._watch is not None:
            self._watch.up()
        # what is seen here of memory and processes says nothing of a node's start-up
        starting = server.state is State.STARTING and self._feed.target(server.url).node is None
        begins = starting and self._starting != server.url and not mine and (self._noticed or not self.active)
        self._starting = server.url if starting else None
        if begins:
            self.begin(server.url)
            self._noticed = True
        return begins

    def begin(self, url: str | None = None) -> None:
        """Watch a start-up from now on: of the followed log, else of the server at `url`."""
        from llmtop.warmup.factory import FAST_HZ, make_watch  # here: the first frame does not wait for it

        self.end()
        self._seen, self._noticed, self._begun = None, False, time.monotonic()
        self.url = url or self.url
        self._tee.set_fast_hz(FAST_HZ)
        target = self._feed.target(self.url) if self.url else None
        self._watch = make_watch(self._settings, self._tee.branch(), self._lines, target)
        self._lines = None  # a log is followed once
        self._watch.start()

    def step(self) -> bool:
        """Take what has come; True when the start-up has just ended."""
        watch = self._watch
        if watch is None:
            return False
        watch.step()
        now, done = time.monotonic(), watch.done
        if done or now - self._reported >= REPORT_EVERY_S:
            self._reported = now
            self._look(watch, now, active=not done)
        lost = self._noticed and not watch.rooted and now - self._begun > ROOTLESS_S
        if done or lost:
            self.end()
        if self.url is not None:
            self._feed.starting(self.url, self._words())
        return done

    def _look(self, watch: Watch, now: float, *, active: bool) -> None:
        from llmtop.warmup import recorded

        before = self._seen
        self._seen = seen = recorded.StartupView(watch.report(), tuple(watch.readings), active, watch.pool)
        turned = before is None or _stage(before) != _stage(seen)
        if turned or now - self._told >= TOLD_EVERY_S:
            self._told = now
            self._feed.event(recorded.KIND, recorded.to_values(seen))

    @property
    def active(self) -> bool:
        """Whether a start-up is being watched."""
        return self._watch is not None

    def _words(self) -> str | None:
        """What the start-up does now; None when none is watched or it is over."""
        from llmtop.warmup.report import WORDS

        startup = self._seen.report.startup if self._seen is not None and self._watch is not None else None
        if startup is None or startup.state != "starting" or self._watch is None or not self._watch.rooted:
            return None
        return f"start-up: {startup.waits or (WORDS[startup.phase] if startup.phase else 'phase unknown')}"

    def end(self) -> None:
        """Stop watching; what was seen last stays."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
            self._tee.set_fast_hz(CALM_HZ)


def _stage(view: StartupView) -> tuple[str, str | None, bool]:
    return view.report.startup.state, view.report.startup.phase, view.active
