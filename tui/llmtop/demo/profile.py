"""Machine profiles: what a simulated machine and its engine are made of, read from TOML files beside this
module.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Points = tuple[tuple[float, float], ...]
_T = TypeVar("_T")


class ProfileError(ValueError):
    """A profile that is missing, malformed or contradicts itself; the text names the file and the key."""


@dataclass(frozen=True, slots=True)
class Model:
    """The served model: its name and the longest request it takes, in tokens."""

    name: str
    max_model_len: int


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine's limits: sequences and tokens of one step, KV cache in tokens and bytes per token."""

    kind: Literal["vllm", "llama.cpp", "mlx"]
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    kv_bytes_per_token: int
    gpu_memory_utilization: float
    block_size: int = 16

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole KV cache."""
        return self.kv_tokens * self.kv_bytes_per_token


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Measured speeds, as points that `timing.StepModel` interpolates.

    `prefill`: one or two (prompt tokens, tok/s); `decode_ms`: (sequences, ms of a step); `context_us`: µs a
    step takes per token of context it reads; `slow_down`: (share of the KV cache used, factor on the step);
    `wake_ms`: from an arrival at an idle engine to its first step (HTTP, tokenizer), a part of what the
    prefill points measured that costs nothing beside other requests.
    """

    prefill: Points
    decode_ms: Points
    context_us: float = 0.0
    slow_down: Points = ((1.0, 1.0),)
    wake_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Canvas:
    """Diffusion decoding: tokens written together, and (tokens wanted, denoising steps) for one canvas."""

    tokens: int
    steps: Points


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """The simulated machine; memory in bytes, pairs are (idle, busy)."""

    device: str
    uuid: str
    memory: Literal["unified", "hbm+lpddr", "discrete"]
    mem_total: int
    mem_other: int
    page_cache: int
    weights: int
    graphs: int
    context: int
    power_w: tuple[float, float]
    temperature_c: tuple[float, float]
    clock_mhz: tuple[float, float]
    energy_scope: Literal["gpu", "module"]
    throttle_c: float
    swap_total: int = 0
    power_limit_w: float | None = None
    hbm_total: int = 0
    hbm_reserved: int = 0
    hbm_other: int = 0
    numa_node: int | None = None
    node_total: int = 0
    node_cache: int = 0


@dataclass(frozen=True, slots=True)
class WarmupPhase:
    """One phase of a start-up: how long, what device memory it adds for good (`device`, plus the KV cache
    when `kv`), what it takes only while it runs (`peak`), and the page cache it leaves; bytes and
    seconds.
    """

    phase: str
    seconds: float
    device: int
    peak: int = 0
    cache: int = 0
    shards: int = 0
    kv: bool = False


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """One machine with one engine serving one model."""

    key: str
    title: str
    model: Model
    engine: EngineConfig
    timing: StepTiming
    machine: MachineConfig
    warmup: tuple[WarmupPhase, ...] = ()
    canvas: Canvas | None = None

    @property
    def engine_bytes(self) -> int:
        """Device memory of one engine that is ready: weights, KV cache, graphs and context."""
        machine = self.machine
        return machine.weights + self.engine.kv_bytes + machine.graphs + machine.context


def names() -> tuple[str, ...]:
    """The profiles that come with llmtop, in alphabetical order."""
    entries = (files(__package__) / "profiles").iterdir()
    return tuple(sorted(Path(e.name).stem for e in entries if e.name.endswith(".toml")))


def load(name: str) -> MachineProfile:
    """The profile called `name`; raises ProfileError with the known names, or with what is wrong in the
    file.
    """
    if name not in names():
        raise ProfileError(f"no machine {name!r}; known: {', '.join(names())}")
    text = (files(__package__) / "profiles" / f"{name}.toml").read_text(encoding="utf-8")
    return parse(name, text)


def parse(key: str, text: str) -> MachineProfile:
    """A profile from TOML text; raises ProfileError naming the key that is missing, unknown or of the wrong
    type.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{key}.toml: {error}") from None
    profile = _record(MachineProfile, {"key": key, **data}, f"{key}.toml")
    _check(profile)
    return profile


def _record(kind: type[_T], data: object, where: str) -> _T:
    """A dataclass from a TOML table, each value converted to the type its field states."""
    if not isinstance(data, dict):
        raise ProfileError(f"{where}: expected a table")
    hints = get_type_hints(kind)
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for unknown in data.keys() - set(known):
        raise ProfileError(f"{where}: unknown key {unknown!r}")
    values = {name: _value(hints[name], data[name], f"{where}: {name}") for name in known if name in data}
    try:
        return kind(**values)
    except TypeError as error:
        raise ProfileError(f"{where}: {error}") from None


def _value(hint: Any, raw: object, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _value(next(a for a in args if a is not NoneType), raw, where)
    if origin is tuple:
        return _sequence(args, raw, where)
    if origin is Literal:
        return _literal(args, raw, where)
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return _record(hint, raw, where)
    if hint is float and type(raw) in (int, float):
        return float(raw)  # type: ignore[arg-type]
    if type(raw) is not hint:
        raise ProfileError(f"{where}: expected {hint.__name__}, got {raw!r}")
    return raw


def _literal(allowed: tuple[object, ...], raw: object, where: str) -> object:
    if raw not in allowed:
        raise ProfileError(f"{where}: expected one of {', '.join(map(str, allowed))}, got {raw!r}")
    return raw


def _sequence(args: tuple[Any, ...], raw: object, where: str) -> tuple[Any, ...]:
    if not isinstance(raw, list):
        raise ProfileError(f"{where}: expected a list")
    if args[-1] is Ellipsis:
        return tuple(_value(args[0], item, where) for item in raw)
    if len(raw) != len(args):
        raise ProfileError(f"{where}: expected {len(args)} values, got {len(raw)}")
    return tuple(_value(arg, item, where) for arg, item in zip(args, raw, strict=True))


def _check(profile: MachineProfile) -> None:
    """Refuses what the simulation could not run: an empty curve, or a KV cache too small for one request."""
    where = f"{profile.key}.toml"
    if len(profile.timing.prefill) not in (1, 2):
        raise ProfileError(f"{where}: timing.prefill needs one or two points")
    for name in ("prefill", "decode_ms", "slow_down"):
        points: Points = getattr(profile.timing, name)
        if not points or list(points) != sorted(points) or any(y <= 0 for _, y in points):
            raise ProfileError(f"{where}: timing.{name} needs rising points above zero")
    longest = profile.model.max_model_len + (profile.canvas.tokens if profile.canvas else 0)
    if profile.engine.kv_tokens < longest + profile.engine.block_size:
        raise ProfileError(f"{where}: kv_tokens has no room for one request of max_model_len")
