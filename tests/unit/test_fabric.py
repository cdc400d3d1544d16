"""Rails of the fabric from fake /sys trees: rates against what is usable, cables, peers, and faults that links hide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.snapshots import BUSY_SERVER, NOON
from llmtop.contract.snapshot import Finding, Host, Node, Rail, ServerNode, Snapshot
from llmtop.machine.fabric import FabricReader
from llmtop.machine.host import Disk
from llmtop.session import fabric_rules
from llmtop.session.spread import paired

DEVICES = {
    "rocep1s0f0": "enp1s0f0np0",
    "rocep1s0f1": "enp1s0f1np1",
    "roceP2p1s0f0": "enP2p1s0f0np0",
    "roceP2p1s0f1": "enP2p1s0f1np1",
}
UP = ("rocep1s0f0", "roceP2p1s0f0")


class Spark:
    """The /sys and /proc of a Spark with a cable in its first port, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 100.0
        for device, netdev in DEVICES.items():
            up = device in UP
            self.put(device, "ports/1/rate", "200 Gb/sec (2X NDR)\n" if up else "40 Gb/sec (4X QDR)\n")
            self.put(device, "ports/1/state", "4: ACTIVE\n" if up else "1: DOWN\n")
            self.put(device, "device/current_link_speed", "32.0 GT/s PCIe\n")
            self.put(device, "device/current_link_width", "4\n")
            self.put(device, f"device/net/{netdev}/phys_port_name", f"p{netdev[-1]}\n")
            self.put(device, "ports/1/hw_counters/out_of_sequence", "7\n")
            self.put(device, "ports/1/counters/port_rcv_errors", "N/A (no PMA)\n")
            self.count(device, 0, 0)
        self.reader = FabricReader(str(root / "sys"), str(root / "proc"), Disk())

    def put(self, device: str, path: str, text: str) -> None:
        place = self.root / "sys/class/infiniband" / device / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def count(self, device: str, received: int, sent: int) -> None:
        """Counters in words of four bytes."""
        self.put(device, "ports/1/counters/port_rcv_data", f"{81_408_901_908 + received}\n")
        self.put(device, "ports/1/counters/port_xmit_data", f"{sent}\n")

    def read(self, seconds: float = 0.0) -> dict[str, Rail]:
        self.now += seconds
        self.reader.read(lambda: self.now)
        return {rail.device: rail for rail in self.reader.rails}


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)


def test_rates_are_words_times_four_over_the_time_between_the_readings(spark: Spark) -> None:
    assert spark.read()["rocep1s0f0"].rx_bytes_s is None
    spark.count("rocep1s0f0", 2_500_000_000, 1_000_000_000)
    rail = spark.read(4.0)["rocep1s0f0"]
    assert (rail.rx_bytes_s, rail.tx_bytes_s, rail.window_s) == (2.5e9, 1e9, 4.0)


def test_what_a_rail_can_carry_is_the_lesser_of_link_and_pcie_and_half_of_the_ports_are_down(spark: Spark) -> None:
    rails = spark.read()
    assert [(r.link_gbit, r.pcie_gbit, r.usable_gbit, r.state, r.cable) for r in map(rails.get, UP) if r] == [
        (200.0, 100.8, 100.8, "active", "p0"),
        (200.0, 100.8, 100.8, "active", "p0"),
    ]
    assert [rails[name].state for name in ("rocep1s0f1", "roceP2p1s0f1")] == ["down", "down"]
    assert (rails["rocep1s0f1"].usable_gbit, rails["rocep1s0f1"].cable, rails["rocep1s0f1"].rx_bytes_s) == (
        *(40.0, "p1", None),
    )
    assert findings(*rails.values()) == {}


def test_counters_that_fall_begin_anew(spark: Spark) -> None:
    spark.count("rocep1s0f0", 10**9, 10**9)
    spark.read()
    spark.count("rocep1s0f0", 0, 0)
    assert spark.read(3.0)["rocep1s0f0"].rx_bytes_s is None
    assert spark.read(3.0)["rocep1s0f0"].rx_bytes_s == 0.0


def test_errors_that_grow_are_named_and_what_is_not_told_is_none(spark: Spark) -> None:
    spark.read()
    spark.put("rocep1s0f0", "ports/1/hw_counters/out_of_sequence", "19\n")
    rail = spark.read(1.0)["rocep1s0f0"]
    assert (rail.errors, rail.errors_s) == ({"out_of_sequence": 12}, 1.0)
    assert findings(rail)["fabric-errors"].evidence == "out_of_sequence +12 in 1 s"


