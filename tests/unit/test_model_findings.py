"""Findings: what they say, and that none of them flickers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from crank import Crank, vllm_page
from llmtop.contract.snapshot import (
    Device,
    EngineRow,
    Finding,
    Host,
    Node,
    Pool,
    Rates,
    ServerView,
    Snapshot,
    SourceStatus,
    State,
)
from llmtop.session.findings import Findings, Rule

GIB = 2**30
ROWS = (EngineRow("0"),)
WELL = ServerView(
    "http://s:8000", State.SERVING, engine="vllm", local=True, model="m", running=1, waiting=0, engines=ROWS
)


def told(snapshot: Snapshot, seconds: int = 30) -> tuple[Finding, ...]:
    """The findings after the same snapshot for a while."""
    findings = Findings()
    found: tuple[Finding, ...] = ()
    for second in range(seconds):
        found = findings.update(snapshot, float(second))
    return found


def snapshot(*servers: ServerView, devices: tuple[Device, ...] = (), pools: tuple[Pool, ...] = ()) -> Snapshot:
    return Snapshot(0.0, servers, devices, pools=pools)


def test_all_is_well() -> None:
    pool = Pool("HBM", "hbm", headroom_bytes=20 * GIB, state="ok")
    assert told(snapshot(WELL, devices=(Device(0),), pools=(pool,))) == ()


@pytest.mark.parametrize(("state", "level"), [("low", "warning"), ("critical", "critical")])
def test_little_memory(state: str, level: str) -> None:
    pool = Pool("GB10 unified", "unified", headroom_bytes=3 * GIB, state=state, basis="MemAvailable")  # type: ignore[arg-type]
    (found,) = told(snapshot(WELL, pools=(pool,)))
    assert (found.level, found.evidence) == (level, "MemAvailable")
    assert "3.0 GiB" in found.text
    assert "--gpu-memory-utilization" in (found.advice or "")


@pytest.mark.parametrize(
    ("state", "engine", "level", "advice"),
    [
        (State.DOWN, "vllm", "critical", "port"),
        (State.DOWN, None, "critical", "port"),
        (State.AUTH, None, "warning", "--api-key-env"),
    ],
)
def test_a_server_that_cannot_be_read(state: State, engine: str | None, level: str, advice: str) -> None:
    (found,) = told(snapshot(replace(WELL, state=state, reason="words", engine=engine)))
    assert (found.level, found.evidence) == (level, "words")
    assert advice in (found.advice or "")


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("no engine metrics: started with --disable-log-stats? wrong port?", "is it the right port and path?"),
        ("not a metrics page: <html>nginx", "is it the right port and path?"),
        ("Dynamo, and no engine metrics: the engines of Dynamo answer on their own ports (DYN_SYSTEM_PORT)", None),
        ("vLLM: started with --disable-log-stats?", None),
    ],
)
def test_where_the_reason_says_what_to_do_nothing_else_is_advised(reason: str, advice: str | None) -> None:
    (found,) = told(snapshot(replace(WELL, state=State.NO_ENGINE_METRICS, reason=reason)))
    assert (found.level, found.evidence, found.advice) == ("warning", reason, advice)


@pytest.mark.parametrize(("watts", "wedged"), [(12.0, True), (250.0, False)])
def test_a_stalled_local_server_beside_a_gpu(watts: float, wedged: bool) -> None:
    row = EngineRow("0", state=State.STALLED)
    server = replace(WELL, state=State.STALLED, engines=(row,), local=True, reason="2 running, nothing moved for 9 s")
    (found,) = told(snapshot(server, devices=(Device(0, power_w=watts),)))
    assert found.level == "critical"
    assert ("wedged?" in found.text) == wedged


def test_limits_become_findings_with_the_flag_to_change() -> None:
    pressed = replace(WELL, limited_by="KV_PRESSURE", limited_by_share=0.6, limited_by_evidence="KV 97 %")
    capped = replace(WELL, limited_by="SEQ_CAP", limited_by_share=0.6, limited_by_evidence="running 32 of 32")
    (first,), (second,) = told(snapshot(pressed)), told(snapshot(capped))
    assert "--max-model-len" in (first.advice or "")
    assert (second.evidence, "--max-num-seqs" in (second.advice or "")) == ("running 32 of 32", True)


def test_lost_and_throttled_devices() -> None:
    lost = Device(1, uuid="GPU-1", state="LOST", reason="fallen off the bus")
    hot = Device(0, uuid="GPU-0", throttle=("hw thermal slowdown",))
    found = told(snapshot(WELL, devices=(hot, lost)))
    assert [finding.level for finding in found] == ["critical", "warning"]  # the worst first


def test_a_failed_source_says_why() -> None:
    (found,) = told(replace(snapshot(WELL), sources=(SourceStatus("nvml", False, "driver/library mismatch"),)))
    assert "driver/library mismatch" in found.text


def flag(on: list[bool]) -> Rule:
    def check(_: Snapshot) -> Iterator[Finding]:
        if on[0]:
            yield Finding("x", "info", "x")

    return Rule(check, sustain_s=3.0)


def test_a_rule_must_hold_before_it_speaks() -> None:
    on = [True]
    findings = Findings((flag(on),))
    assert [bool(findings.update(snapshot(), float(t))) for t in range(5)] == [False, False, False, True, True]


def test_a_rule_that_holds_now_and_then_never_speaks() -> None:
    on = [True]
    findings = Findings((flag(on),))
    for t in range(60):
        on[0] = t % 3 != 2
        assert not findings.update(snapshot(), float(t))


def test_a_finding_ends_with_its_cause() -> None:
    on = [True]
    findings = Findings((flag(on),))
    assert [bool(findings.update(snapshot(), float(t))) for t in range(5)][-1]
    on[0] = False
    assert not findings.update(snapshot(), 5.0)
    on[0] = True
    assert not findings.update(snapshot(), 6.0)  # it must hold again before it speaks again


def test_the_words_are_of_the_snapshot_they_stand_in() -> None:
    findings = Findings()
    filling = replace(WELL, kv_usage=0.9, kv_growth_tok_s=100.0)
    told_at = [findings.update(snapshot(replace(filling, kv_full_in_s=19.0 - t)), float(t)) for t in range(10)]
    assert [finding.text for finding in told_at[-1]] == ["m: KV cache full in about 10s"]
    assert findings.update(snapshot(replace(WELL, state=State.IDLE, kv_usage=0.0)), 10.0) == ()


@pytest.mark.parametrize(
    ("engine", "flag_of_users", "flag_of_cache"),
    [
        ("vllm", "--max-num-seqs", "--max-model-len"),
        ("vllm-rust", "--max-num-seqs", "--max-model-len"),
        ("sglang", "--max-running-requests", "--context-length"),
        ("llamacpp", "-np (--parallel)", "-c (--ctx-size)"),
        ("trtllm-serve", "--max_batch_size", "--max_seq_len"),
        (None, "more requests at once", "shorter contexts"),
    ],
)
def test_advice_is_in_the_words_of_the_engine(engine: str | None, flag_of_users: str, flag_of_cache: str) -> None:
    server = replace(WELL, engine=engine, limited_by_share=0.6)
    capped, pressed = (told(snapshot(replace(server, limited_by=code))) for code in ("SEQ_CAP", "KV_PRESSURE"))
    assert flag_of_users in (capped[0].advice or "")
    assert flag_of_cache in (pressed[0].advice or "")
    if not (engine or "").startswith("vllm"):
        assert "--max-num-seqs" not in f"{capped}{pressed}"


def test_memory_advice_is_for_the_servers_of_that_machine() -> None:
    pool = Pool("RAM", "ram", headroom_bytes=GIB, state="low", node="here")
    here = replace(WELL, engine="llamacpp", local=True, node="here")
    there = replace(WELL, url="http://t:8000", engine="vllm", local=False, node="there")
    (found,) = told(snapshot(here, there, pools=(pool,)))
    assert "-ngl" in (found.advice or "")
    assert "--gpu-memory-utilization" not in (found.advice or "")


def test_a_failing_health_check_is_a_finding() -> None:
    (found,) = told(snapshot(replace(WELL, health="/health says 500")))
    assert (found.id, found.level) == ("health:http://s:8000", "warning")


def test_one_stalled_engine_is_no_stalled_server() -> None:
    rows = (EngineRow("0", running=1), EngineRow("1", waiting=4, running=0, state=State.STALLED))
    (found,) = told(snapshot(replace(WELL, engines=rows)))
    assert found.id == "stalled-engine:http://s:8000"
    assert "(engine 1): requests wait, none runs" in found.text


@pytest.mark.parametrize(
    ("rates", "level", "share"),
    [
        (Rates(10.0, requests_s=10.0, errors_s=0.2), "warning", "2 %"),
        (Rates(10.0, requests_s=9.5, http_5xx_s=0.5), "warning", "5 %"),
        (Rates(10.0, requests_s=5.0, http_4xx_s=5.0), "warning", "50 %"),
        (Rates(10.0, requests_s=9.5, http_4xx_s=0.5), "info", "5 %"),
        (Rates(10.0, requests_s=100.0, errors_s=0.5, http_4xx_s=0.4), None, ""),
        (Rates(10.0, requests_s=0.0, errors_s=0.0), None, ""),
    ],
)
def test_errors_above_one_percent(rates: Rates, level: str | None, share: str) -> None:
    found = told(snapshot(replace(WELL, rates=rates)))
    assert [finding.level for finding in found] == ([level] if level else [])
    assert all(f"{share} of the requests fail" in finding.text for finding in found)


def test_errors_are_told_at_once_since_they_are_counted_over_a_window() -> None:
    view = snapshot(replace(WELL, rates=Rates(1.0, requests_s=10.0, errors_s=1.0)))
    assert [finding.id for finding in Findings().update(view, 0.0)] == [f"errors:{WELL.url}"]


@pytest.mark.parametrize(
    ("now", "before", "level"),
    [(0.0, 0.43, "warning"), (0.05, 0.43, "info"), (0.3, 0.43, None), (0.0, 0.0, None), (None, 0.43, None)],
)
def test_a_prefix_cache_that_died(now: float | None, before: float, level: str | None) -> None:
    rates = Rates(10.0, prompt_tok_s=1600.0)
    found = told(snapshot(replace(WELL, prefix_hit_rate=now, prefix_hit_rate_total=before, rates=rates)))
    assert [finding.level for finding in found] == ([level] if level else [])


@pytest.mark.parametrize(
    ("now", "before", "length", "speaks"),
    [(0.1, 0.6, 1.4, True), (0.02, 0.02, 1.04, True), (0.5, 0.6, 2.5, False), (None, 0.6, None, False)],
)
def test_speculation_that_gives_nothing(now: float | None, before: float, length: float | None, speaks: bool) -> None:
    server = replace(WELL, rates=Rates(10.0, 90.0), spec_acceptance_rate=now, spec_accepted_length=length)
    found = told(snapshot(replace(server, spec_acceptance_rate_total=before)))
    assert [finding.id for finding in found] == (["speculation:http://s:8000"] if speaks else [])


def test_requests_are_turned_away_as_long_as_they_are() -> None:
    def page(served: int, rejected: int) -> bytes:
        away = "".join(f'vllm:admission_rejections_total{{reason="{why}"}} {rejected}\n' for why in ("reqs", "tokens"))
        return vllm_page(running=3, generation=float(served)) + away.encode()

    crank, seen = Crank(), []
    for t in range(30):
        server = crank.feed(page(t, 7 * min(t, 10)), float(t)).view()
        seen.append([(found.id, found.text, found.evidence) for found in told(snapshot(server))])
    assert seen[10] == [
        ("rejections:http://server:8000", "m: 14 requests/s are turned away", "over 10.0 s, 140 since the start")
    ]
    assert (seen[0], seen[29]) == ([], [])
    assert server.admission_rejections_total == 140


# what a GB10 keeps to itself

SLOW = Device(
    0,
    name="NVIDIA GB10",
    util=96.0,
    power_w=14.0,
    sm_clock_mhz=513.0,
    sm_clock_max_mhz=3003.0,
    throttle_known=True,
    unified=True,
    node="spark-b",
)
POOL = Pool("GB10 unified", "unified", total_bytes=120 * GIB, headroom_bytes=20 * GIB, state="ok", node="spark-b")


def on_spark(host: Host = Host(), devices: tuple[Device, ...] = (), pool: Pool = POOL) -> Snapshot:  # noqa: B008
    """A server on spark-b, which is read by ssh."""
    node = Node("spark-b", local=False, host=host)
    return Snapshot(0.0, (replace(WELL, local=False, node="spark-b"),), devices, pools=(pool,), nodes=(node,))


def test_a_clock_that_is_held_down_without_a_reason_is_a_finding_that_ends_with_it() -> None:
    findings = Findings()
    slow = on_spark(devices=(SLOW,))
    assert not [found for second in range(10) for found in findings.update(slow, float(second))]
    (found,) = findings.update(slow, 10.0)
    assert (found.text, found.evidence) == (
        "GPU 0 NVIDIA GB10: 513 of 3003 MHz while it works",
        "17 % of it at 96 % and 14 W, no throttle reason",
    )
    assert "power supply" in (found.advice or "")
    assert findings.update(on_spark(devices=(replace(SLOW, sm_clock_mhz=2405.0),)), 11.0) == ()


def test_of_a_machine_that_fell_silent_nothing_is_said_to_be_slow_or_hot() -> None:
    bad = on_spark(Host(prochot=True), devices=(replace(SLOW, temperature_c=95.0),))
    assert {found.id.partition(":")[0] for found in told(bad)} == {"slow-clock", "hot", "prochot"}
    assert told(replace(bad, nodes=(replace(bad.nodes[0], state="stale"),))) == ()


@pytest.mark.parametrize(
    "well",
    [
        {"sm_clock_mhz": 2405.0},
        {"util": 10.0},
        {"power_w": 40.0},
        {"throttle": ("sw power cap",)},
        {"throttle_known": False},
        {"sm_clock_max_mhz": None},
        {"sm_clock_mhz": None},
        {"power_w": None},
        {"util": None},
        {"power_limit_w": 30.0},
    ],
    ids=str,
)
def test_a_clock_that_is_low_for_a_reason_or_is_not_known_is_none(well: dict[str, object]) -> None:
    assert told(on_spark(devices=(replace(SLOW, **well),))) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({"temperature_c": 84.0, "slowdown_c": 87.0}, "it slows down at 87 C"),
        ({"temperature_c": 91.0}, "its driver names no limit"),
        ({"temperature_c": 81.0, "slowdown_c": 87.0}, None),
        ({"temperature_c": 80.0}, None),
        ({}, None),
    ],
)
def test_a_device_near_its_limit_is_hot(changes: dict[str, float], evidence: str | None) -> None:
    found = told(on_spark(devices=(replace(SLOW, sm_clock_mhz=2405.0, **changes),)))  # type: ignore[arg-type]
    assert [one.evidence for one in found] == ([evidence] if evidence else [])


def test_a_machine_that_signals_heat_is_named() -> None:
    (found,) = told(on_spark(Host(prochot=True, power_w=88.4)))
    assert (found.text, found.evidence) == ("spark-b signals that it is too hot (PROCHOT)", "88 W in all")


@pytest.mark.parametrize(
    ("used", "speed", "headroom", "level"),
    [
        (2 * GIB, 0.0, 20, "info"),
        (GIB // 2, 0.0, 20, None),
        (GIB // 2, 0.0, 4, "info"),
        (GIB // 2, 5e6, 20, "warning"),
        (0, 0.0, 4, None),
        (None, None, 20, None),
    ],
)
def test_swap_in_use_while_a_model_is_served(used: int, speed: float, headroom: int, level: str | None) -> None:
    host = Host(swap_used_bytes=used, swap_out_bytes_s=speed, psi_full_avg10=0.4)
    serving = on_spark(host, pool=replace(POOL, headroom_bytes=headroom * GIB))
    found = told(serving)
    assert [one.level for one in found] == ([level] if level else [])
    assert all(f"headroom {headroom}.0 GiB; PSI 0.4" in (one.evidence or "") for one in found)
    assert told(replace(serving, servers=(replace(serving.servers[0], state=State.IDLE),))) == ()
