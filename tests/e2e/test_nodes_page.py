"""The page of nodes with three real sshd behind it: a row each, and the one that is dropped is STALE with its age."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fakes.node_root import GB10, NodeRoot, nvidia_smi
from fakes.pages import Engine, PageServer
from fakes.sshd import MISSING, Sshd
from program import COMMAND, environment
from terminal import Terminal

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
GIB_KB = 2**20


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Sshd]]:
    """spark-a to spark-c with 60, 3 and 20 GiB left; the last one serves."""
    with ExitStack() as stack:
        made = []
        pages = stack.enter_context(PageServer([Engine().page]))
        for name, left in (("spark-a", 60), ("spark-b", 3), ("spark-c", 20)):
            root = NodeRoot(tmp_path / f"root-{name}", name=name)
            root.meminfo(MemAvailable=left * GIB_KB)
            if name == "spark-c":
                root.serve(4242, pages.port)
            node = Sshd(tmp_path / name, name, root.root)
            stack.callback(node.stop)
            node.tool("nvidia-smi", nvidia_smi(GB10.format(util=96)))
            made.append(node)
        yield made


def dispatcher(folder: Path, nodes: list[Sshd]) -> str:
    """A PATH with an `ssh` that reaches each of them under its name."""
    cases = "".join(f"{node.name}) config={node.folder}/config ;;\n" for node in nodes)
    ssh = folder / "clients" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        f'#!/bin/sh\nconfig=none\nfor word in "$@"; do case $word in\n{cases}esac; done\n'
        f'exec {shutil.which("ssh")} -F "$config" "$@"\n'
    )
    ssh.chmod(0o755)
    return f"{ssh.parent}:{environment(folder).get('PATH', '')}"


def row(text: str, name: str) -> str:
    return next((line for line in text.splitlines()[2:] if line.startswith(name)), "")


def test_three_machines_one_is_dropped_and_the_others_go_on(tmp_path: Path, nodes: list[Sshd]) -> None:
    env = {**environment(tmp_path), "PATH": dispatcher(tmp_path, nodes)}
    command = [COMMAND, "-d", "0.5", *(node.url for node in nodes)]
    with Terminal(command, env, tmp_path, 80, 24) as terminal:
        terminal.wait_for("SERVING")
        terminal.press("n")
        terminal.wait(lambda text: all(" OK " in row(text, node.name) for node in nodes), "three rows")
        terminal.wait_for("least headroom 3.0 GiB on spark-b")
        text = terminal.wait(lambda text: "96%   13 W" in row(text, "spark-b"), "its GPU")
        assert " 60.0 " in row(text, "spark-a")
        assert row(text, "spark-c").rstrip().endswith(" m")
        nodes[1].stop()
        text = terminal.wait(lambda text: "STALE" in row(text, "spark-b"), "the dropped one")
        assert " OK " in row(text, "spark-a")
        terminal.wait_for("least headroom 20.0 GiB on spark-c")
        terminal.press("\x1b[B\r")
        terminal.wait(lambda text: text.startswith(" llmtop  spark-b  STALE"), "the machine")
        terminal.press("q")
        assert terminal.end() == 0