def test_network_cards_are_read_without_bridges(spark: Spark, tmp_path: Path) -> None:
    def cards(received: int) -> None:
        rows = (f"enP7s7: {received} 0 0 0 0 0 0 0 {2 * received} 0", "docker0: 9 0 0 0 0 0 0 0 9 0", "lo: 9 0 0 0 0")
        (tmp_path / "proc/net").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/net/dev").write_text("Inter\n face\n" + "\n".join(rows) + "\n")

    for now, received in ((0.0, 0), (2.0, 10_000_000)):
        cards(received)
        spark.now = now
        spark.reader.read_cards(lambda: spark.now)
    assert spark.reader.cards == (5e6, 1e7)


def test_a_machine_without_rdma_has_no_rails(tmp_path: Path) -> None:
    reader = FabricReader(str(tmp_path / "sys"), str(tmp_path / "proc"), Disk())
    assert not reader.there()
    reader.read(lambda: 0.0)
    assert reader.rails == ()


def test_two_rails_in_one_subnet_are_the_ends_of_a_cable_and_three_meet_at_a_switch(
    spark: Spark, tmp_path: Path
) -> None:
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(head + "enp1s0f0np0 0064A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0\n")
    rail = replace(spark.read()["rocep1s0f0"], node="a")
    assert rail.subnet == "192.168.100.0/24"
    ends = paired([rail, replace(rail, node="b")])
    assert [end.peer for end in ends] == ["b rocep1s0f0", "a rocep1s0f0"]
    assert [end.peer for end in paired([rail, *(replace(rail, node=name) for name in "bc")])] == [None] * 3


# findings


def rail(device: str, gbit: float, **more: object) -> Rail:
    known = Rail(device, node="a", cable="p0", state="active", usable_gbit=100.8, window_s=10.0)
    return replace(known, rx_bytes_s=gbit / 8e-9, tx_bytes_s=gbit / 8e-9, **more)  # type: ignore[arg-type]


def findings(*rails: Rail, tcp: float = 0.0) -> dict[str, Finding]:
    """The findings about these rails of a server on two machines, by their kind."""
    nodes = (ServerNode("a", 0), ServerNode("b", 1))
    host = Host(net_rx_bytes_s=tcp, net_tx_bytes_s=tcp)
    snapshot = Snapshot(
        NOON, (replace(BUSY_SERVER, nodes=nodes),), nodes=(Node("a", host=host), Node("b")), fabric=rails
    )
    rules = (fabric_rules.one_rail, fabric_rules.capped, fabric_rules.sockets, fabric_rules.errors)
    return {finding.id.split(":")[0]: finding for rule in rules for finding in rule(snapshot)}


def test_one_rail_of_a_cable_that_carries_all() -> None:
    found = findings(rail("rocep1s0f0", 80), rail("roceP2p1s0f0", 0))
    assert found.keys() == {"one-rail"}
    assert found["one-rail"].text == "fabric on a: only rocep1s0f0 carries data, roceP2p1s0f0 of the same cable none"
    assert found["one-rail"].evidence == "rocep1s0f0 80.0 of 101 Gb/s, roceP2p1s0f0 0.0 Gb/s"
    assert "NCCL_IB_HCA=roceP2p1s0f0,rocep1s0f0" in (found["one-rail"].advice or "")
    assert findings(rail("rocep1s0f0", 80), rail("roceP2p1s0f0", 78)) == {}
    assert findings(rail("rocep1s0f0", 80), rail("rocep1s0f1", 0, state="down")) == {}


def test_a_cable_that_never_leaves_13_gbit() -> None:
    halves = [rail(device, 6.5, steadiness=0.98) for device in UP]
    assert findings(*halves).keys() == {"capped"}
    assert "stay at 13.0 Gb/s" in findings(*halves)["capped"].text
    assert findings(rail("rocep1s0f0", 13.0, steadiness=0.5), rail("roceP2p1s0f0", 0.5)) == {}
    assert findings(*(replace(half, usable_gbit=10.0) for half in halves)) == {}


def test_ranks_that_talk_over_tcp_while_rdma_is_idle() -> None:
    found = findings(*(rail(device, 0) for device in UP), tcp=2e8)
    assert found.keys() == {"sockets"}
    assert found["sockets"].evidence == "network cards 1.60 Gb/s both ways, RDMA 0.000 Gb/s on 2 active rails"
    assert findings(*(rail(device, 30) for device in UP), tcp=2e8) == {}
    assert findings(tcp=2e8) == {}
