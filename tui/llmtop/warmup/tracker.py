"""Reads the log of a start-up: one line in at a time, the frozen record so far out.

Seconds count from the first log line that carries a time. Over several workers a figure is the maximum, for the KV
cache the minimum.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from llmtop.contract.secrets import mask
from llmtop.warmup.failure import GONE, FailureFinder, StartFailure
from llmtop.warmup.log_line import LogLine, Unwrapper, clean
from llmtop.warmup.phrases import PHASES, EngineName, Hit, PhaseName, read
from llmtop.warmup.startup import Phase, StartState, Startup, StepProgress, WorkerFigures
from llmtop.warmup.timeline import SILENT_S, Clock, Interval, Spans

LAST_LINES = 12
_LINE_CHARS = 500

# How a number repeated by one process is combined; the last one counts otherwise.
_SUMS = frozenset({"read_seconds"})
_FIRST = frozenset({"compile_seconds", "profile_seconds", "checkpoint_gib", "available_ram_gib", "utilization"})
_LEAST = frozenset({"kv_cache_gib", "kv_cache_tokens", "kv_cache_blocks", "max_concurrency", "free_gib"})
_PASSING = frozenset({"percent", "done", "of", "took_s", "waited_s"})  # of one step: no figure of the start-up
_WORKER_FIGURES = ("weights_gib", "weights_seconds", "kv_cache_gib", "graph_gib", "graph_seconds")
_ENGINE_FIGURES = ("kv_cache_tokens", "max_concurrency", "init_seconds")
_BARS = {"shards": "weights", "prefetch": "weights", "capture": "graphs", "sg_batches": "graphs"}
_WAITING = frozenset({"ray_gpus", "ray_wait", "cores_wait"})
_GPUS = re.compile(r"'GPU': (\d+(?:\.\d+)?)")
# After it was ready: somebody has told it to end, or it has died.
_DOWN = re.compile(
    r"^(?:INFO:\s+)?Shutting down\b|Application shutdown complete|Finished server process|Shutting down FastAPI|"
    r"(?i:SIGTERM received|received (?:signal 15|SIGTERM)|sending SIG(?:TERM|KILL) to process)|"
    r"^(?:Stopping|Stopped) \S+\.service\b|: Main process exited, code=|killed by the OOM killer|"
    r"^(?:\S+: line \d+: +\d+ )?(?:Terminated|Killed)\b|EngineDeadError|EngineCore (?:exiting|encountered a)|"
    r"(?i:out of memory: killed process \d+ \((?:vllm|python|ray|sglang|enginecore))|died unexpectedly"
)
_FOREIGN = {
    "llama.cpp": re.compile(r"\bllama_(?:model_loader|model_load|context|kv_cache)|\bsrv +\w+:|\bggml_"),
    "Text Generation Inference": re.compile(r"\btext_generation_(?:launcher|router)\b"),
    "TensorRT-LLM": re.compile(r"\[(?:TRT-LLM|TensorRT-LLM)\]"),
    "Triton Inference Server": re.compile(r"\btritonserver\b|\bmodel_lifecycle\.cc:"),
    "Ollama": re.compile(r"\bsource=(?:routes|server|images)\.go\b|\bollama\b.*\brunner\b"),
    "LMDeploy": re.compile(r"\blmdeploy\b|\bTurbomind\b", re.I),
}
_LOCAL_LEAD_S = 1800.0  # a first line this long after the process began is of another start


class Tracker:
    """Follows one start-up; a new version banner after the end of one begins the next."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._unwrapper = Unwrapper()
        self._launched: float | None = None
        self._foreign: str | None = None
        self._reset()

    def _reset(self) -> None:
        self._clock = Clock()
        self._log, self._live = Spans(), Spans()
        self._values: dict[tuple[str | None, int | None], dict[str, float]] = {}
        self._texts: dict[str, str] = {}
        self._failures = FailureFinder()
        self._phase: PhaseName = "start"
        self._progress: StepProgress | None = None
        self._ready: float | None = None
        self._ready_at: float | None = None
        self._is_ready = False
        self._end: float | None = None  # when it was over, by the log and by this machine's clock
        self._end_at: float | None = None
        self._served = False
        self._planning = False
        self._whats: set[str] = set()  # the kinds of line seen so far
        self._said: float | None = None  # when the last of them came
        self._engine: EngineName | None = None
        self._waits: str | None = None
        self._told = False
        self._over = False  # the log has ended
        self._is_down = False  # it has ended after it was ready
        self._down: float | None = None  # how long it was up, and the line that said so
        self._down_by: str | None = None

    @property
    def phase(self) -> PhaseName:
        """The furthest phase any process has reached."""
        return self._phase

    @property
    def processes(self) -> tuple[int, ...]:
        """The pids that the log's prefixes name."""
        return tuple(pid for _, pid in self._values if pid is not None)

    @property
    def suspected(self) -> bool:
        """Whether an exception was printed that may or may not have ended the start-up."""
        return self._failures.found is not None and not self.done

    @property
    def done(self) -> bool:
        """Whether the server is up or the start-up has failed."""
        return self._is_ready or self._failures.failure is not None

    def launched(self, at: float) -> None:
        """The process whose log this is began at the Unix time `at`: seconds count from there."""
        self._launched = at

    def feed(self, raw: str, arrival: float | None = None) -> None:
        """Take one line of the log; `arrival` is the Unix time it was seen, for lines seen as they were written."""
        text = clean(raw)
        if text.strip():
            self._lines.append(text)
        for line in self._unwrapper.lines(raw):
            self._line(line, arrival)
        if self._engine is None and self._foreign is None:
            self._foreign = next((name for name, words in _FOREIGN.items() if words.search(text[:_LINE_CHARS])), None)

    def _line(self, line: LogLine, arrival: float | None) -> None:
        hit = read(line.text.lstrip()) if line.text else None
        banner = hit is not None and hit.what in ("version", "sg_args")
        if self._is_ready and not banner:
            self._after_ready(line, arrival)
            return
        time = self._clock.tick(line.stamp, arrival, line.outer)
        if banner and self._begins_anew(time):
            self._reset()
            time = self._clock.tick(line.stamp, arrival, line.outer)
        self._mark_begin(time, arrival)
        if hit is not None:
            self._take(hit, line, time, arrival)
        elif line.text:
            self._failures.feed(line, self._oom_phase())
        failure = self._failures.failure
        if failure is not None and self._end is None:
            self._end, self._end_at = time, arrival
            self._log.mark(failure.phase or "start", "during", None, time, None)
            self._live.mark(failure.phase or "start", "during", None, arrival, None)

    def _after_ready(self, line: LogLine, arrival: float | None) -> None:
        """A server that ends soon after it was ready is not up, whatever it said before."""
        if not self._is_down and _DOWN.search(line.text):
            now = self._clock.tick(line.stamp, arrival, line.outer)
            timed = line.stamp or line.outer or arrival
            self._down = max(0.0, now - self._end) if timed and now is not None and self._end is not None else None
            self._is_down = True
            self._down_by = mask(line.text.strip())[:_LINE_CHARS]

    def _begins_anew(self, time: float | None) -> bool:
        """Whether a version banner opens another start; several API servers of one start print theirs together."""
        if self.done or self.suspected or self._phase != "start":
            return True
        silent = self._said is not None and time is not None and time - self._said >= SILENT_S
        return silent and "version" in self._whats

    def finish(self, exit_code: int | None = None, at: float | None = None, told: bool = False) -> None:
        """The log has ended, or the process with this exit code at the Unix time `at`: settle what can be settled.

        `told`: the process was asked to end by whoever watches it.
        """
        self._over, self._told = True, told
        if self._is_ready:
            return
        if self._served and self._failures.found is None and not exit_code:
            self._become_ready(self._clock.now, None)
            return
        if self._offline():
            self._become_ready(None, None)
            return
        kv_gib = self._figures().get("kv_cache_gib")
        self._failures.finish(self._oom_phase(), exit_code, kv_gib)
        if self._end is None:
            self._end, self._end_at = self._clock.tick(None, at), at

    def gone(self, at: float) -> None:
        """The process is not there any more and left no word; `at` is the Unix time that was seen."""
        if not self.done:
            self.finish(GONE, at)

    def answered(self, at: float) -> None:
        """The port has answered /health with 200 at this Unix time: the server is up whatever the log says."""
        if not self.done:
            self._become_ready(self._clock.tick(None, at), at)

    def shut(self, at: float) -> None:
        """The server that was up has ended at this Unix time."""
        if self._is_ready and not self._is_down:
            self._is_down, self._down = True, None if self._ready_at is None else max(0.0, at - self._ready_at)

    def quiet(self) -> None:
        """The log has gone silent with an exception as its last word: the exception ended the start-up."""
        if self.suspected:
            self._failures.confirmed = True

    def _mark_begin(self, time: float | None, arrival: float | None) -> None:
        """The first line begins the start; who comes when lines are there already comes in the middle of a phase."""
        if self._log.empty:
            self._log.mark("start", "during", None, time, None)
        if arrival is not None and self._live.empty:
            self._live.mark(self._phase, "during", None, arrival, None)

    def _take(self, hit: Hit, line: LogLine, time: float | None, arrival: float | None) -> None:
        process = (line.process, line.pid)
        self._engine = self._engine or hit.engine
        if hit.what == "up" and self._engine == "sglang":  # which sends itself a request before it says it is ready
            hit = replace(hit, edge="during")
        self._wait_words(hit)
        self._whats.add(hit.what)
        self._said = time
        self._store(hit, process)
        phase = self._belongs(hit)
        if PHASES.index(phase) >= PHASES.index(self._phase):
            self._phase = phase
        self._log.mark(phase, hit.edge, process, time, hit.took, hit.what == "encoder")
        self._live.mark(phase, hit.edge, process, arrival, hit.took, hit.what == "encoder")
        self._served = self._served or hit.what == "serving"
        self._log.outspoken = self._live.outspoken = self._engine == "sglang"
        self._log.old_engine = self._live.old_engine = self._log.old_engine or hit.what == "v0_blocks"
        if hit.what in _BARS and {"done", "of", "percent"} <= set(hit.values):
            label = hit.texts.get("label", hit.what.removeprefix("sg_"))
            done, total = int(hit.values["done"]), int(hit.values["of"])
            begun = self._log.begun(phase)
            took = None if time is None or begun is None else round(max(0.0, time - begun), 3)
            percent = min(100.0, max(0.0, hit.values["percent"]))
            self._progress = StepProgress(phase, label, done, total, percent, took)
        if hit.edge == "end" and hit.what in ("up", "fired"):
            self._become_ready(time, arrival)

    def _wait_words(self, hit: Hit) -> None:
        """What the start-up waits for; any other message says that it goes on."""
        if hit.what not in _WAITING:
            self._waits = None
        elif hit.what == "cores_wait":
            self._waits = f"waits for engine processes: {hit.texts['cores']} not there yet"
        elif hit.what == "ray_wait":
            wanted = sum(float(number) for number in _GPUS.findall(hit.texts.get("specs", ""))[:10_000])
            there = self._figures().get("there_gpus")
            have = "" if there is None else f", {there:g} there"
            waited = hit.values.get("waited_s")
            so_far = "" if waited is None else f"; {waited:.0f} s so far"
            self._waits = f"waits for Ray ({wanted:g} GPUs wanted{have}{so_far})"

    def _belongs(self, hit: Hit) -> PhaseName:
        """The phase a hit counts for, where the message alone does not tell."""
        self._planning = hit.what == "graphs_planned" or (self._planning and hit.what == "capture")
        if self._planning and hit.what == "capture":
            return "profile"
        if hit.what in ("cpu_warm", "cpu_warm_done") and PHASES.index(self._phase) >= PHASES.index("kv"):
            return "warmup"
        return hit.phase

    def _store(self, hit: Hit, process: tuple[str | None, int | None]) -> None:
        mine = self._values.setdefault(process, {})
        if hit.what in ("kv_fixed", "kv_cpu"):
            mine["kv_fixed"] = 1.0  # the size was given: utilization did not decide it
        for name, value in hit.values.items():
            if name in _PASSING:
                continue
            if name in _SUMS:
                mine[name] = mine.get(name, 0.0) + value
            elif name not in _FIRST or name not in mine:
                mine[name] = value
        for name, text in hit.texts.items():
            self._texts.setdefault(name, text)

    def _become_ready(self, time: float | None, at: float | None) -> None:
        self._is_ready, self._ready, self._ready_at = True, time, at
        self._end, self._end_at = (self._clock.now if time is None else time), at
        self._phase = "ready"
        self._log.mark("ready", "end", None, time, None)
        self._live.mark("ready", "end", None, at, None)

    def _offline(self) -> bool:
        """Whether the log is that of an engine without a server, and the engine is up: nobody says "ready" there."""
        served = any((name or "").lower().startswith("apiserver") for name, _ in self._values)
        has_server = served or "version" in self._texts or "args" in self._whats
        return "init" in self._whats and not has_server and self._failures.found is None

    def _oom_phase(self) -> PhaseName | None:
        """The phase a failure belongs to: with the weights in, the profile run; None before the first line."""
        if not self._whats:
            return None
        after: PhaseName = "kv" if self._engine == "sglang" else "profile"
        return after if self._phase == "weights" and self._log.ended("weights") else self._phase

    def _figures(self) -> dict[str, float]:
        merged: dict[str, float] = {}
        for values in self._values.values():
            for name, value in values.items():
                combine: Callable[[float, float], float] = min if name in _LEAST else max
                merged[name] = combine(merged[name], value) if name in merged else value
        return merged

    def startup(self, at: float | None = None) -> Startup:
        """The record of the start-up so far; with `at`, the Unix time now, the phase that runs lasts until then."""
        figures = self._figures()
        failure = self._failures.failure if not self._is_ready else None
        lead, phase = self._lead(), self._now_in(failure)
        foreign = self._foreign if self._engine is None else None
        progress, waits = self._progress, self._waits if failure is None else None
        return Startup(
            state=self._state(failure),
            phase=phase,
            phases=()
            if foreign or phase is None
            else tuple(_later(phase, lead, self._launched) for phase in self._phases(at)),
            version=self._texts.get("version") or self._texts.get("engine_version"),
            model=self._texts.get("model"),
            url=self._texts.get("url"),
            weights_gib=_first(figures, "weights_gib", "split_weights_gib"),
            weights_seconds=_first(figures, "weights_seconds", "read_seconds"),
            kv_cache_gib=_kv_gib(figures),
            kv_cache_tokens=_int(figures.get("kv_cache_tokens")),
            max_concurrency=figures.get("max_concurrency"),
            graph_gib=_first(figures, "graph_gib", "graph_pool_gib"),
            graph_seconds=figures.get("graph_seconds"),
            init_seconds=figures.get("init_seconds"),
            ready_seconds=None if self._ready is None else round(self._ready + lead, 3),
            failure=failure,
            workers=self._workers(),
            progress=progress if progress is not None and progress.phase == self._phase else None,
            figures=figures,
            notices=(*self._failures.notices, *([waits] if waits else [])),
            lines=tuple(mask(line[: 4 * _LINE_CHARS])[:_LINE_CHARS] for line in self._lines),
            ready_at=self._ready_at,
            engine=self._engine,
            foreign=foreign,
            waits=waits,
            served_s=self._down,
            ended_by=self._down_by,
        )

    def _state(self, failure: StartFailure | None) -> StartState:
        if self._is_ready:
            return "stopped" if self._is_down else "ready"
        if failure is None:
            return "starting"
        asked = self._told or failure.numbers.get("exit_code") in (None, -2.0, 130.0)
        return "stopped" if failure.kind == "stopped" and asked else "failed"

    def _now_in(self, failure: StartFailure | None) -> PhaseName | None:
        if failure is not None:
            return failure.phase or (self._phase if self._whats else None)
        return None if not self._whats and not self._is_ready and (self._over or self._foreign) else self._phase

    def _lead(self) -> float:
        """Seconds from the beginning of the process to the first line of its log; 0 where that is not known."""
        first = self._clock.first_arrival
        if self._launched is None:
            return 0.0
        if first is None and self._clock.first_stamp is not None:
            first = self._clock.first_stamp.unix(self._launched)
        lead = 0.0 if first is None else first - self._launched
        return lead if 0.0 < lead < _LOCAL_LEAD_S else 0.0

    def _phases(self, at: float | None) -> tuple[Phase, ...]:
        end = self._end if self._end is not None else self._clock.at(at)
        timed = self._log.intervals(end)
        live = {i.name: i for i in self._live.intervals(self._end_at, {i.name for i in timed if i.inferred})}
        return tuple(_phase(interval, live.get(interval.name)) for interval in timed)

    def _workers(self) -> tuple[WorkerFigures, ...]:
        for wanted in (_WORKER_FIGURES, _ENGINE_FIGURES):
            rows = [_worker(key, v) for key, v in self._values.items() if any(name in v for name in wanted)]
            if rows:
                return tuple(sorted(rows, key=lambda row: (row.name or "", row.pid or 0)))
        return ()


