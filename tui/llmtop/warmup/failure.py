"""Why a start-up failed: known error texts with their numbers, and the first exception where the text is unknown.

vLLM reports one failure up to four times (worker, engine, API server, shell); only the first says why. The wrappers'
texts confirm that the start-up is over and are never the cause. Where an exception has many lines, or only tells that a
tool has failed, what that tool said last (`said`) is why.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace

from llmtop.contract.secrets import mask
from llmtop.warmup.log_line import LogLine
from llmtop.warmup.phrases import PhaseName, compile_pattern, number, numbers

_MAX_CAUSE = 1000
GONE = -1000  # in place of an exit code: the process vanished and nobody saw how


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A failed start: the phase, the cause in the log's own words, the numbers in them, and the kind of failure.

    `said`: the part of the cause that says why, where the rest is only what was told on the way.
    """

    phase: PhaseName | None  # None: the log shows the failure alone
    cause: str
    numbers: dict[str, float] = field(default_factory=dict)
    kind: str = "error"
    margin_bytes: int | None = None  # headroom at that moment, where it was watched
    said: str | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    kind: str
    phase: PhaseName | None  # None: the phase that was running
    rank: int  # the lower one explains more and wins
    pattern: re.Pattern[str]


def _known(kind: str, phase: PhaseName | None, pattern: str, rank: int = 0) -> _Known:
    return _Known(kind, phase, rank, compile_pattern(pattern))


_SIZE = r"(?P<{0}>[\d.]+ (?:[KMG]i?B|bytes))"
_KNOWN: tuple[_Known, ...] = (
    _known(
        "free_too_low",
        "start",
        r"Free memory on device(?: \S+)? \(@free_gib/@total_gib GiB\) on startup is less than (?:desired GPU "
        r"memory utilization|the engine.s budget after excluding external process.s weights) "
        r"\(@utilization, @requested_gib GiB\)",
    ),
    _known(
        "free_too_low",
        "start",
        r"Available memory on node \S+ \(@free_gib/@total_gib GiB\) on startup is less than desired CPU memory "
        r"utilization \(@utilization, @requested_gib GiB\)",
    ),
    _known("no_kv", "kv", r"No available memory for the cache blocks"),
    _known(
        "len_too_long",
        "kv",
        r"To serve at least one request with the model(?:s?['’]s)? max seq len \(@max_model_len\), \(?@needed_gib Gi?B "
        r"KV cache is needed, which is larger than the available KV cache memory \(?@available_gib Gi?B\)?"
        r"(?:.*?estimated maximum model length is @estimated_max_len)?",
    ),
    _known(
        "len_too_long",
        "kv",
        r"max seq len \(@max_model_len\) is larger than the maximum number of tokens that can be stored in KV cache "
        r"\(@kv_tokens\)",
    ),
    _known(
        "profile_assert",
        "profile",
        r"Error in memory profiling\. Initial (?:free memory @initial_gib GiB, current free memory @current_gib GiB|"
        r"(?:used|free) memory @initial_bytes, current(?:ly used|(?:ly)? free) memory @current_bytes|)",
    ),
    _known(
        "warmup_oom", None, r"CUDA out of memory occurred when warming up \w+.*? with @dummy_requests dummy requests"
    ),
    _known(
        "ray_oom",
        None,
        r"Memory on the node .*? was @used_gb ?GB / @total_gb ?GB(?: \(@share\))?",
    ),
    _known(
        "out_of_memory",
        None,
        rf"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate {_SIZE.format('tried_gib')}"
        rf"(?:.*?total capaci?ty of {_SIZE.format('total_gib')} of which {_SIZE.format('free_gib')} is free)?",
        1,
    ),
    _known(
        "out_of_memory",
        None,
        r"(?:CUDA|HIP) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
        2,
    ),
    _known(
        "oom_killed",
        None,
        r"(?i)(?:out of memory: |oom-kill:.*)killed process \d+ \((?:vllm|python|ray|sglang|enginecore)|"
        r"detected \d+ oom[_-]kill|\boom-?killed\b",
    ),
    _known("deep_gemm", None, r"Unknown SF transformation"),
    _known("no_kv", "kv", r"Not enough memory\. Please try to increase --mem-fraction-static"),
    _known(
        "collective_timeout",
        None,
        r"Watchdog caught collective operation timeout: Work\w*\(.{0,400}?\) ran for @milliseconds milliseconds",
    ),
    _known("host_memory", None, r"Cannot allocate memory|DefaultCPUAllocator: can't allocate memory|^MemoryError\b", 1),
    _known(
        "usage",
        "start",
        r"^\S.*?: error: (?:unrecognized arguments|argument |the following arguments|ambiguous option)",
        1,
    ),
)
# what a process that was killed by a signal of its own undoing ends with
_ABORTS = frozenset({*range(-11, -3), *range(132, 140)} - {-9, 137})
_EXCEPTION_RANK = 3
_INNER_RANK = 4
_DIED_RANK = 5

