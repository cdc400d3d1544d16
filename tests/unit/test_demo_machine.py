"""The simulated machine: pools that add up, readings that follow the engine, and what happens when it is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmtop.demo import profile as profiles
from llmtop.demo.machine import Plant, ServerState, parse_state

GIB = 2**30
NOW = 1_796_000_000.0


def state(seconds: float, busy: float, prefill: float = 0.0, engines: int = 1, **more: Any) -> ServerState:
    base = ServerState(
        monotonic=seconds,
        pid=4711,
        phase="ready",
        busy_s=(busy,) * engines,
        prefill_s=(prefill,) * engines,
        engine_bytes=0,
        cache_bytes=0,
        hog_bytes=0,
    )
    return replace(base, **more)


def plant(machine: str, load: float = 0.5, **more: int) -> Plant:
    """A machine whose engine was busy for this share of the last seconds."""
    profile = profiles.load(machine)
    made = Plant(profile)
    held = {"engine_bytes": profile.engine_bytes} | more
    for tenth in range(31):
        made.update(state(tenth / 10, load * tenth / 10, **held), seconds=0.1)
    return made


def test_gb10_has_one_pool_that_adds_up_and_no_device_memory() -> None:
    made = plant("gb10")
    memory = made.memory(NOW)
    (device,) = made.devices()
    assert device.memory is None
    assert device.unified
    assert memory.total == 128452014080
    assert memory.free is not None
    assert memory.available is not None
    cache = memory.available - memory.free
    other = memory.total - memory.available - profiles.load("gb10").engine_bytes
    assert cache == pytest.approx(14.2 * GIB, rel=0.01)
    assert other == pytest.approx(12.4 * GIB, rel=0.03)
    assert memory.available == pytest.approx(23.3 * GIB, rel=0.02)
    assert made.headrooms(NOW) == {"unified": memory.available}


def test_gh200_has_two_pools_that_are_never_added() -> None:
    made = plant("gh200")
    memory = made.memory(NOW)
    (device,) = made.devices()
    assert device.memory is not None
    assert device.memory.used // 2**20 == 91_262  # published: 91 GB of 95.6
    assert device.memory.total == device.memory.used + device.memory.reserved + device.memory.free
    assert device.energy_scope == "module"
    hbm, lpddr = memory.nodes[1], memory.nodes[0]
    assert (hbm.has_cpus, lpddr.has_cpus) == (False, True)
    assert memory.total == hbm.total + lpddr.total
    assert memory.available == lpddr.free + lpddr.reclaimable + hbm.free + hbm.reclaimable
    assert set(made.headrooms(NOW)) == {device.uuid, "lpddr"}


def test_h100_keeps_card_and_host_apart() -> None:
    made = plant("h100")
    (device,) = made.devices()
    assert device.memory is not None
    assert device.memory.free < 8 * GIB
    assert (made.memory(NOW).available or 0) > 400 * GIB
    assert set(made.headrooms(NOW)) == {device.uuid, "ram"}


def test_several_engines_are_several_cards() -> None:
    made = Plant(profiles.load("h100"))
    made.update(state(0, 0.0, engines=8), seconds=0.1)
    made.update(state(1, 0.5, engines=8), seconds=1.0)
    devices = made.devices()
    assert [d.index for d in devices] == list(range(8))
    assert len({d.uuid for d in devices}) == 8
    assert {d.util for d in devices} == {50}


@pytest.mark.parametrize(("load", "util", "watts"), [(0.0, 0, 4.5), (0.5, 50, 21.5), (1.0, 100, 38.5)])
def test_power_follows_the_busy_share(load: float, util: int, watts: float) -> None:
    (device,) = plant("gb10", load).devices()
    assert device.util == pytest.approx(util, abs=1)
    assert device.power_w == pytest.approx(watts, abs=0.3)
    assert (device.sm_clock_mhz == 208) == (load == 0)


def test_reading_prompts_takes_more_power_than_decoding() -> None:
    made = Plant(profiles.load("gb10"))
    made.update(state(0, 0.0), seconds=0.1)
    made.update(state(1, 1.0, prefill=1.0), seconds=1.0)
    assert made.devices()[0].power_w == pytest.approx(46.0)


def test_energy_is_power_over_time_and_heat_follows_slowly() -> None:
    made = Plant(profiles.load("gb10"))
    made.update(state(0, 0.0), seconds=0.0)
    for second in range(1, 301):
        made.update(state(second, float(second), prefill=float(second)), seconds=1.0)
    device = made.devices()[0]
    assert device.energy_j == pytest.approx(300 * 46.0, rel=0.01)
    assert device.temperature_c == 71


def test_page_cache_gives_way_before_headroom_is_gone() -> None:
    made = plant("gb10", hog_bytes=20 * GIB)
    memory = made.memory(NOW)
    assert memory.free is not None
    assert memory.available is not None
    assert 0 < memory.free < GIB
    assert 2 * GIB < memory.available < 4 * GIB


def test_when_the_server_is_gone_its_memory_is_free_and_the_gpu_idle() -> None:
    made = plant("gb10")
    made.update(seconds=0.1)
    (device,) = made.devices()
    assert device.util == 0
    assert device.processes == ()
    assert (made.memory(NOW).available or 0) > 100 * GIB


def test_a_restart_of_the_engine_gives_no_negative_load() -> None:
    made = plant("gb10", load=1.0)
    made.update(state(3.1, 0.0), seconds=0.1)
    assert made.devices()[0].util == 0


def test_the_state_is_read_from_the_endpoint_s_json() -> None:
    data = {
        "monotonic": 5,
        "pid": 7,
        "phase": "kv",
        "busy_s": [1, 2],
        "prefill_s": [0, 1],
        "engine_bytes": 3,
        "cache_bytes": 4,
        "hog_bytes": 5,
    }
    assert parse_state(data) == ServerState(5.0, 7, "kv", (1.0, 2.0), (0.0, 1.0), 3, 4, 5)
    with pytest.raises(KeyError):
        parse_state({})


def test_two_engines_of_one_machine_share_its_memory_and_its_device() -> None:
    vllm, llama = profiles.load("gb10-32b"), profiles.load("gb10-llamacpp")
    made = Plant(llama)
    for tenth in range(21):
        first = state(tenth / 10, 0.3 * tenth / 10, engine_bytes=llama.engine_bytes, process="llama-server")
        second = state(tenth / 10, 0.4 * tenth / 10, engine_bytes=vllm.engine_bytes, pid=4712)
        made.update(first, second, seconds=0.1)
    (device,) = made.devices()
    assert device.util == 70
    assert {(process.name, process.memory_bytes) for process in device.processes} == {
        ("llama-server", llama.engine_bytes),
        ("VLLM::EngineCore", vllm.engine_bytes),
    }
    alone = plant("gb10-llamacpp").memory(NOW).available
    both = made.memory(NOW).available
    assert alone is not None
    assert both is not None
    assert both == alone - vllm.engine_bytes
    assert both > 0
