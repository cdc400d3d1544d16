"""What must never stand on one screen together: a list of contradictions, each in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from llmtop.contract.snapshot import ServerView, Snapshot, State

TIGHT, SLACK = 0.95, 1e-9


def contradictions(snapshot: Snapshot) -> list[str]:
    """Every pair of statements of a snapshot that cannot both be true."""
    found = [f"{server.url}: {words}" for server in snapshot.servers for words in _of_server(server)]
    codes = {server.limited_by for server in snapshot.servers}
    if snapshot.limited_by not in codes or (snapshot.limited_by == "UNDERLOADED" and codes - {None, "UNDERLOADED"}):
        found.append(f"limited by {snapshot.limited_by}, of {codes}")
    return found + list(_of_findings(snapshot)) + list(_of_machine_findings(snapshot))


def _of_server(server: ServerView) -> Iterator[str]:
    verdict, running, waiting = server.limited_by, server.running, server.waiting
    if verdict is not None and server.state is not State.SERVING:
        yield f"{verdict} while {server.state}"
    if verdict is not None and not running:
        yield f"{verdict} with {running} running"
    if verdict == "UNDERLOADED" and waiting:
        yield f"more would fit, and {waiting} wait"
    if verdict == "UNDERLOADED" and server.room_requests == 0:
        yield "more would fit, and there is room for 0"
    if verdict in ("SEQ_CAP", "QUEUE", "DEFERRED") and not waiting:
        yield f"{verdict} holds requests back, and none waits"
    if verdict is not None and not server.limited_by_evidence:
        yield f"{verdict} without evidence"
    yield from _of_evidence(server)
    yield from _of_rows(server)
    if server.state is State.IDLE and (running or waiting):
        yield f"idle, and {running} run, {waiting} wait"
    if server.state is State.STALLED and not (running or waiting):
        yield "stalled, and nothing runs or waits"
    if server.kv_full_in_s is not None and (server.state is not State.SERVING or not running):
        yield f"full in {server.kv_full_in_s:.0f} s with {running} running, {server.state}"
    if not server.state.live and server.state is not State.STALE and running is not None:
        yield f"{running} running on a server that is {server.state}"
    if server.kv_usage is not None and not 0 <= server.kv_usage <= 1 + SLACK:
        yield f"KV usage {server.kv_usage}"
    used, capacity = server.kv_used_tokens, server.kv_capacity_tokens
    if used is not None and capacity is not None and used > capacity:
        yield f"{used} of {capacity} tokens used"
    if server.running is not None and server.max_num_seqs is not None and server.running > server.max_num_seqs:
        yield f"running {server.running} of {server.max_num_seqs}"
    if server.waiting_by_reason and waiting is not None and sum(server.waiting_by_reason.values()) > waiting:
        yield f"{dict(server.waiting_by_reason)} are more than {waiting} waiting"
    rates = server.rates
    if any(value is not None and value < 0 for value in (rates.generation_tok_s, rates.prompt_tok_s, rates.requests_s)):
        yield f"a negative rate: {rates}"


def _of_evidence(server: ServerView) -> Iterator[str]:
    """The figures of a verdict are those beside it, where it speaks of now and of all engines."""
    said = server.limited_by_evidence or ""
    if server.limited_by in (None, "MIXED") or said.startswith("engine "):
        return
    for name, value in (("running", server.running), ("waiting", server.waiting)):
        told = re.search(rf"(?<!of )\b{name} (\d+)", said)
        if told and int(told[1]) != value:
            yield f"{said}, and {value} {name}"
    kv = re.search(r"\bKV (\d+) %", said)
    if kv and (server.kv_usage is None or abs(int(kv[1]) - 100 * server.kv_usage) > 0.51):
        yield f"{said}, at {server.kv_usage}"


def _of_rows(server: ServerView) -> Iterator[str]:
    """The figures of a server are those of its engines: sums of what is counted, the fullest cache."""
    rows, live = server.engines, server.state.live or server.state is State.STALE
    for name in ("running", "waiting", "max_num_seqs"):
        known = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        if known and len(known) == len(rows) and sum(known) != getattr(server, name):
            yield f"{name} {getattr(server, name)} of rows with {known}"
    yield from _of_sums(server)
    if live and rows and server.kv_usage != max((r.kv_usage for r in rows if r.kv_usage is not None), default=None):
        yield f"KV {server.kv_usage} of rows with {[row.kv_usage for row in rows]}"
    if len({row.engine for row in rows}) != len(rows):
        yield f"two rows of one name: {[row.engine for row in rows]}"
    for row in rows:
        if row.state is State.STALLED and not (row.running or row.waiting):
            yield f"engine {row.engine} stalled, and nothing runs or waits"
        if row.state is State.IDLE and (row.running or row.waiting):
            yield f"engine {row.engine} idle, and {row.running} run, {row.waiting} wait"
        if server.servers_in_turn and row.generation_tok_s is not None:
            yield f"{server.servers_in_turn} servers in turn, and engine {row.engine} at {row.generation_tok_s} tok/s"
    states = {row.state for row in rows}
    if server.state is State.STALLED and State.STALLED not in states:
        yield f"stalled, with rows {states}"
    if server.state in (State.SERVING, State.IDLE) and states and states <= {State.STALLED}:
        yield f"{server.state}, with rows {states}"
    if server.servers_in_turn and server.rates.generation_tok_s is not None:
        yield f"{server.servers_in_turn} servers in turn, at {server.rates.generation_tok_s} tok/s"
    used, capacity, length = server.kv_used_tokens, server.kv_capacity_tokens, server.max_model_len
    if None not in (used, capacity, length) and (server.room_requests or 0) * length > capacity - used:  # type: ignore[operator]
        yield f"room for {server.room_requests} x {length} in {capacity} - {used}"


def _of_sums(server: ServerView) -> Iterator[str]:
    """What flows through a server, what was counted and who waits why is what its engines say, added."""
    rows = server.engines
    wholes = {"generation_tok_s": server.rates.generation_tok_s, "preemptions_total": server.preemptions_total}
    for name, whole in wholes.items():
        known = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        if not rows or (whole is None and not known):
            continue
        if whole is None or abs(sum(known) - whole) > 1e-6 * max(1.0, whole):
            yield f"{name} {whole} of rows with {known}"
    reasons: Counter[str] = Counter()
    for row in rows:
        reasons.update(row.waiting_by_reason)
        if sum(row.waiting_by_reason.values()) > (row.waiting or 0):
            yield f"engine {row.engine}: {dict(row.waiting_by_reason)} are more than {row.waiting} waiting"
    if rows and dict(reasons) != dict(server.waiting_by_reason):
        yield f"{dict(server.waiting_by_reason)} of rows with {dict(reasons)}"
    capacities = [row.kv_capacity_tokens for row in rows if row.kv_capacity_tokens is not None]
    if capacities and server.kv_capacity_tokens not in (None, *capacities):  # that of the fullest
        yield f"{server.kv_capacity_tokens} tokens of rows with {capacities}"


def _of_machine_findings(snapshot: Snapshot) -> Iterator[str]:
    ids = {finding.id for finding in snapshot.findings}
    for pool in snapshot.pools:
        if (pool.state in ("low", "critical")) != (f"memory:{pool.name}{snapshot.on(pool.node)}" in ids):
            yield f"{pool.name} is {pool.state}, beside {ids}"
        if (pool.state is None and pool.reason is not None) != (f"meminfo:{pool.name}{snapshot.on(pool.node)}" in ids):
            yield f"{pool.name} is {pool.state} because {pool.reason}, beside {ids}"
        used, free, total = pool.used_bytes or 0, pool.headroom_bytes or 0, pool.total_bytes
        if total is not None and used + free > total:
            yield f"{used} used and {free} left of {total} bytes"
        if pool.low_water_bytes is not None and pool.low_water_bytes > free and pool.headroom_bytes is not None:
            yield f"{free} bytes left, and never less than {pool.low_water_bytes}"
    for source in snapshot.sources:
        if source.ok and f"source:{source.name}" in ids:
            yield f"{source.name} fails, and is well"


def _of_findings(snapshot: Snapshot) -> Iterator[str]:
    servers = {server.url: server for server in snapshot.servers}
    for finding in snapshot.findings:
        kind, _, url = finding.id.partition(":")
        server = servers.get(url)
        if server is None:
            continue
        frozen = any(row.state is State.STALLED for row in server.engines)
        if kind == "stalled" and server.state is not State.STALLED:
            yield f"{finding.text}, and {server.state}"
        if kind == "stalled-engine" and not frozen:
            yield f"{finding.text}, and no engine is stalled"
        if kind in ("kv", "seq-cap") and finding.evidence != server.limited_by_evidence:
            yield f"{finding.evidence} of another moment than {server.limited_by_evidence}"
        if kind == "prefix-cache" and (server.prefix_hit_rate is None or server.prefix_hit_rate > 0.25):
            yield f"{finding.text}, at {server.prefix_hit_rate}"
        if kind == "rejections" and not server.rates.rejections_s:
            yield f"{finding.text}, at {server.rates.rejections_s}/s"
        if kind == "unreachable" and server.state.value not in finding.text:
            yield f"{finding.text}, and {server.state}"
        if kind == "stalled" and ("none runs" in finding.text) == bool(server.running):
            yield f"{finding.text}, and {server.running} run"
        if kind in ("speculation", "prefix-cache", "errors") and not server.state.live:
            yield f"{finding.text}, and {server.state}"
        if kind == "health" and server.healthy:
            yield f"{finding.text}, and healthy"
        if not (server.engine or "vllm").startswith("vllm") and "--max-num-seqs" in (finding.advice or ""):
            yield f"{finding.advice} for {server.engine}"
        if kind == "kv" and server.limited_by != "KV_PRESSURE":
            yield f"{finding.text}, and limited by {server.limited_by}"
        if kind == "seq-cap" and server.limited_by != "SEQ_CAP":
            yield f"{finding.text}, and limited by {server.limited_by}"
        if kind == "kv-filling" and (not server.running or (server.kv_usage or 0) < 0.5):
            yield f"{finding.text}, at {server.kv_usage}"
        if kind == "unreachable" and server.state.live:
            yield f"{finding.text}, and {server.state}"
        if server.state is State.DOWN and finding.level != "critical" and kind == "unreachable":
            yield f"{finding.text} is only {finding.level}"
