"""The start-up that the warm-up screen shows: followed by its log, or inferred from what can be seen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llmtop.sources.tee import MachineTee

if TYPE_CHECKING:
    from llmtop.sources.startup_log import LineSource
    from llmtop.warmup.report import Report
    from llmtop.warmup.watch import Watch

FAST_HZ, CALM_HZ = 20.0, 10.0
REPORT_EVERY_S = 0.5


class WarmupControl:
    """Owns the watch of a start-up; there is one at a time."""

    def __init__(self, tee: MachineTee, lines: LineSource | None = None, url: str | None = None) -> None:
        self._tee = tee
        self._lines = lines
        self.watch: Watch | None = None
        self.report: Report | None = None
        self._reported = 0.0
        self.wanted = lines is not None or url is not None
        self.url = url
        self._kept: list[tuple[float, int]] = []

    def begin(self, url: str | None = None) -> None:
        """Watch a start-up from now on: of the followed log, else of the server at `url`."""
        from llmtop.warmup.health import HealthProbe  # here: the first frame does not wait for them
        from llmtop.warmup.memory import MemoryLog
        from llmtop.warmup.watch import Watch

        self.end()
        self.url = url or self.url
        self._tee.set_fast_hz(FAST_HZ)
        self.watch = Watch(self._lines, MemoryLog(self._tee.branch()), HealthProbe(self.url) if self.url else None)
        self._lines = None  # a log is followed once
        self.watch.start()

    def step(self) -> bool:
        """Take what has come; True when the start-up has just ended."""
        watch = self.watch
        if watch is None:
            return False
        watch.step()
        now = time.monotonic()
        if watch.done or now - self._reported >= REPORT_EVERY_S:
            self._reported, self.report = now, watch.report()
        if watch.done:
            self.end()
            return True
        return False

    @property
    def active(self) -> bool:
        """Whether a start-up is being watched."""
        return self.watch is not None

    @property
    def words(self) -> str | None:
        """What the start-up does now; None when none is watched or it is over."""
        from llmtop.warmup.report import WORDS

        startup = self.report.startup if self.report is not None and self.active else None
        return f"start-up: {WORDS[startup.phase]}" if startup is not None and startup.state == "starting" else None

    def readings(self) -> list[tuple[float, int]]:
        """Unix time and headroom of the main pool, oldest first."""
        if self.watch is not None:
            self._kept = self.watch.readings
        return self._kept

    def end(self) -> None:
        """Stop watching; the last report stays."""
        if self.watch is not None:
            self._kept = self.watch.readings
            self.watch.stop()
            self.watch = None
            self._tee.set_fast_hz(CALM_HZ)
