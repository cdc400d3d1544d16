"""What can be wrong with the fabric between machines though links are up. Half of the ports being down is normal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from llmtop.contract.snapshot import Finding, Rail, Snapshot

BUSY_GBIT = 2.0
UNUSED = 0.02  # of the other rail of its cable
CAP_GBIT = (11.5, 14.0)
STEADY = 0.93
FAST_GBIT = 40.0  # a link that could carry so much is capped at 13
TALKS = 5e6  # bytes/s in both directions: what ranks exchange, and a download does not
SILENT = 1e6


def gbit(rail: Rail) -> float | None:
    """The busier direction of a rail, Gb/s; None where it is not known."""
    if rail.rx_bytes_s is None or rail.tx_bytes_s is None:
        return None
    return max(rail.rx_bytes_s, rail.tx_bytes_s) * 8e-9


def one_rail(snapshot: Snapshot) -> Iterator[Finding]:
    """All data of a cable goes over one of its rails."""
    for node, rails in _cables(snapshot):
        known = [(rate, rail) for rail in rails if (rate := gbit(rail)) is not None]
        if len(known) < 2 or len(known) != len(rails):
            continue
        (least, idle), (most, busy) = (choose(known, key=lambda pair: pair[0]) for choose in (min, max))
        if most >= BUSY_GBIT and least < UNUSED * most:
            used = f" of {busy.usable_gbit:.0f}" if busy.usable_gbit else ""
            yield Finding(
                f"one-rail:{node}:{busy.device}",
                "warning",
                f"fabric{snapshot.on(node)}: only {busy.device} carries data, {idle.device} of the same cable none",
                f"{busy.device} {most:.1f}{used} Gb/s, {idle.device} {least:.1f} Gb/s",
                f"name both for NCCL: NCCL_IB_HCA={','.join(sorted(rail.device for rail in rails))}",
            )


def capped(snapshot: Snapshot) -> Iterator[Finding]:
    """A fast link that never gives more or less than about 13 Gb/s."""
    for node, rails in _cables(snapshot):
        known = [(rate, rail) for rail in rails if (rate := gbit(rail)) is not None and rate >= BUSY_GBIT]
        total = sum(rate for rate, _ in known)
        even = [rail for _, rail in known if (rail.steadiness or 0) >= STEADY and (rail.usable_gbit or 0) >= FAST_GBIT]
        if known and len(even) == len(known) and CAP_GBIT[0] <= total <= CAP_GBIT[1]:
            names = " and ".join(rail.device for _, rail in known)
            usable = sum(rail.usable_gbit or 0 for _, rail in known)
            yield Finding(
                f"capped:{node}:{known[0][1].device}",
                "warning",
                f"fabric{snapshot.on(node)}: {names} {'stays' if len(known) == 1 else 'stay'} at {total:.1f} Gb/s",
                f"of {usable:.0f} Gb/s usable, and it does not vary: a card that started badly stays near 13 Gb/s",
                "measure with ib_write_bw; if it gives no more, switch the machine off and on (the link looks healthy)",
            )


def sockets(snapshot: Snapshot) -> Iterator[Finding]:
    """The ranks of a server talk over TCP although there is RDMA."""
    for server in snapshot.servers:
        names = [node.node for node in server.nodes]
        if not server.running or not server.state.live or len({*names}) < 2:
            continue
        for known in (node for node in snapshot.nodes if node.name in names and node.host is not None):
            rails = [rail for rail in snapshot.fabric if rail.node == known.name and rail.state == "active"]
            moved = [max(rail.rx_bytes_s or 0, rail.tx_bytes_s or 0) for rail in rails if rail.window_s]
            host = known.host
            both = min(host.net_rx_bytes_s or 0, host.net_tx_bytes_s or 0) if host else 0
            if rails and len(moved) == len(rails) and sum(moved) < SILENT and both >= TALKS:
                yield Finding(
                    f"sockets:{known.name}",
                    "warning",
                    f"fabric on {known.name}: NCCL seems to use sockets, RDMA is idle",
                    f"network cards {both * 8e-9:.2f} Gb/s both ways, RDMA {sum(moved) * 8e-9:.3f} Gb/s on "
                    f"{len(rails)} active rails",
                    "see NCCL_DEBUG=INFO for NET/Socket; is /dev/infiniband in the container, is NCCL_IB_HCA right?",
                )


def errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Counters of errors that grow."""
    for rail in snapshot.fabric:
        if rail.errors and snapshot.current(rail.node):
            grown = ", ".join(f"{name} +{count:,}" for name, count in sorted(rail.errors.items()))
            yield Finding(
                f"fabric-errors:{rail.node}:{rail.device}",
                "warning",
                f"fabric{snapshot.on(rail.node)}: errors of {rail.device} grow",
                f"{grown} in {rail.errors_s or 0:.0f} s",
                "cable and transceiver, MTU on both ends, flow control of a switch in between",
            )


def _cables(snapshot: Snapshot) -> Iterator[tuple[str | None, Sequence[Rail]]]:
    """The active rails of each physical port of each machine that is read now."""
    active = [rail for rail in snapshot.fabric if rail.state == "active" and snapshot.current(rail.node)]

    def place(rail: Rail) -> tuple[str, str]:
        return rail.node or "", rail.cable or rail.device

    for _, rails in groupby(sorted(active, key=place), place):
        found = [*rails]
        yield found[0].node, found
