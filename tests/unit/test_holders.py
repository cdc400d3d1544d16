"""Who holds a pool: servers by their processes, other programs, what is nobody's; the sum is what is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.snapshots import GB10, GIB, UNIFIED_POOL, URL
from llmtop.contract.snapshot import Device, DeviceProcess, Holder
from llmtop.machine.holders import Owner, used_by, with_holders
from llmtop.machine.owners import ProcessOwners
from llmtop.nodes.tree import StreamedTree

SECOND = "http://127.0.0.1:8001"
ID = "0123456789abcdef" * 4
POOL = replace(UNIFIED_POOL, used_bytes=100 * GIB, holders=(), other_bytes=None)


def device(**held: int | None) -> Device:
    """A GB10 with these processes on it."""
    processes = (DeviceProcess(int(pid[1:]), "VLLM::EngineCore", size) for pid, size in held.items())
    return replace(GB10, processes=tuple(processes))


def test_two_models_in_one_pool_are_two_rows_and_the_sum_is_what_is_used() -> None:
    shared = device(p10=60 * GIB, p11=2 * GIB, p20=20 * GIB, p30=GIB)
    owners = {10: Owner(URL, "a"), 11: Owner(URL, "a"), 20: Owner(SECOND), 30: Owner(None, "comfy")}
    pool = with_holders(POOL, (shared,), owners, {URL: "gpt-oss-120b", SECOND: None})
    assert pool.holders == (
        Holder("gpt-oss-120b", URL, "a", (10, 11), 62 * GIB),
        Holder("VLLM::EngineCore", SECOND, None, (20,), 20 * GIB),
        Holder("VLLM::EngineCore", None, "comfy", (30,), GIB),
    )
    assert sum(row.bytes or 0 for row in pool.holders) + (pool.other_bytes or 0) == pool.used_bytes
    assert pool.holders_note is None
    assert used_by(SECOND, (shared,), owners) == [shared]
    assert used_by("http://elsewhere", (shared,), owners) == []


@pytest.mark.parametrize(
    ("held", "other", "note"),
    [
        ({"p1": 101 * GIB}, 0, "the driver counts 101 GiB for its processes, more than the 100 GiB in use"),
        ({"p1": 60 * GIB, "p2": None}, 40 * GIB, "the driver does not say what 1 of 2 processes hold: it is in other"),
        ({}, 100 * GIB, "the driver lists no process here: none runs, or a container hides them"),
    ],
)
def test_rows_that_are_not_all_of_what_is_used_say_why(held: dict[str, int | None], other: int, note: str) -> None:
    pool = with_holders(POOL, (device(**held),), {}, {})
    assert (pool.other_bytes, (pool.holders_note or "")[: len(note)]) == (other, note)
    assert [row.bytes for row in pool.holders] == list(held.values())


def test_memory_of_a_size_that_is_not_known_has_holders_and_no_rest() -> None:
    pool = with_holders(replace(POOL, used_bytes=None), (device(p1=GIB),), {}, {})
    assert (len(pool.holders), pool.other_bytes, pool.holders_note) == (1, None, "how much is used is not known")


def test_host_memory_and_another_device_are_held_by_none_of_them() -> None:
    for pool in (replace(POOL, kind="ram"), replace(POOL, kind="hbm", device="GPU-other", used_bytes=0)):
        assert with_holders(pool, (device(p1=GIB),), {}, {}).holders == ()


def put(root: Path, pid: int, parent: int, container: str = "") -> None:
    (root / str(pid)).mkdir(parents=True)
    (root / f"{pid}/stat").write_text(f"{pid} (a (b) c) S {parent} 0 0")
    (root / f"{pid}/cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n" if container else "0::/\n")


def test_a_process_belongs_to_the_server_above_it_and_to_its_container(tmp_path: Path) -> None:
    put(tmp_path, 5, 1)
    put(tmp_path, 6, 5, ID)
    put(tmp_path, 7, 6, ID)
    put(tmp_path, 8, 1)
    seen = device(p7=GIB, p8=GIB, p9=GIB)
    hidden = replace(seen, processes=(*seen.processes, DeviceProcess(5, None, GIB)))
    assert ProcessOwners(tmp_path).of((hidden,), {5: URL}) == {7: Owner(URL, ID[:12]), 8: Owner(), 9: Owner()}


def test_of_a_streamed_node_what_comes_later_is_known_later() -> None:
    tree = StreamedTree()
    owners, seen = ProcessOwners(tree.procfs), (device(p7=GIB),)
    assert owners.of(seen, {5: URL}) == {7: Owner()}
    tree.files["proc/7/stat"] = b"7 (-) S 5"
    assert owners.of(seen, {5: URL}) == {7: Owner(URL)}
    tree.files["proc/7/cgroup"] = f"0::/docker/{ID}\n".encode()
    assert owners.of(seen, {5: URL}) == {7: Owner(URL, ID[:12])}
