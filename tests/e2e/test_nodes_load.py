"""`llmtop load ssh://NODE`: the load goes through the forward and says so, with what that adds to every request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.node_root import GB10, NodeRoot, nvidia_smi
from fakes.sshd import MISSING, Sshd
from fakes.truth import truth_server
from program import once

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
PLAN = ("--yes", "--max-concurrency", "2", "--num-prompts", "4", "--random-output-len", "16", "--no-files", "--json")


def test_the_server_of_a_node_is_loaded_through_the_forward(tmp_path: Path, root: NodeRoot, node: Sshd) -> None:
    node.tool("nvidia-smi", nvidia_smi(GB10.format(util=96)))
    with truth_server() as truth:
        port = int(truth.url.rpartition(":")[2])
        root.serve(4242, port)
        done = once(tmp_path, "load", *PLAN, node.url, env=node.env)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["url"] == f"http://spark-b:{port}"
    assert [level["completed"] for level in result["levels"]] == [4]
    assert "through ssh: an empty request takes " in done.stdout
    assert result["levels"][0]["headroom_min_bytes"] is not None  # of the node's memory
    node.wait_for_the_end()


@pytest.mark.parametrize(("pids", "words"), [((), "no model server was found"), ((1, 2), "several servers on spark-b")])
def test_a_node_without_one_server_is_one_line(
    tmp_path: Path, root: NodeRoot, node: Sshd, pids: tuple[int, ...], words: str
) -> None:
    for pid in pids:
        root.serve(4242 + pid, 9000 + pid)
    done = once(tmp_path, "load", *PLAN, node.url, env=node.env)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
