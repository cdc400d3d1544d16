"""Memory pools, low-water marks and states, on real and constructed readings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmtop.contract.snapshot import Device, DeviceMemory, DeviceProcess, Host, Pool
from llmtop.machine.headroom import IN_DOUBT, NOT_OURS, LowWater, MemoryMode, PoolWatch, device_key, pool_key, pools
from llmtop.machine.host import HostReader
from llmtop.machine.sample import Dip, MachineSample, MemInfo, NodeMem
from llmtop.machine.suspicion import Suspicion

FIXTURES = Path(__file__).parents[1] / "fixtures/host"
GIB = 2**30
MIB = 2**20
GB10 = Device(0, "GPU-gb10", "NVIDIA GB10", unified=True)
CASES = sorted(p.parent.name for p in FIXTURES.glob("*/expect.json") if "pools" in json.loads(p.read_text()))


def memory(total: int, used: int, reserved: int = 0) -> DeviceMemory:
    return DeviceMemory(total, used, reserved, total - used - reserved)


def h100(index: int = 0, used: int = 40 * GIB) -> Device:
    return Device(index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", memory=memory(80 * GIB, used, GIB))


def read(root: Path, *devices: Device) -> MachineSample:
    source = HostReader(root / "proc", root / "sys")
    mem = replace(source.mem(), nodes=source.nodes())
    return MachineSample(0.0, source.host(mem), mem, devices, source.cdmm())


def device_of(expected: dict[str, Any]) -> Device:
    told = expected["with_device"]
    if isinstance(told, str):
        return Device(0, "GPU-0", "Orin (nvgpu)" if told == "orin" else "NVIDIA GB10", unified=True)
    size = memory(told["mem_total_mib"] * MIB, told["mem_used_mib"] * MIB, told["mem_reserved_mib"] * MIB)
    return Device(0, "GPU-0", told["name"], memory=size, numa_node=told["numa_node"])


def of_kind(found: tuple[Pool, ...], kind: str) -> Pool:
    (pool,) = [pool for pool in found if pool.kind == kind]
    return pool


def adds_up(pool: Pool) -> bool:
    parts = (pool.used_bytes, pool.reserved_bytes, pool.headroom_bytes)
    return None not in parts and sum(part or 0 for part in parts) == pool.total_bytes


@pytest.mark.parametrize("case", CASES)
def test_pools_of_reported_hosts(case: str) -> None:
    expected = json.loads((FIXTURES / case / "expect.json").read_text())
    found = pools(read(FIXTURES / case, device_of(expected)))
    assert [pool.kind for pool in found] == [told["kind"] for told in expected["pools"]]
    for told in expected["pools"]:
        pool = of_kind(found, told["kind"])
        assert {name: getattr(pool, name) for name in told} == told
    assert all(map(adds_up, found))


def test_a_discrete_card_has_its_own_pool_and_host_ram_is_another() -> None:
    hbm, ram = pools(read(FIXTURES / "x86-h100", h100()))
    assert (hbm.kind, hbm.device, hbm.headroom_bytes, hbm.used_bytes) == ("hbm", "GPU-0", 39 * GIB, 40 * GIB)
    assert (hbm.reserved_bytes, hbm.reclaimable_bytes, hbm.cuda_free_bytes) == (GIB, 0, 39 * GIB)
    assert hbm.basis == "NVML total - reserved - used"
    assert (ram.kind, ram.headroom_bytes, ram.basis) == ("ram", 492830720 * 1024, "MemAvailable")


def test_no_gpu_leaves_ram_and_no_meminfo_leaves_nothing() -> None:
    assert [pool.kind for pool in pools(read(FIXTURES / "x86-h100"))] == ["ram"]
    assert pools(MachineSample(0.0)) == ()


def test_memory_not_supported_on_a_discrete_card_is_unknown_and_never_host_ram() -> None:
    blind = replace(h100(), memory=None)
    hbm, ram = pools(read(FIXTURES / "x86-h100", blind))
    assert (hbm.kind, hbm.total_bytes, hbm.used_bytes, hbm.headroom_bytes) == ("hbm", None, None, None)
    assert ram.kind == "ram"


def test_a_lost_gpu_keeps_its_row_and_the_others_live() -> None:
    lost = replace(h100(1), state="LOST", reason="GPU is lost since 12:03:41")
    first, second, _ = pools(read(FIXTURES / "x86-h100", h100(0), lost))
    assert first.headroom_bytes == 39 * GIB
    assert (second.headroom_bytes, second.basis) == (None, "GPU is lost since 12:03:41")


def test_mig_instances_stand_in_for_their_parent() -> None:
    small = Device(0, "MIG-1", "H100 MIG 1g.10gb", memory=memory(10 * GIB, 8 * GIB), mig="9/0")
    large = Device(0, "MIG-2", "H100 MIG 3g.40gb", memory=memory(40 * GIB, 8 * GIB), mig="1/0")
    found = pools(read(FIXTURES / "x86-h100", h100(0), small, large, h100(1)))
    assert [(pool.device, pool.headroom_bytes) for pool in found[:-1]] == [
        ("MIG-1", 2 * GIB),
        ("MIG-2", 32 * GIB),
        ("GPU-1", 39 * GIB),
    ]
    assert found[0].name == "GPU 0 MIG 9/0"


def test_the_override_decides_what_nvml_cannot_tell() -> None:
    carve_out = Device(0, "GPU-n1x", "NVIDIA N1X", memory=memory(8 * GIB, GIB))
    sample = read(FIXTURES / "gb10-idle", carve_out)
    assert [pool.kind for pool in pools(sample)] == ["hbm", "ram"]
    (unified,) = pools(sample, "unified")
    assert (unified.kind, unified.headroom_bytes) == ("unified", 121529958 * 1024)
    modes: tuple[tuple[MemoryMode, list[str]], ...] = (
        ("auto", ["unified"]),
        ("discrete", ["hbm", "ram"]),
    )
    for mode, kinds in modes:
        assert [pool.kind for pool in pools(read(FIXTURES / "gb10-idle", GB10), mode)] == kinds


def test_cgroup_limits_are_no_part_of_a_unified_pool() -> None:
    (pool,) = pools(read(FIXTURES / "cgroup-128g", GB10))
    assert pool.total_bytes == 127600748 * 1024
    assert pool.headroom_bytes == 5138022 * 1024


def holds(device: Device, *sizes: int) -> Device:
    held = tuple(DeviceProcess(100 + place, memory_bytes=size) for place, size in enumerate(sizes))
    return replace(device, processes=held)


LXCFS = MemInfo(64 * GIB, 58 * GIB, 60 * GIB)
NODE = {0: NodeMem(122 * GIB, 2 * GIB, 20 * GIB, True)}


@pytest.mark.parametrize(
    ("mem", "device", "reason"),
    [
        (LXCFS, holds(GB10, 40 * GIB, 30 * GIB), "GPU processes hold 70.0 GiB"),
        (replace(LXCFS, nodes=NODE), GB10, "the NUMA nodes have 122.0 GiB"),
        (LXCFS, replace(GB10, memory=memory(120 * GIB, 90 * GIB)), "the GPU's driver has 120.0 GiB"),
        (replace(LXCFS, foreign="GPU processes hold 85.1 GiB"), GB10, "GPU processes hold 85.1 GiB"),
        (MemInfo(96 * GIB, 2 * GIB, 4 * GIB), holds(GB10, 85 * GIB), "a GB10 has 128 GB, more than the 96.0 GiB"),
        (MemInfo(122 * GIB, 2 * GIB, 4 * GIB, mounted="fuse.lxcfs"), GB10, "fuse.lxcfs is mounted over /proc/meminfo"),
    ],
)
def test_headroom_is_unknown_where_meminfo_is_a_containers(mem: MemInfo, device: Device, reason: str) -> None:
    (pool,) = pools(MachineSample(0.0, mem=mem, devices=(device,)))
    assert (pool.kind, pool.total_bytes, pool.used_bytes, pool.headroom_bytes) == ("unified", None, None, None)
    assert (pool.cuda_free_bytes, pool.reclaimable_bytes) == (None, None)
    assert pool.basis is not None
    assert pool.basis.startswith("unknown: /proc/meminfo is not this machine's")
    assert pool.reason is not None
    assert pool.reason.startswith(reason)
    (judged,) = PoolWatch().update((pool,), Host(), 1.0)
    assert (judged.state, judged.reason) == (None, pool.reason)


def test_a_low_read_before_meminfo_was_known_to_be_a_containers_is_forgotten() -> None:
    low = LowWater()
    low.feed(pools(MachineSample(0.0, mem=LXCFS, devices=(GB10,))), {}, 1.0)
    (pool,) = low.fill(pools(MachineSample(0.0, mem=LXCFS, devices=(holds(GB10, 85 * GIB),))))
    assert (pool.low_water_bytes, pool.low_water_time) == (None, None)


THOR = replace(GB10, name="NVIDIA Thor")
SUM = MemInfo(96 * GIB, 88 * GIB, 94 * GIB)  # a container's limit, above what GPU processes hold
SOUND = MemInfo(122 * GIB, 2 * GIB, 20 * GIB)


def test_memory_that_a_gpu_holds_cannot_be_available_too() -> None:
    suspicion, watch, device = Suspicion(), PoolWatch(), holds(THOR, 85 * GIB)
    for t, headroom, basis in ((1.0, 94 * GIB, IN_DOUBT), (5.9, 94 * GIB, IN_DOUBT), (6.0, None, NOT_OURS)):
        mem = suspicion.judge(SUM, (device,), t)
        (pool,) = watch.update(pools(MachineSample(t, mem=mem, devices=(device,))), Host(), t)
        assert (pool.headroom_bytes, pool.state) == (headroom, None)
        assert basis in (pool.basis or "")
        assert pool.reason == "GPU processes hold 85.0 GiB, yet /proc/meminfo has 94.0 of 96.0 GiB available"
    assert suspicion.judge(SUM, (THOR,), 9.0).foreign is not None  # the process ended: the container did not


def test_a_server_that_ended_and_is_still_listed_raises_no_doubt() -> None:
    suspicion, device = Suspicion(), holds(GB10, 85 * GIB)
    assert suspicion.judge(SOUND, (device,), 1.0) == SOUND
    over = replace(SOUND, free=100 * GIB, available=115 * GIB)
    for t, there in ((2.0, device), (6.9, device), (7.0, GB10), (7.5, device), (12.4, device)):
        assert suspicion.judge(over, (there,), t) == over
    assert suspicion.judge(over, (device,), 12.5).foreign is not None


def test_ram_of_a_container_beside_a_card_says_whose_it_is() -> None:
    mem = MemInfo(32 * GIB, 20 * GIB, 30 * GIB, mounted="fuse.lxcfs")
    (_, pool) = pools(MachineSample(0.0, mem=mem, devices=(Device(0, "GPU-h", "NVIDIA H100", memory=memory(80, 1)),)))
    assert (pool.kind, pool.headroom_bytes) == ("ram", 30 * GIB)
    assert pool.basis == "MemAvailable, of the container alone (fuse.lxcfs is mounted over /proc/meminfo)"


def test_more_available_than_there_is_counts_as_all_of_it_and_says_so() -> None:
    (pool,) = pools(MachineSample(0.0, mem=MemInfo(GIB, GIB // 2, 2 * GIB)))
    assert (pool.kind, pool.headroom_bytes) == ("ram", GIB)
    assert pool.basis == "MemAvailable, no more than the total (/proc/meminfo has more available)"


def test_processes_that_fit_leave_the_headroom_as_it_is() -> None:
    (pool,) = pools(read(FIXTURES / "gb10-idle", holds(GB10, 80 * GIB, 30 * GIB)))
    assert pool.headroom_bytes == 121529958 * 1024


def test_grace_in_a_container_has_hbm_and_no_lpddr() -> None:
    mem = replace(GRACE_MEM, total=64 * GIB, available=60 * GIB)
    hbm, lpddr = pools(MachineSample(0.0, mem=mem, devices=(GRACE,)))
    assert (hbm.headroom_bytes, lpddr.total_bytes, lpddr.headroom_bytes) == (36 * GIB, None, None)
    assert lpddr.reason == "the NUMA nodes have 576.0 GiB, more than the 64.0 GiB of /proc/meminfo"


def test_huge_pages_are_all_that_cuda_can_use_where_configured() -> None:
    mem = MemInfo(120 * GIB, 20 * GIB, 30 * GIB, huge_total=40 * GIB, huge_free_bytes=12 * GIB)
    (pool,) = pools(MachineSample(0.0, mem=mem, devices=(GB10,)))
    assert (pool.headroom_bytes, pool.used_bytes, pool.basis) == (12 * GIB, 108 * GIB, "free huge pages")
    assert (pool.cuda_free_bytes, pool.reclaimable_bytes) == (20 * GIB, 10 * GIB)


def test_an_approximated_headroom_says_so() -> None:
    mem = MemInfo(120 * GIB, 20 * GIB, 30 * GIB, available_approx=True)
    (pool,) = pools(MachineSample(0.0, mem=mem, devices=(GB10,)))
    assert pool.basis is not None
    assert pool.basis.startswith("≈")


GRACE = Device(0, "GPU-0", "NVIDIA GH200 480GB", memory=memory(96 * GIB, 60 * GIB))
GRACE_MEM = MemInfo(
    total=576 * GIB,
    free=200 * GIB,
    available=300 * GIB,
    nodes={0: NodeMem(480 * GIB, 180 * GIB, 90 * GIB, True), 1: NodeMem(96 * GIB, 20 * GIB, 10 * GIB, False)},
)


def test_hbm_without_a_numa_id_is_the_node_without_cpus() -> None:
    hbm, lpddr = pools(MachineSample(0.0, mem=GRACE_MEM, devices=(GRACE,)))
    assert (hbm.headroom_bytes, hbm.reclaimable_bytes) == (36 * GIB, 10 * GIB)
    assert (lpddr.total_bytes, lpddr.headroom_bytes) == (480 * GIB, 270 * GIB)
    assert lpddr.basis == "MemAvailable - HBM node"


def test_two_superchips_subtract_every_hbm_node() -> None:
    nodes = {**GRACE_MEM.nodes, 2: NodeMem(96 * GIB, 5 * GIB, GIB, False)}
    mem = replace(GRACE_MEM, total=672 * GIB, nodes=nodes)
    devices = (replace(GRACE, numa_node=1), replace(GRACE, index=1, uuid="GPU-1", numa_node=2))
    first, second, lpddr = pools(MachineSample(0.0, mem=mem, devices=devices))
    assert (first.reclaimable_bytes, second.reclaimable_bytes) == (10 * GIB, GIB)
    assert (lpddr.total_bytes, lpddr.headroom_bytes) == (480 * GIB, 264 * GIB)


def test_grace_without_a_sys_tree_does_not_guess() -> None:
    hbm, lpddr = pools(MachineSample(0.0, mem=replace(GRACE_MEM, nodes={}), devices=(GRACE,)))
    assert (hbm.headroom_bytes, hbm.reclaimable_bytes) == (36 * GIB, None)
    assert (lpddr.kind, lpddr.total_bytes, lpddr.headroom_bytes) == ("lpddr", None, None)


def test_memory_without_cpus_on_an_x86_host_is_not_hbm() -> None:
    hbm, ram = pools(MachineSample(0.0, mem=GRACE_MEM, devices=(h100(),)))
    assert (hbm.reclaimable_bytes, ram.headroom_bytes) == (0, 300 * GIB)


def test_numbers_that_cannot_be_are_cut_so_that_the_parts_add_up() -> None:
    over = replace(h100(), memory=DeviceMemory(80 * GIB, 81 * GIB, GIB, 0))
    mem = MemInfo(100 * GIB, 20 * GIB, 130 * GIB)
    found = pools(MachineSample(0.0, mem=mem, devices=(over,)))
    assert [pool.headroom_bytes for pool in found] == [0, 100 * GIB]
    assert all(map(adds_up, found))


# -- low water ---------------------------------------------------------------------------------------------------


def hbm_pool(headroom: int | None, total: int = 80 * GIB) -> Pool:
    used = None if headroom is None else total - headroom
    return Pool("GPU 0", "hbm", "GPU-0", total, used, headroom)


def test_keys_agree_between_devices_and_pools() -> None:
    for device in (h100(), Device(1, None, "x"), Device(0, None, mig="1/0"), GRACE):
        (pool,) = pools(MachineSample(0.0, devices=(device,)))
        assert pool_key(pool) == device_key(device)
    assert pool_key(Pool("GB10 unified", "unified", "GPU-gb10")) == "unified"


def test_low_water_keeps_the_least_and_its_time() -> None:
    low = LowWater()
    low.feed([hbm_pool(10 * GIB)], {}, 1.0)
    low.feed([hbm_pool(9 * GIB)], {"GPU-0": Dip(2 * GIB, 1.6), "other": Dip(1, 1.5)}, 2.0)
    low.feed([hbm_pool(11 * GIB)], {}, 3.0)
    (pool,) = low.fill([hbm_pool(11 * GIB)])
    assert (pool.low_water_bytes, pool.low_water_time) == (2 * GIB, 1.6)
    assert low.epoch() == {"GPU-0": Dip(2 * GIB, 1.6)}


def test_a_mark_begins_anew_and_ignores_what_was_before_it() -> None:
    low = LowWater()
    low.feed([hbm_pool(10 * GIB)], {}, 1.0)
    low.mark(2.5)
    low.feed([hbm_pool(9 * GIB)], {"GPU-0": Dip(GIB, 2.4)}, 3.0)
    assert low.epoch(LowWater.MARK) == {"GPU-0": Dip(9 * GIB, 3.0)}
    assert low.epoch() == {"GPU-0": Dip(GIB, 2.4)}


def test_a_late_dip_goes_to_the_phase_it_fell_in() -> None:
    low = LowWater()
    low.begin("weights", 0.0)
    low.end("weights", 2.0)
    low.begin("kv", 2.0)
    low.feed([hbm_pool(8 * GIB)], {"GPU-0": Dip(3 * GIB, 1.9)}, 2.2)
    assert low.epoch("weights") == {"GPU-0": Dip(3 * GIB, 1.9)}
    assert low.epoch("kv") == {"GPU-0": Dip(8 * GIB, 2.2)}
    assert low.epoch("never") == {}


def test_an_unknown_headroom_has_no_low_water() -> None:
    low = LowWater()
    low.feed([hbm_pool(None)], {}, 1.0)
    assert low.fill([hbm_pool(None)])[0].low_water_bytes is None


# -- state -------------------------------------------------------------------------------------------------------


def unified_pool(headroom: int, total: int = 120 * GIB) -> Pool:
    return Pool("GB10 unified", "unified", "GPU-gb10", total, total - headroom, headroom)


CALM = Host()


def watch(pool: Pool, host: Host = CALM, seconds: int = 4) -> Pool:
    watcher = PoolWatch()
    for second in range(seconds):
        (judged,) = watcher.update([pool], host, float(second))
    return judged


def test_the_collapse_of_a_gb10_is_low_by_second_3_and_critical_before_the_end() -> None:
    watcher = PoolWatch()
    states = {}
    for second in range(10):
        sample = read(FIXTURES / f"gb10-collapse/t{second}", GB10)
        (pool,) = watcher.update(pools(sample), sample.host, 1000.0 + second)
        states[second] = pool.state
    assert (states[0], states[1]) == ("ok", "ok")
    assert {states[second] for second in range(3, 7)} == {"low"}
    assert states[9] == "critical"
    assert pool.reason is not None
    assert "GiB/s" in pool.reason
    assert pool.falling_bytes_s == pytest.approx(2.7e9, rel=0.1)
    assert pool.empty_in_s == pytest.approx(2.5, abs=0.3)


def test_a_server_that_loads_its_weights_is_no_alarm_until_little_is_left() -> None:
    watcher = PoolWatch()
    told = {}
    for second in range(13):  # 9 GiB a second, of 119
        pool = unified_pool((119 - 9 * second) * GIB)
        (told[second],) = watcher.update([pool], CALM, float(second), loading=True)
    assert told[5].falling_bytes_s == pytest.approx(9 * GIB)
    assert all((told[n].state, told[n].empty_in_s) == ("ok", None) for n in range(12))
    assert told[12].state == "critical"
    assert told[12].empty_in_s == pytest.approx(11 / 9)


def test_a_gb10_at_4_percent_without_pressure_is_ok() -> None:
    judged = watch(unified_pool(int(4.9 * GIB)), Host(psi_full_avg10=0.0, swap_out_bytes_s=0.0))
    assert (judged.state, judged.reason, judged.falling_bytes_s) == ("ok", None, None)


@pytest.mark.parametrize(
    ("headroom", "host", "state"),
    [
        (3 * GIB, Host(), "low"),
        (60 * GIB, Host(psi_full_avg10=1.5), "low"),
        (60 * GIB, Host(psi_full_avg10=11.0), "critical"),
        (60 * GIB, Host(swap_out_bytes_s=60e6), "low"),
        (60 * GIB, Host(psi_full_avg10=0.9, swap_out_bytes_s=40e6), "ok"),
    ],
)
def test_pressure_decides_on_unified_memory(headroom: int, host: Host, state: str) -> None:
    judged = watch(unified_pool(headroom), host)
    assert judged.state == state
    assert (judged.reason is None) == (state == "ok")


def test_a_thrashing_gb10_is_critical_at_the_first_reading() -> None:
    sample = read(FIXTURES / "gb10-thrash", GB10)
    (pool,) = PoolWatch().update(pools(sample), sample.host, 0.0)
    assert pool.state == "critical"


@pytest.mark.parametrize(
    ("headroom", "total", "state"),
    [
        (int(1.9 * GIB), 80 * GIB, "low"),
        (int(2.1 * GIB), 80 * GIB, "ok"),
        (400 * MIB, 80 * GIB, "critical"),
        (600 * MIB, 10 * GIB, "ok"),
        (400 * MIB, 10 * GIB, "low"),
        (90 * MIB, 10 * GIB, "critical"),
    ],
)
def test_discrete_memory_is_judged_by_what_is_left(headroom: int, total: int, state: str) -> None:
    pressed = Host(psi_full_avg10=50.0)
    assert watch(hbm_pool(headroom, total), pressed).state == state


def test_unknown_headroom_has_no_state() -> None:
    judged = watch(hbm_pool(None))
    assert (judged.state, judged.reason) == (None, None)


def states_over(headrooms: list[float], step: float = 1.0) -> list[str | None]:
    watcher = PoolWatch()
    return [
        watcher.update([hbm_pool(int(left * GIB))], Host(), 100.0 + step * i)[0].state
        for i, left in enumerate(headrooms)
    ]


def test_a_trend_needs_two_seconds_and_one_step_is_none() -> None:
    assert states_over([60, 50, 40, 30], step=0.5) == ["ok"] * 4
    assert states_over([60, 60, 60, 60, 20, 20, 20, 20, 20]) == ["ok"] * 9


def test_a_sustained_fall_is_low_and_near_the_end_critical() -> None:
    assert states_over([60, 50, 40, 30, 20, 7]) == ["ok", "ok", "low", "low", "low", "critical"]


def test_readings_further_apart_than_the_window_still_show_a_trend() -> None:
    assert states_over([60, 30], step=5.0) == ["ok", "low"]


def test_a_state_is_left_only_after_three_seconds() -> None:
    flicker = states_over([1.9, 2.1, 1.9, 2.1, 2.1, 2.1, 2.1])
    assert flicker == ["low", "low", "low", "low", "low", "ok", "ok"]


def test_a_clock_set_back_forgets_the_trend() -> None:
    watcher = PoolWatch()
    for second, left in ((100.0, 60), (101.0, 50), (50.0, 40), (51.0, 40)):
        (pool,) = watcher.update([hbm_pool(left * GIB)], Host(), second)
    assert (pool.state, pool.falling_bytes_s) == ("ok", None)
