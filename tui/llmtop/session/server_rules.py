"""What can be wrong with a server: it does not answer, stands still, is full, fails, or works in vain."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.contract.snapshot import Finding, ServerView, Snapshot, State
from llmtop.contract.units import duration, percent, seconds
from llmtop.engines.registry import BY_NAME
from llmtop.engines.registry.entry import Remedies
from llmtop.engines.tracker import NO_ANSWER_YET

IDLE_WATTS = 30.0
SPINS, RESTS = 90.0, 5.0  # utilisation in %
FULL_SOON_S = 60.0  # until the KV cache is full: enough to be read, and to do something
ERRORS_FROM = 0.01
MANY_REFUSED = 0.1  # of the requests; fewer 4xx are the clients' affair
COLLAPSED = 0.25  # of what it was since the start
WORTH_KEEPING = 0.1  # hits or acceptance since the start from which a collapse is one
LEAST_PROMPT_TOKENS = 1000
LEAST_LENGTH = 1.1  # tokens that a draft must give, the target's own included

# words of a reason by which the address may be somebody else's
_ELSEWHERE = ("wrong port", "not a metrics page", "an empty page")
_ADVICE = {
    State.DOWN: "is the server up and the port right?",
    State.AUTH: "name the variable that holds the key: --api-key-env NAME",
    State.NO_ENGINE_METRICS: "is it the right port and path?",
    State.STALE: None,
}


def remedies(server: ServerView) -> Remedies:
    """What helps, in the words of the server's engine."""
    engine = BY_NAME.get(server.engine or "")
    return engine.remedies if engine is not None else Remedies()


def runs_on(server: ServerView, node: str | None) -> bool:
    """Whether a server runs on the machine of a pool or a device."""
    return server.node == node and (server.local or node is not None)


def stalled(snapshot: Snapshot) -> Iterator[Finding]:
    """Servers, and engines of a server that works, in which nothing moves."""
    for server in snapshot.servers:
        frozen = [row for row in server.engines if row.state is State.STALLED]
        if not frozen or how_wedged(server) is not None:
            continue
        mine = [device for device in snapshot.devices if runs_on(server, device.node)]
        watts = [device.power_w for device in mine if device.power_w is not None]
        idle = bool(watts) and max(watts) < IDLE_WATTS
        listed = ", ".join(row.engine for row in frozen) if len(frozen) <= 4 else f"{len(frozen)} of them"
        names = "" if len(server.engines) == 1 else f" (engine {listed})"
        what = "requests run" if any(row.running for row in frozen) else "requests wait, none runs"
        yield Finding(
            f"{'stalled' if server.state is State.STALLED else 'stalled-engine'}:{server.url}",
            "critical",
            f"{name(server, snapshot)}{names}: {what}, no counter moves" + (": wedged?" if idle else ""),
            (server.reason or "") + (f"; GPU at {max(watts):.0f} W, near idle" if idle else ""),
            "a 1-token request tells a hang from stale gauges; a dead engine needs a restart",
        )


def how_wedged(server: ServerView) -> str | None:
    """What the machines of a server that stands still show, as the end of a sentence; None for no sign of a wedge."""
    utils = [node.util for node in server.nodes if node.util is not None]
    if server.state is not State.STALLED or not server.running or len(utils) < 2:
        return None
    if max(utils) >= SPINS and min(utils) <= RESTS:
        return "one rank works and another does nothing"
    idle = all(node.power_w is not None and node.power_w < IDLE_WATTS for node in server.nodes if node.util is not None)
    return "all ranks spin at the power of idle GPUs" if idle and min(utils) >= SPINS else None


def unreachable(snapshot: Snapshot) -> Iterator[Finding]:
    """Servers that cannot be read."""
    for server in snapshot.servers:
        if server.state in _ADVICE and server.reason != NO_ANSWER_YET:
            # elsewhere the reason says what to do
            asked = server.state is not State.NO_ENGINE_METRICS or any(w in (server.reason or "") for w in _ELSEWHERE)
            yield Finding(
                f"unreachable:{server.url}",
                "critical" if server.state is State.DOWN else "warning",
                f"{name(server, snapshot)}: {server.state}",
                server.reason,
                _ADVICE[server.state] if asked else None,
            )


def unhealthy(snapshot: Snapshot) -> Iterator[Finding]:
    """Servers whose metrics are fine and whose /health is not."""
    for server in snapshot.servers:
        if server.health and server.state.live:
            yield Finding(
                f"health:{server.url}",
                "warning",
                f"{name(server, snapshot)}: {server.health}",
                "its metrics page answers",
                "what sends it requests by /health does so no more; see its log",
            )


def kv_pressure(snapshot: Snapshot) -> Iterator[Finding]:
    """The KV cache holds a server back."""
    for server in snapshot.servers:
        if server.limited_by == "KV_PRESSURE":
            yield Finding(
                f"kv:{server.url}",
                "warning",
                f"{name(server, snapshot)}: the KV cache is the limit",
                server.limited_by_evidence,
                remedies(server).cache,
            )


