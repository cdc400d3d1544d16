"""One start-up as it happens: log lines, memory readings, /health and the process put together into a report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from llmtop.contract.snapshot import Pool
from llmtop.machine.headroom import pool_key
from llmtop.machine.oom import OomWatch
from llmtop.net.client import HealthProbe
from llmtop.warmup import process
from llmtop.warmup.evidence import GIB, MachineMemory, evidence
from llmtop.warmup.log_source import LineSource, follow_file
from llmtop.warmup.memory import MemoryLog
from llmtop.warmup.phrases import PhaseName
from llmtop.warmup.report import Report, make_report
from llmtop.warmup.startup import Phase, Startup
from llmtop.warmup.tracker import Tracker

_QUIET_S = 5.0  # an exception followed by this much silence was the end
_GONE_S = 3.0  # a process that is not there any more is looked for this long after its last line
_MARGIN_S = 2.0
_TAIL = 2**24  # of an output file that holds more than this start-up


class Watch:
    """Follows a start-up; call `step` several times a second and `report` when something is to be shown.

    Without `lines` the log is the file that the process of `probe` writes its output to, if it is one; without any log
    nothing is said of phases.
    """

    def __init__(
        self,
        lines: LineSource | None = None,
        memory: MemoryLog | None = None,
        health: HealthProbe | None = None,
        *,
        probe: process.ProcessProbe | None = None,
        reserve_gib: float | None = None,
        procfs: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._memory, self._health, self._probe = lines, memory, health, probe
        self._reserve, self._procfs, self._sysfs, self._clock = reserve_gib, procfs, sysfs, clock
        self._tracker = Tracker()
        self._began = clock()
        self._launched: float | None = None
        self._last_line = self._began
        self._local: set[int] = set()  # pids of the log that are processes of this machine
        self._oom: OomWatch | None = None
        self._killer: str | None = None
        self._history = self._live = False  # whether lines were there before, and whether some came
        self._closed = False

    def start(self) -> None:
        """Start the sources; the memory first, so that the state before the start is known."""
        for part in (self._memory, self._health, self._probe, self._source):
            if part is not None:
                part.start()

    def stop(self) -> None:
        """Stop the sources."""
        for part in (self._source, self._probe, self._health, self._memory):
            if part is not None:
                part.stop()

    @property
    def done(self) -> bool:
        """Whether the start-up is over, well or not, or its log has ended."""
        return self._tracker.done or self._closed

    @property
    def phase(self) -> PhaseName | None:
        """The phase that is running now, None where no log says it."""
        return None if self._source is None else self._tracker.phase

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The memory pools as they are now."""
        return () if self._memory is None else self._memory.pools

    @property
    def pool(self) -> str | None:
        """The `pool_key` of the main pool: the one that the engine fills."""
        pool = None if self._memory is None else self._memory.main()
        return None if pool is None else pool_key(pool)

    @property
    def readings(self) -> list[tuple[float, int]]:
        """Unix time and headroom of the main pool, oldest first."""
        pool = self.pool
        return [] if self._memory is None or pool is None else self._memory.readings(pool)

    def step(self) -> None:
        """Take what has come since the last call."""
        if self._memory is not None:
            self._memory.step()
        self._look_at_process()
        self._take_lines()
        answered = None if self._health is None else self._health.answered_at
        if answered is not None:
            self._tracker.answered(answered)
        self._look_for_the_end()

    def _look_at_process(self) -> None:
        """The process that was launched or has the port: since when it runs, and its output if that is a file."""
        launched = None if self._source is None else self._source.launched
        if launched is not None and self._launched is None:
            self._launched = launched[1]
            self._tracker.launched(launched[1])
            self._belongs({launched[0]} if process.lives(self._procfs, launched[0]) else set())
        probe = self._probe
        pid = None if probe is None else probe.pid
        if probe is None or pid is None or pid in self._local:
            return
        self._belongs({pid})
        if self._source is None and probe.output is not None:
            self._source = follow_file(probe.output, tail=_TAIL)
            self._source.start()

    @property
    def rooted(self) -> bool:
        """Whether there is something that will tell of the end: a log, or a process."""
        return self._source is not None or (self._probe is not None and self._probe.pid is not None)

    def ended(self) -> None:
        """The server that was ready has ended."""
        self._tracker.shut(self._clock())

    def up(self) -> None:
        """The server answers: whoever polls it has seen that."""
        self._tracker.answered(self._clock())

    def _belongs(self, pids: set[int]) -> None:
        """Processes of the engine on this machine: the first one's beginning is that of the start-up."""
        for pid in pids - self._local:
            began = process.began(self._procfs, pid)
            if began is not None and (self._launched is None or began < self._launched):
                self._launched = began
                self._tracker.launched(began)
            if self._oom is None:
                self._oom = OomWatch(pid, self._procfs, self._sysfs)
        self._local |= pids
        if self._oom is not None:
            self._oom.add(pids)

    def _take_lines(self) -> None:
        if self._source is None:
            return
        for line in self._source.take():
            self._tracker.feed(line.text, line.at)
            self._history, self._live = self._history or line.at is None, self._live or line.at is not None
            self._last_line = line.at or self._last_line
        if not self._tracker.done:
            named = {pid for pid in self._tracker.processes if pid not in self._local}
            self._belongs({pid for pid in named if process.is_engine(self._procfs, pid)})

    def _look_for_the_end(self) -> None:
        now = self._clock()
        if self._tracker.done:
            return
        silent = now - self._last_line
        if self._source is not None and self._source.ended:
            self._tracker.finish(self._source.exit_code, now, self._source.told)
            self._closed = True
        elif self._source is not None and self._tracker.suspected and silent >= _QUIET_S:
            self._tracker.quiet()
        elif self._process_is_gone(silent):
            self._tracker.gone(now)

    def _process_is_gone(self, silent: float) -> bool:
        """Whether the one process whose start-up this is has ended; what it wrote last is taken first."""
        if self._probe is not None and self._probe.gone_at is not None:
            return self._source is None or silent >= _QUIET_S or self._clock() - self._probe.gone_at >= _GONE_S
        here = self._local and self._source is not None and silent >= _GONE_S
        return bool(here) and not any(process.lives(self._procfs, pid) for pid in self._local)

    def report(self) -> Report:
        """The start-up so far, with the least headroom of every phase, ledger, advice and verdict."""
        startup = self._startup()
        machine = None
        if self._memory is not None:
            self._memory.step(judge=True)
            startup = replace(startup, phases=tuple(self._measured(p) for p in startup.phases))
            startup = self._with_margin(startup)
            machine = self._machine(startup)
        names = {} if self._memory is None else self._memory.names()
        return make_report(startup, evidence(startup, machine), self._reserve, names)

    def _machine(self, startup: Startup) -> MachineMemory | None:
        """This machine's memory, unless the log is a finished one, which may be of any machine."""
        if self._memory is None or (self._history and not self._live and not self._local):
            return None
        machine = self._memory.memory(self._local, not self._history)
        if machine is not None and startup.failure is not None:
            return machine.at_failure(startup.failure.margin_bytes)
        return machine

    def _startup(self) -> Startup:
        startup = self._tracker.startup(self._clock())
        if self._source is None:
            startup = self._unread(startup)
        failure = startup.failure
        if failure is None or failure.kind != "killed" or self._oom is None:
            return startup
        self._killer = self._killer or self._oom.evidence()
        if self._killer is None:
            return startup
        failure = replace(failure, cause=f"{failure.cause}: {self._killer}", said=self._killer, kind="oom_killed")
        return replace(startup, failure=failure)

    def _unread(self, startup: Startup) -> Startup:
        """Without a log: whether it is up and since when, and the least memory; nothing is guessed from that."""
        took = None
        if startup.ready_at is not None and self._launched is not None:
            took = round(startup.ready_at - self._launched, 3)
        least = min((value for _, value in self.readings), default=None)
        words = () if least is None else (f"least headroom since it was watched: {least / GIB:.1f} GiB",)
        phase = startup.phase if startup.state == "ready" else None
        return replace(startup, phase=phase, phases=(), ready_seconds=took, notices=(*startup.notices, *words))

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