_WRAPPER = re.compile(
    r"EngineCore failed to start|Engine core initialization failed|WorkerProc (?:failed to start|initialization failed|"
    r"hit an exception)|Engine process failed to start|EngineDeadError|EngineCore encountered an|"
    r"Worker failed with error|died unexpectedly|RuntimeError: [Cc]ancell?ed|Received sigquit from a child process"
)
_INNER = re.compile(r"Worker failed with error ['\"](?P<text>.+)['\"], please check the stack trace")
_DIED = re.compile(
    r"died unexpectedly(?: \(exit code: (?P<a>-?\d+)\))?|Failed core proc\(s\): \{[^}]*?: (?P<b>-?\d+)|"
    r"exit code: (?P<c>-\d+)"
)
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "[^"]*", line \d+, in (\w+)')
_EXCEPTION = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Exceeded)|Exception)|"
    r"(?:[A-Za-z_]\w*\.)+[A-Z][a-z]+[A-Z]\w*)"
    r"(?:: (?P<text>.*))?$"
)
_RAISE = re.compile(r"^raise (?P<name>[\w.]+)\(\s*f?[\"'](?P<text>.*?)[\"']?\s*\)?$")
_NAMED = re.compile(r"\b([a-z_][a-z0-9_]{2,}) \(=?(-?\d[\d,]*(?:\.\d+)?)\)")
_RANK = re.compile(r"\bRank (\d+)\]")
_COLLECTIVE = re.compile(r"OpType=(\w+)")
# A tool that fails says so behind its name: "ptxas fatal   : …", "x.cu(12): error: …", "/usr/bin/ld: cannot find …".
_TOOL = re.compile(
    r"^\s*(?:\S{1,200}\s){0,5}?(?:fatal|error|LLVM ERROR)(?:\s+[A-Z]{0,6}\d+|\[\w+\])?\s*:\s*\S|"
    r"^\s*(?:\S*/)?(?:ld|lld|gold|mold)(?:\.\w+)?: |"
    r"^\s*CMake Error\b|^\s*\S{1,300}: (?:fatal )?error: |: undefined reference to |^\s*(?:Fatal|FATAL|ERROR): \S|"
    # libraries and shells
    r"^\s*what\(\): |^(?:Last error:|thread '.{0,80}' panicked at .*:) \S|"
    r"^(?:Access to model|Cannot access|Repository Not Found|Revision Not Found|Invalid username) |"
    r"^(?:docker|podman|Error): (?:Error|[Uu]nable|short-name)|: No module named |"
    r"^\S+: (?:.*: )?(?:command not found|not found|[Pp]ermission denied|exec format error)$|"
    r"^exec \S+: |\[Errno \d+\] .*address",
)
# that it has failed, and not why
_TOOL_SUMMARY = re.compile(
    r"ld returned \d|linker command failed|build stopped|subcommand failed|command '.{0,200}' failed|exited? with|"
    r"exit (?:code|status)|errors? (?:detected|generated)|compilation terminated|configuring incomplete|"
    r"aborted due to|warning:|metadata-generation-failed|subprocess-exited"
)
# exceptions that tell that a tool has failed
_OF_A_TOOL = re.compile(
    r"(?i)exit (?:status|code)|compil|\bbuild|ninja|cmake|CalledProcess|nvcc|ptxas|triton|inductor|linker|codegen"
)
_TELL_NEXT = ("CMake Error", "Last error", "thread '")
_UNITS = {
    "GiB": 1.0,
    "GB": 1.0,
    "MiB": 1 / 1024,
    "MB": 1 / 1024,
    "KiB": 1 / 1024**2,
    "KB": 1 / 1024**2,
    "bytes": 1 / 1024**3,
}

