"""Failed starts: the cause, its numbers and its phase, and what is no failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.startup_lines import CAPTURING, KV, LOADED, PREFIX, STARTED
from llmtop.warmup.startup import Startup
from llmtop.warmup.tracker import read_log

LOGS = Path(__file__).parents[1] / "fixtures" / "startup"


def log(name: str) -> Startup:
    return read_log((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines())


def cause(lines: list[str]) -> str:
    failure = read_log(lines).failure
    assert failure is not None
    return failure.cause


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a total capacity of 22.36 GiB "
    "of which 120.88 MiB is free."
)

# lines before, failing line, phase, kind, some numbers
FAILURES: dict[str, tuple[list[str], str, tuple[str | None, str, dict[str, float]]]] = {
    "free too low": (
        STARTED[:1],
        "ValueError: Free memory on device cuda:0 (85.92/121.69 GiB) on startup is less than desired GPU "
        "memory utilization "
        "(0.92, 111.95 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        (
            "start",
            "free_too_low",
            {"free_gib": 85.92, "total_gib": 121.69, "utilization": 0.92, "requested_gib": 111.95},
        ),
    ),
    "free too low, old words": (
        [],
        "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, "
        "71.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        ("start", "free_too_low", {"free_gib": 59.32}),
    ),
    "profiling": (
        LOADED,
        "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free memory "
        "90.17 GiB. This ...",
        ("profile", "profile_assert", {"initial_gib": 82.94, "current_gib": 90.17}),
    ),
    "no KV": (
        [*LOADED, PREFIX + "INFO 06-08 00:09:20 [w.py:1] Available KV cache memory: -2.26 GiB"],
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the "
        "engine.",
        ("kv", "no_kv", {}),
    ),
    "too long": (
        KV,
        "ValueError: To serve at least one request with the model's max seq len (262144), (16.0 GiB KV "
        "cache is needed, which "
        "is larger than the available KV cache memory (12.48 GiB). Based on the available memory, the "
        "estimated maximum "
        "model length is 204000. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.",
        (
            "kv",
            "len_too_long",
            {"max_model_len": 262144, "needed_gib": 16, "available_gib": 12.48, "estimated_max_len": 204000},
        ),
    ),
    "too long, V0": (
        [],
        "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be "
        "stored in KV "
        "cache (5136). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine.",
        ("kv", "len_too_long", {"max_model_len": 8192, "kv_tokens": 5136}),
    ),
    "profiling, in bytes": (
        LOADED,
        "AssertionError: Error in memory profiling. Initial free memory 25216745472, current free memory 25316745472. "
        "This ...",
        ("profile", "profile_assert", {"initial_bytes": 25216745472, "current_bytes": 25316745472}),
    ),
    "too long, in GB": (
        KV,
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GB KV cache is "
        "needed, which is larger than the available KV cache memory (3.20 GB). Try increasing ...",
        ("kv", "len_too_long", {"max_model_len": 131072, "needed_gib": 16, "available_gib": 3.2}),
    ),
    "graphs, old words": (
        CAPTURING,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacty of 22.36 "
        "GiB of which 120.88 MiB is free.",
        ("graphs", "out_of_memory", {"tried_gib": 1.5, "total_gib": 22.36, "free_gib": 120.88 / 1024}),
    ),
    "Ray, on a line of its own": (
        KV,
        "Memory on the node (IP: 192.0.2.2, ID: 1) where the task (task ID: 2) was running was 113.76GB / 119.70GB "
        "(0.950345), which exceeds the memory usage threshold of 0.95.",
        ("kv", "ray_oom", {"used_gb": 113.76, "total_gb": 119.7, "share": 0.950345}),
    ),
    "graphs": (
        CAPTURING,
        OOM,
        ("graphs", "out_of_memory", {"tried_gib": 136 / 1024, "total_gib": 22.36, "free_gib": 120.88 / 1024}),
    ),
    "weights": (STARTED, OOM, ("weights", "out_of_memory", {})),
    "profile run": (LOADED, OOM, ("profile", "out_of_memory", {})),
    "nothing known before": ([], OOM, (None, "out_of_memory", {})),
    "sampler": (
        CAPTURING,
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please "
        "try lowering "
        "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
        ("graphs", "warmup_oom", {"dummy_requests": 256}),
    ),
    "Ray": (
        KV,
        "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. "
        "Memory on the node "
        "(IP: 192.0.2.2) was 113.76GB / 119.70GB (0.950345)",
        ("kv", "ray_oom", {"used_gb": 113.76, "total_gb": 119.7, "share": 0.950345}),
    ),
    "DeepGEMM": (
        KV,
        "RuntimeError: Assertion error (csrc/apis/layout.hpp:60): Unknown SF transformation",
        ("kv", "deep_gemm", {}),
    ),
    "option": ([], "vllm serve: error: unrecognized arguments: --gpu-mem 0.5", ("start", "usage", {})),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_are_recognised_with_their_numbers(case: str) -> None:
    before, line, (phase, kind, numbers) = FAILURES[case]
    wrapped = [
        PREFIX + "ERROR 06-08 00:09:30 [core.py:1] EngineCore failed to start.",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore_DP0': 1}",
    ]
    s = read_log([*before, PREFIX + line if phase != "start" or before else line, *wrapped])
    assert s.state == "failed"
    assert s.failure is not None
    assert (s.failure.phase, s.failure.kind) == (phase, kind)
    assert s.failure.cause == line
    assert {name: s.failure.numbers[name] for name in numbers} == pytest.approx(numbers)


def test_unknown_exception_of_the_first_process_is_the_cause() -> None:
    s = log("cpu-v0.32.0-fail-blocksize16")
    assert s.failure is not None
    assert s.failure.cause == "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)])."
    assert s.failure.phase == "kv"
    assert s.phases[-1].name == "kv"


def test_cpu_start_check_is_known_too() -> None:
    failure = log("cpu-v0.32.0-fail-not-enough-memory").failure
    assert failure is not None
    assert failure.numbers == {"free_gib": 9.32, "total_gib": 10.84, "utilization": 0.92, "requested_gib": 9.97}


def test_validation_error_takes_its_second_line() -> None:
    s = read_log(
        [
            *STARTED[:1],
            "(APIServer pid=1) Traceback (most recent call last):",
            '(APIServer pid=1)   File "cli/main.py", line 92, in main',
            "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            "(APIServer pid=1)   Value error, User-specified max_model_len (9000) is greater than the derived "
            "max_model_len (max_position_embeddings=8192). [type=value_error]",
        ]
    )
    assert s.failure is not None
    assert "User-specified max_model_len (9000)" in s.failure.cause
    assert s.failure.numbers["max_model_len"] == 9000


IN_KV = ("_initialize_kv_caches", "initialize_from_config", "collective_rpc")


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (("compile_or_warm_up_model", "capture_model"), "graphs"),
        ((*IN_KV, "compile_or_warm_up_model", "capture_model"), "graphs"),
        ((*IN_KV, "compile_or_warm_up_model", "_dummy_sampler_run"), "warmup"),
        ((*IN_KV, "initialize_kv_cache"), "kv"),
        (("initialize_cache", "_warm_up_model", "capture_model"), "graphs"),
        (("determine_available_memory", "profile_cudagraph_memory", "_capture_cudagraphs"), "profile"),
    ],
)
def test_traceback_names_the_phase_better_than_the_last_line(frames: tuple[str, ...], phase: str) -> None:
    error = PREFIX + "ERROR 06-08 00:09:40 [core.py:1] "
    lines = [
        *KV,
        error + "Traceback (most recent call last):",
        *(f'{error}  File "vllm.py", line 5, in {frame}' for frame in frames),
        error + "RuntimeError: CUDA error: out of memory",
    ]
    failure = read_log(lines).failure
    assert failure is not None
    assert failure.phase == phase


def test_source_line_of_a_traceback_gives_way_to_the_message() -> None:
    raised = (
        PREFIX + 'ERROR 06-08 00:09:30 [core.py:1]     raise ValueError("No available memory for the cache blocks. "'
    )
    message = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
    assert cause([raised, message]) == message
    assert cause([raised]).startswith("ValueError: No available memory")


@pytest.mark.parametrize(
    ("code", "kind"), [(-9, "killed"), (137, "killed"), (130, "stopped"), (143, "stopped"), (1, "exit")]
)
def test_death_without_a_word_is_told_by_the_exit_code(code: int, kind: str) -> None:
    failure = read_log(LOADED, exit_code=code).failure
    assert failure is not None
    assert (failure.kind, failure.phase) == (kind, "profile")
    assert failure.numbers == {"exit_code": code}


def test_worker_killed_by_the_kernel_is_told_by_the_engine() -> None:
    died = (
        PREFIX
        + "ERROR 06-08 00:09:40 [m.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down."
    )
    failure = read_log([*LOADED, died, PREFIX + "ERROR 06-08 00:09:41 [core.py:1] EngineCore failed to start."]).failure
    assert failure is not None
    assert failure.kind == "killed"


def test_wrapper_alone_is_a_failure_without_a_cause() -> None:
    s = read_log([*STARTED, PREFIX + "ERROR 06-08 00:09:30 [core.py:1] EngineCore failed to start."])
    assert s.failure is not None
    assert "EngineCore failed" not in s.failure.cause


def test_kernel_notice_is_no_failure() -> None:
    s = read_log([*KV, "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"])
    assert s.failure is None
    assert len(s.notices) == 1


@pytest.mark.parametrize(
    "line",
    [
        "Runtime error during autotuning: CUDA out of memory. Tried to allocate 2.00 GiB. Ignoring this choice.",
        "node1:12:34 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    ],
)
def test_trouble_that_is_got_over_is_no_failure(line: str) -> None:
    s = read_log([*KV, PREFIX + line])
    assert (s.state, s.failure) == ("starting", None)


def test_exception_that_the_server_survives_is_no_failure() -> None:
    survived = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "ImportError: no module named deep_ep",
    ]
    ended = ["(APIServer pid=1) INFO 06-08 00:10:00 [a.py:1] Starting vLLM server on http://0.0.0.0:8000"]
    s = read_log([*KV, *survived, *ended, "INFO:     Application startup complete."])
    assert (s.state, s.failure) == ("ready", None)
