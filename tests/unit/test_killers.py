"""What kills when memory runs short: earlyoom and Ray's monitor as they run, and nothing that does not run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmtop.contract.snapshot import Device, Killer
from llmtop.machine.headroom import PoolWatch, pools
from llmtop.machine.host import Disk
from llmtop.machine.killers import KillerReader, lines
from llmtop.machine.sample import MachineSample, MemInfo

GIB = 2**30
TOTAL = 120 * GIB
MEM = MemInfo(TOTAL, available=20 * GIB, swap_total=16 * GIB, swap_free=16 * GIB)
LOG = "[I] ThresholdMemoryMonitor initialized with usage threshold at {} bytes (95.000000% of system memory), …\n"


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def killers(root: Path, mem: MemInfo = MEM) -> tuple[Killer, ...]:
    return lines(KillerReader(str(root / "proc"), Disk()).rules(mem.total), mem)


@pytest.mark.parametrize(
    ("arguments", "headroom", "armed"),
    [
        ("-m 2 -s 80", int(0.02 * TOTAL), False),  # all of the swap is free
        ("-m 2,1 -s 100", int(0.02 * TOTAL), True),
        ("-m5 -s100 --avoid (^|/)sshd$", int(0.05 * TOTAL), True),
        ("-M 2097152", 2 * GIB, False),
        ("-M 2097152,1048576 -m 1 -S 16777216", int(0.01 * TOTAL), True),
        ("-r 3600", int(0.1 * TOTAL), False),
    ],
)
def test_earlyoom_by_its_arguments(tmp_path: Path, arguments: str, headroom: int, armed: bool) -> None:
    write(tmp_path, "proc/77/cmdline", f"/usr/bin/earlyoom {arguments}".replace(" ", "\0") + "\0")
    (killer,) = killers(tmp_path)
    assert (killer.name, killer.headroom_bytes, killer.armed) == ("earlyoom", headroom, armed)


def test_without_swap_memory_alone_decides(tmp_path: Path) -> None:
    write(tmp_path, "proc/77/cmdline", "earlyoom\0-m\0002\0-s\00080\0")
    (killer,) = killers(tmp_path, MemInfo(TOTAL, swap_total=0, swap_free=0))
    assert killer.armed is True


def test_settings_count_for_an_earlyoom_that_runs_without_arguments_and_for_none_that_does_not_run(
    tmp_path: Path,
) -> None:
    write(tmp_path, "etc/default/earlyoom", '# EARLYOOM_ARGS="-m 9"\nEARLYOOM_ARGS="-m 3 --prefer \'a b\'"\n')
    write(tmp_path, "proc/1/cmdline", "/sbin/init\0")
    assert killers(tmp_path) == ()
    write(tmp_path, "proc/77/cmdline", "earlyoom\0-r\0003600\0")
    assert killers(tmp_path)[0].headroom_bytes == int(0.03 * TOTAL)


def test_settings_of_a_machine_whose_processes_are_not_seen_say_so(tmp_path: Path) -> None:
    write(tmp_path, "etc/default/earlyoom", 'EARLYOOM_ARGS="-m 2 -s 80"\n')
    (tmp_path / "proc").mkdir()
    (killer,) = killers(tmp_path)
    assert killer.headroom_bytes == int(0.02 * TOTAL)
    assert "its process is not seen" in (killer.basis or "")


def test_ray_by_its_log(tmp_path: Path) -> None:
    write(tmp_path, "proc/9/cmdline", "/x/raylet\0--gcs-address=a:1\0")
    write(tmp_path, "proc/9/environ", "RAY_memory_usage_threshold=0.98\0")
    write(tmp_path, "tmp/ray/session_latest/logs/raylet.out", LOG.format(int(0.95 * TOTAL)))
    (killer,) = killers(tmp_path)
    assert (killer.name, killer.headroom_bytes, killer.armed) == ("Ray", TOTAL - int(0.95 * TOTAL), True)


def test_ray_in_a_container_with_a_limit_has_no_line_of_the_machine(tmp_path: Path) -> None:
    write(tmp_path, "proc/9/cmdline", "raylet\0")
    write(tmp_path, "proc/9/root/tmp/ray/session_latest/logs/raylet.out", LOG.format(int(0.95 * 64 * GIB)))
    (killer,) = killers(tmp_path)
    assert killer.headroom_bytes is None
    assert "64.0 GiB" in (killer.basis or "")


@pytest.mark.parametrize(
    ("environ", "headroom"),
    [
        ("HOME=/\0", TOTAL - int(0.95 * TOTAL)),
        ("RAY_memory_usage_threshold=0.98\0", TOTAL - int(0.98 * TOTAL)),
        ("RAY_memory_monitor_refresh_ms=250\0", TOTAL - int(0.95 * TOTAL)),
        ("RAY_memory_monitor_refresh_ms=0\0", None),
    ],
)
def test_ray_by_its_variables(tmp_path: Path, environ: str, headroom: int | None) -> None:
    write(tmp_path, "proc/9/cmdline", "raylet\0")
    write(tmp_path, "proc/9/environ", environ)
    found = killers(tmp_path)
    if headroom is None:
        assert found == ()
    else:
        assert found[0].headroom_bytes == pytest.approx(headroom, abs=2)


def test_a_ray_that_may_not_be_read_is_named_without_a_number(tmp_path: Path) -> None:
    write(tmp_path, "proc/9/cmdline", "raylet\0")
    (killer,) = killers(tmp_path)
    assert (killer.name, killer.headroom_bytes) == ("Ray", None)


def test_beside_memory_that_is_not_the_machines_nobody_knows_where_they_strike(tmp_path: Path) -> None:
    write(tmp_path, "proc/77/cmdline", "earlyoom\0-m\00020\0")
    rules = KillerReader(str(tmp_path / "proc"), Disk()).rules(TOTAL)
    gb10 = Device(0, "GPU-1", "NVIDIA GB10", unified=True)
    for foreign, number in ((None, 1), ("fuse.lxcfs is mounted over /proc/meminfo", 0)):
        sample = MachineSample(1.0, mem=replace(MEM, foreign=foreign), devices=(gb10,), killers=rules)
        assert len(pools(sample)[0].killers) == number


def test_a_pool_has_its_killers_and_is_low_above_the_one_that_strikes_first(tmp_path: Path) -> None:
    write(tmp_path, "proc/77/cmdline", "earlyoom\0-m\00020\0-s\000100\0")
    write(tmp_path, "proc/9/cmdline", "raylet\0")
    write(tmp_path, "proc/9/environ", "A=b\0")
    rules = KillerReader(str(tmp_path / "proc"), Disk()).rules(TOTAL)
    sample = MachineSample(1.0, mem=MEM, killers=rules)
    (pool,) = PoolWatch().update(pools(sample), sample.host, 1.0)
    assert [killer.name for killer in pool.killers] == ["earlyoom", "Ray"]
    assert (pool.state, pool.reason) == ("low", "20.0 GiB left, earlyoom kills at 24.0 GiB")
