"""One start-up as it happens: log lines, memory readings and /health put together into a report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from llmtop.contract.snapshot import Pool
from llmtop.machine.headroom import pool_key
from llmtop.net.health import HealthProbe
from llmtop.warmup.log_source import LineSource
from llmtop.warmup.memory import MemoryLog
from llmtop.warmup.report import Report, make_report
from llmtop.warmup.startup import Phase, Startup, Tracker
from llmtop.warmup.startup_evidence import evidence
from llmtop.warmup.startup_infer import infer
from llmtop.warmup.startup_lines import PhaseName

_QUIET_S = 5.0  # an exception followed by this much silence was the end
_GONE_S = 3.0  # a process that is not there any more is looked for this long after its last line
_MARGIN_S = 2.0
_INFER_S = 1.0


class Watch:
    """Follows a start-up; call `step` several times a second and `report` when something is to be shown."""

    def __init__(
        self,
        lines: LineSource | None = None,
        memory: MemoryLog | None = None,
        health: HealthProbe | None = None,
        *,
        reserve_gib: float | None = None,
        procfs: Path = Path("/proc"),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._memory, self._health = lines, memory, health
        self._reserve, self._procfs, self._clock = reserve_gib, procfs, clock
        self._tracker = Tracker()
        self._began = clock()
        self._last_line = self._began
        self._local: set[int] = set()  # pids of the log that are processes of this machine
        self._history = False
        self._closed = False
        self._last_inferred: tuple[float, Startup] | None = None

    def start(self) -> None:
        """Start the sources; the memory first, so that the state before the start is known."""
        for part in (self._memory, self._health, self._source):
            if part is not None:
                part.start()

    def stop(self) -> None:
        """Stop the sources."""
        for part in (self._source, self._health, self._memory):
            if part is not None:
                part.stop()

    @property
    def done(self) -> bool:
        """Whether the start-up is over, well or not, or its log has ended."""
        return self._tracker.done or self._closed or (self._source is None and self._answered() is not None)

    @property
    def phase(self) -> PhaseName:
        """The phase that is running now."""
        return self._tracker.phase if self._source is not None else self._inferred().phase

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The memory pools as they are now."""
        return () if self._memory is None else self._memory.pools

    @property
    def readings(self) -> list[tuple[float, int]]:
        """Unix time and headroom of the main pool, oldest first."""
        pool = None if self._memory is None else self._memory.main()
        return [] if self._memory is None or pool is None else self._memory.readings(pool_key(pool))

    def step(self) -> None:
        """Take what has come since the last call."""
        if self._memory is not None:
            self._memory.step()
        self._take_lines()
        answered = self._answered()
        if answered is not None and self._source is not None:
            self._tracker.answered(answered)
        self._look_for_the_end()

    def _take_lines(self) -> None:
        if self._source is None:
            return
        for line in self._source.take():
            self._tracker.feed(line.text, line.at)
            self._history = self._history or line.at is None
            self._last_line = line.at or self._last_line
        if not self._tracker.done:
            self._local |= {pid for pid in self._tracker.processes if self._lives(pid)}

    def _lives(self, pid: int) -> bool:
        """Whether the process is there and not a zombie that nobody has waited for."""
        try:
            return ") Z " not in (self._procfs / str(pid) / "stat").read_text()
        except OSError:
            return False

    def _answered(self) -> float | None:
        return None if self._health is None else self._health.answered_at

    def _look_for_the_end(self) -> None:
        now = self._clock()
        if self._source is None or self._tracker.done:
            return
        silent = now - self._last_line
        if self._source.ended:
            self._tracker.finish(self._source.exit_code, now)
            self._closed = True
        elif self._tracker.suspected and silent >= _QUIET_S:
            self._tracker.quiet()
        elif self._local and silent >= _GONE_S and not any(self._lives(p) for p in self._local):
            self._tracker.gone(now)

    def report(self) -> Report:
        """The start-up so far, with the least headroom of every phase, ledger, advice and verdict."""
        startup = self._startup()
        machine = None
        if self._memory is not None:
            self._memory.step(judge=True)
            startup = replace(startup, phases=tuple(self._measured(p) for p in startup.phases))
            startup = self._with_margin(startup)
            machine = self._memory.memory(self._local, not self._history)
            if machine is not None and startup.failure is not None:
                machine = machine.at_failure(startup.failure.margin_bytes)
        names = {} if self._memory is None else self._memory.names()
        return make_report(startup, evidence(startup, machine), self._reserve, names)

    def _startup(self) -> Startup:
        return self._tracker.startup() if self._source is not None else self._inferred()

    def _inferred(self) -> Startup:
        """What memory and /health show; looking at all readings anew is worth it once a second."""
        now = self._clock()
        if self._last_inferred is not None and now - self._last_inferred[0] < _INFER_S and self._answered() is None:
            return self._last_inferred[1]
        self._last_inferred = (now, self._infer(now))
        return self._last_inferred[1]

    def _infer(self, now: float) -> Startup:
        pool = None if self._memory is None else self._memory.main()
        total = None if pool is None else pool.total_bytes
        return infer(self.readings, total, self._began, self._answered(), now)

    def _measured(self, phase: Phase) -> Phase:
        if phase.began is None or self._memory is None:
            return phase
        ended = self._clock() if phase.ended is None else phase.ended
        dips = {key: self._memory.least(key, phase.began, ended) for key in self._memory.names()}
        pool = self._memory.main()
        least = None if pool is None else dips.get(pool_key(pool))
        return replace(
            phase,
            min_headroom_bytes=None if least is None else least.headroom_bytes,
            min_headroom_time=None if least is None else least.time,
            pools={key: dip.headroom_bytes for key, dip in dips.items() if dip is not None},
        )

    def _with_margin(self, startup: Startup) -> Startup:
        """The headroom at the moment of failure: the least of the two seconds before the last line."""
        failure, pool = startup.failure, None if self._memory is None else self._memory.main()
        if failure is None or pool is None or self._memory is None:
            return startup
        dip = self._memory.least(pool_key(pool), self._last_line - _MARGIN_S, self._last_line)
        if dip is None:
            return startup
        return replace(startup, failure=replace(failure, margin_bytes=dip.headroom_bytes))
