"""The JSON contract: every line validates against the schema, every promised name is there, unknown is null."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from crank import FIXTURES, Crank, captured, vllm_page
from llmtop.contract.codec import json_schema, plain, to_json
from llmtop.contract.snapshot import (
    Device,
    DeviceMemory,
    DeviceProcess,
    Finding,
    Host,
    Pool,
    Quantile,
    ServerView,
    Snapshot,
    SourceStatus,
)
from llmtop.machine.sample import MachineSample
from llmtop.session.assemble import Assembler

VALIDATOR = Draft202012Validator(json_schema())

CONTRACT: Mapping[str, str] = {
    "": "schema time servers devices host pools findings limited_by",
    "servers": "url engine version state reason model max_model_len max_num_seqs age_s running waiting "
    "waiting_by_reason kv_usage kv_engine kv_capacity_tokens kv_capacity_approx kv_used_tokens room_requests "
    "preemptions_total admission_rejections_total engines lora restarts rates prefix_hit_rate spec_tokens_per_step "
    "joules_per_token joules_scope latency",
    "servers.rates": "window_s generation_tok_s prompt_tok_s prompt_computed_tok_s prompt_cached_tok_s requests_s "
    "preemptions_s",
    "servers.latency": "window_s ttft itl tpot e2e queue",
    "servers.latency.ttft": "n mean_s p50 p95 p99",
    "servers.latency.ttft.p50": "value_s bound weak",
    "servers.engines": "engine running waiting kv_usage kv_capacity_tokens state",
    "devices": "index uuid name state reason util power_w power_limit_w temperature_c sm_clock_mhz throttle memory "
    "unified processes",
    "devices.memory": "total used reserved free",
    "devices.processes": "pid name memory_bytes",
    "host": "name cpu_percent mem_total_bytes mem_available_bytes swap_used_bytes swap_out_bytes_s psi_full_avg10",
    "pools": "name kind device total_bytes used_bytes headroom_bytes cuda_free_bytes reclaimable_bytes low_water_bytes "
    "low_water_time basis state",
    "findings": "id level text evidence advice",
}
STATES = {"STARTING", "SERVING", "IDLE", "STALLED", "SLEEPING", "STALE", "DOWN", "NO_ENGINE_METRICS", "AUTH"}


def loaded_view() -> ServerView:
    crank = Crank()
    for t, body, row in captured("0.32.0"):
        if row["phase"] == "c64":
            crank.feed(body, t)
    return crank.view()


def full() -> Snapshot:
    device = Device(
        0,
        "GPU-1",
        "H100",
        memory=DeviceMemory(4, 2, 1, 1),
        processes=(DeviceProcess(7, "vllm", None),),
        throttle=("power cap",),
    )
    return Snapshot(
        1.0,
        (loaded_view(),),
        (device,),
        Host("h"),
        (Pool("HBM", "hbm"),),
        (Finding("x", "info", "x"),),
        sources=(SourceStatus("nvml", True),),
    )


def reached(line: Any, path: str) -> Any:
    for name in path.split("."):
        line = line[name] if name else line
        line = line[0] if isinstance(line, list) else line
    return line


def check(snapshot: Snapshot) -> dict[str, Any]:
    line = to_json(snapshot)
    assert "\n" not in line
    content: dict[str, Any] = json.loads(line)
    VALIDATOR.validate(content)
    return content


@pytest.mark.parametrize("path", CONTRACT)
def test_every_promised_name_is_there(path: str) -> None:
    part = reached(check(full()), path)
    assert set(CONTRACT[path].split()) <= set(part)


@pytest.mark.parametrize("path", ["", "servers", "servers.rates", "servers.latency", "servers.latency.ttft", "host"])
def test_every_promised_name_is_there_when_nothing_is_known(path: str) -> None:
    part = reached(check(Snapshot(1.0, (ServerView("http://s"),))), path)
    assert set(CONTRACT[path].split()) <= set(part)


def test_unknown_scalars_are_null_and_unknown_lists_are_empty() -> None:
    content = check(Snapshot(1.0))
    assert [content[name] for name in ("servers", "devices", "pools", "findings")] == [[], [], [], []]
    assert content["limited_by"] is None
    server = check(Snapshot(1.0, (ServerView("http://s"),)))["servers"][0]
    assert (server["running"], server["kv_usage"], server["engines"], server["lora"]) == (None, None, [], [])
    assert server["latency"]["ttft"] == {"n": None, "mean_s": None, "p50": None, "p95": None, "p99": None}
    assert server["waiting_by_reason"] == {}


def test_numbers_that_json_cannot_say_are_null() -> None:
    odd = replace(ServerView("http://s"), kv_usage=float("nan"), age_s=float("inf"))
    server = check(Snapshot(1.0, (odd,)))["servers"][0]
    assert (server["kv_usage"], server["age_s"]) == (None, None)


def test_states_and_bounds_are_the_words_of_the_contract() -> None:
    definitions = json_schema()["$defs"]
    assert set(definitions["ServerView"]["properties"]["state"].get("enum", [])) == STATES
    assert set(definitions["Quantile"]["properties"]["bound"]["enum"]) == {"=", "<", ">"}
    assert set(definitions["Device"]["properties"]["state"]["enum"]) == {"OK", "LOST", "ERROR"}
    assert plain(Quantile(0.3, "<", True)).items() >= {"value_s": 0.3, "bound": "<", "weak": True}.items()


def test_the_schema_itself_is_valid_and_refuses_what_is_wrong() -> None:
    Draft202012Validator.check_schema(json_schema())
    good = check(full())
    for spoil in ({"servers": None}, {"time": "now"}, {"schema": "1"}):
        assert not VALIDATOR.is_valid(good | spoil)
    del good["servers"][0]["rates"]
    assert not VALIDATOR.is_valid(good)


def test_text_of_any_script_is_written_as_utf8() -> None:
    page = vllm_page(model="模型/é").replace(b"\\", b"")
    line = to_json(Snapshot(1.0, (Crank().feed(page, 0.0).view(),)))
    assert "模型/é" in line


def test_every_line_of_a_session_with_hostile_pages_validates() -> None:
    chance, assembler, crank = random.Random(1), Assembler(), Crank()
    pages = [path.read_bytes() for path in sorted((FIXTURES / "metrics").glob("*/*.txt"))]
    for second in range(120):
        view = crank.feed(chance.choice(pages), float(second)).view()
        content = check(assembler.build((view,), MachineSample(0.0), float(second), 1e9 + second, {}))
        server = content["servers"][0]
        names = [row["engine"] for row in server["engines"]]
        assert len(names) == len(set(names))
        assert all(rate is None or rate >= 0 for rate in server["rates"].values())


@pytest.mark.parametrize("version", ["0.8.5", "0.10.2", "0.20.2", "0.30.0", "0.32.0-dp2"])
def test_every_line_of_a_captured_run_validates(version: str) -> None:
    assembler, crank = Assembler(), Crank()
    for t, body, _ in captured(version):
        check(assembler.build((crank.feed(body, t).view(),), MachineSample(0.0), t, 1e9 + t, {}))