# what goes on after a message that would otherwise be a failure
_HARMLESS = re.compile(r"Ignoring this choice|\bNCCL WARN\b")

# A function in a traceback says more about the phase than the last log line: the outermost of these counts, but the
# executors of vLLM up to 0.17 warm up from within the allocation of the KV cache.
_FRAMES: dict[str, PhaseName] = {
    "init_device": "start",
    "load_model": "weights",
    "determine_available_memory": "profile",
    "determine_num_available_blocks": "profile",
    "initialize_from_config": "kv",
    "initialize_cache": "kv",
    "compile_or_warm_up_model": "warmup",
    "init_torch_distributed": "start",  # from here on SGLang's
    "init_memory_pool": "kv",
    "init_cuda_graphs": "graphs",
    "init_device_graphs": "graphs",
}


@dataclass(slots=True)
class _Trace:
    """The traceback a process is printing."""

    frames: list[str] = field(default_factory=list)
    open: bool = False
    source: str = ""  # the last line that was no frame


class FailureFinder:
    """Reads the lines of a start-up in order and keeps the best explanation of its failure."""

    def __init__(self) -> None:
        self.found: StartFailure | None = None
        self.confirmed = False
        self._wrapped = False
        self._rank = 99
        self._traces: dict[tuple[str | None, int | None], _Trace] = {}
        self._waits_for_detail = False
        self._speaks: _Trace | None = None  # whose exception goes on in the lines that follow
        self._tool: str | None = None  # what a tool said last, outside of an exception
        self._head = ""  # of a tool that says where on one line, and what on the next
        self._text = ""  # the last line
        self._last: _Trace | None = None
        self._ranks: set[int] = set()
        self._notices: deque[str] = deque(maxlen=5)

    @property
    def notices(self) -> tuple[str, ...]:
        """Kernel messages that came with healthy starts too, so they are shown and are no failure."""
        return tuple(self._notices)

    @property
    def failure(self) -> StartFailure | None:
        """The failure, once it is certain that the start-up is over."""
        return self.found if self.confirmed else None

    def feed(self, line: LogLine, phase: PhaseName | None) -> None:
        """Look at one line; `phase` is the one that was running."""
        text = line.text.strip().lstrip("| ")  # bars: a group of exceptions
        if not text:
            return
        self._text = text
        trace = self._trace(line)
        if self._detail(text) or self._in_trace(text, trace) or _HARMLESS.search(text):
            return
        self._tool_speaks(text, trace)
        if "NV_ERR_NO_MEMORY" in text:
            self._notices.append(mask(text)[:_MAX_CAUSE])
        if self._recognise(text, trace, phase):
            return
        self._exception(text, trace, phase)

    def _trace(self, line: LogLine) -> _Trace:
        """The traceback a line may belong to: its process's, or of lines without a head the one that is open."""
        trace = self._traces.setdefault((line.process, line.pid), _Trace())
        if line.stamp is None and line.process is None:
            if self._speaks is not None:
                return self._speaks
            if self._last is not None and self._last.open:
                return self._last
        return trace

    def _tool_speaks(self, text: str, trace: _Trace) -> None:
        """Keep what a tool says: as a part of the exception that is going on, or for one that comes next."""
        whole = f"{self._head} {text}" if self._head else text
        self._head = text if text.endswith(":") and text.startswith(_TELL_NEXT) else ""
        if self._head or _TOOL.search(whole) is None or _TOOL_SUMMARY.search(whole) is not None:
            return
        said = mask(whole)[:_MAX_CAUSE]
        if self._speaks is trace and self.found is not None:
            self.found = _with_words(self.found, said)
        elif self._speaks is None:
            self._tool = said

    def finish(self, phase: PhaseName | None, exit_code: int | None = None, kv_gib: float | None = None) -> None:
        """The log or the process has ended before the server was up: settle what is known."""
        if self.found is None and exit_code is not None:
            ended = _ended(phase, exit_code)
            mute = phase is None and ended.kind == "exit"  # no engine has spoken: whoever was to start it has
            said = self._tool or (mask(self._text)[:_MAX_CAUSE] if mute else None)
            if said and (ended.kind == "exit" or exit_code in _ABORTS):
                ended = replace(ended, cause=f"exit code {exit_code}: {said}", said=said, kind="error")
            self._offer(ended, _DIED_RANK)
        if self.found is None and kv_gib is not None and kv_gib <= 0:
            cause = f"Available KV cache memory: {kv_gib:g} GiB: the budget leaves nothing for the KV cache"
            self._offer(StartFailure("kv", cause, {"kv_cache_gib": kv_gib}, "no_kv"), _DIED_RANK)
        if self.found is None and self._wrapped:
            self._offer(StartFailure(phase, "the engine ended and the log does not say why", {}, "exit"), _DIED_RANK)
        self.confirmed = self.found is not None

    def _detail(self, text: str) -> bool:
        if not self._waits_for_detail or self.found is None:
            return False
        self._waits_for_detail = not text.startswith("Value error")
        if text.startswith(("For further information", "raise ")):
            return False
        old = self.found
        cause = f"{old.cause}: {mask(text)}"[:_MAX_CAUSE]
        self.found = StartFailure(old.phase, cause, old.numbers | _named(text), old.kind)
        return True

    def _in_trace(self, text: str, trace: _Trace) -> bool:
        if _TRACEBACK in text:
            trace.frames, trace.open = [], True
            self._speaks, self._last = None, trace
            return True
        frame = _FRAME.search(text)
        if frame is not None and trace.open:
            trace.frames.append(frame[1])
        elif trace.open and _EXCEPTION.match(text) is None:
            trace.source = text
        return frame is not None

    def _recognise(self, text: str, trace: _Trace, phase: PhaseName | None) -> bool:
        raised = _RAISE.match(text)
        body = f"{raised['name']}: {raised['text']}" if raised else text
        for known in _KNOWN:
            match = known.pattern.search(body)
            if match is not None:
                where = known.phase or _phase(trace, phase)
                if known.kind == "warmup_oom" and where in (None, "start"):
                    where = "warmup"
                if known.kind == "collective_timeout":
                    return self._collective(StartFailure(where, mask(body)[:_MAX_CAUSE], _numbers(match), known.kind))
                # A source line of a traceback holds the text without its numbers: the message itself replaces it.
                rank = known.rank + (1 if raised else 0)
                self._offer(StartFailure(where, mask(body)[:_MAX_CAUSE], _numbers(match), known.kind), rank)
                self.confirmed = True
                return True
        return False

    def _collective(self, failure: StartFailure) -> bool:
        """A watchdog speaks once for every rank: all of them are named, with what they waited in."""
        rank, op = _RANK.search(failure.cause), _COLLECTIVE.search(failure.cause)
        if rank is not None:
            self._ranks.add(int(rank[1]))
        self._offer(failure, 0)
        if self.found is None or self.found.kind != failure.kind:
            return True
        waited = failure.numbers.get("milliseconds", 0.0) / 1000
        who = " and ".join(str(number) for number in sorted(self._ranks)[:8]) or "unknown"
        named = f"{op[1] if op else 'a collective operation'} on rank {who} hung for {waited:.0f} s: Watchdog caught it"
        seconds = {"seconds": waited, "ranks": float(len(self._ranks))}
        self.found = replace(self.found, said=named, numbers=self.found.numbers | seconds)
        self.confirmed = True
        return True

    def _exception(self, text: str, trace: _Trace, phase: PhaseName | None) -> None:
        inner = _INNER.search(text)
        if inner is not None:
            self._offer(
                StartFailure(_phase(trace, phase), mask(inner["text"])[:_MAX_CAUSE], _named(inner["text"])), _INNER_RANK
            )
        died = _DIED.search(text)
        code = next((int(g) for g in died.groups() if g), None) if died is not None else None
        if code is not None and code < 0:
            self._offer(_ended(phase, code), _DIED_RANK)
        if _WRAPPER.search(text):
            self._wrapped = True
            self.confirmed = self.confirmed or self.found is not None
            trace.open = False
            return
        match = _EXCEPTION.match(text)
        if match is None or not trace.open:
            return
        trace.open = False
        if match["name"] == "KeyboardInterrupt":
            self._offer(StartFailure(_phase(trace, phase), "stopped by Ctrl+C", {}, "stopped"), _EXCEPTION_RANK)
            return
        if not match["text"] and trace.source:  # it says nothing of itself: the line that raised it does
            text = f"{text.rstrip(':')}: {trace.source}"
        if self._offer(StartFailure(_phase(trace, phase), mask(text)[:_MAX_CAUSE], _named(text)), _EXCEPTION_RANK):
            self._waits_for_detail = "validation error" in text
            self._speaks = trace
            if self._tool is not None and self.found is not None and _OF_A_TOOL.search(text):
                self.found = _with_words(self.found, self._tool)

    def _offer(self, failure: StartFailure, rank: int) -> bool:
        if rank >= self._rank:
            return False
        self.found, self._rank = failure, rank
        return True


