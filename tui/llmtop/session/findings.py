"""Rules that turn a snapshot into statements: what is wrong, what shows it, what to change.

A rule must hold for its `sustain_s` before it speaks and be gone for `linger_s` before it falls silent, so that no
finding flickers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from llmtop.contract.snapshot import Finding, Pool, ServerView, Snapshot, State
from llmtop.contract.units import bytes_text, duration, percent, seconds
from llmtop.engines.tracker import NO_ANSWER_YET

LINGER_S = 5.0
IDLE_WATTS = 30.0


@dataclass(frozen=True, slots=True)
class Rule:
    """A test of one snapshot, how long it must hold, and how long it stays after."""

    check: Callable[[Snapshot], Iterable[Finding]]
    sustain_s: float = 0.0
    linger_s: float = LINGER_S


@dataclass(frozen=True, slots=True)
class _Held:
    rule: Rule
    finding: Finding
    since: float
    last: float

    @property
    def sustained(self) -> bool:
        return self.last - self.since >= self.rule.sustain_s


class Findings:
    """Applies the rules to every snapshot and remembers which of them hold."""

    def __init__(self, rules: tuple[Rule, ...] | None = None) -> None:
        self._rules = RULES if rules is None else rules
        self._held: dict[str, _Held] = {}

    def update(self, snapshot: Snapshot, t: float) -> tuple[Finding, ...]:
        """The findings at monotonic time `t`, the worst first."""
        for rule in self._rules:
            for finding in rule.check(snapshot):
                held = self._held.get(finding.id)
                self._held[finding.id] = _Held(rule, finding, held.since if held else t, t)
        self._held = {
            key: held
            for key, held in self._held.items()
            if held.last == t or (held.sustained and t - held.last < held.rule.linger_s)
        }
        return tuple(sorted((held.finding for held in self._held.values() if held.sustained), key=_weight))


def _weight(finding: Finding) -> tuple[int, str]:
    return ("critical", "warning", "info").index(finding.level), finding.id


def _memory(snapshot: Snapshot) -> Iterator[Finding]:
    for pool in snapshot.pools:
        if pool.state in ("low", "critical"):
            yield Finding(
                f"memory:{pool.name}",
                "critical" if pool.state == "critical" else "warning",
                f"{pool.name}{_on(pool.node, snapshot)}: headroom {bytes_text(pool.headroom_bytes)}" + _trend(pool),
                pool.reason or pool.basis,
                "lower --gpu-memory-utilization or --max-num-seqs, or stop what else holds memory",
            )


def _trend(pool: Pool) -> str:
    if not pool.empty_in_s or not pool.falling_bytes_s or pool.empty_in_s > 60:
        return ""
    return f", falling {bytes_text(pool.falling_bytes_s)}/s, empty in {pool.empty_in_s:.0f} s"


def _cache_in_the_way(snapshot: Snapshot) -> Iterator[Finding]:
    """CUDA sees only MemFree on unified memory: page cache can make a start fail though it would be given back."""
    starting = any(server.state in (State.STARTING, State.DOWN) and server.local for server in snapshot.servers)
    for pool in snapshot.pools:
        free, cache = pool.cuda_free_bytes or 0, pool.reclaimable_bytes or 0
        if starting and pool.kind == "unified" and cache > max(4 * free, 8 * 2**30):
            yield Finding(
                "page-cache",
                "info",
                f"CUDA sees {bytes_text(free)} free, page cache holds {bytes_text(cache)} more",
                "MemFree against MemAvailable",
                "before a start: sync; echo 3 > /proc/sys/vm/drop_caches",
            )


def _stalled(snapshot: Snapshot) -> Iterator[Finding]:
    for server in snapshot.servers:
        frozen = [row for row in server.engines if row.state is State.STALLED]
        if not frozen:
            continue
        watts = [d.power_w for d in snapshot.devices if d.power_w is not None] if server.local else []
        idle = bool(watts) and max(watts) < IDLE_WATTS
        listed = ", ".join(row.engine for row in frozen) if len(frozen) <= 4 else f"{len(frozen)} of them"
        names = "" if len(server.engines) == 1 else f" (engine {listed})"
        yield Finding(
            f"stalled:{server.url}",
            "critical",
            f"{_name(server, snapshot)}{names}: requests run, no counter moves" + (": wedged?" if idle else ""),
            (server.reason or "") + (f"; GPU at {max(watts):.0f} W, near idle" if idle else ""),
            "a 1-token request tells a hang from stale gauges; a dead engine needs a restart",
        )


def _unreachable(snapshot: Snapshot) -> Iterator[Finding]:
    advice = {
        State.DOWN: "is the server up and the port right?",
        State.AUTH: "name the variable that holds the key: --api-key-env NAME",
        State.NO_ENGINE_METRICS: "started with --disable-log-stats? wrong port?",
        State.STALE: None,
    }
    for server in snapshot.servers:
        if server.state in advice and server.reason != NO_ANSWER_YET:
            yield Finding(
                f"unreachable:{server.url}",
                "critical" if server.state is State.DOWN and server.engine else "warning",  # it was up before
                f"{_name(server, snapshot)}: {server.state}",
                server.reason,
                None if server.state is State.NO_ENGINE_METRICS and server.engine else advice[server.state],
            )


def _kv_pressure(snapshot: Snapshot) -> Iterator[Finding]:
    for server in snapshot.servers:
        if server.limited_by == "KV_PRESSURE" and (server.limited_by_share or 0.0) >= 0.1:
            yield Finding(
                f"kv:{server.url}",
                "warning",
                f"{_name(server, snapshot)}: the KV cache is the limit",
                server.limited_by_evidence,
                "fewer users, a shorter --max-model-len, --kv-cache-dtype fp8, or more --gpu-memory-utilization",
            )


def _kv_filling(snapshot: Snapshot) -> Iterator[Finding]:
    for server in snapshot.servers:
        soon = server.kv_full_in_s is not None and server.kv_full_in_s < 20.0
        if soon and (server.kv_usage or 0.0) > 0.6:
            yield Finding(
                f"kv-filling:{server.url}",
                "info",
                f"{_name(server, snapshot)}: KV cache full in about {duration(server.kv_full_in_s)}",
                f"{percent(server.kv_usage)} used, rising {server.kv_growth_tok_s:,.0f} tokens/s",
                "preemptions follow when it is full",
            )


def _seq_cap(snapshot: Snapshot) -> Iterator[Finding]:
    for server in snapshot.servers:
        if server.limited_by == "SEQ_CAP" and (server.limited_by_share or 0.0) >= 0.3:
            yield Finding(
                f"seq-cap:{server.url}",
                "info",
                f"{_name(server, snapshot)}: requests waited though the KV cache had room",
                server.limited_by_evidence,
                "raise --max-num-seqs (or --max-num-batched-tokens)",
            )


def _rejections(snapshot: Snapshot) -> Iterator[Finding]:
    for server in snapshot.servers:
        if server.admission_rejections_total:
            yield Finding(
                f"rejections:{server.url}",
                "info",
                f"{_name(server, snapshot)}: {server.admission_rejections_total:,} requests turned away so far",
                "vllm:admission_rejections_total",
                "raise --max-num-queued-reqs, or send fewer at once",
            )


def _slow_scrapes(snapshot: Snapshot) -> Iterator[Finding]:
    for server in snapshot.servers:
        took, interval, wanted = server.scrape_s, server.interval_s, server.interval_wanted_s
        if took and interval and wanted and interval >= 2 * wanted:
            yield Finding(
                f"slow-page:{server.url}",
                "info",
                f"{_name(server, snapshot)}: polled every {interval:.1f} s instead of {wanted:.1f} s",
                f"its metrics page takes {seconds(took)}, more than 5 % of the interval",
            )


def _devices(snapshot: Snapshot) -> Iterator[Finding]:
    for device in snapshot.devices:
        label = f"GPU {device.index} {device.name or ''}".strip() + _on(device.node, snapshot)
        if device.state != "OK":
            yield Finding(
                f"device:{device.uuid or device.index}",
                "critical" if device.state == "LOST" else "warning",
                f"{label}: {device.state}",
                device.reason,
                "see the kernel log (Xid); a lost GPU needs a reset or a reboot" if device.state == "LOST" else None,
            )
        hot = [reason for reason in device.throttle if "thermal" in reason or "brake" in reason or "slowdown" in reason]
        if hot:
            yield Finding(
                f"throttle:{device.uuid or device.index}", "warning", f"{label} throttles", ", ".join(hot), None
            )


def _sources(snapshot: Snapshot) -> Iterator[Finding]:
    for source in snapshot.sources:
        # a machine without a driver is no trouble, one whose driver fails is
        if not source.ok and not (source.reason or "").startswith("no NVIDIA driver library"):
            yield Finding(f"source:{source.name}", "warning", f"{source.name}: {source.reason or 'no data'}")


RULES: tuple[Rule, ...] = (
    Rule(_memory),
    Rule(_cache_in_the_way, sustain_s=2.0),
    Rule(_stalled),
    Rule(_unreachable),
    Rule(_kv_pressure, sustain_s=3.0, linger_s=15.0),
    Rule(_kv_filling, sustain_s=3.0),
    Rule(_seq_cap, sustain_s=5.0, linger_s=15.0),
    Rule(_rejections),
    Rule(_slow_scrapes, sustain_s=5.0),
    Rule(_devices),
    Rule(_sources),
)


def _on(node: str | None, snapshot: Snapshot) -> str:
    """Where a pool or a device is, when servers of other machines are watched too."""
    return f" on {node}" if node is not None and len(snapshot.nodes) > 1 else ""


def _name(server: ServerView, snapshot: Snapshot) -> str:
    """What to call a server: of several its address, since they may serve the same model."""
    address = server.url.removeprefix("http://")
    return server.name or (address if len(snapshot.servers) > 1 else server.model or address)
