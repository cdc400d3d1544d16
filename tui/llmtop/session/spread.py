"""Servers that run on several machines: their parts, and which machine has the least memory left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from llmtop.contract.snapshot import Rail, ServerNode, ServerView, Snapshot
from llmtop.engines.ranks import RankProcess
from llmtop.machine.tightest import tightest_of, tightness


@dataclass(frozen=True, slots=True)
class SpreadServers:
    """A snapshot, the parts of servers on all its machines, and the processes behind its servers."""

    snapshot: Snapshot
    ranks: Sequence[tuple[str, RankProcess]]  # with the names of their machines
    pids: Mapping[str, int]

    @property
    def servers(self) -> tuple[ServerView, ...]:
        """The servers, each with its machines where it has several."""
        return tuple(map(self._spread, self.snapshot.servers))

    def _spread(self, server: ServerView) -> ServerView:
        head = self._head(server)
        if head is None:
            return self._seen_by_its_parts(server)
        server = replace(server, tensor_parallel=head.tensor, pipeline_parallel=head.pipeline, data_parallel=head.data)
        others = [(node, rank) for node, rank in self.ranks if rank.headless and _joins(server, head, node, rank)]
        if not others and head.nodes is None:
            return server
        return self._filled(server, [(server.node, head), *others], head.nodes)

    def _head(self, server: ServerView) -> RankProcess | None:
        pid = self.pids.get(server.url)
        mine = (rank for node, rank in self.ranks if node == server.node and rank.pid == pid and not rank.headless)
        return next(mine, None)

    def _seen_by_its_parts(self, server: ServerView) -> ServerView:
        """A server whose own machine is not read, and whose address is where parts on others meet."""
        host = urlsplit(server.url).hostname
        parts = [(node, rank) for node, rank in self.ranks if rank.headless and host and rank.address == host]
        if not parts or len({rank.master for _, rank in parts}) > 1:
            return server
        first = parts[0][1]
        head = RankProcess(0, first.engine, first.master, rank=0, nodes=first.nodes)
        return self._filled(server, [(server.node, head), *parts], first.nodes)

    def _filled(
        self, server: ServerView, parts: Sequence[tuple[str | None, RankProcess]], total: int | None
    ) -> ServerView:
        ordered = sorted(parts, key=lambda part: (part[1].headless, part[1].rank or 0, part[0] or ""))
        nodes = tuple(self._node(node, rank) for node, rank in ordered)
        pools = (tightest_of(self.snapshot, node.node) for node in nodes if node.headroom_bytes is not None)
        tightest = min(filter(None, pools), key=tightness, default=None)
        return replace(
            server,
            nodes=nodes,
            nodes_total=max(total or 0, len({node.node for node in nodes})),
            headroom_bytes=tightest.headroom_bytes if tightest else None,
            headroom_node=tightest.node if tightest else None,
        )

    def _node(self, name: str | None, rank: RankProcess) -> ServerNode:
        part = ServerNode(name, rank.rank, rank.headless, rank.pid or None)
        if not self.snapshot.current(name):
            return part
        pool = tightest_of(self.snapshot, name)
        devices = [device for device in self.snapshot.devices if device.node == name and device.state == "OK"]
        utils = [device.util for device in devices if device.util is not None]
        powers = [device.power_w for device in devices]
        rails = [rail for rail in self.snapshot.fabric if rail.node == name]
        received = [rail.rx_bytes_s for rail in rails if rail.rx_bytes_s is not None]
        sent = [rail.tx_bytes_s for rail in rails if rail.tx_bytes_s is not None]
        return replace(
            part,
            headroom_bytes=pool.headroom_bytes if pool else None,
            pool=pool.name if pool else None,
            util=max(utils) if utils else None,
            power_w=None if None in powers or not powers else round(sum(filter(None, powers)), 2),
            rdma_rx_bytes_s=sum(received) if received else None,
            rdma_tx_bytes_s=sum(sent) if sent else None,
        )


def paired(rails: Sequence[Rail]) -> tuple[Rail, ...]:
    """The rails with what is at the other end: two of different machines in one subnet share a cable.

    More of them in a subnet meet at a switch.
    """
    subnets: dict[str, list[Rail]] = {}
    for rail in rails:
        if rail.subnet is not None and rail.state == "active":
            subnets.setdefault(rail.subnet, []).append(rail)
    peers: dict[tuple[str | None, str, int], Rail] = {}
    for ends in subnets.values():
        if len(ends) == 2 and ends[0].node != ends[1].node:
            peers |= {_end(one): other for one, other in (ends, ends[::-1])}
    return tuple(
        replace(rail, peer=f"{peer.node} {peer.device}") if (peer := peers.get(_end(rail))) else rail for rail in rails
    )


def _end(rail: Rail) -> tuple[str | None, str, int]:
    return rail.node, rail.device, rail.port


def _joins(server: ServerView, head: RankProcess, node: str, rank: RankProcess) -> bool:
    """Whether a process on a machine is a part of a server, beside the one that opens its port."""
    here = node == server.node
    if rank.ray:  # which has a worker beside the head, too
        return not here and rank.belongs_to(head)
    return (here or rank.address is not None) and rank.belongs_to(head)
