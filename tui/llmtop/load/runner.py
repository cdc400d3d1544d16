"""Runs a plan: owns the workers, reads the server's counters beside them, judges and writes what comes out.

`LoadRun.run` is a coroutine for the command line; `LoadThread` gives it a thread and loop of its own, so that
a screen that redraws delays neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from llmtop.contract.codec import plain, rebuild
from llmtop.contract.settings import Target
from llmtop.contract.snapshot import Snapshot
from llmtop.contract.units import clean, seconds
from llmtop.engines.models import ListedModel, listed
from llmtop.engines.registry import engine_text
from llmtop.load import flags as doubts
from llmtop.load.child import Child, WorkerFailed
from llmtop.load.counters import CounterReader, ServerCounters, delta
from llmtop.load.events import Draining, Event, Finished, LevelDone, Measuring, Preflighted, Warned
from llmtop.load.files import RunFiles, new_directory, state_dir
from llmtop.load.level import STOPPED
from llmtop.load.levelplay import SETTLE_TRIES, WORDS, LevelPlay, Watcher
from llmtop.load.pace import Climb, Pace, estimate_s, level_between, measurement
from llmtop.load.plan import Plan
from llmtop.load.prompts import Profile
from llmtop.load.results import LevelResult, Outside, RunResult, Totals
from llmtop.load.scenarios import SCENARIOS, TooLong, cuts, fit
from llmtop.load.summary import LevelRaw, detailed_arrays, level_result, spent, total
from llmtop.load.verdict import failure, judge, single_user, with_ratios
from llmtop.net.connection import Connector, Origin, fetch

DRAIN_S = 10.0
FORWARD_TRIES = 5


class LoadError(RuntimeError):
    """The run could not start, in words for a person."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run needs beside its plan; `snapshots` gives the watcher's latest snapshot, for memory and power."""

    authorization: str | None = field(default=None, repr=False)  # the value of that header
    root: Path | None = None  # where run directories are made; None: under the state directory
    write: bool = True
    max_num_seqs: int | None = None
    snapshots: Callable[[], Snapshot | None] | None = None
    ca: Path | None = None
    insecure: bool = False
    via: str | None = None  # the Unix socket that ssh forwards to the server

    @classmethod
    def of_target(cls, target: Target, **more: Any) -> RunOptions:
        """The options that follow from a configured server: its key or login, and its certificate."""
        values = {"ca": target.ca, "insecure": target.insecure, "max_num_seqs": target.max_num_seqs} | more
        return cls(authorization=target.authorization, via=target.via, **values)

    def connector(self, url: str) -> Connector:
        """What opens connections to a server."""
        return Connector(Origin.parse(url), ca=self.ca, insecure=self.insecure, via=self.via)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request to the server."""
        return {"Authorization": self.authorization} if self.authorization else {}


async def read_counters(url: str, options: RunOptions) -> ServerCounters | None:
    """What the server does now, before any load; None when it does not say."""
    return await CounterReader(options.connector(url), options.headers).read()


async def survey(url: str, options: RunOptions) -> tuple[ListedModel, ...]:
    """The models that a server lists; none when it does not answer."""
    connector = options.connector(url)
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        status, body = await fetch(connector, "GET", "/v1/models", options.headers)
        return listed(json.loads(body)) if status == 200 else ()
    return ()


@contextlib.contextmanager
def run_lock(directory: Path) -> Any:
    """One run at a time per user; raises `LoadError` naming the process that runs one."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a read-only home must not forbid a run that writes nothing
        directory = Path(tempfile.gettempdir())
    path = directory / f"load-{os.getuid()}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from None
    try:
        if not _locked(fd):
            raise LoadError(f"a load test is running already (pid {os.read(fd, 20).decode().strip() or '?'})")
        with contextlib.suppress(OSError):  # a full disk: nobody will read whose lock it is
            os.ftruncate(fd, 0)
            os.write(fd, str(os.getpid()).encode())
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class LoadRun:
    """One run of one plan; `on_event` gets every event, in the thread that runs it."""

    def __init__(self, plan: Plan, options: RunOptions, on_event: Callable[[Event], None]) -> None:
        self.plan = plan
        self._options = options
        self._emit = on_event
        self._connector = options.connector(plan.url)
        self._watcher = Watcher(plan.url, CounterReader(self._connector, options.headers), options.snapshots)
        self._children: list[Child] = []
        self._profile = Profile()
        self._results: list[LevelResult] = []
        self._files: RunFiles | None = None
        self._stop = asyncio.Event()
        self._pace: Pace | None = None
        self._wanted_workers = 1
        self._failed: str | None = None  # why a worker ended the run
        self._before: ServerCounters | None = None
        self._outside = Outside()
        self._notes: list[str] = []
        self._warm_ups: list[Totals] = []

    def stop(self) -> None:
        """Ends the load at once; call it in the loop that runs the plan."""
        if not self._stop.is_set():
            self._stop.set()
            for child in self._children:
                child.stop()

    async def run(self) -> RunResult:
        """The whole run; returns the result. Raises `LoadError` when there is none to begin with."""
        problems = self.plan.problems()
        if problems:
            raise LoadError("; ".join(problems))
        with run_lock(state_dir()):
            try:
                await self._preflight()
                self._open_files()
                await self._levels()
            except WorkerFailed as error:
                if not self._results and not self._stop.is_set():
                    raise LoadError(clean(str(error), WORDS)) from None
                if not self._stop.is_set():
                    self._failed = clean(str(error), WORDS)
                    self._warn(self._failed)
            finally:
                await self._end()
        return self._finish()

    def _warn(self, text: str) -> None:
        """Passes words on, some of them the server's, without what could move a terminal's cursor."""
        self._notes.append(clean(text, WORDS))
        self._emit(Warned(self._notes[-1]))

    async def _preflight(self) -> None:
        self._before = await self._watcher.read()
        child = await self._child()
        child.say(cmd="preflight")
        heard = await child.hear("preflight")
        self._profile = rebuild(Profile, heard["profile"])
        self._outside = replace(self._outside, preflight=rebuild(Totals, heard["spent"]))
        if self._before is None:
            self._before = await self._watcher.of_model(self._profile.model)
        for note in self._profile.notes:
            self._warn(note)
        if self._profile.trouble:
            self._warn(self._profile.trouble)
        if self._profile.refused:
            self._warn(f"the server refuses {', '.join(self._profile.refused)}: left out")
        if self._before is None:
            self._warn("no counters at /metrics: totals are not checked, queue and KV are unknown")
        if self._options.via is not None:
            await self._time_the_forward()
        self._settle(child)
        self._pace = await self._measured(child)
        self._emit(Preflighted(self._profile, self._before, estimate_s(self.plan, self._pace)))

    async def _time_the_forward(self) -> None:
        """What the way through ssh adds to every request, in words."""
        taken = []
        for _ in range(FORWARD_TRIES):
            began = time.perf_counter()
            with contextlib.suppress(OSError, TimeoutError):
                await fetch(self._connector, "GET", "/health", self._options.headers)
                taken.append(time.perf_counter() - began)
        if taken:
            middle = sorted(taken)[len(taken) // 2]
            self._warn(f"through ssh: an empty request takes {seconds(middle)}, which is in every TTFT")

    async def _measured(self, child: Child) -> Pace | None:
        """How fast the server is, for the estimate of time: of one that serves nobody else, and before a long run."""
        sent = replace(self.plan, levels=measurement(self.plan))
        if not sent.levels or self._profile.trouble or not await self._alone():
            return None
        self._emit(Measuring(sent.requests(), *sent.tokens()))
        self._outside = replace(self._outside, measurement=Totals())  # until it has told
        child.say(cmd="measure")
        while (heard := await child.hear("measuring", "measured"))["event"] == "measuring":
            self._emit(Measuring(heard["requests"], *heard["tokens"]))
        self._outside = replace(self._outside, measurement=rebuild(Totals, heard["spent"]))
        return rebuild(Pace, heard["pace"]) if heard["pace"] is not None else None

    async def _alone(self) -> bool:
        """Whether the server says that it ran nothing before and runs nothing now, and answered us alone since."""
        before, ours = self._before, self._outside.preflight.requests or 0
        if before is None or before.running or before.waiting:
            return False
        for _ in range(SETTLE_TRIES):  # our own last request may still be counted
            now = await self._watcher.read()
            if now is not None and now.running == 0 and not now.waiting:
                return (delta(before.requests, now.requests) or 0) <= ours
            await asyncio.sleep(0.1)
        return False

    def _settle(self, child: Child) -> None:
        """The plan as it will run, here and in the worker that already has one: its route, prompts that fit."""
        try:
            cut = cuts(self.plan, self._profile.max_model_len)
            fitted = fit(replace(self.plan, api=self._profile.api), self._profile.max_model_len)
        except TooLong as error:
            raise LoadError(str(error)) from None
        if cut is not None:
            self._warn(cut)
        self.plan = fitted
        child.say(cmd="plan", plan=plain(fitted))

    async def _child(self) -> Child:
        options = self._options
        reach = {"ca": str(options.ca) if options.ca else None, "insecure": options.insecure, "via": options.via}
        child = await Child.start(self.plan, options.authorization, reach)
        self._children.append(child)
        await child.hear("hello")
        return child

    async def _workers(self, count: int) -> list[Child]:
        """At least `count` workers that know the server."""
        while len(self._children) < count:
            child = await self._child()
            child.say(cmd="profile", profile=plain(self._profile))
        return self._children[:count]

    def _open_files(self) -> None:
        if not self._options.write:
            return
        root = self._options.root or state_dir() / "runs"
        try:
            self._files = RunFiles(new_directory(root, self.plan.scenario, datetime.now()), self.plan)
        except OSError as error:
            raise LoadError(f"{root}: {error.strerror}: name another with --output-dir, or --no-files") from None

    async def _levels(self) -> None:
        """The levels of the plan as far as they go, and those between that it has room for."""
        said = self.plan.requests()
        if not await self._climb() or not self.plan.slo:
            return
        for _ in range(self.plan.refine):
            kept = (failure(result, self.plan.slo) is None for result in self._results)
            level = level_between(dict(zip(self.plan.levels, kept, strict=False)))
            done = len(self._results)
            if level is None or self.plan.going_on(done, level).requests() > said:
                return
            self._replan(self.plan.going_on(done, level))
            if await self._play(done) is None:
                return

    def _replan(self, plan: Plan) -> None:
        self.plan = plan
        for child in self._children:
            child.say(cmd="plan", plan=plain(plan))
        if self._files is not None:
            self._files.replan(plan)

    async def _climb(self) -> bool:
        """Whether the levels of the plan were played to their end, or to where a climb ends."""
        climb = Climb(bool(self.plan.slo))
        for index in range(len(self.plan.levels)):
            result = await self._play(index)
            if result is None:
                return False
            ends = climb.ends(result.tok_s, failure(result, self.plan.slo) is None)
            if self.plan.adaptive and index + 1 < len(self.plan.levels) and ends:
                broke = climb.fails >= 2
                why = "two levels broke a limit" if broke else f"{result.level} brought less than 5 % more tok/s"
                self._warn(f"more users were not tried: {why}")
                break
        return True

    async def _play(self, index: int) -> LevelResult | None:
        """The result of a level; None where none may follow."""
        if self._stop.is_set():
            return None
        result = self._take(await self._level(index))
        self._emit(LevelDone(index, result))
        if result.interrupted and result.stopped != STOPPED and not self._stop.is_set():
            self._failed = f"{result.level}: {result.stopped}"
            self._warn(self._failed)
        return None if result.interrupted or result.refused or not result.completed else result

    async def _level(self, index: int) -> LevelRaw:
        level = self.plan.levels[index]
        workers = await self._workers(self._workers_for(level.concurrency))
        play = LevelPlay(self.plan, self._profile, index, workers, self._watcher, self._emit, self._files, self._pace)
        return replace(await play.run(), max_num_seqs=self._options.max_num_seqs or self._watcher.max_num_seqs)

    def _workers_for(self, concurrency: int) -> int:
        """Workers by streams (256 each) and by chunks (8,000/s each), leaving a core to the rest."""
        chunk_s = (self._profile.tpot_s or 0.0) * (self._profile.tokens_per_chunk or 1.0)
        by_rate = concurrency / chunk_s / 8000 if chunk_s > 0 else 0.0
        wanted = max(self._wanted_workers, -(-concurrency // 256), int(by_rate) + 1)
        return max(1, min(wanted, (os.cpu_count() or 2) - 1, concurrency))

    def _take(self, raw: LevelRaw) -> LevelResult:
        """The result of a level with its flags, kept and written."""
        result = replace(level_result(raw), flags=tuple(doubts.flags(raw)), counters=doubts.cross_check(raw))
        if any((vitals.cpu_share or 0.0) > doubts.CPU_SHARE for vitals in raw.workers):
            self._wanted_workers += 1
        self._results = with_ratios([*self._results, result])
        result = self._results[-1]
        if raw.warm_up is not None:
            self._warm_ups.append(spent(raw.warm_up))
        if self._files is not None:
            self._files.level(result, detailed_arrays(raw))
            self._say_trouble()
        return result

    def _say_trouble(self) -> None:
        """Say once that the results are not, or not all, on disk."""
        if self._files is not None and (trouble := self._files.take_trouble()):
            self._warn(trouble)

    async def _end(self) -> None:
        """Ends the workers, then watches until the server is back to what it ran before."""
        stopping = asyncio.gather(*(child.end() for child in self._children))
        try:
            await asyncio.shield(stopping)
        finally:
            for child in self._children:
                child.kill()
        if self._before is not None:
            await self._drain(self._before.running or 0)

    async def _drain(self, before: int) -> None:
        deadline = time.monotonic() + DRAIN_S
        while True:
            counters = await self._watcher.read()
            running = counters.running if counters is not None else None
            done = running is not None and running <= before
            late = counters is None or time.monotonic() > deadline
            self._emit(Draining(running, before, done))
            if done or late:
                return
            await asyncio.sleep(0.2)

    def _finish(self) -> RunResult:
        result = self._result()
        if self._files is not None:
            self._files.finish(result)
            self._say_trouble()
        self._emit(Finished(result))
        return result

    def _interrupted(self) -> bool:
        """Whether the run ended before its plan did; a soak that a person ends has not."""
        stopped = self._stop.is_set() and len(self._results) < len(self.plan.levels)
        return stopped or any(level.interrupted for level in self._results)

    def _ended(self) -> str | None:
        """Why the run ended before its plan; None when it did not."""
        last = self._results[-1] if self._results else None
        if last is not None and last.refused:
            return f"stopped after {last.completed} of {last.num_prompts} requests of {last.level}: {last.stopped}"
        if self._interrupted() and self._failed is None:
            whole = [level.level for level in self._results if level.whole]
            return f"stopped after {whole[-1]}" if whole else "stopped before a level ran to its end"
        return self._failed

    def _result(self) -> RunResult:
        plan, profile = self.plan, self._profile
        ended = self._ended()
        verdict = judge(self._results, plan.slo, SCENARIOS[plan.scenario].climbs, ended)
        words = [verdict.words] if plan.slo or plan.scenario != "single" else []
        if plan.scenario == "single":
            words = [", ".join(map(str, single_user(self._results))), *words]
        return RunResult(
            scenario=plan.scenario,
            words="; ".join(filter(None, words)) or verdict.words,
            interrupted=self._interrupted(),
            levels=tuple(self._results),
            ended=ended,
            sweet_spot=verdict.sweet_spot,
            at_least=verdict.at_least,
            first_fail=verdict.first_fail,
            knee=verdict.knee,
            met=verdict.met,
            monotone=verdict.monotone,
            slo=dict(plan.slo),
            goodput_ms=dict(plan.goodput_ms),
            url=plan.url,
            model=profile.model or plan.model,
            api=profile.api,
            prompts="ids" if profile.use_ids else "text",
            refused=profile.refused,
            outside=replace(self._outside, warm_up=total(self._warm_ups)),
            notes=tuple(self._notes),
            directory=str(self._files.directory) if self._files is not None else None,
            engine=self._watcher.engine or self._counted_engine(),
        )

    def _counted_engine(self) -> str | None:
        """The engine whose counters are read, where nobody watches it."""
        return engine_text(self._before.engine, self._profile.version) if self._before is not None else None


class LoadThread:
    """A run in a thread of its own; `on_event` is called in that thread."""

    def __init__(self, plan: Plan, options: RunOptions, on_event: Callable[[Event], None]) -> None:
        self.result: RunResult | None = None
        self.error: BaseException | None = None
        self._plan, self._options, self._on_event = plan, options, on_event
        self._run: LoadRun | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name="llmtop-load", daemon=True)

    def start(self) -> None:
        """Begins the run."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the load at once, from any thread; the result still comes."""
        with self._lock:
            self._stopped = True
            if self._loop is not None and self._run is not None:
                with contextlib.suppress(RuntimeError):  # the loop has just ended by itself
                    self._loop.call_soon_threadsafe(self._run.stop)

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the end; whether it has come."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def running(self) -> bool:
        """Whether the run goes on."""
        return self._thread.is_alive()

    def _main(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self.error = error

    async def _work(self) -> None:
        run = LoadRun(self._plan, self._options, self._on_event)
        with self._lock:
            self._run, self._loop = run, asyncio.get_running_loop()
            if self._stopped:
                run.stop()
        self.result = await run.run()
