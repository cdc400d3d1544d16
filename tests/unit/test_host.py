"""Host readings from /proc and /sys trees."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from llmtop.machine.host import HostReader, available_in
from llmtop.machine.sample import MemInfo, NodeMem
from llmtop.nodes.tree import StreamedTree

FIXTURES = Path(__file__).parents[1] / "fixtures/host"
KIB = 1024


def reader(root: Path) -> HostReader:
    return HostReader(root / "proc", root / "sys")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_meminfo_of_a_gb10() -> None:
    mem = reader(FIXTURES / "gb10-thrash").mem()
    assert mem == MemInfo(
        total=127600748 * KIB,
        free=440402 * KIB,
        available=1153434 * KIB,
        swap_total=16777216 * KIB,
        swap_free=314573 * KIB,
    )


def test_swap_and_pressure_of_a_gb10() -> None:
    source = reader(FIXTURES / "gb10-thrash")
    host = source.host(source.mem())
    assert host.psi_full_avg10 == 48.3
    assert host.swap_used_bytes == (16777216 - 314573) * KIB
    assert host.mem_available_bytes == 1153434 * KIB
    assert host.cpu_percent is None
    assert host.swap_out_bytes_s is None


def test_numa_nodes_of_a_gh200_count_the_page_cache_in_hbm() -> None:
    nodes = reader(FIXTURES / "gh200-cache-in-hbm").nodes()
    assert nodes[1] == NodeMem(99614720 * KIB, 23068672 * KIB, 2 * 31981568 * KIB, has_cpus=None)
    assert nodes[0].total == 501797888 * KIB


def test_a_node_without_cpus_has_an_empty_cpulist(tmp_path: Path) -> None:
    for number, cpus in ((0, "0-71\n"), (1, "\n")):
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        write(folder / "meminfo", f"Node {number} MemTotal: 8 kB\nNode {number} MemFree: 4 kB\n")
        write(folder / "cpulist", cpus)
    nodes = reader(tmp_path).nodes()
    assert nodes == {0: NodeMem(8192, 4096, 0, has_cpus=True), 1: NodeMem(8192, 4096, 0, has_cpus=False)}
    assert reader(tmp_path).mem([1]).nodes == {1: nodes[1]}


@pytest.mark.parametrize(("case", "expected"), [("gh200-cdmm", True), ("gh200-vllm", False), ("x86-h100", False)])
def test_driver_owned_hbm_is_recognised(case: str, expected: bool) -> None:
    assert reader(FIXTURES / case).cdmm() is expected


def test_an_old_kernel_without_memavailable_is_approximated(tmp_path: Path) -> None:
    write(
        tmp_path / "proc/meminfo",
        "MemTotal: 1000 kB\nMemFree: 100 kB\nActive(file): 40 kB\nInactive(file): 61 kB\n",
    )
    mem = reader(tmp_path).mem()
    assert mem.available == (100 * KIB) + (101 * KIB) // 2
    assert mem.available_approx
    assert mem.swap_total is None


def test_huge_pages_are_counted_in_bytes(tmp_path: Path) -> None:
    lines = "HugePages_Total: 100\nHugePages_Free: 7\nHugepagesize: 2048 kB\n"
    write(tmp_path / "proc/meminfo", f"MemTotal: 1000 kB\n{lines}")
    mem = reader(tmp_path).mem()
    assert (mem.huge_total, mem.huge_free_bytes) == (100 * 2048 * KIB, 7 * 2048 * KIB)


def test_nothing_found_is_no_error(tmp_path: Path) -> None:
    source = reader(tmp_path / "missing")
    mem = source.mem([0, 1])
    assert mem == MemInfo()
    assert source.nodes() == {}
    assert source.cdmm() is False
    assert source.process_name(1) is None
    assert source.host(mem).mem_total_bytes is None
    assert source.host(mem).name == socket.gethostname()


def test_unreadable_fields_are_unknown_and_the_rest_is_read(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: many kB\nMemFree:\n\x00\xff\nMemAvailable: 12 kB\nSwapFree: -1 kB\n")
    write(tmp_path / "proc/stat", "cpu a b c d\n")
    write(tmp_path / "proc/pressure/memory", "full avg10=.. total=1\n")
    source = reader(tmp_path)
    mem = source.mem()
    assert mem == MemInfo(available=12 * KIB)
    source.host(mem)
    host = source.host(mem)
    assert (host.cpu_percent, host.psi_full_avg10, host.swap_used_bytes) == (None, None, None)


def test_cpu_percent_and_swap_out_are_deltas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("llmtop.machine.host.time.monotonic", lambda: now[0])
    source = reader(tmp_path)
    write(tmp_path / "proc/stat", "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\n")
    write(tmp_path / "proc/vmstat", "nr_free_pages 5\npswpout 1000\n")
    source.host(MemInfo())
    now[0] = 102.0
    write(tmp_path / "proc/stat", "cpu  160 0 140 780 120 0 0 0 90 0\ncpu0 1 1 1 1\n")
    write(tmp_path / "proc/vmstat", "nr_free_pages 5\npswpout 1500\n")
    host = source.host(MemInfo())
    assert host.cpu_percent == 50.0
    assert host.swap_out_bytes_s == 500 * os.sysconf("SC_PAGE_SIZE") / 2


def test_a_counter_that_falls_gives_no_rate(tmp_path: Path) -> None:
    source = reader(tmp_path)
    for pages in (1000, 3):
        write(tmp_path / "proc/vmstat", f"pswpout {pages}\n")
        write(tmp_path / "proc/stat", f"cpu  {pages} 0 0 {pages}\n")
        host = source.host(MemInfo())
    assert host.swap_out_bytes_s is None
    assert host.cpu_percent is None


@pytest.mark.parametrize("case", ["gb10-thrash", "gb10-idle", "gh200-cache-in-hbm", "x86-h100"])
def test_a_look_finds_the_same_number(case: str) -> None:
    source = reader(FIXTURES / case)
    assert available_in(source.meminfo()) == source.mem().available


PROC, LXCFS, DOCKER = (
    f"2{number} 1 0:5{number} / /proc{path} rw,nosuid shared:7 - {kind} {kind} rw\n"
    for number, path, kind in ((1, "", "proc"), (2, "/meminfo", "fuse.lxcfs"), (3, "/kcore", "tmpfs"))
)


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [(PROC + DOCKER, None), (PROC + LXCFS, "fuse.lxcfs"), ("- /proc/meminfo \n1 /proc/meminfo - ", None)],
)
def test_what_is_mounted_over_meminfo_is_told(tmp_path: Path, mounts: str, kind: str | None) -> None:
    write(tmp_path / "proc/self/mountinfo", mounts)
    write(tmp_path / "proc/meminfo", "MemTotal: 5 kB\n")
    assert reader(tmp_path).mem().mounted == kind
    streamed = StreamedTree(files={"proc/self/mountinfo": mounts.encode(), "proc/meminfo": b"MemTotal: 5 kB\n"})
    assert HostReader(Path("/proc"), Path("/sys"), streamed).mem().mounted == kind


def test_a_container_that_reads_its_hosts_proc_is_not_taken_in_by_its_own(tmp_path: Path) -> None:
    write(tmp_path / "proc/42/mountinfo", PROC + LXCFS)
    (tmp_path / "proc/self").symlink_to("42")
    assert reader(tmp_path).mem().mounted is None


@pytest.mark.parametrize(
    "text", [b"", b"MemTotal: 5 kB\n", b"\nMemAvailable: x kB\n", b"\nMemAvailable:", b"\nMemAvailable:  -5 kB"]
)
def test_a_look_at_odd_text_finds_nothing(text: bytes) -> None:
    assert available_in(text) is None


def test_a_tree_replaced_underneath_is_seen(tmp_path: Path) -> None:
    link = tmp_path / "now"
    link.symlink_to(FIXTURES / "gb10-collapse/t0")
    source = reader(link)
    assert source.mem().available == 30408704 * KIB
    fresh = tmp_path / "fresh"
    fresh.symlink_to(FIXTURES / "gb10-collapse/t9")
    fresh.rename(link)
    assert source.mem().available == 6606029 * KIB
    link.unlink()
    assert source.mem().available is None


@pytest.mark.parametrize(
    ("comm", "cmdline", "expected"),
    [
        ("VLLM::EngineCor\n", "VLLM::EngineCore\0", "VLLM::EngineCore"),
        ("python3\n", "/usr/bin/python3\0-m\0vllm\0", "python3"),
        ("pt_main_thread\n", "/usr/bin/python3\0", "pt_main_thread"),
        ("evil\x1b[31m\n", "", "evil[31m"),
        ("kworker\n", "", "kworker"),
    ],
)
def test_process_names(tmp_path: Path, comm: str, cmdline: str, expected: str) -> None:
    write(tmp_path / "proc/7/comm", comm)
    write(tmp_path / "proc/7/cmdline", cmdline)
    assert reader(tmp_path).process_name(7) == expected


def test_a_pid_namespace_of_its_own_gives_no_names(tmp_path: Path) -> None:
    write(tmp_path / "proc/7/comm", "sh\n")
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532999]")
    assert reader(tmp_path).process_name(7) is None


def test_host_name_and_pid_max(tmp_path: Path) -> None:
    assert reader(tmp_path).pid_max() == 4194304
    write(tmp_path / "proc/sys/kernel/hostname", "spark-a\n")
    write(tmp_path / "proc/sys/kernel/pid_max", "32768\n")
    assert reader(tmp_path).name() == "spark-a"
    assert reader(tmp_path).pid_max() == 32768