def kv_filling(snapshot: Snapshot) -> Iterator[Finding]:
    """The KV cache will be full within a minute."""
    for server in snapshot.servers:
        left, growth = server.kv_full_in_s, server.kv_growth_tok_s
        if left is not None and growth is not None and left < FULL_SOON_S and server.state is State.SERVING:
            yield Finding(
                f"kv-filling:{server.url}",
                "info",
                f"{name(server, snapshot)}: KV cache full in about {duration(left)}",
                f"{percent(server.kv_usage)} used, rising {growth:,.0f} tokens/s",
                "preemptions follow when it is full",
            )


def seq_cap(snapshot: Snapshot) -> Iterator[Finding]:
    """As many requests run as may, beside a free cache."""
    for server in snapshot.servers:
        if server.limited_by == "SEQ_CAP":
            yield Finding(
                f"seq-cap:{server.url}",
                "info",
                f"{name(server, snapshot)}: requests wait though the KV cache has room",
                server.limited_by_evidence,
                remedies(server).users,
            )


def errors(snapshot: Snapshot) -> Iterator[Finding]:
    """More than 1 % of the requests of the window failed."""
    for server in snapshot.servers:
        rates = server.rates
        failed, refused = (rates.errors_s or 0.0) + (rates.http_5xx_s or 0.0), rates.http_4xx_s or 0.0
        total = (rates.requests_s or 0.0) + (rates.http_5xx_s or 0.0) + refused
        bad = failed + refused
        if not server.state.live or total <= 0 or bad / total <= ERRORS_FROM:
            continue
        counted = (("ended in an error", rates.errors_s), ("HTTP 5xx", rates.http_5xx_s), ("HTTP 4xx", refused))
        parts = ", ".join(f"{what} {each:.2g}/s" for what, each in counted if each)
        serious = failed / total > ERRORS_FROM or refused / total >= MANY_REFUSED
        yield Finding(
            f"errors:{server.url}",
            "warning" if serious else "info",
            f"{name(server, snapshot)}: {min(1.0, bad / total) * 100:.0f} % of the requests fail",
            f"{parts} of {total:.3g} requests/s over {seconds(rates.window_s)}",
            "see the server's log" if failed else "4xx: what clients ask for is refused (model name, length, key)",
        )


def prefix_cache(snapshot: Snapshot) -> Iterator[Finding]:
    """Prompts come and hit far less of the prefix cache than before."""
    for server in snapshot.servers:
        now, before, rates = server.prefix_hit_rate, server.prefix_hit_rate_total, server.rates
        asked = (rates.prompt_tok_s or 0.0) * (rates.window_s or 0.0)
        if now is None or before is None or server.state is not State.SERVING or asked < LEAST_PROMPT_TOKENS:
            continue
        if before >= WORTH_KEEPING and now < COLLAPSED * before:
            yield Finding(
                f"prefix-cache:{server.url}",
                "warning" if now == 0 else "info",
                f"{name(server, snapshot)}: the prefix cache hits {'nothing' if now == 0 else percent(now)}",
                f"{percent(before)} since the start; {rates.prompt_tok_s or 0.0:,.0f} prompt tok/s now",
                "prompts whose beginning changes (a time, an id), other users, or a cache too small to keep them",
            )


def speculation(snapshot: Snapshot) -> Iterator[Finding]:
    """Drafts are hardly accepted, by their own past or at all."""
    for server in snapshot.servers:
        now, before = server.spec_acceptance_rate, server.spec_acceptance_rate_total
        length = server.spec_accepted_length
        if now is None or server.state is not State.SERVING or not server.rates.generation_tok_s:
            continue
        collapsed = before is not None and before >= WORTH_KEEPING and now < COLLAPSED * before
        in_vain = length is not None and length < LEAST_LENGTH
        if collapsed or in_vain:
            gives = f", {length:.2f} tokens a step" if length is not None else ""
            was = f"; {percent(before)} since the start" if before is not None else ""
            yield Finding(
                f"speculation:{server.url}",
                "warning",
                f"{name(server, snapshot)}: {percent(now)} of the drafted tokens are accepted",
                f"acceptance {percent(now)}{gives}{was}",
                "fewer draft tokens, a draft that fits the model, or no speculation: a refused draft costs time",
            )


def rejections(snapshot: Snapshot) -> Iterator[Finding]:
    """Requests are turned away by a limit of the queue."""
    for server in snapshot.servers:
        turned_away = server.rates.rejections_s
        if turned_away and server.state.live:
            yield Finding(
                f"rejections:{server.url}",
                "info",
                f"{name(server, snapshot)}: {turned_away:.2g} requests/s are turned away",
                f"over {seconds(server.rates.window_s)}, {server.admission_rejections_total or 0:,} since the start",
                "raise --max-num-queued-reqs, or send fewer at once",
            )


def slow_scrapes(snapshot: Snapshot) -> Iterator[Finding]:
    """Pages so slow that they are asked for less often."""
    for server in snapshot.servers:
        took, interval, wanted = server.scrape_s, server.interval_s, server.interval_wanted_s
        if took and interval and wanted and interval >= 2 * wanted:
            yield Finding(
                f"slow-page:{server.url}",
                "info",
                f"{name(server, snapshot)}: polled every {interval:.1f} s instead of {wanted:.1f} s",
                f"its metrics page takes {seconds(took)}, more than 5 % of the interval",
            )


def name(server: ServerView, snapshot: Snapshot) -> str:
    """What to call a server: of several its address, since they may serve the same model."""
    address = server.url.removeprefix("http://")
    return server.name or (address if len(snapshot.servers) > 1 else server.model or address)
