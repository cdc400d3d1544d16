"""The lines vLLM 0.32 logs while it starts, with a profile's numbers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from llmtop.demo.profile import MachineProfile, WarmupPhase

GRAPHS = 35
_GIB = 2**30
_INIT = ("compile", "profile", "kv", "warmup", "graphs")


def _line(process: str, source: str, message: str, level: str = "INFO") -> str:
    stamp = time.strftime("%m-%d %H:%M:%S")
    return f"({process} pid={os.getpid()}) {level} {stamp} [{source}] {message}"


def _core(source: str, message: str, level: str = "INFO") -> str:
    return _line("EngineCore", source, message, level)


def opening(profile: MachineProfile, phase: WarmupPhase, speed: float, free: int) -> Iterator[str]:
    """What is logged when a phase begins; `free` is the device memory free then, in bytes."""
    model = profile.model.name
    if phase.phase == "start":
        yield from _start(profile)
    elif phase.phase == "weights":
        yield _core("gpu_model_runner.py:5311", f"Starting to load model {model}...")
        size, ram = f"{profile.machine.weights / _GIB:.2f}", f"{free / _GIB:.2f}"
        text = f"Filesystem type for checkpoints: EXT4. Checkpoint size: {size} GiB. Available RAM: {ram} GiB."
        yield _core("weight_utils.py:1108", text)
    elif phase.phase == "profile":
        yield _core("gpu_model_runner.py:6480", "Profiling CUDA graph memory: PIECEWISE=35 (largest=256), FULL=19")
    elif phase.phase == "warmup":
        yield _core("autotuner.py:270", "[Autotuner]: Autotuning process starts ...")
    elif phase.phase == "graphs":
        yield _core("gpu_model_runner.py:6702", "Capturing the model for CUDA graphs. This may take a while.")
    elif phase.phase == "compile":
        seconds = phase.seconds * 0.35 / speed
        yield _core("backends.py:1069", f"Dynamo bytecode transform time: {seconds:.2f} s")


def _start(profile: MachineProfile) -> Iterator[str]:
    engine, model = profile.engine, profile.model
    args = {
        "model_tag": model.name,
        "max_model_len": model.max_model_len,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
    }
    api = "APIServer"
    yield _line(api, "api_utils.py:347", " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0")
    yield _line(api, "api_utils.py:347", f"   █▄█▀ █     █     █     █  model   {model.name}")
    yield _line(api, "api_utils.py:286", f"non-default args: {args}")
    yield _line(api, "model.py:2152", f"Using max model len {model.max_model_len}")
    text = f"Chunked prefill is enabled with max_num_batched_tokens={engine.max_num_batched_tokens}."
    yield _line(api, "scheduler.py:239", text)
    yield _core("core.py:133", f"Initializing a V1 LLM engine (v0.32.0) with config: model='{model.name}'")


def progress(phase: WarmupPhase, step: int, steps: int, seconds: float) -> str:
    """One line of a progress bar: step of steps, `seconds` for all of them."""
    share = step / steps
    spent, left = _clock(seconds * share), _clock(seconds * (1 - share))
    if phase.phase == "weights":
        return f"Loading safetensors checkpoint shards: {share:4.0%} Completed | {step}/{steps} [{spent}<{left}]"
    bar = "█" * int(share * 10)
    what = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)"
    return f"{what}: {share:4.0%}|{bar:<10}| {step}/{steps} [{spent}<{left}]"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def closing(profile: MachineProfile, phase: WarmupPhase, speed: float) -> Iterator[str]:
    """What is logged when a phase ends."""
    seconds = phase.seconds / speed
    if phase.phase == "weights":
        weights = profile.machine.weights / _GIB
        yield _core("default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")
        yield _core(
            "gpu_model_runner.py:5398", f"Model loading took {weights:.2f} GiB memory and {seconds:.6f} seconds"
        )
    elif phase.phase == "compile":
        yield _core("backends.py:388", f"Compiling a graph for compile range (1, 2048) takes {seconds * 0.6:.2f} s")
        yield _core("monitor.py:48", f"torch.compile took {seconds:.2f} s in total")
    elif phase.phase == "profile":
        yield _core("monitor.py:81", f"Initial profiling/warmup run took {seconds:.2f} s")
        estimate = profile.machine.graphs * 0.8 / _GIB
        yield _core("gpu_model_runner.py:6559", f"Estimated CUDA graph memory: {estimate:.2f} GiB total")
    elif phase.phase == "kv":
        yield from _kv(profile)
    elif phase.phase == "warmup":
        yield _core("autotuner.py:281", "[Autotuner]: Autotuning process ends")
    elif phase.phase == "graphs":
        yield from _graphs(profile, seconds)


def _kv(profile: MachineProfile) -> Iterator[str]:
    engine, longest = profile.engine, profile.model.max_model_len
    yield _core("gpu_worker.py:480", f"Available KV cache memory: {engine.kv_bytes / _GIB:.2f} GiB")
    text = (
        f"GPU KV cache size: {engine.kv_tokens:,} tokens, Maximum concurrency for {longest:,} tokens per request: "
        f"{engine.kv_tokens / longest:.2f}x"
    )
    yield _core("kv_cache_utils.py:2327", text)


def _graphs(profile: MachineProfile, seconds: float) -> Iterator[str]:
    size = profile.machine.graphs / _GIB
    text = f"Graph capturing finished in {seconds:.0f} secs, took {size:.2f} GiB"
    yield _core("gpu_model_runner.py:6790", text)
    text = f"CUDA graph pool memory: {size:.2f} GiB (actual), {size * 0.8:.2f} GiB (estimated)"
    yield _core("gpu_worker.py:688", text)


def ready(profile: MachineProfile, speed: float, port: int) -> Iterator[str]:
    """What is logged when the server is about to listen."""
    machine, share = profile.machine, profile.engine.gpu_memory_utilization
    total = machine.hbm_total or machine.mem_total
    free = total - machine.hbm_reserved - machine.hbm_other - (0 if machine.hbm_total else machine.mem_other)
    wanted, used = total * share / _GIB, (machine.weights + machine.context) / _GIB
    peak = max((p.peak for p in profile.warmup), default=0) / _GIB
    text = (
        f"Free memory on device ({free / _GIB:.2f}/{total / _GIB:.2f} GiB) on startup. Desired GPU memory utilization "
        f"is ({share}, {wanted:.2f} GiB). Actual usage is {used:.2f} GiB for consumed memory (weights + non-torch), "
        f"{peak:.2f} GiB for peak activation, and {machine.graphs / _GIB:.2f} GiB for CUDAGraph memory"
    )
    yield _core("gpu_worker.py:782", text)
    init = sum(p.seconds for p in profile.warmup if p.phase in _INIT) / speed
    compiling = sum(p.seconds for p in profile.warmup if p.phase == "compile") / speed
    text = f"init engine (profile, create kv cache, warmup model) took {init:.2f} s (compilation: {compiling:.2f} s)"
    yield _core("core.py:402", text)
    yield _line("APIServer", "entry.py:140", f"Starting vLLM server on http://127.0.0.1:{port}")
    yield f"INFO:     Started server process [{os.getpid()}]"
    yield "INFO:     Application startup complete."


def out_of_memory(profile: MachineProfile, free: int) -> Iterator[str]:
    """The last lines of a start-up that runs out of memory in graph capture."""
    total = (profile.machine.hbm_total or profile.machine.mem_total) / _GIB
    text = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a total capacity of "
        f"{total:.2f} GiB of which {free / 2**20:.2f} MiB is free."
    )
    yield _core("core.py:1584", "EngineCore failed to start.", "ERROR")
    yield _core("core.py:1584", text, "ERROR")
    yield _line(
        "APIServer",
        "launcher.py:120",
        "RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore_DP0': 1}",
        "ERROR",
    )
