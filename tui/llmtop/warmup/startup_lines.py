"""One line of a vLLM log: its prefixes, its time, and what it says about the start-up.

The table holds every message shape of versions 0.6 to 0.33 in one place. In a pattern `@name` stands for a number
(sign, thousands commas, fraction) that is stored under that name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

PhaseName: TypeAlias = Literal["start", "weights", "compile", "profile", "kv", "warmup", "graphs", "ready"]
Edge: TypeAlias = Literal["begin", "during", "end"]

PHASES: tuple[PhaseName, ...] = ("start", "weights", "compile", "profile", "kv", "warmup", "graphs", "ready")
MAX_LINE = 65_536

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Stamp:
    """A log time; vLLM's own has no year and a resolution of one second."""

    month: int
    day: int
    second: float  # of the day
    year: int | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log line without its prefixes; `process` and `pid` are those of the innermost prefix."""

    text: str
    process: str | None = None
    pid: int | None = None
    level: str | None = None
    stamp: Stamp | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """What a line says: a phase, whether it begins or ends there, numbers and texts by name."""

    what: str
    phase: PhaseName
    edge: Edge
    took: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rule:
    what: str
    phase: PhaseName
    edge: Edge
    pattern: re.Pattern[str]
    took: str | None  # the number that says how long the thing just reported had taken


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in which `@name` stands for a number."""
    return re.compile(re.sub(r"@(\w+)", lambda m: f"(?P<{m[1]}>{_NUMBER})", pattern))


def number(text: str) -> float:
    """Read a number with thousands commas."""
    return float(text.replace(",", ""))


def _rule(name: str, phase: PhaseName, edge: Edge, pattern: str, took: str | None = None) -> _Rule:
    return _Rule(name, phase, edge, compile_pattern(pattern), took)


