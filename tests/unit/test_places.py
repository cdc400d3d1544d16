"""Memory, devices and energy belong to a machine: a server that runs elsewhere never stands beside this one's."""

from __future__ import annotations

import socket
from dataclasses import replace

import psutil
import pytest

from fakes.snapshots import BUSY_SERVER, GB10, GIB, HOST, NOON
from llmtop.commands import text
from llmtop.contract.snapshot import Host, ServerView, Snapshot
from llmtop.engines.discover import is_local
from llmtop.machine.sample import MachineSample, MemInfo
from llmtop.session.assemble import Assembler
from llmtop.session.history import History
from llmtop.ui.panels.board import GPU, MEMORY
from llmtop.ui.panels.view import Scales, View
from llmtop_widgets.text import plain

HERE = BUSY_SERVER
THERE = replace(BUSY_SERVER, url="http://spark-b:8000", local=False, joules_per_token=None, joules_scope=None)
WHY = "memory of spark-b is not known here: llmtop ssh://spark-b reads it"


def snapshot(*servers: ServerView, asked: bool = False) -> Snapshot:
    """These servers as seen from spark-a, a GB10 with hardly any memory left and a GPU that drew 1 kJ in 10 s."""
    assembler = Assembler(this_machine=asked)
    for second in (0.0, 10.0):
        device = replace(GB10, energy_j=5e5 + 100 * second, energy_time=NOON + second)
        mem = MemInfo(int(119.6 * GIB), GIB // 2, GIB // 2)
        sample = MachineSample(NOON + second, HOST, mem, (device,))
        mine = {server.url: (device,) for server in servers if server.local}
        built = assembler.build(servers, sample, second, NOON + second, mine)
    return built


def test_with_all_servers_elsewhere_nothing_of_this_machine_is_given_but_its_name() -> None:
    seen = snapshot(THERE)
    assert (seen.pools, seen.devices) == ((), ())
    assert not any(finding.id.startswith(("memory", "device")) for finding in seen.findings)
    assert seen.host == Host("spark-a", node="spark-a")
    assert (seen.servers[0].node, seen.servers[0].joules_per_token) == ("spark-b", None)
    assert [(node.name, node.local, node.state, node.reason) for node in seen.nodes] == [
        ("spark-a", True, "ok", None),
        ("spark-b", False, "unknown", WHY),
    ]


def test_beside_servers_of_both_machines_all_that_is_given_is_named() -> None:
    seen = snapshot(HERE, THERE)
    assert [server.node for server in seen.servers] == ["spark-a", "spark-b"]
    assert {pool.node for pool in seen.pools} | {device.node for device in seen.devices} == {"spark-a"}
    assert seen.nodes[0].host == seen.host
    assert seen.servers[0].joules_per_token == pytest.approx(100 / 94.3)
    assert seen.servers[1].joules_per_token is None
    (finding,) = (finding for finding in seen.findings if finding.id.startswith("memory"))
    assert " on spark-a: headroom" in finding.text


def test_with_servers_of_this_machine_alone_findings_need_no_name() -> None:
    seen = snapshot(HERE)
    assert len(seen.nodes) == 1
    assert not any(" on spark-a" in finding.text for finding in seen.findings)


def test_this_machine_is_shown_when_it_is_asked_for() -> None:
    seen = snapshot(THERE, asked=True)
    assert [pool.node for pool in seen.pools] == ["spark-a"]
    assert seen.nodes[0].asked
    assert seen.servers[0].node == "spark-b"


def test_without_servers_this_machine_is_what_there_is_to_show() -> None:
    assert len(snapshot().pools) == 1


def test_a_server_elsewhere_whose_name_is_that_of_this_machine_is_told_apart() -> None:
    seen = snapshot(HERE, replace(THERE, url="http://spark-a:9000"))
    assert [server.node for server in seen.servers] == ["spark-a", "spark-a:9000"]


def test_the_table_says_why_memory_is_not_known() -> None:
    table = text.table(snapshot(THERE))
    assert f"  memory      –  {WHY}" in table
    assert "headroom" not in table
    both = text.table(snapshot(HERE, THERE))
    assert both.index("spark-a, this machine:") < both.index("headroom 0.5 of 119.6 GiB") < both.index(WHY)


def test_a_line_has_the_headroom_of_its_own_machine() -> None:
    here, there = text.line(snapshot(HERE, THERE)).splitlines()
    assert here.endswith("headroom 0.5 GiB LOW")
    assert there.endswith("headroom –")
    assert text.line(snapshot(THERE, asked=True)).endswith("spark-a headroom 0.5 GiB LOW")


def panels(seen: Snapshot, server: int) -> str:
    """The memory and the GPU panel with one of the servers selected."""
    selected = seen.servers[server]
    view = View(seen.beside(selected), selected, History(), 1.0, Scales(), 1.0)
    lines = (*MEMORY.lines(view, 60, 9), *GPU.lines(view, 60, 9))
    return "\n".join(plain(line) for line in lines)


def test_the_panels_show_the_machine_of_the_selected_server() -> None:
    seen = snapshot(HERE, THERE)
    assert "headroom 0.5 of 119.6 GiB" in panels(seen, 0)
    there = panels(seen, 1)
    assert WHY in " ".join(there.split())
    assert "GiB" not in there
    assert "host CPU" not in there
    assert "this machine, spark-a: " in panels(snapshot(THERE, asked=True), 0)


def test_a_recording_without_machines_shows_what_was_recorded() -> None:
    old = Snapshot(NOON, (THERE,), pools=snapshot(HERE).pools)
    assert old.beside(old.servers[0]).pools == old.pools


def addresses() -> list[str]:
    """What this machine is called and can be reached at, also from outside."""
    entries = [entry for found in psutil.net_if_addrs().values() for entry in found]
    internet = [entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
    return ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1", "0.0.0.0", *internet]


@pytest.mark.parametrize("host", addresses())
def test_an_address_of_this_machine_is_this_machine(host: str) -> None:
    assert is_local(host)


def test_its_name_is_this_machine_in_any_case() -> None:
    assert is_local(socket.gethostname().upper())


@pytest.mark.parametrize("host", ["203.0.113.77", "2001:db8::77", "no-such-host.invalid"])
def test_other_addresses_are_not(host: str) -> None:
    assert not is_local(host)
