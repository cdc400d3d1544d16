"""Start-up logs of every format: phases in order, figures, failures."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fakes.startup_lines import KV, LOADED, STARTED
from llmtop.warmup.log_line import Unwrapper
from llmtop.warmup.phrases import PHASES
from llmtop.warmup.startup import Startup
from llmtop.warmup.tracker import Tracker, read_log

LOGS = Path(__file__).parents[1] / "fixtures" / "startup"


def log(name: str) -> Startup:
    return read_log((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines())


def figures(s: Startup) -> tuple[float | None, ...]:
    return (
        s.weights_gib,
        s.weights_seconds,
        s.kv_cache_gib,
        s.kv_cache_tokens,
        s.max_concurrency,
        s.graph_gib,
        s.graph_seconds,
        s.init_seconds,
        s.ready_seconds,
    )


# name: version, weights GiB and s, KV GiB and tokens, concurrency, graphs GiB and s, init s, ready s
FIGURES = {
    "cuda-v0.6.6-v0engine": ("0.6.6", (14.9888, None, 5.01, None, 5.01, 0.21, 17, 21.75, 54)),
    "rocm-v0.9-v0engine-offline": ("0.9.1", (0.2389, 0.612394, 171.53, None, 2439.55, 0.19, 8, 17.15, None)),
    "cuda-v0.8.4-v1": ("0.8.4", (2.8876, 2.103112, None, 574208, 140.19, 0.48, 20, 33.1, 47)),
    "h100-v0.11-tp2": ("0.11.0", (33.7121, 43.31002, 35.74, 1041024, 30.12, 1.93, 10, 57.91, 128)),
    "h100-v0.11-tp2-compose-ansi": ("0.11.0", (33.7121, 43.31002, 35.74, 1041024, 30.12, 1.93, 10, 57.91, 128)),
    "gb10-v0.21-ray-tp2": ("0.21.0", (60.9, 128.25, 21.75, 310000, 2.36, 1.35, 21, 76.0, 240)),
    "gb10-v0.23-silent-warmup": (
        "0.23.1rc1.dev40+gabcdef0",
        (19.05, 127.900113, 56.1, 849942, 25.94, 0.51, 6, 436.22, 610),
    ),
    "gb10-v0.30-suggestion": ("0.30.0", (81.2, 179.51, 15.08, 233296, 56.95, 0.31, 8, 29.68, 232)),
    "cpu-v0.8.5": ("0.8.5.post2", (None, 0.02, None, None, 3.12, None, None, 0.01, 23)),
    "cpu-v0.10.2": ("0.10.2.post2", (None, 0.01, None, 9600, 9.38, None, None, 0.01, 17)),
    "cpu-v0.32.0-compile": ("0.32.0", (None, 0.01, 1.0, 3072, 3.0, None, None, 17.66, 33)),
    "cpu-v0.32.0-b3-dp2": ("0.32.0", (None, 0.03, 1.0, 3072, 3.0, None, None, 0.03, 105)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_every_format(name: str) -> None:
    s = log(name)
    version, expected = FIGURES[name]
    assert s.state == "ready"
    assert s.version == version
    assert figures(s) == pytest.approx(expected)


# name: (phase, start_s, seconds); "*" marks a phase that wrote no line of its own
PHASE_TABLE = {
    "cuda-v0.6.6-v0engine": "start 0 10, weights 10 21, profile 31 2, kv 33 3, graphs 36 17, ready 53 1",
    "cuda-v0.8.4-v1": "start 0 11, weights 11 2, compile 13 12, kv 25 1, graphs 26 20, ready 46 1",
    "h100-v0.11-tp2": "start 0 24, weights 24 44, compile 68 43, *profile 111 3, kv 114 1, graphs 115 11, ready 126 2",
    "gb10-v0.21-ray-tp2": "start 0 30, weights 30 130, compile 160 30, profile 190 22, kv 212 1, graphs "
    "213 23, ready 236 4",
    "gb10-v0.23-silent-warmup": "start 0 40, weights 40 128, compile 168 78, profile 246 124, kv 370 0, *warmup "
    "370 228, "
    "graphs 598 6, ready 604 6",
    "cpu-v0.10.2": "start 0 16, weights 16 0, kv 16 0, warmup 16 0, ready 16 1",
}


@pytest.mark.parametrize("name", PHASE_TABLE)
def test_phases_in_order_and_without_gaps(name: str) -> None:
    found = log(name).phases
    text = ", ".join(f"{'*' * p.inferred}{p.name} {p.start_s:g} {p.seconds:g}" for p in found)
    assert text == PHASE_TABLE[name]
    assert [p.name for p in found] == sorted((p.name for p in found), key=PHASES.index)


def test_server_start_begins_with_the_last_engine() -> None:
    def engine(rank: int, second: int, text: str) -> str:
        return f"(EngineCore_DP{rank} pid={70 + rank}) INFO 10-25 13:00:{second:02d} [a.py:1] {text}"

    took = "init engine (profile, create kv cache, warmup model) took {} s"
    captured = "Graph capturing finished in 5 secs, took 1.0 GiB"
    s = read_log(
        [
            engine(0, 0, "Starting to load model org/m..."),
            engine(1, 1, "Starting to load model org/m..."),
            engine(0, 20, captured),
            engine(0, 20, took.format(18.5)),
            engine(1, 30, captured),
            engine(1, 30, took.format(28.25)),
            "INFO:     Application startup complete.",
        ]
    )
    assert s.init_seconds == 28.25
    assert [(p.name, p.start_s, p.seconds) for p in s.phases] == [
        ("start", 0, 0),
        ("weights", 0, 15),
        ("graphs", 15, 15),
        ("ready", 30, 0),
    ]


def test_workers_keep_their_own_figures() -> None:
    first, second = log("h100-v0.11-tp2").workers
    assert (first.name, first.pid, first.weights_gib, first.kv_cache_gib, first.graph_gib) == (
        "Worker_TP0",
        81,
        33.7105,
        35.8,
        1.93,
    )
    assert (second.name, second.weights_seconds, second.kv_cache_gib, second.graph_gib) == (
        "Worker_TP1",
        43.31002,
        35.74,
        -0.04,
    )


def test_what_the_log_says_beside_the_figures() -> None:
    s = log("gb10-v0.30-suggestion")
    assert {k: s.figures[k] for k in ("free_gib", "total_gib", "utilization", "requested_gib", "activation_gib")} == {
        "free_gib": 110.34,
        "total_gib": 121.69,
        "utilization": 0.87,
        "requested_gib": 105.87,
        "activation_gib": 3.6,
    }
    tp = log("h100-v0.11-tp2")
    assert (tp.figure("utilization"), tp.figure("max_num_seqs"), tp.figure("concurrency_tokens")) == (0.92, 64, 65536)
    assert tp.url == "http://0.0.0.0:8000"
    assert not any("topsecret" in line for line in tp.lines)


def test_restart_loop_begins_anew() -> None:
    lines = (LOGS / "cpu-v0.32.0-fail-not-enough-memory.log").read_text(encoding="utf-8").splitlines()
    again = (LOGS / "cpu-v0.32.0-compile.log").read_text(encoding="utf-8").splitlines()
    s = read_log([*lines, *again])
    assert (s.state, s.failure) == ("ready", None)
    assert s.ready_seconds == pytest.approx(32, abs=1)


STUCK = """(APIServer pid=7) INFO 11-30 17:00:00 [api_server.py:1] vLLM API server version 0.31.0
(APIServer pid=7) INFO 11-30 17:00:01 [config.py:1] Using max model len 4096"""
FAILED = """Traceback (most recent call last):
ValueError: no such quantization"""


@pytest.mark.parametrize("first", [STUCK, f"{STUCK}\n{FAILED}"])
def test_a_start_that_died_at_once_is_no_part_of_the_next(first: str) -> None:
    again = (LOGS / "cpu-v0.32.0-compile.log").read_text(encoding="utf-8").splitlines()
    s = read_log([*first.splitlines(), *again])
    assert (s.state, s.version, s.failure) == ("ready", "0.32.0", None)
    assert s.ready_seconds == pytest.approx(32, abs=1)


def test_api_servers_that_start_together_are_one_start() -> None:
    lines = (LOGS / "cpu-v0.32.0-compile.log").read_text(encoding="utf-8").splitlines()
    banner = next(place for place, line in enumerate(lines) if line.endswith("version 0.32.0"))
    alone = read_log(lines)
    assert read_log([*lines[: banner + 1], lines[banner], *lines[banner + 1 :]]).phases == alone.phases


def test_lines_without_a_time_use_the_time_they_came() -> None:
    tracker = Tracker()
    tracker.feed(STARTED[0], 1000.0)
    tracker.feed("INFO:     Application startup complete.", 1007.5)
    s = tracker.startup()
    assert (s.ready_seconds, s.ready_at) == (7.5, 1007.5)


def test_log_without_any_time_has_no_seconds() -> None:
    s = read_log(["vLLM API server version 0.9.0", "Starting to load model m...", "Application startup complete"])
    assert s.state == "ready"
    assert s.ready_seconds is None
    assert [(p.start_s, p.seconds) for p in s.phases] == [(None, None)] * 3


def test_new_year_and_leap_day() -> None:
    assert log("gb10-v0.21-ray-tp2").ready_seconds == 240
    lines = ["INFO 02-28 23:59:50 [a.py:1] x", "INFO 02-29 00:00:10 [a.py:1] Application startup complete"]
    assert read_log(lines).ready_seconds == 20


def test_live_times_are_exact_where_log_times_are_whole_seconds() -> None:
    tracker = Tracker()
    for at, line in zip((10.25, 11.5, 14.75, 15.0), [*LOADED, KV[3]], strict=True):
        tracker.feed(line, at)
    weights = next(p for p in tracker.startup().phases if p.name == "weights")
    assert (weights.began, weights.ended) == (11.5, 14.75)


def test_who_comes_later_begins_in_the_middle_of_a_phase() -> None:
    tracker = Tracker()
    for line in STARTED:
        tracker.feed(line)
    tracker.feed("Loading safetensors checkpoint shards:  54% Completed | 7/13 [01:30<01:19, 13.28s/it]", 50.0)
    live = {p.name: (p.began, p.ended) for p in tracker.startup().phases}
    assert live == {"start": (None, None), "weights": (50.0, None)}


def test_progress_of_shards() -> None:
    tracker = Tracker()
    for line in [*STARTED, "Loading safetensors checkpoint shards:  54% Completed | 7/13 [01:30<01:19, 13.28s/it]"]:
        tracker.feed(line)
    progress = tracker.startup().progress
    assert progress is not None
    assert (progress.phase, progress.done, progress.total, progress.percent) == ("weights", 7, 13, 54)


@pytest.mark.parametrize(
    ("raw", "process", "pid", "text"),
    [
        ("(Worker_TP0 pid=81) INFO 10-25 13:00:25 [a.py:1] hello", "Worker_TP0", 81, "hello"),
        ("vllm-1  | (EngineCore_DP0 pid=7) INFO 10-25 13:00:25 [a.py:1] hello", "EngineCore_DP0", 7, "hello"),
        ("(VllmWorker rank=1 pid=9) INFO 10-25 13:00:25 [a.py:1] hello", "VllmWorker", 9, "hello"),
        (
            "(EngineCore pid=6) (RayWorkerWrapper pid=12, ip=192.0.2.1) hello [repeated 3x across cluster]",
            "RayWorkerWrapper",
            12,
            "hello",
        ),
        ("2025-10-25T13:00:25.123456789Z INFO 10-25 13:00:25 [a.py:1] hello", None, None, "hello"),
        ("Oct 25 13:00:25 spark-a vllm[812]: INFO 10-25 13:00:25 [a.py:1] hello", None, None, "hello"),
        ("\x1b[1;36m(APIServer pid=5)\x1b[0;0m INFO 10-25 13:00:25 [a.py:1] hello", "APIServer", 5, "hello"),
        (
            "first\rsecond\rLoading pt checkpoint shards:  50% Completed | 1/2",
            None,
            None,
            "Loading pt checkpoint shards:  50% Completed | 1/2",
        ),
    ],
)
def test_prefixes(raw: str, process: str | None, pid: int | None, text: str) -> None:
    line = Unwrapper().lines(raw)[0]
    assert (line.process, line.pid, line.text) == (process, pid, text)


@pytest.mark.parametrize("piece", [" ", "a-", "a.", "1,", "| 1/", "x | ", "\x1b[", "--api-key ", "("])
def test_long_lines_made_to_hurt_do_not(piece: str) -> None:
    began = time.process_time()
    read_log([piece * (65_000 // len(piece))])
    assert time.process_time() - began < 2.0
