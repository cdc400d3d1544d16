"""What an engine says about its start-up, one message at a time.

`phrases.tsv` holds every message shape of vLLM 0.6 to 0.33 and of SGLang (its rows begin with `sg_`), one a row; the
first that matches wins. In a pattern `@name` stands for a number (sign, thousands commas, fraction) stored under that
name; a number that is none is not stored.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal, TypeAlias, cast, get_args

PhaseName: TypeAlias = Literal["start", "weights", "compile", "profile", "kv", "warmup", "graphs", "ready"]
Edge: TypeAlias = Literal["begin", "during", "end"]
EngineName: TypeAlias = Literal["vllm", "sglang"]

PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_LARGEST = 1e18  # beyond it no size, count or time is one


@dataclass(frozen=True, slots=True)
class Hit:
    """What a line says: a phase, whether it begins or ends there, numbers and texts by name."""

    what: str
    phase: PhaseName
    edge: Edge
    took: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def engine(self) -> EngineName | None:
        """Whose message it is; None for those that both print."""
        if self.what in _SHARED:
            return None
        return "sglang" if self.what.startswith("sg_") or self.what == "fired" else "vllm"


_SHARED = frozenset({"up", "shards", "sg_url", "down"})


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


def number(text: str) -> float | None:
    """Read a number with thousands commas; None where it is none, or too large to be meant."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= _LARGEST else None


def numbers(found: dict[str, str]) -> dict[str, float]:
    """The numbers among texts, by name."""
    return {name: value for name, text in found.items() if (value := number(text)) is not None}


def _rules() -> tuple[_Rule, ...]:
    table = files("llmtop.warmup").joinpath("phrases.tsv").read_text("utf-8")
    rows = (line.split("\t") for line in table.splitlines()[1:])
    return tuple(
        _Rule(what, cast(PhaseName, phase), cast(Edge, edge), compile_pattern(pattern), None if took == "-" else took)
        for what, phase, edge, took, pattern in rows
    )


_RULES = _rules()

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
    "mem_fraction_static": "mem_fraction_static",
    "context_length": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "tp_size": "tensor_parallel_size",
}
_MODEL = re.compile(r"\bmodel(?:_path)?['\"]?\s*[:=]\s*['\"]([^'\"]+)")
_TEXTS = frozenset({"version", "engine_version", "model", "label", "url", "args", "specs", "cores"})


def read(text: str) -> Hit | None:
    """What the message says about the start-up, or None."""
    for rule in _RULES:
        match = rule.pattern.search(text)
        if match is not None:
            return _hit(rule, match, text)
    return None


def _hit(rule: _Rule, match: re.Match[str], text: str) -> Hit:
    found = {name: part for name, part in match.groupdict().items() if part is not None}
    texts = {name: part for name, part in found.items() if name in _TEXTS}
    values = numbers({name: part for name, part in found.items() if name not in _TEXTS})
    given = texts.pop("args", "")
    values |= _arguments(given)
    named = _MODEL.search(given)
    if named is not None:
        texts.setdefault("model", named[1])
    if rule.what == "suggestion":
        values |= _details(text)
    if "k_gib" in values and "v_gib" in values:
        values["kv_cache_gib"] = values.pop("k_gib") + values.pop("v_gib")
    return Hit(rule.what, rule.phase, rule.edge, values.get(rule.took) if rule.took else None, values, texts)


def _arguments(text: str) -> dict[str, float]:
    if not text:
        return {}
    found = ((name, re.search(rf"\b{arg}['\"]?\s*[:=]\s*({_NUMBER})\b", text)) for arg, name in _ARGUMENTS.items())
    return numbers({name: match[1] for name, match in found if match is not None})


def _details(text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for pattern in _SUGGESTION:
        match = pattern.search(text)
        if match is not None:
            values |= numbers(match.groupdict())
    return values
