"""What can be wrong with a server on several machines: ranks that wait for each other, and memory that differs."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.contract.snapshot import Finding, ServerNode, Snapshot
from llmtop.contract.units import bytes_text
from llmtop.session.server_rules import how_wedged, name

UNEVEN = 0.05  # of the memory: the head's own needs make less of a difference


def wedge(snapshot: Snapshot) -> Iterator[Finding]:
    """Requests run, no token comes, and the machines show that the ranks wait for each other."""
    for server in snapshot.servers:
        how = how_wedged(server)
        if how is not None:
            yield Finding(
                f"wedge:{server.url}",
                "critical",
                f"{name(server, snapshot)}: wedged, {how}",
                "; ".join(
                    (*map(_works, server.nodes), f"{server.running} running, {server.reason or 'no token comes'}")
                ),
                "a collective operation does not end: see the fabric and every rank's log, and restart all ranks",
            )


def _works(node: ServerNode) -> str:
    util = "–" if node.util is None else f"{node.util:.0f} %"
    power = "" if node.power_w is None else f" at {node.power_w:.0f} W"
    return f"{_called(node)} {util}{power}"


def _called(node: ServerNode) -> str:
    rank = "" if node.rank is None else f" (rank {node.rank})"
    return (node.node or "?") + rank


def imbalance(snapshot: Snapshot) -> Iterator[Finding]:
    """One machine of a server has much less memory left than another."""
    totals = {(pool.node, pool.name): pool.total_bytes or 0 for pool in snapshot.pools}
    for server in snapshot.servers:
        known = (
            sorted(
                (node.headroom_bytes, node.node or "", node) for node in server.nodes if node.headroom_bytes is not None
            )
            if server.state.live
            else []
        )
        if len({place for _, place, _ in known}) < 2:
            continue
        (least, _, tight), (most, _, loose) = known[0], known[-1]
        size = totals.get((tight.node, tight.pool or ""), 0)
        if size and most - least > UNEVEN * size:
            yield Finding(
                f"imbalance:{server.url}",
                "info",
                f"{name(server, snapshot)}: {tight.node} has {bytes_text(most - least)} less left than {loose.node}",
                f"headroom {bytes_text(least)} on {_called(tight)}, {bytes_text(most)} on {_called(loose)}",
                f"what runs on {tight.node} alone takes it; the tightest machine bounds all of them",
            )


def missing(snapshot: Snapshot) -> Iterator[Finding]:
    """Machines of a server that nobody reads."""
    for server in snapshot.servers:
        seen = len({node.node for node in server.nodes})
        if server.state.live and server.nodes and server.nodes_total and seen < server.nodes_total:
            are = "is" if seen == 1 else "are"
            here = ", ".join(dict.fromkeys(node.node or "?" for node in server.nodes))
            yield Finding(
                f"ranks:{server.url}",
                "info",
                f"{name(server, snapshot)}: {seen} of its {server.nodes_total} machines {are} seen",
                f"its command line says {server.nodes_total}; seen: {here}",
                "llmtop ssh://HOST for each reads their memory, GPUs and fabric",
            )