def _phase(interval: Interval, live: Interval | None) -> Phase:
    phase = Phase(interval.name, interval.start, interval.seconds, inferred=interval.inferred)
    if live is None:
        return phase
    ended = live.start + live.seconds if live.start is not None and live.seconds is not None else None
    return replace(phase, began=live.start, ended=ended)


def _later(phase: Phase, lead: float, launched: float | None) -> Phase:
    """A phase on the time axis that begins with the process, which is when its first phase begins."""
    if not lead or phase.start_s is None:
        return phase
    if phase.name != "start":
        return replace(phase, start_s=round(phase.start_s + lead, 3))
    took = None if phase.seconds is None else round(phase.seconds + phase.start_s + lead, 3)
    return replace(phase, start_s=0.0, seconds=took, began=launched if phase.began is not None else None)


def _worker(key: tuple[str | None, int | None], values: Mapping[str, float]) -> WorkerFigures:
    return WorkerFigures(
        name=key[0],
        pid=key[1],
        weights_gib=_first(values, "weights_gib", "split_weights_gib"),
        weights_seconds=_first(values, "weights_seconds", "read_seconds"),
        kv_cache_gib=_kv_gib(values),
        kv_cache_tokens=_int(values.get("kv_cache_tokens")),
        max_concurrency=values.get("max_concurrency"),
        graph_gib=_first(values, "graph_gib", "graph_pool_gib"),
        graph_seconds=values.get("graph_seconds"),
        init_seconds=values.get("init_seconds"),
    )


def _first(values: Mapping[str, float], *names: str) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _kv_gib(values: Mapping[str, float]) -> float | None:
    in_use = values.get("kv_in_use_bytes")
    found = _first(values, "kv_cache_gib", "kv_in_use_gib")
    return found if found is not None else in_use / 2**30 if in_use is not None else None


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)


def read_log(lines: Iterable[str], exit_code: int | None = None) -> Startup:
    """Read a finished log."""
    tracker = Tracker()
    for line in lines:
        tracker.feed(line)
    tracker.finish(exit_code)
    return tracker.startup()
