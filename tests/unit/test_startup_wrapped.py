"""Start-up logs as others forward them: any wrapping, other engines, tools that say why, numbers that are none."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmtop.contract.secrets import mask
from llmtop.warmup.evidence import MachineMemory, evidence
from llmtop.warmup.log_source import Splitter
from llmtop.warmup.report import make_report, to_line, to_markdown
from llmtop.warmup.startup import Startup
from llmtop.warmup.tracker import Tracker, read_log

LOGS = Path(__file__).parents[1] / "fixtures" / "startup"
ERROR = "(EngineCore_0 pid=396) ERROR 08-21 07:45:43 [core.py:700] "
BARE = [
    "(APIServer pid=380) INFO 08-21 07:36:02 [api_server.py:12] vLLM API server version 0.10.1",
    "(EngineCore_0 pid=396) INFO 08-21 07:36:24 [gpu_model_runner.py:38] Starting to load model org/m...",
    "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:40<00:00, 20.0s/it]",
    "(EngineCore_0 pid=396) INFO 08-21 07:37:11 [gpu_model_runner.py:39] Model loading took 15.27 GiB memory and 46.3 "
    "seconds",
    ERROR + "EngineCore failed to start.",
    ERROR + "Traceback (most recent call last):",
    ERROR + '  File "/v/gpu_worker.py", line 330, in determine_available_memory',
    ERROR + "RuntimeError: Ninja build failed. Ninja output:",
    ERROR + "nvcc fatal   : Unknown option '-static'",
    ERROR + "ninja: build stopped: subcommand failed.",
    "(APIServer pid=380) RuntimeError: Engine core initialization failed. See root cause above.",
]


def as_json(key: str, line: str) -> str:
    return json.dumps({"ts": "2026-08-21T07:45:43Z", "lvl": "info", key: line, "host": "spark a of two"})


WRAPS: dict[str, Callable[[str], str]] = {
    "skypilot": lambda line: f"(task-1, rank=0, pid=2150, ip=192.0.2.7) {line}",
    "kubectl": lambda line: f"[pod/vllm-0/vllm] {line}",
    "kubectl, time behind": lambda line: f"[pod/vllm-0/vllm] 2026-08-21T07:45:43.1Z {line}",
    "stern": lambda line: f"vllm-7c9d-x2 vllm {line}",
    "compose": lambda line: f"vllm-1  | 2026-08-21T07:45:43.123456789Z {line}",
    "kubelet": lambda line: f"2026-08-21T07:45:43.12345+02:00 stdout F {line}",
    "journal": lambda line: f"Aug 21 07:45:43 spark-a vllm[812]: {line}",
    "journal, iso": lambda line: f"2026-08-21T07:45:43+0000 spark-a vllm[812]: {line}",
    "unknown": lambda line: f"<{len(line)}> node7 #worker:3 ~ {line}",
    "colours": lambda line: f"\x1b[36mvllm |\x1b[0m #033[1;32m{line}",
    "json": lambda line: as_json("m", line),
    "json in json": lambda line: json.dumps({"log": as_json("event", line), "stream": "stdout"}),
    "json behind a prefix": lambda line: "2026-08-21T07:45:43Z stdout F " + as_json("text", line),
    "quotes": lambda line: f'"2026-08-21T07:45:43Z","vllm-0","{line}"',
    "ruby hashes": lambda line: f'[7] kube.var.log: [[1.5, {{}}], {{"log"=>"{line}", "stream"=>"stdout"}}]',
    "labels behind": lambda line: f"{line}  pod=vllm-0 node=a",
    "json behind": lambda line: line + ' {"pod":"vllm-0","node":"a"}',
    "json lists": lambda line: json.dumps({"logs": [{"records": [{"body": {"value": line}, "sev": "info"}]}]}),
    "journal, json": lambda line: json.dumps({"_PID": "812", "MESSAGE": line, "_CMDLINE": "/usr/bin/vllm serve org/m"}),
    "journal, unix time": lambda line: f"1787298343.123456 spark-a vllm[812]: {line}",
    "structured": lambda line: f'time=2026-08-21T07:45:43Z level=INFO msg="child output" line={json.dumps(line)}',
    "the same head": lambda line: f"[2026-08-21 07:45:43] {line}",
    "another clock": lambda line: f"2026-08-21 09:45:43.123 | INFO     | runner:pump:12 - {line}",
    "logfmt": lambda line: f"time=2026-08-21T07:45:43Z level=info msg={json.dumps(line)}",
}


def outcome(s: Startup) -> tuple[object, ...]:
    assert s.failure is not None
    phases = [(p.name, p.seconds) for p in s.phases]
    return (s.version, s.model, s.weights_gib, s.failure.phase, s.failure.cause, s.failure.said, phases)


@pytest.mark.parametrize("wrap", WRAPS)
def test_any_wrapping_is_read_as_the_bare_log(wrap: str) -> None:
    bare = outcome(read_log(BARE))
    assert bare == (
        "0.10.1",
        "org/m",
        15.27,
        "profile",
        "RuntimeError: Ninja build failed. Ninja output: nvcc fatal   : Unknown option '-static'",
        "nvcc fatal   : Unknown option '-static'",
        [("start", 22.0), ("weights", 47.0), ("profile", 512.0)],
    )
    assert outcome(read_log([WRAPS[wrap](line) for line in BARE])) == bare


def logged(second: str, message: str, **more: str) -> str:
    return json.dumps({"when": f"2026-09-22 17:{second}", "severity": "INFO", "words": message, **more})


def test_a_json_logger_gives_times_and_its_traceback() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "w.py", line 1, in determine_available_memory\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.25 GiB. GPU 0 has a total capacity of 119 GiB "
        "of which 4.11 GiB is free."
    )
    s = read_log(
        [
            logged("36:02,100", "vLLM API server version 0.33.0"),
            logged("36:24,000", "Starting to load model org/m..."),
            logged("37:11,000", "Model loading took 15.27 GiB and 46.3 seconds"),
            logged("37:40,000", "EngineCore failed to start.", trace=trace),
        ]
    )
    assert s.failure is not None
    assert (s.version, s.failure.phase, s.failure.kind) == ("0.33.0", "profile", "out_of_memory")
    assert s.failure.cause.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.25 GiB.")
    assert [(p.name, p.seconds) for p in s.phases] == [("start", 21.9), ("weights", 47.0), ("profile", 29.0)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["ptxas fatal   : Value 'sm_121a' is not defined"], "ptxas fatal   : Value 'sm_121a' is not defined"),
        (
            ["/usr/bin/ld: cannot find -lcuda: No such file", "collect2: error: ld returned 1 exit status"],
            "/usr/bin/ld: cannot find -lcuda: No such file",
        ),
        (["a.cu(12): error: identifier x is undefined", "1 error detected in the compilation"], "a.cu(12): error: "),
        (["x.cpp:1:5: fatal error: Python.h: No such file", "compilation terminated."], "x.cpp:1:5: fatal error: Py"),
        (
            [
                "ptxas /t.ptx, line 5; error   : Feature '.e2m1x2' not supported",
                "ptxas fatal   : Ptx assembly aborted due to",
            ],
            "ptxas /t.ptx, line 5; error   : Feature '.e2m1x2' not supported",
        ),
        (["terminate called", "  what():  [cutlass] arch conditional MMA instruction"], "what():  [cutlass] arch"),
        (["Last error:", "Call to ibv_modify_qp failed with 19"], "Last error: Call to ibv_modify_qp failed with 19"),
        (["thread 'main' panicked at src/lib.rs:12:5:", "index out of bounds"], "thread 'main' panicked at src/lib.rs"),
        (["sh: 1: cicc: not found"], "sh: 1: cicc: not found"),
        (["CMake Error at CMakeLists.txt:12 (find_package):", "  Could not find CUDA"], "CMake Error at CMakeLists"),
    ],
)
@pytest.mark.parametrize("place", ["within", "before"])
def test_what_a_tool_said_last_is_why(lines: list[str], said: str, place: str) -> None:
    told = [ERROR + line for line in lines]
    before = told if place == "before" else []
    trace = [ERROR + "Traceback (most recent call last):", ERROR + "InductorError: codegen: exit status 1"]
    s = read_log(
        [*BARE[:4], *before, *trace, *(told if place == "within" else []), ERROR + "EngineCore failed to start"]
    )
    assert s.failure is not None
    assert (s.failure.said or "").startswith(said)
    assert s.failure.cause.startswith("InductorError: codegen: exit status 1: ")


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["    assert self.experts % ep == 0", "AssertionError"], "AssertionError: assert self.experts % ep == 0"),
        (["triton.runtime.errors.OutOfResources: out of resource: shared memory"], "triton.runtime.errors.OutOfRes"),
        (
            ["  | ExceptionGroup: errors (1 sub)", "    | Traceback (most recent call last):", "    | OSError: x"],
            "OSError: x",
        ),
        (
            ["huggingface_hub.errors.GatedRepoError: 403 Client Error. (id)", "", "Access to model m is restricted."],
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. (id): Access to model m is restricted.",
        ),
    ],
)
def test_the_exception_says_why_whatever_its_form(lines: list[str], cause: str) -> None:
    s = read_log([*BARE[:6], *(ERROR + line for line in lines), BARE[-1]])
    assert s.failure is not None
    assert s.failure.cause.startswith(cause)


@pytest.mark.parametrize(
    ("line", "code", "kind"),
    [
        ("bash: line 1: vllm: command not found", 127, "error"),
        ("exec /usr/bin/python3: exec format error", 255, "error"),
        ("docker: Error response from daemon: could not select device driver", 125, "error"),
        ("/usr/bin/python3: No module named vllm", 1, "error"),
        ("  what():  CUDA driver error: invalid argument", 134, "error"),
        ("Fatal Python error: Segmentation fault", -11, "error"),
        ("Memory cgroup out of memory: Killed process 396 (VLLM::EngineCor)", 137, "oom_killed"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.", 137, "oom_killed"),
        ("Out of memory: Killed process 12 (firefox)", 137, "killed"),
    ],
)
def test_who_was_to_start_it_says_why_it_ended(line: str, code: int, kind: str) -> None:
    for before in ([], BARE[:4]):
        failure = read_log([*before, line], code).failure
        assert failure is not None
        assert (failure.kind, line.strip() in failure.cause) == (kind, kind != "killed")


def test_nobody_guesses_who_killed_it() -> None:
    killed = read_log(BARE[:4], 137)
    text = make_report(killed, evidence(killed)).advice.text
    assert text == "who killed it is not known"
    s = read_log([*BARE[:4], "Memory cgroup out of memory: Killed process 396 (VLLM::EngineCor)"], 137)
    assert "memory ran out" in make_report(s, evidence(s)).advice.text


def test_out_of_memory_says_how_much_was_wanted() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.25 GiB. GPU 0 has a total capacity of 22.0 "
    s = read_log([*BARE[:6], f"{ERROR}{oom}GiB of which 4.11 GiB is free."])
    assert make_report(s, evidence(s)).verdict == (
        "failed in the profile run: CUDA out of memory: 9.25 GiB wanted, 4.11 GiB free"
    )


def test_a_watchdog_names_collective_ranks_and_seconds() -> None:
    line = (
        "[rank{0}]:[E821 07:48:04.5 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600009 milliseconds before timing out."
    )
    s = read_log([*BARE[:4], line.format(0), line.format(1), ERROR + "RuntimeError: cancelled"])
    assert s.failure is not None
    assert s.failure.said == "ALLREDUCE on rank 0 and 1 hung for 600 s: Watchdog caught it"
    assert (s.failure.phase, s.failure.numbers["seconds"]) == ("profile", 600.009)


def test_a_wait_for_ray_says_for_what_and_how_long() -> None:
    wait = "Waiting for creating a placement group of specs for 630 seconds. specs=[{'node': 0.001, 'GPU': 1.0}, "
    few = "(E pid=2) WARNING 08-21 07:36:03 [r.py:1] Tensor parallel size (2) exceeds available GPUs (1). This"
    s = read_log([BARE[0], few, f"(E pid=2) INFO 08-21 07:46:33 [r.py:1] {wait}{{'GPU': 1.0}}]. Check"])
    assert (s.state, s.waits) == ("starting", "waits for Ray (2 GPUs wanted, 1 there; 630 s so far)")
    assert read_log([BARE[0], BARE[1]]).waits is None


SGLANG = """[2025-11-10 19:55:00] server_args=ServerArgs(model_path='org/m', tp_size=1, mem_fraction_static=0.8)
[2025-11-10 19:55:21] Load weight begin. avail mem=112.40 GB
[2025-11-10 19:56:55] Load weight end. type=X, dtype=torch.bfloat16, avail mem=50.10 GB, mem usage=62.30 GB.
[2025-11-10 19:56:56] KV Cache is allocated. #tokens: 849942, K size: 8.24 GB, V size: 8.24 GB
[2025-11-10 19:56:57] Capture cuda graph begin. This can take up to several minutes. avail mem=32.90 GB""".splitlines()


def test_sglang_is_ready_when_it_says_so() -> None:
    ends = [
        "[2025-11-10 19:57:08] Capture cuda graph end. Time elapsed: 11.35 s. mem usage=1.04 GB. avail mem=31.86 GB.",
        "[2025-11-10 19:57:10] INFO:     Application startup complete.",
    ]
    assert read_log([*SGLANG, *ends]).state == "starting"
    s = read_log([*SGLANG, *ends, "[2025-11-10 19:57:14] The server is fired up and ready to roll!"])
    assert (s.state, s.engine, s.model, s.weights_gib, s.ready_seconds) == ("ready", "sglang", "org/m", 62.3, 134.0)
    assert s.kv_cache_gib == pytest.approx(16.48)
    assert (s.kv_cache_tokens, s.graph_gib) == (849942, 1.04)


def test_sglang_out_of_memory_in_graph_capture() -> None:
    died = [
        "[2025-11-10 19:57:03] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "cuda_graph_runner.py", line 390, in __init__',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ]
    failure = read_log([*SGLANG, *died]).failure
    assert failure is not None
    assert (failure.phase, failure.kind) == ("graphs", "out_of_memory")


def test_a_log_of_another_program_has_no_phase() -> None:
    s = read_log(["llama_model_loader: loaded meta data with 30 key-value pairs", "main: loading model"])
    assert (s.phase, s.phases, s.foreign) == (None, (), "llama.cpp")
    assert "log of llama.cpp" in make_report(s, evidence(s)).verdict
    s = read_log(["2026-08-21 07:36:02,123 - lmdeploy - INFO - x", "INFO:     Application startup complete."])
    assert (s.state, s.phases, s.foreign) == ("ready", (), "LMDeploy")
    assert read_log(["10.0.0.1 - - [21/Aug/2026:07:36:02 +0000] GET /"]).phases == ()


def test_a_server_told_to_end_right_after_it_was_ready_is_not_ready() -> None:
    up = "(APIServer pid=380) INFO 08-21 07:38:00 [x.py:1] Application startup complete."
    down = "(APIServer pid=380) INFO 08-21 07:38:04 [launcher.py:1] Shutting down FastAPI HTTP server."
    assert read_log([*BARE[:4], up]).state == "ready"
    s = read_log([*BARE[:4], up, down])
    assert (s.state, s.served_s, s.ended_by) == ("stopped", 4.0, "Shutting down FastAPI HTTP server.")


@pytest.mark.parametrize(
    "line",
    [
        "Aug 21 07:38:05 spark-a systemd[1]: Stopping vllm.service - vLLM...",
        "vllm.service: Main process exited, code=killed, status=15/TERM",
        'sending SIGTERM to process 812 uid 1000 "VLLM::EngineCor": badness 900',
        "/start.sh: line 3:   812 Killed                  vllm serve x",
        "Memory cgroup out of memory: Killed process 396 (VLLM::EngineCor)",
        ERROR + "EngineCore encountered a fatal error.",
        "(APIServer pid=380) INFO 08-21 07:38:05 [launcher.py:1] Received signal 15, shutting down",
    ],
)
def test_however_it_ended_it_is_not_up(line: str) -> None:
    up = "(APIServer pid=380) INFO 08-21 07:38:00 [x.py:1] Application startup complete."
    s = read_log([*BARE[:4], up, line])
    assert s.state == "stopped"
    assert ", ended" in make_report(s, evidence(s)).verdict


@pytest.mark.parametrize("line", ['INFO:     1.2.3.4:1 - "POST /v1 HTTP/1.1" 200 OK', ERROR + "Error in preprocessing"])
def test_a_request_is_no_end(line: str) -> None:
    up = "(APIServer pid=380) INFO 08-21 07:38:00 [x.py:1] Application startup complete."
    assert read_log([*BARE[:4], up, line]).state == "ready"


def test_ctrl_c_is_no_failure_and_sigterm_from_elsewhere_is() -> None:
    assert [read_log(BARE[:4], code).state for code in (130, -2, 143, 137)] == [
        "stopped",
        "stopped",
        "failed",
        "failed",
    ]


def test_seconds_count_from_the_launch() -> None:
    tracker = Tracker()
    tracker.launched(1000.0)
    for line, at in zip([BARE[0], BARE[1]], (1008.7, 1010.0), strict=True):
        tracker.feed(line, at)
    tracker.answered(1024.7)
    s = tracker.startup()
    assert s.ready_seconds == pytest.approx(45.4)  # 8.7 before the first line, 22 by the log's times, 14.7 after
    assert s.phases[0].start_s == 0.0


NASTY = ("inf", "nan", "1.2.3", "0", "-1", "9" * 400, "1,,2", "", "99999999999999999999", "0.0000001", "½")
MACHINES = (None, MachineMemory(total_bytes=0, used_bytes=0, engine_bytes=0, free_at_start_bytes=0))


def troubled() -> list[list[str]]:
    few = "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than desired GPU memory utilization "
    long = "ValueError: To serve at least one request with the model's max seq len (26), (16.0 GiB KV cache is needed, "
    node = "Memory on the node (IP: 192.0.2.2) was 113.76GB / 119.70GB (0.950345), which exceeds"
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.25 GiB. GPU 0 has a total capacity of 22 GiB"
    fails = [
        f"{few}(0.9, 71.24 GiB)",
        f"{long}which is larger than the available KV cache memory (12.48 GiB)",
        node,
        oom,
    ]
    good = [path.read_text("utf-8").splitlines() for path in sorted(LOGS.glob("*.log"))]
    return [*good, *([*BARE[:4], fail] for fail in fails), SGLANG]


@pytest.mark.parametrize("value", NASTY)
def test_a_number_that_is_none_is_not_said(value: str) -> None:
    for lines in troubled():
        for keep in ("GiB", "tokens", "took", "utilization", ""):
            changed = [re.sub(r"\d[\d,.]*(?=[^:]*$)", value, line) if keep in line else line for line in lines[:80]]
            s = read_log(changed, 1)
            for machine in MACHINES:
                report = make_report(s, evidence(s, machine))
                json.loads(to_line(report), parse_constant=pytest.fail)
                assert to_markdown(report)


def seconds(work: Callable[[int], object], *sizes: int) -> list[float]:
    """The least CPU time of each size, taken in turns: what else runs meets them alike."""

    def once(size: int) -> float:
        began = time.process_time()
        work(size)
        return time.process_time() - began

    return [min(times) for times in zip(*([once(size) for size in sizes] for _ in range(9)), strict=True)]


def split(size: int) -> None:
    splitter = Splitter()
    for _ in range(size):
        splitter.feed(b"x")


def track(size: int) -> None:
    tracker = Tracker()
    for _ in range(8):
        tracker.feed("token=[" * (size // 7))
    tracker.startup()


@pytest.mark.parametrize(
    ("work", "size"),
    [(lambda n: mask("token=[" * (n // 7)), 280_000), (split, 60_000), (track, 30_000)],
    ids=("mask", "splitter", "tracker"),
)
def test_twice_the_input_takes_no_more_than_twice_the_time(work: Callable[[int], object], size: int) -> None:
    once, twice = seconds(work, size, 2 * size)
    assert twice <= 2.5 * once
