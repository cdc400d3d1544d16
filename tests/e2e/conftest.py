"""What several end-to-end tests start with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.node_root import NodeRoot
from fakes.sshd import Sshd
from fakes.truth import TruthServer, truth_server


@pytest.fixture
def root(tmp_path: Path) -> NodeRoot:
    """What /proc and /sys of a node are."""
    return NodeRoot(tmp_path / "root")


@pytest.fixture
def node(tmp_path: Path, root: NodeRoot) -> Iterator[Sshd]:
    """A node behind an sshd of its own."""
    sshd = Sshd(tmp_path / "node", root=root.root)
    yield sshd
    sshd.stop()


@pytest.fixture
def truth() -> Iterator[TruthServer]:
    """A server that keeps a log of what it did and when."""
    with truth_server() as server:
        yield server


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for what a run leaves; the folder of its state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "state"