def _phase(trace: _Trace, phase: PhaseName | None) -> PhaseName | None:
    known = [_FRAMES[name] for name in trace.frames if name in _FRAMES]
    if not known:
        return phase
    where = "warmup" if (known[0], known[-1]) == ("kv", "warmup") else known[0]
    captures = where in ("kv", "warmup") and any("capture" in frame for frame in trace.frames)
    return "graphs" if captures else where


def _with_words(failure: StartFailure, said: str) -> StartFailure:
    """The exception's first line, and after it what the tool said last."""
    head = failure.cause if failure.said is None else failure.cause.removesuffix(failure.said)
    return replace(failure, cause=f"{head.rstrip(': ')}: {said}"[: 2 * _MAX_CAUSE], said=said)


def _numbers(match: re.Match[str]) -> dict[str, float]:
    read: dict[str, float] = {}
    for name, found in match.groupdict().items():
        amount, _, unit = (found or "").partition(" ")
        value = number(amount)
        if value is not None and not (name.startswith("total") and value <= 0):  # shares of it are computed
            read[name] = value * _UNITS.get(unit, 1.0)
    return read


def _named(text: str) -> dict[str, float]:
    return numbers(dict(_NAMED.findall(text)))


def _ended(phase: PhaseName | None, exit_code: int) -> StartFailure:
    if exit_code == GONE:
        return StartFailure(phase, "the process is gone without a word", {}, "killed")
    signal = -exit_code if exit_code < 0 else exit_code - 128
    numbers = {"exit_code": float(exit_code)}
    if signal in (2, 15):
        return StartFailure(phase, f"stopped by signal {signal}", numbers, "stopped")
    if signal == 9:
        return StartFailure(phase, "killed by signal 9 without a word", numbers, "killed")
    if 0 < signal < 65:
        return StartFailure(phase, f"ended by signal {signal} without a word", numbers, "killed")
    return StartFailure(phase, f"the process ended with exit code {exit_code} and gave no reason", numbers, "exit")
