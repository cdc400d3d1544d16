"""`llmtop warmup --check`: reads the machine and the command line, and judges the start before it happens."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmtop.contract.snapshot import Pool
from llmtop.machine.headroom import pools
from llmtop.machine.sample import MachineSample
from llmtop.warmup.evidence import GIB
from llmtop.warmup.preflight import MemoryPlan


@dataclass(frozen=True, slots=True)
class Command:
    """What a `vllm serve` command line asks for; None where it does not say."""

    utilization: float | None = None
    bad_utilization: str | None = None  # what it says instead of a share
    kv_cache_memory_bytes: int | None = None
    version: str | None = None
    host: str | None = None
    port: int | None = None
    ray: bool = False


def read_command(words: Sequence[str]) -> Command:
    """Read the flags of a command line, also inside `docker run … image` and `sh -c "vllm serve …"`."""
    flat = list(words)
    if len(flat) >= 3 and flat[1] in ("-c", "-lc"):
        flat = _split(flat[2])
    share = _value(flat, "gpu-memory-utilization")
    return Command(
        utilization=_number(share),
        bad_utilization=share if share is not None and not 0 < (_number(share) or 0.0) <= 1 else None,
        kv_cache_memory_bytes=_bytes(_value(flat, "kv-cache-memory-bytes") or _value(flat, "kv-cache-memory")),
        version=_installed(flat[0]) if flat else None,
        host=_value(flat, "host"),
        port=_port(_value(flat, "port")),
        ray=_value(flat, "distributed-executor-backend") == "ray",
    )


def _split(text: str) -> list[str]:
    """The words of a shell's command line; what no shell understands is cut at its spaces."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _value(words: Sequence[str], flag: str) -> str | None:
    names = {f"--{flag}", f"--{flag.replace('-', '_')}"}
    found: str | None = None
    for index, word in enumerate(words):
        name, sep, value = word.partition("=")
        if name in names:
            found = value if sep else words[index + 1] if index + 1 < len(words) else None
    return found


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _port(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None


def _bytes(text: str | None) -> int | None:
    """Plain bytes or vLLM's human sizes: 25G is 25 x 2^30, 25g is 25 x 10^9."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", text or "")
    if match is None:
        return None
    power = " kmgt".index(match[2].lower() or " ")
    base = 1024 if match[2].isupper() else 1000
    return int(float(match[1]) * base**power)


def _installed(program: str) -> str | None:
    """The vLLM version beside the program, from the package's metadata; nothing is run."""
    path = shutil.which(program)
    if path is None:
        return None
    root = Path(path).resolve(strict=False).parent.parent
    roots = {root, Path(path).parent.parent}
    found = [d.name for r in roots for d in r.glob("lib/python3*/site-packages/vllm*.dist-info")]
    versions = [m[1] for name in sorted(found) if (m := re.match(r"vllm(?:_cpu)?-([^-]+)\.dist-info$", name))]
    return versions[0] if versions else None


def make_plan(sample: MachineSample, command: Command, procfs: Path, cgroup: Path) -> MemoryPlan:
    """The plan for the fullest GPU, or for unified memory, or for the host's memory on a machine without a GPU."""
    pool = _pool(pools(sample))
    if pool is None:
        return MemoryPlan(version=command.version, utilization=command.utilization, ray=command.ray)
    unified = pool.kind == "unified"
    total, free = _gib(pool.total_bytes), _gib(pool.cuda_free_bytes if unified else pool.headroom_bytes)
    kv = command.kv_cache_memory_bytes
    return MemoryPlan(
        unified=unified,
        host_ram=pool.kind == "ram",
        version=command.version,
        utilization=command.utilization,
        kv_cache_memory_gib=None if kv is None else kv / GIB,
        ray=command.ray,
        total_gib=total,
        free_gib=free,
        available_gib=_gib(pool.headroom_bytes) if unified else None,
        cache_gib=_gib(pool.reclaimable_bytes),
        others_gib=_others(sample, pool),
        swap_used_gib=_gib(sample.host.swap_used_bytes),
        zram=_zram(procfs),
        cgroup_limit_gib=_gib(_limit(cgroup)),
    )


def _pool(found: Sequence[Pool]) -> Pool | None:
    for kind in ("hbm", "unified", "ram"):
        some = [p for p in found if p.kind == kind and p.headroom_bytes is not None]
        if some:
            return min(some, key=lambda p: p.headroom_bytes or 0)
    return None


def _others(sample: MachineSample, pool: Pool) -> float | None:
    sizes = [
        p.memory_bytes for d in sample.devices if pool.device is None or d.uuid == pool.device for p in d.processes
    ]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes) / GIB


def _zram(procfs: Path) -> bool:
    return any("/zram" in line for line in _lines(procfs / "swaps"))


def _limit(cgroup: Path) -> int | None:
    text = "".join(_lines(cgroup / "memory.max")).strip()
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _gib(value: int | None) -> float | None:
    return None if value is None else value / GIB
