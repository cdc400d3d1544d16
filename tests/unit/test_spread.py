"""One model on several machines: its parts by their command lines, the tightest machine, and ranks that wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.snapshots import BUSY_SERVER, GIB, NOON
from llmtop.contract.snapshot import Device, Node, Pool, ServerNode, ServerView, Snapshot, State
from llmtop.engines.ranks import RankProcess, rank_processes
from llmtop.machine.tightest import tightest_pool
from llmtop.session import spread_rules
from llmtop.session.findings import Findings
from llmtop.session.spread import SpreadServers

HEAD = "vllm serve big/m -tp 2 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --port 8000"
WORKER = "vllm serve big/m -tp 2 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless"


def ranks(folder: Path, *lines: str) -> tuple[RankProcess, ...]:
    """What a machine with these processes tells, pids from 100 on."""
    for number, line in enumerate(lines):
        place = folder / "proc" / str(100 + number)
        place.mkdir(parents=True)
        (place / "cmdline").write_bytes(line.replace(" ", "\0").encode() + b"\0")
    return rank_processes(folder / "proc")


def spread(folder: Path, head: str, *workers: str, url: str = "http://127.0.0.1:8000", pid: int = 100) -> ServerView:
    """A server on machine `a` whose other machines are `b`, `c`, …, each with a GB10 and less left than the last."""
    names = "abcdefgh"[: 1 + len(workers)]
    places = [
        (name, rank)
        for name, line in zip(names, (head, *workers), strict=True)
        if line
        for rank in ranks(folder / name, *line.split("; "))
    ]
    snapshot = Snapshot(
        NOON,
        (replace(BUSY_SERVER, url=url, node="a"),),
        tuple(Device(0, f"GPU-{name}", "NVIDIA GB10", util=96.0, power_w=15.0, node=name) for name in names),
        pools=tuple(
            Pool("GB10 unified", "unified", total_bytes=120 * GIB, headroom_bytes=(20 - 5 * at) * GIB, node=name)
            for at, name in enumerate(names)
        ),
        nodes=tuple(Node(name) for name in names),
    )
    (server,) = SpreadServers(snapshot, places, {url: pid}).servers
    return server


def parts(server: ServerView) -> list[tuple[str | None, int | None, bool]]:
    return [(node.node, node.rank, node.headless) for node in server.nodes]


def test_a_pair_is_one_server_with_two_machines_and_the_tightest_is_named(tmp_path: Path) -> None:
    server = spread(tmp_path, HEAD, WORKER)
    assert parts(server) == [("a", 0, False), ("b", 1, True)]
    assert (server.nodes_total, server.tensor_parallel, server.pipeline_parallel) == (2, 2, None)
    assert (server.headroom_node, server.headroom_bytes) == ("b", 15 * GIB)
    assert (server.nodes[1].util, server.nodes[1].power_w, server.nodes[1].pid) == (96.0, 15.0, 100)


@pytest.mark.parametrize(
    ("head", "worker"),
    [
        (HEAD, WORKER),
        (HEAD.replace("-tp", "--tensor-parallel-size"), WORKER.replace("--master-addr ", "--master-addr=")),
        (HEAD.replace("10.0.0.1", "spark-a"), WORKER),  # one machine by two names
        (
            "vllm serve m -dp 4 -dpl 2 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13345",
            "vllm serve m -dp 4 -dpl 2 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13345 --headless",
        ),
        (
            "python3 -m sglang.launch_server --model-path m --tp 2 --nnodes 2 --node-rank 0 --dist-init-addr h:5000",
            "python3 -m sglang.launch_server --model-path m --tp 2 --nnodes 2 --node-rank 1 --dist-init-addr h:5000",
        ),
        (
            "vllm serve m -tp 2 --distributed-executor-backend ray; /x/raylet --gcs-address=10.0.0.1:6379; "
            "ray::RayWorkerWrapper.execute_method",
            "/x/raylet --gcs-address=10.0.0.1:6379; ray::RayWorkerWrapper; ray::RayWorkerWrapper",
        ),
    ],
)
def test_parts_find_each_other(tmp_path: Path, head: str, worker: str) -> None:
    server = spread(tmp_path, head, worker)
    assert [node.node for node in server.nodes] == ["a", "b"]
    assert server.nodes_total == 2
    assert [node.headless for node in server.nodes] == [False, True]


@pytest.mark.parametrize(
    "other",
    [
        WORKER.replace("10.0.0.1", "10.0.0.9").replace("big/m", "other"),
        WORKER + " --master-port 29600",
        WORKER.replace("--nnodes 2", "--nnodes 4"),
        WORKER.replace("--master-addr 10.0.0.1 ", ""),  # meets on its own machine
        "vllm serve big/m --port 8001",
        "/x/raylet --gcs-address=10.0.0.1:6379; ray::RayWorkerWrapper",
    ],
)
def test_what_belongs_to_another_server_does_not_join(tmp_path: Path, other: str) -> None:
    server = spread(tmp_path, HEAD, other)
    assert (parts(server), server.nodes_total, server.headroom_node) == ([("a", 0, False)], 2, "a")


def test_a_server_on_one_machine_has_no_parts(tmp_path: Path) -> None:
    server = spread(tmp_path, "vllm serve m -tp 8", WORKER)
    assert (server.nodes, server.nodes_total, server.headroom_bytes, server.tensor_parallel) == ((), None, None, 8)


def test_eight_machines_and_two_servers_on_the_same_ones(tmp_path: Path) -> None:
    head = HEAD.replace("--nnodes 2", "--nnodes 8")
    second = " --master-port 29600"
    lines = [head.replace("--node-rank 0", f"--node-rank {rank} --headless") for rank in range(1, 8)]
    server = spread(tmp_path, f"{head}; {head}{second}", *(f"{line}; {line}{second}" for line in reversed(lines)))
    assert [node.rank for node in server.nodes] == list(range(8))
    assert {node.pid for node in server.nodes} == {100}


def test_a_head_that_is_read_by_its_address_alone_has_its_workers(tmp_path: Path) -> None:
    server = spread(tmp_path, "", WORKER, url="http://10.0.0.1:8000", pid=0)
    assert (parts(server), server.nodes_total) == ([("a", 0, False), ("b", 1, True)], 2)


def test_the_tightest_is_the_one_that_runs_out_first_and_not_the_one_with_the_fewest_bytes(tmp_path: Path) -> None:
    places = [(name, rank) for name, line in (("a", HEAD), ("b", WORKER)) for rank in ranks(tmp_path / name, line)]
    small = Pool("m", "unified", total_bytes=20 * GIB, headroom_bytes=8 * GIB, node="a", state="ok")
    large = Pool("m", "unified", total_bytes=120 * GIB, headroom_bytes=9 * GIB, node="b", state="ok")
    for pools, name in (((small, large), "b"), ((replace(small, state="low"), large), "a")):
        snapshot = Snapshot(
            NOON, (replace(BUSY_SERVER, node="a"),), pools=pools, nodes=(Node("a"), Node("b", state="ok"))
        )
        (server,) = SpreadServers(snapshot, places, {BUSY_SERVER.url: 100}).servers
        assert (server.headroom_node, tightest_pool(snapshot)) == (name, pools["ab".index(name)])


def test_power_that_one_device_does_not_tell_is_not_the_power_of_the_others(tmp_path: Path) -> None:
    places = [(name, rank) for name, line in (("a", HEAD), ("b", WORKER)) for rank in ranks(tmp_path / name, line)]
    devices = (Device(0, "A", power_w=15.0, node="a"), Device(1, "B", node="a"), Device(0, "C", power_w=9.0, node="b"))
    snapshot = Snapshot(NOON, (replace(BUSY_SERVER, node="a"),), devices, nodes=(Node("a"), Node("b")))
    (server,) = SpreadServers(snapshot, places, {BUSY_SERVER.url: 100}).servers
    assert [node.power_w for node in server.nodes] == [None, 9.0]


def test_what_a_silent_machine_had_is_not_the_tightest(tmp_path: Path) -> None:
    places = [(name, rank) for name, line in (("a", HEAD), ("b", WORKER)) for rank in ranks(tmp_path / name, line)]
    snapshot = Snapshot(
        NOON,
        (replace(BUSY_SERVER, node="a"),),
        pools=tuple(Pool("m", "unified", headroom_bytes=n * GIB, node=name) for n, name in ((9, "a"), (1, "b"))),
        nodes=(Node("a"), Node("b", state="stale")),
    )
    (server,) = SpreadServers(snapshot, places, {BUSY_SERVER.url: 100}).servers
    assert (server.headroom_node, server.nodes[1].headroom_bytes) == ("a", None)


# findings

STALLED = replace(BUSY_SERVER, state=State.STALLED, running=3, reason="no counter moves for 9 s", nodes_total=2)


def found(*nodes: ServerNode, server: ServerView = STALLED) -> dict[str, str]:
    """The findings about a server on these machines: text and evidence by their kind."""
    rows = tuple(replace(row, state=server.state) for row in server.engines)
    snapshot = Snapshot(NOON, (replace(server, nodes=nodes, engines=rows),), nodes=(Node("a"), Node("b")))
    findings = Findings()
    findings.update(snapshot, 0.0)
    return {f.id.split(":")[0]: f"{f.text} | {f.evidence}" for f in findings.update(snapshot, 100.0)}


def test_ranks_that_spin_at_idle_power_are_wedged() -> None:
    seen = found(ServerNode("a", 0, util=96, power_w=15), ServerNode("b", 1, util=97, power_w=14.2))
    assert "stalled" not in seen
    assert "wedged, all ranks spin at the power of idle GPUs" in seen["wedge"]
    assert "a (rank 0) 96 % at 15 W; b (rank 1) 97 % at 14 W; 3 running, no counter moves for 9 s" in seen["wedge"]


def test_one_rank_that_works_while_the_other_rests_is_wedged() -> None:
    seen = found(ServerNode("a", 0, util=100, power_w=60), ServerNode("b", 1, util=0, power_w=5))
    assert "one rank works and another does nothing" in seen["wedge"]


@pytest.mark.parametrize(
    "nodes",
    [
        (ServerNode("a", 0, util=96, power_w=15), ServerNode("b", 1, util=96, power_w=80)),  # it computes
        (ServerNode("a", 0, util=96, power_w=15), ServerNode("b", 1)),  # not read
        (ServerNode("a", 0, util=0, power_w=5), ServerNode("b", 1, util=0, power_w=5)),
    ],
)
def test_without_its_signs_it_is_stalled_and_no_wedge(nodes: tuple[ServerNode, ...]) -> None:
    assert {"stalled"} == found(*nodes).keys() & {"stalled", "wedge"}


def test_ranks_that_serve_are_not_wedged() -> None:
    spinning = (ServerNode("a", 0, util=96, power_w=15), ServerNode("b", 1, util=96, power_w=15))
    assert not found(*spinning, server=replace(BUSY_SERVER, nodes_total=2)).keys() & {"stalled", "wedge"}


def test_memory_that_differs_between_machines_is_told_with_their_names() -> None:
    def told(first: int, second: int) -> str | None:
        nodes = (
            ServerNode("a", 0, headroom_bytes=first * GIB, pool="m"),
            ServerNode("b", 1, headroom_bytes=second * GIB, pool="m"),
        )
        pools = tuple(Pool("m", "unified", total_bytes=120 * GIB, node=name) for name in "ab")
        snapshot = Snapshot(NOON, (replace(BUSY_SERVER, nodes=nodes),), pools=pools)
        return next((finding.text for finding in spread_rules.imbalance(snapshot)), None)

    assert told(4, 14) == "gpt-oss-120b: a has 10.0 GiB less left than b"
    assert told(14, 4) == "gpt-oss-120b: b has 10.0 GiB less left than a"
    assert told(9, 14) is None


def test_machines_that_nobody_reads_are_counted() -> None:
    seen = found(ServerNode("a", 0), server=replace(BUSY_SERVER, nodes_total=2))
    assert "1 of its 2 machines is seen" in seen["ranks"]
    assert "ranks" not in found(ServerNode("a", 0), ServerNode("b", 1), server=replace(BUSY_SERVER, nodes_total=2))
