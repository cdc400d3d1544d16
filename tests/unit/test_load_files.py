"""What a run leaves on disk, and how two runs compare."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from llmtop.load.compare import compare, comparison_text
from llmtop.load.completion import Outcome
from llmtop.load.counters import ServerCounters
from llmtop.load.files import NoRun, RunFiles, new_directory, read_run, state_dir
from llmtop.load.plan import Level, Plan
from llmtop.load.prompts import Profile
from llmtop.load.records import RequestRecord
from llmtop.load.results import Flag, LevelResult, RunResult
from llmtop.load.summary import LevelRaw, detailed_arrays, level_result
from llmtop.load.table import COLUMNS, markdown, rows, text

LEVELS = (Level("c=1", 1, 2, 100, 8), Level("c=4", 4, 8, 100, 8))
PLAN = Plan("http://127.0.0.1:8000", LEVELS, model="org/m-1", metadata={"host": "spark-a"})


def ended(level: Level, ttft: float = 0.1) -> tuple[LevelResult, dict[str, list[Any]]]:
    records = tuple(
        RequestRecord(i, 0, i * 0.2, i * 0.2 + 0.2, Outcome.OK, ttft, 0.17, (0.01,) * 7, output_tokens=8)
        for i in range(level.num_prompts)
    )
    raw = LevelRaw(PLAN, Profile(model="org/m-1"), level, True, records, 0.0, "20260101-120000")
    return replace(level_result(raw), flags=(Flag("few samples", "2 requests"),)), detailed_arrays(raw)


def result(*levels: LevelResult) -> RunResult:
    return RunResult("sweep", "c=1: fine.", levels=levels, model="org/m-1")


def written(directory: Path, ttft: float = 0.1) -> Path:
    run = new_directory(directory, "sweep", datetime(2026, 1, 1, 12))
    files = RunFiles(run, PLAN)
    levels = []
    for level in LEVELS:
        done, arrays = ended(level, ttft)
        levels.append(done)
        files.level(done, arrays)
    files.request("c=1", RequestRecord(0, 0, 0.0, 1.0, Outcome.OK, 0.1, 0.5, (0.1, 0.2)))
    files.server("c=1", ServerCounters(1.5, running=3, generation=10))
    files.finish(result(*levels))
    return run


def test_names_modes_and_the_summary_of_a_run(tmp_path: Path) -> None:
    run = written(tmp_path)
    assert run.name == "20260101-120000-sweep"
    assert {path.name for path in run.iterdir()} == {
        "openai-infqps-concurrency1-m-1-20260101-120000.json",
        "openai-infqps-concurrency4-m-1-20260101-120000.json",
        *("plan.json", "summary.json", "run.json", "report.md", "requests.jsonl", "server.csv"),
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in run.iterdir()} == {0o600}
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    summary = json.loads((run / "summary.json").read_text())
    assert [row["max_concurrency"] for row in summary] == [1, 4]
    assert all(isinstance(row["output_throughput"], float) for row in summary)


def test_a_second_run_of_the_same_second_gets_its_own_directory(tmp_path: Path) -> None:
    assert [written(tmp_path).name for _ in range(2)] == ["20260101-120000-sweep", "20260101-120000-sweep-2"]


def test_a_level_file_has_vllms_keys_and_ours_flat_beside_them(tmp_path: Path) -> None:
    run = written(tmp_path)
    level = json.loads((run / "openai-infqps-concurrency1-m-1-20260101-120000.json").read_text())
    vllm = {key for key in level if not key.startswith("llmtop_")}
    assert {"duration", "request_goodput", "ttfts", "itls", "errors", "p99_e2el_ms", "median_tpot_ms", "host"} <= vllm
    assert not {"concurrency", "user_tok_s", "flags"} & vllm
    assert (level["request_rate"], level["model_id"], level["completed"]) == ("inf", "org/m-1", 2)
    assert len(level["ttfts"]) == len(level["itls"]) == 2
    ours = {key: value for key, value in level.items() if key.startswith("llmtop_")}
    assert ours["llmtop_flags"] == "few samples"
    assert not [key for key, value in ours.items() if isinstance(value, list | dict)]


def test_requests_and_server_series(tmp_path: Path) -> None:
    run = written(tmp_path)
    (line,) = (run / "requests.jsonl").read_text().splitlines()
    request = json.loads(line)
    assert (request["level"], request["outcome"], request["chunks"], request["ttft_s"]) == ("c=1", "ok", 3, 0.1)
    head, row = (run / "server.csv").read_text().splitlines()
    assert dict(zip(head.split(","), row.split(","), strict=True))["running"] == "3"


def test_the_report_has_the_answer_the_table_the_doubts_and_the_commands(tmp_path: Path) -> None:
    report = (written(tmp_path) / "report.md").read_text()
    assert "c=1: fine." in report
    assert "| c=4 |" in report
    assert "**few samples**: 2 requests" in report
    assert "vllm bench serve" in report


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    a, b = (read_run(written(tmp_path, ttft)) for ttft in (0.1, 0.05))
    found = {(c.level, c.figure): c for c in compare(a, b).figures}
    ttft = found["c=1", "TTFT mean ms"]
    assert (ttft.a, ttft.b, ttft.change) == pytest.approx((100, 50, -0.5))
    assert ttft.better is True
    assert found["c=4", "errors"].better is None
    assert "-50.0% better" in comparison_text(compare(a, b))


def test_a_cached_run_is_not_better_and_other_sizes_are_not_compared(tmp_path: Path) -> None:
    a, b = (read_run(written(tmp_path, ttft)) for ttft in (0.1, 0.05))
    one, four = b.levels
    cached = replace(one, flags=(Flag("cache", "99 % of the prompt tokens came from the prefix cache"),))
    compared = compare(a, replace(b, levels=(cached, replace(four, input_len=512)), model="other"))
    assert {figure.level for figure in compared.figures} == {"c=1"}
    assert {figure.better for figure in compared.figures} == {None}
    shown = comparison_text(compared)
    assert "the plans differ: model: org/m-1 and other" in shown
    assert "c=4: 100/8 tokens, 4 at once and 512/8 tokens, 4 at once: not compared" in shown
    assert "doubt: B c=1: cache: 99 %" in shown


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NoRun):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(NoRun):
        read_run(tmp_path)


def test_columns_without_a_value_are_left_out_of_the_table() -> None:
    levels = [ended(level)[0] for level in LEVELS]
    assert len(rows(levels)[0]) == len(COLUMNS)
    shown = markdown(levels).splitlines()[0]
    assert "KV max" not in shown
    assert "tok/s" in shown
    assert "few samples: 2 requests" in text(levels)


def test_a_run_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    assert read_run(written(tmp_path)) == result(*(ended(level)[0] for level in LEVELS))


def test_state_directory_follows_xdg() -> None:
    assert state_dir({"XDG_STATE_HOME": "/s"}) == Path("/s/llmtop")
    assert state_dir({"XDG_STATE_HOME": "relative"}).parts[-3:] == (".local", "state", "llmtop")