# Order matters: the first rule that matches wins.
_RULES: tuple[_Rule, ...] = (
    _rule("version", "start", "during", r"vLLM API server version (?P<version>\d\S*)\s*$"),
    _rule("version", "start", "during", r"^[\W_]*\bversion (?P<version>\d+\.\d\S*)\s*$"),
    _rule("engine", "start", "during", r"Initializing an? (?:V\d )?LLM engine \(v(?P<engine_version>[^)]+)\)"),
    _rule("args", "start", "during", r"(?:non-default args: \{|args: Namespace\()(?P<args>.*)$"),
    _rule("max_len", "start", "during", r"Using max model len @max_model_len"),
    _rule(
        "batched",
        "start",
        "during",
        r"Chunked prefill is enabled with max_num_batched_tokens=@max_num_batched_tokens",
    ),
    _rule("start_load", "weights", "begin", r"Starting to load model (?P<model>.+?)\.\.\.\s*$"),
    _rule("drafter", "weights", "during", r"Loading drafter model"),
    _rule("download", "weights", "during", r"Time spent downloading weights for .*?: @download_seconds seconds"),
    _rule(
        "checkpoint",
        "weights",
        "during",
        r"Checkpoint size: @checkpoint_gib GiB\. Available RAM: @available_ram_gib GiB",
    ),
    _rule("shards", "weights", "during", r"(?i)\bloading [^:|]{0,60}:\s+@percent% Completed \| @done/@of"),
    _rule("prefetch", "weights", "during", r"Prefetching checkpoint files: @percent% \(@done/@of\)"),
    _rule("weights_read", "weights", "end", r"Loading weights took @read_seconds seconds", "read_seconds"),
    _rule(
        "model_loaded",
        "weights",
        "end",
        r"(?:Model loading took|Loading model weights took) @weights_gib (?:GiB|GB)(?: memory)?"
        r"(?: and @weights_seconds seconds)?",
        "weights_seconds",
    ),
    _rule(
        "encoder",
        "profile",
        "begin",
        r"Encoder cache will be initialized with a budget of @encoder_tokens tokens",
    ),
    _rule("dynamo", "compile", "during", r"Dynamo bytecode transform time: @took_s s", "took_s"),
    _rule("compiled", "compile", "during", r"Compiling a graph for .*? takes @took_s s", "took_s"),
    _rule("cached", "compile", "during", r"Directly load the compiled graph\(s\) .*? took @took_s s", "took_s"),
    _rule(
        "compile_total",
        "compile",
        "end",
        r"torch\.compile (?:takes|took|and initial profiling/warmup run together took) @compile_seconds s in total",
        "compile_seconds",
    ),
    _rule("compile_cache", "compile", "during", r"for vLLM's torch\.compile|Directly load AOT compilation from"),
    _rule("cpu_warm", "compile", "begin", r"Warming up model for the compilation"),
    _rule("cpu_warm_done", "compile", "end", r"Warming up done\."),
    _rule(
        "profiled",
        "profile",
        "end",
        r"(?:Initial profiling/warmup run took|Memory profiling takes) @profile_seconds s",
        "profile_seconds",
    ),
    _rule(
        "v0_budget",
        "profile",
        "end",
        r"total_gpu_memory \(@total_gib ?GiB\) x gpu_memory_utilization \(@utilization\) = @requested_gib ?GiB",
    ),
    _rule(
        "v0_split",
        "profile",
        "end",
        r"model weights take @split_weights_gib ?GiB; non_torch_memory takes @non_torch_gib ?GiB; PyTorch activation "
        r"peak memory takes @activation_gib ?GiB; the rest of the memory reserved for KV Cache is @kv_cache_gib ?GiB",
    ),
    _rule(
        "v0_results",
        "profile",
        "end",
        r"Memory profiling results: total_gpu_memory=@total_gib ?GiB .*?non_torch_memory=@non_torch_gib ?GiB "
        r"kv_cache_size=@kv_cache_gib ?GiB gpu_memory_utilization=@utilization",
    ),
    _rule("graphs_planned", "profile", "during", r"Profiling CUDA graph memory: "),
    _rule("graphs_estimate", "profile", "during", r"Estimated CUDA graph memory: @graph_estimate_gib GiB total"),
    _rule("kv_available", "kv", "begin", r"Available KV cache memory: @kv_cache_gib GiB"),
    _rule(
        "kv_fixed",
        "kv",
        "begin",
        r"Initial free memory @free_gib GiB, reserved @kv_cache_gib ?GiB memory for KV Cache",
    ),
    _rule("kv_cpu", "kv", "begin", r"Explicitly set \(@kv_cache_gib/@node_gib\) GiB for KV cache"),
    _rule(
        "equivalent",
        "kv",
        "during",
        r"current --gpu-memory-utilization=@utilization is equivalent to "
        r"--gpu-memory-utilization=@utilization_without_graphs",
    ),
    _rule(
        "estimate_off",
        "kv",
        "during",
        r"increase --gpu-memory-utilization from @utilization to @utilization_with_graphs",
    ),
    _rule(
        "kv_size",
        "kv",
        "end",
        r"KV cache size: @kv_cache_tokens tokens(?:, Maximum concurrency for @concurrency_tokens tokens per request: "
        r"@max_concurrency ?x)?",
    ),
    _rule("v0_blocks", "kv", "end", r"# \w+ blocks: @kv_cache_blocks(?:, # CPU blocks: @cpu_blocks)?"),
    _rule(
        "concurrency",
        "kv",
        "end",
        r"Maximum concurrency for @concurrency_tokens tokens per request: @max_concurrency ?x",
    ),
    _rule("autotune_end", "warmup", "end", r"\[Autotuner\]: Autotuning process ends"),
    _rule("warm_size", "warmup", "during", r"Compile and warming up model for size @warm_size"),
    _rule(
        "warming",
        "warmup",
        "during",
        r"(?i)\[autotuner\]|deep_?gemm warm-?up[^:|]*:\s+\d+%\||^warming up (?:kernels|(?:the )?sampler|flashinfer)\b",
    ),
    _rule(
        "capture",
        "graphs",
        "during",
        r"Capturing (?:[\w-]+ )?CUDA graphs?(?: shapes)?(?: \((?P<label>[^)]*)\))?:\s+@percent%\|.*?\| @done/@of",
    ),
    _rule("capture_begin", "graphs", "begin", r"Capturing (?:cudagraphs for decoding|the model for CUDA graphs)"),
    _rule(
        "captured",
        "graphs",
        "end",
        r"Graph capturing finished in @graph_seconds secs?(?:, took @graph_gib GiB)?",
        "graph_seconds",
    ),
    _rule(
        "graph_pool",
        "graphs",
        "end",
        r"CUDA graph pool memory: @graph_pool_gib GiB \(actual\), @graph_estimate_gib GiB \(estimated\)",
    ),
    _rule(
        "suggestion",
        "ready",
        "begin",
        r"Free memory on device(?: \S+)? \(@free_gib/@total_gib GiB\) on startup\. Desired GPU memory utilization is "
        r"\(@utilization, @requested_gib GiB\)\.",
    ),
    _rule(
        "init",
        "ready",
        "begin",
        r"init engine \(profile, create kv cache, warmup model\) took @init_seconds s",
    ),
    _rule("serving", "ready", "during", r"Starting vLLM (?:API )?server(?: \d+)? on (?P<url>\S+)"),
    _rule("up", "ready", "end", r"Application startup complete"),
)

