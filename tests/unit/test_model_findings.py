"""Findings: what they say, and that none of them flickers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from llmtop.contract.snapshot import (
    Device,
    EngineRow,
    Finding,
    Pool,
    ServerView,
    Snapshot,
    SourceStatus,
    State,
)
from llmtop.session.findings import Findings, Rule

GIB = 2**30
WELL = ServerView("http://s:8000", State.SERVING, model="m", running=1, waiting=0, engines=(EngineRow("0"),))


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
        (State.DOWN, None, "warning", "port"),
        (State.AUTH, None, "warning", "--api-key-env"),
        (State.NO_ENGINE_METRICS, None, "warning", "--disable-log-stats"),
    ],
)
def test_a_server_that_cannot_be_read(state: State, engine: str | None, level: str, advice: str) -> None:
    (found,) = told(snapshot(replace(WELL, state=state, reason="words", engine=engine)))
    assert (found.level, found.evidence) == (level, "words")
    assert advice in (found.advice or "")


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

    return Rule(check, sustain_s=3.0, linger_s=5.0)


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


def test_a_finding_lingers_and_then_goes() -> None:
    on = [True]
    findings = Findings((flag(on),))
    for t in range(5):
        findings.update(snapshot(), float(t))
    on[0] = False
    assert [bool(findings.update(snapshot(), float(t))) for t in range(5, 11)] == [True] * 4 + [False] * 2


def test_noise_never_makes_a_finding_flicker() -> None:
    chance, on = random.Random(2), [True]
    findings = Findings((flag(on),))
    changes, before = [], False
    for tick in range(4000):
        on[0] = chance.random() < 0.5
        now = bool(findings.update(snapshot(), tick * 0.5))
        if now != before:
            changes.append(tick * 0.5)
        before = now
    gaps = [later - earlier for earlier, later in pairwise(changes)]
    assert all(gap >= 3.0 for gap in gaps)
