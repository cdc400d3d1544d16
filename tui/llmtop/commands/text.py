"""A snapshot as text without a screen: a table for `--once`, a line for `--plain`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from llmtop.contract.snapshot import Device, FleetView, Latency, ModelView, Pool, ServerView, Snapshot
from llmtop.contract.units import UNKNOWN, bytes_text, count, duration, gib, hit_text, percent, rate, seconds
from llmtop.contract.words import first_steps, quantile_text
from llmtop.engines.registry import engine_text
from llmtop.fleet.models import hurt
from llmtop.machine.tightest import tightest_of


def table(snapshot: Snapshot) -> str:
    """Everything a person wants to know at once, as lines."""
    if snapshot.fleet is not None:
        return "\n\n".join("\n".join(part) for part in _fleet(snapshot, snapshot.fleet))
    parts = [_server(server) for server in snapshot.servers] or [[first_steps(snapshot)]]
    parts += [[f"{snapshot.simulation}: no real server, no real machine"]] if snapshot.simulation else []
    parts += _memories(snapshot)
    parts.append([_device(device, snapshot.on(device.node)) for device in snapshot.devices])
    unknown = [node for node in snapshot.nodes if node.state in ("unknown", "down")] if snapshot.servers else []
    parts.append([f"  memory      {UNKNOWN}  {node.reason}" for node in unknown])
    parts.append([_finding(f.level, f.text, f.evidence, f.advice) for f in snapshot.findings])
    return "\n\n".join("\n".join(part) for part in parts if part)


def _fleet(snapshot: Snapshot, fleet: FleetView) -> Iterator[list[str]]:
    """A row per model and per replica, the worst first, and what is wrong with them."""
    chosen = f"  {{{fleet.select}}}" if fleet.select else ""
    windows = f"rates over {seconds(fleet.rate_window_s)}, latency over {seconds(fleet.latency_window_s)}"
    yield [f"{fleet.source}{chosen}  scraped every {seconds(fleet.scrape_interval_s)}, {windows}"]
    if snapshot.models:
        yield from _replicas(snapshot)
        yield from [] if fleet.reason is None else [[f"  {fleet.reason}"]]
    yield [_finding(f.level, f.text, f.evidence, f.advice) for f in snapshot.findings]


def _replicas(snapshot: Snapshot) -> Iterator[list[str]]:
    names = [model.model or UNKNOWN for model in snapshot.models]
    wide = max(map(len, names))
    figures = f"{'KV':>8}{'running':>9}{'waiting':>9}{'tok/s':>10}{'TTFT mean':>11}"
    yield [
        f"  {'model':<{wide}}  replicas{figures}",
        *(
            f"  {name:<{wide}}  {f'{m.healthy} of {m.replicas}':>8}{percent(m.kv_usage):>8}{count(m.running):>9}"
            f"{count(m.waiting):>9}{rate(m.generation_tok_s):>10}{seconds(m.ttft_mean_s):>11}"
            for name, m in zip(names, snapshot.models, strict=True)
        ),
    ]
    servers = sorted(snapshot.servers, key=hurt, reverse=True)
    called = [server.name or server.url.removeprefix("http://") for server in servers]
    long, states = max(map(len, called)), max(9, *(len(server.state) for server in servers))
    tightest = {server.url: tightest_of(snapshot, server.node) for server in servers}
    left = {url: pool.headroom_bytes if pool is not None else None for url, pool in tightest.items()}
    told = any(size is not None for size in left.values())
    yield [
        f"  {'replica':<{long}}  {'model':<{wide}}  {'state':<{states}}{figures}{'TTFT p95':>11}"
        + (f"{'headroom':>11}" if told else "")
        + f"{'age':>6}",
        *(
            f"  {name:<{long}}  {s.model or UNKNOWN:<{wide}}  {s.state:<{states}}{percent(s.kv_usage):>8}"
            f"{count(s.running):>9}{count(s.waiting):>9}{rate(s.rates.generation_tok_s):>10}"
            f"{seconds(s.latency.ttft.mean_s):>11}{quantile_text(s.latency.ttft.p95):>11}"
            + (f"{bytes_text(left[s.url]):>11}" if told else "")
            + f"{duration(s.age_s):>6}"
            for name, s in zip(called, servers, strict=True)
        ),
    ]


def _server(server: ServerView) -> list[str]:
    return [line for line in _server_lines(server) if line]


def _server_lines(server: ServerView) -> Iterator[str]:
    what = "  ".join(filter(None, (server.name, server.model, server.url, engine_text(server.engine, server.version))))
    reason = f" ({server.reason})" if server.reason else ""
    yield f"{what}  {server.state}{reason}" + (f"  up {duration(server.up_s)}" if server.up_s else "")
    if not (server.state.live or server.state == "STALE"):
        return
    approx = "≈" if server.kv_capacity_approx else ""
    fullest = f"  engine {server.kv_engine}" if len(server.engines) > 1 and server.kv_engine else ""
    yield (
        f"  KV cache    {percent(server.kv_usage)}  {count(server.kv_used_tokens)} of "
        f"{approx}{count(server.kv_capacity_tokens)} tokens{fullest}  room for {count(server.room_requests)} x "
        f"{count(server.max_model_len)}"
    )
    reasons = ", ".join(f"{name} {number}" for name, number in server.waiting_by_reason.items() if number)
    hit = hit_text(server.prefix_hit_rate, server.external_prefix_hit_rate)
    running = f"running {count(server.running)} of {count(server.max_num_seqs)}"
    yield (
        f"  queue       {running}  waiting {count(server.waiting)}"
        + (f" ({reasons})" if reasons else "")
        + f"  preempted {count(server.preemptions_total)}  prefix hit {hit}"
    )
    rates = server.rates
    yield (
        f"  throughput  generation {rate(rates.generation_tok_s)} tok/s  prompt {rate(rates.prompt_tok_s)} tok/s"
        f"  (computed {rate(rates.prompt_computed_tok_s)}, cached {rate(rates.prompt_cached_tok_s)})"
        f"  over {seconds(rates.window_s)}"
    )
    yield from _speculation(server)
    failing = {"4xx": rates.http_4xx_s, "5xx": rates.http_5xx_s, "failed": rates.errors_s}
    if any(failing.values()):
        yield "  errors      " + "  ".join(
            f"{name} {value:.1f}/s" for name, value in failing.items() if value is not None
        )
    if server.joules_per_token is not None:
        yield f"  energy      {server.joules_per_token:.2f} J/token ({server.joules_scope})"
    yield from _latencies(server)
    if server.limited_by:
        yield f"  limited by  {server.limited_by}  ({server.limited_by_evidence})"
    if server.lora:
        yield f"  LoRA        {', '.join(server.lora)}"


def _speculation(server: ServerView) -> Iterator[str]:
    if server.spec_acceptance_rate is None and server.spec_accepted_length is None:
        return
    length = UNKNOWN if server.spec_accepted_length is None else f"{server.spec_accepted_length:.2f}"
    places = ", ".join(percent(share, 0) for share in server.spec_accepted_by_position)
    yield (
        f"  speculation accepted {percent(server.spec_acceptance_rate, 0)}  {length} tokens per draft"
        + (f"  by position {places}" if places else "")
    )


def _latencies(server: ServerView) -> Iterator[str]:
    latency = server.latency
    rows = (
        ("TTFT", latency.ttft),
        ("ITL", latency.itl),
        ("TPOT", latency.tpot),
        ("E2EL", latency.e2e),
        ("queue", latency.queue),
    )
    if all(row.n is None for _, row in rows):
        return
    yield f"  {'latency':<10}{'mean':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'n':>8}  over {seconds(latency.window_s)}"
    for label, row in rows:
        yield f"    {label:<8}" + _figures(row)


def _figures(row: Latency) -> str:
    cells = [seconds(row.mean_s), *(quantile_text(q) for q in (row.p50, row.p95, row.p99)), count(row.n)]
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, (10, 10, 10, 10, 8), strict=True))


def _memories(snapshot: Snapshot) -> Iterator[list[str]]:
    """The pools, with the machine they belong to where there are several, or where it has fallen silent."""
    if len(snapshot.nodes) < 2 and snapshot.current(snapshot.host.node):
        yield [_pool(pool) for pool in snapshot.pools]
        return
    for node in snapshot.nodes:
        old = f", {duration(node.age_s)} ago ({node.reason})" if node.state == "stale" else ""
        pools = [_pool(pool) for pool in snapshot.pools if pool.node == node.name]
        yield [f"  {node.name}{', this machine' if node.local else ''}{old}:", *pools] if pools else []


def _pool(pool: Pool) -> str:
    low = ""
    if pool.low_water_bytes is not None and pool.low_water_time is not None:
        clock = time.strftime("%H:%M:%S", time.localtime(pool.low_water_time))
        low = f"  low-water {gib(pool.low_water_bytes)} at {clock}"
    more = f"  (+{gib(pool.reclaimable_bytes)} page cache)" if pool.kind == "hbm" and pool.reclaimable_bytes else ""
    return (
        f"  {pool.name:<24} headroom {gib(pool.headroom_bytes)} of {gib(pool.total_bytes)} GiB{more}{low}"
        f"  {(pool.state or UNKNOWN).upper()}  [{pool.basis or UNKNOWN}]"
    )


def _device(device: Device, where: str) -> str:
    name = f"GPU {device.index}{f' MIG {device.mig}' if device.mig else ''} {device.name or ''}{where}"
    if device.state != "OK":
        return f"  {name:<28} {device.state}  {device.reason or ''}".rstrip()
    throttle = f"  throttled: {', '.join(device.throttle)}" if device.throttle else ""
    used = "host memory" if device.unified else UNKNOWN
    if device.memory:
        used = f"{bytes_text(device.memory.used)} used"
    facts = ((device.util, "%"), (device.power_w, "W"), (device.temperature_c, "C"), (device.sm_clock_mhz, "MHz"))
    return f"  {name:<28} util {'  '.join(_plain(value, unit) for value, unit in facts)}  {used}{throttle}"


def _plain(value: float | None, unit: str) -> str:
    return f"{UNKNOWN if value is None else f'{value:.0f}'} {unit}"


def _finding(level: str, text: str, evidence: str | None, advice: str | None) -> str:
    tail = "".join(f"; {words}" for words in (evidence, advice) if words)
    return f"  {level.upper()}: {text}{tail}"


def line(snapshot: Snapshot) -> str:
    """One line per server: time, state, KV, headroom, queue, throughput, P95 TTFT."""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    if not snapshot.servers:
        return f"{clock}  no model server found  {_memory(snapshot, None)}"
    if snapshot.models:
        return "\n".join(f"{clock}  {_model_line(model)}" for model in snapshot.models)
    return "\n".join(f"{clock}  {_server_line(s)}  {_memory(snapshot, s)}" for s in snapshot.servers)


def _memory(snapshot: Snapshot, server: ServerView | None) -> str:
    """The first pool of the machine that a server runs on, or of one that was asked for, which is then named."""
    pool = next(iter(snapshot.beside(server).pools), None)
    if pool is None:
        return f"headroom {UNKNOWN}"
    where = f"{pool.node} " if server is not None and pool.node != server.node else ""
    return f"{where}headroom {gib(pool.headroom_bytes)} GiB {(pool.state or UNKNOWN).upper()}"


def _model_line(model: ModelView) -> str:
    return (
        f"{model.model or UNKNOWN}  {model.healthy} of {model.replicas} well  KV {percent(model.kv_usage)}"
        f"  run {count(model.running)}  wait {count(model.waiting)}  gen {rate(model.generation_tok_s)} tok/s"
        f"  TTFT mean {seconds(model.ttft_mean_s)}"
    )


def _server_line(server: ServerView) -> str:
    return (
        f"{server.name or server.model or server.url}  {server.state}  KV {percent(server.kv_usage)}"
        f"  run {count(server.running)}  wait {count(server.waiting)}"
        f"  gen {rate(server.rates.generation_tok_s)} tok/s  prompt {rate(server.rates.prompt_tok_s)} tok/s"
        f"  TTFT p95 {quantile_text(server.latency.ttft.p95)}"
    )
