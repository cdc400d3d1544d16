"""The power of a whole machine, as the driver of a GB10's power manager has it under /sys/class/hwmon."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.node_root import NodeRoot
from llmtop.machine.board import Board, BoardReader
from llmtop.machine.host import Disk, HostReader
from llmtop.machine.sample import MemInfo
from llmtop.nodes.tree import StreamedTree

WATTS = {"sys_total": 62.125, "gpu": 14.0, "pl1": 140.0}


def test_rails_are_read_by_their_labels_and_what_is_none_is_left_out(tmp_path: Path) -> None:
    root = NodeRoot(tmp_path / "root")
    root.board({**WATTS, "broken": -1.0, "huge": 4294967.295}, prochot=1)
    reader = BoardReader(str(root.root / "sys"), Disk())
    assert reader.read() == Board(WATTS, prochot=True)
    host = HostReader(root.root / "proc", root.root / "sys").host(MemInfo())
    assert (host.power_w, host.power_rails_w, host.prochot) == (62.125, WATTS, True)
    (root.root / "sys/class/hwmon/hwmon3/power1_input").write_text("63000000\n")
    assert reader.read().rails["sys_total"] == 63.0


@pytest.mark.parametrize("name", ["", "nvme\n"])
def test_without_the_driver_nothing_is_known(tmp_path: Path, name: str) -> None:
    root = NodeRoot(tmp_path / "root")
    root.board(WATTS)
    (root.root / "sys/class/hwmon/hwmon3/name").write_text(name)
    assert BoardReader(str(root.root / "sys"), Disk()).read() == Board()
    assert BoardReader(str(tmp_path / "nowhere"), Disk()).read() == Board()


def test_a_driver_of_a_node_comes_and_goes() -> None:
    tree = StreamedTree()
    reader = BoardReader("/sys", tree)
    place = "sys/class/hwmon/hwmon1/"
    assert reader.read() == Board()
    files = {"name": b"spbm\n", "power1_label": b"sys_total\n", "power1_input": b"30500000\n", "prochot": b"0\n"}
    tree.files |= {place + name: text for name, text in files.items()}
    assert any(reader.read() == Board({"sys_total": 30.5}, prochot=False) for _ in range(100))
    tree.forget_processes()
    assert reader.read() == Board()
