"""What must never stand on one screen together: a list of contradictions, each in words."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.contract.snapshot import ServerView, Snapshot, State

TIGHT, SLACK = 0.95, 1e-9


def contradictions(snapshot: Snapshot) -> list[str]:
    """Every pair of statements of a snapshot that cannot both be true."""
    found = [f"{server.url}: {words}" for server in snapshot.servers for words in _of_server(server)]
    return found + list(_of_findings(snapshot))


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
    if verdict == "SEQ_CAP" and not waiting:
        yield "the cap holds requests back, and none waits"
    if verdict in ("SEQ_CAP", "DEFERRED", "KV_PRESSURE", "MIXED") and not server.limited_by_evidence:
        yield f"{verdict} without evidence"
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