# The suggestion names what the budget was spent on; which parts it names depends on the version.
_SUGGESTION = tuple(
    compile_pattern(p)
    for p in (
        r"Actual usage is @split_weights_gib GiB for weight",
        r"@consumed_gib GiB for consumed memory",
        r"@activation_gib GiB for peak activation",
        r"@non_torch_gib GiB for non-torch memory",
        r"@graph_in_budget_gib GiB for CUDAGraph memory",
        r"--kv-cache-memory(?:-bytes)?=@kv_fit_bytes` (?:\([^)]*\) )?to fit into requested memory",
        r"--kv-cache-memory(?:-bytes)?=@kv_full_bytes` (?:\([^)]*\) )?to fully utilize",
        r"Current kv cache memory in use is @kv_in_use_gib GiB",
        r"Current kv cache memory in use is @kv_in_use_bytes bytes",
    )
)

_ARGUMENTS = {
    "gpu_memory_utilization": "utilization",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "tensor_parallel_size": "tensor_parallel_size",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "port": "port",
}

_COMPOSE = re.compile(r"^\[?[A-Za-z][\w.-]*\]?\s*\|\s?")
_OUTER = (
    re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)\s+(?:std(?:out|err) [FP] )?"),
    re.compile(r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w.@/-]+(?:\[\d+\])?: "),
)
_PROCESS = re.compile(
    r"^\((?P<name>[A-Za-z][\w:.-]*)?(?:,? ?rank=\d+)?(?: ?pid=(?P<pid>\d+))?(?:, ip=[\w.:]+)?\)(?:\s+|$)"
)
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_HEADER = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<mo>\d\d)-(?P<d>\d\d) "
    r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?) \[?[\w./-]+\.py:\d+\] ?(?P<msg>.*)$"
)
_ISO = re.compile(
    r"^(?P<y>\d{4})-(?P<mo>\d\d)-(?P<d>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?) (?:- )?(?P<msg>.*)$"
)
_GLOG = re.compile(
    r"^(?:\[rank\d+\]:)?\[?[IWEF](?P<mo>\d\d)(?P<d>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d\.\d+)\s+(?P<msg>.*)$"
)


def clean(raw: str) -> str:
    """Remove terminal escapes and control characters, keep what follows the last carriage return, cut at 64 KiB."""
    text = _ANSI.sub("", raw[:MAX_LINE]).rstrip("\r\n")
    return _CONTROL.sub("", text.rsplit("\r", 1)[-1])


def parse(raw: str) -> LogLine:
    """Split one line into process prefixes, time and message."""
    text = _REPEATED.sub("", clean(raw))
    process, pid = None, None
    text = _COMPOSE.sub("", text, count=1)
    for pattern in _OUTER:
        text = pattern.sub("", text, count=1)
    for _ in range(3):  # under Ray an engine prints its workers' lines with both prefixes
        match = _PROCESS.match(text)
        if match is None or not (match["name"] or match["pid"]):
            break
        if match["pid"] is None and match["name"] != "raylet":
            break
        process, pid = match["name"], int(match["pid"]) if match["pid"] else None
        text = text[match.end() :]
    return _headed(text, process, pid)


def _headed(text: str, process: str | None, pid: int | None) -> LogLine:
    for pattern in (_HEADER, _ISO, _GLOG):
        match = pattern.match(text)
        if match is not None:
            groups = match.groupdict()
            return LogLine(groups["msg"], process, pid, groups.get("level"), _stamp(groups))
    return LogLine(text, process, pid)


def _stamp(groups: dict[str, str]) -> Stamp:
    second = int(groups["h"]) * 3600 + int(groups["m"]) * 60 + float(groups["s"].replace(",", "."))
    year = int(groups["y"]) if groups.get("y") else None
    return Stamp(int(groups["mo"]), int(groups["d"]), second, year)


def read(text: str) -> Hit | None:
    """What the message says about the start-up, or None."""
    for rule in _RULES:
        match = rule.pattern.search(text)
        if match is not None:
            return _hit(rule, match, text)
    return None


def _hit(rule: _Rule, match: re.Match[str], text: str) -> Hit:
    values: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name, found in match.groupdict().items():
        if found is None:
            continue
        if re.fullmatch(_NUMBER, found) and name not in ("version", "engine_version", "model", "label"):
            values[name] = number(found)
        else:
            texts[name] = found
    if rule.what == "args":
        values.update(_arguments(texts.pop("args", "")))
    elif rule.what == "suggestion":
        values.update(_details(text))
    took = values.get(rule.took) if rule.took else None
    return Hit(rule.what, rule.phase, rule.edge, took, values, texts)


def _arguments(text: str) -> dict[str, float]:
    found = ((name, re.search(rf"\b{arg}['\"]?\s*[:=]\s*({_NUMBER})\b", text)) for arg, name in _ARGUMENTS.items())
    return {name: number(match[1]) for name, match in found if match is not None}


def _details(text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for pattern in _SUGGESTION:
        match = pattern.search(text)
        if match is not None:
            values.update({name: number(found) for name, found in match.groupdict().items()})
    return values
