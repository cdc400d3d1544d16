"""GPUs through the real pynvml and a fake libnvidia-ml.so.1, in a child process per scenario."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import build, environment, swap
from llmtop.machine.live import LONGEST_S, SLOW_ROUNDS, SamplingPace
from llmtop.machine.nvml_fields import is_unified, merge_processes, throttle_names

FIXTURES = Path(__file__).parents[1] / "fixtures"
MIB = 2**20
GIB = 2**30
HOST_TOTAL = 127600748 * 1024

# One round of readings, printed as JSON.
ROUND = """
import dataclasses, json, sys
from pathlib import Path
from llmtop.machine.host import HostReader
from llmtop.machine.nvml import NvmlReader
reader = NvmlReader(HostReader(Path(sys.argv[1]), Path(sys.argv[1])), sys.argv[2])
for _ in reader.round(True):
    pass
devices = [dataclasses.asdict(device) for device, _ in reader.devices(int(sys.argv[3]))]
print(json.dumps({"reason": reader.reason, "devices": devices}))
"""

# A live machine that prints a sample with its pools at every line on stdin, and ends with it.
LIVE = """
import dataclasses, json, sys, time
from pathlib import Path
from llmtop.machine.headroom import pools
from llmtop.machine import nvml
from llmtop.machine.live import LiveMachine
nvml.RETRY_S = nvml.ENUMERATE_S = 0.2
machine = LiveMachine(Path(sys.argv[1]), Path(sys.argv[2]), "auto", float(sys.argv[3]))
machine.start()
for _ in sys.stdin:
    began = time.monotonic()
    sample = machine.sample()
    took = time.monotonic() - began
    told = {**dataclasses.asdict(sample), "took": took, "ready": machine.ready()}
    told["pools"] = [dataclasses.asdict(pool) for pool in pools(sample)]
    print(json.dumps(told), flush=True)
machine.stop()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def read(
    library: Path, scenario: Path, mode: str = "auto", proc: Path = Path("/nothing"), log: Path | None = None
) -> dict[str, Any]:
    command = [sys.executable, "-c", ROUND, str(proc), mode, str(HOST_TOTAL)]
    child = subprocess.run(
        command, env=environment(library, scenario, log), capture_output=True, text=True, timeout=60, check=True
    )
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


def fixture(name: str) -> Path:
    return FIXTURES / "nvml" / f"{name}.txt"


def scenario(folder: Path, base: str, *lines: str) -> Path:
    path = folder / "scenario.txt"
    path.write_text(fixture(base).read_text() + "\n" + "\n".join(lines) + "\n")
    return path


def only(answer: dict[str, Any]) -> dict[str, Any]:
    (device,) = answer["devices"]
    assert isinstance(device, dict)
    return device


# -- one reading -------------------------------------------------------------------------------------------------


def test_h100(library: Path) -> None:
    answer = read(library, fixture("h100"))
    assert answer["reason"] is None
    device = only(answer)
    assert device["uuid"] == "GPU-11111111-0000-0000-0000-000000000001"
    assert device["name"] == "NVIDIA H100 80GB HBM3"
    assert (device["state"], device["unified"], device["throttle"]) == ("OK", False, [])
    assert (device["util"], device["power_w"], device["power_limit_w"]) == (97, 612, 700)
    assert (device["temperature_c"], device["sm_clock_mhz"]) == (58, 1830)
    assert device["memory"] == {
        "total": 81559 * MIB,
        "used": 73214 * MIB,
        "reserved": 551 * MIB,
        "free": (81559 - 73214 - 551) * MIB,
    }
    assert device["processes"] == [{"pid": 1001, "name": None, "memory_bytes": 72600 * MIB}]
    assert device["energy_j"] > 0
    assert (device["energy_scope"], device["numa_node"]) == ("gpu", None)


def test_gh200_energy_is_the_modules(library: Path) -> None:
    device = only(read(library, fixture("gh200")))
    assert (device["energy_scope"], device["power_limit_w"], device["power_w"]) == ("module", 900, 331)
    assert (device["numa_node"], device["unified"]) == (1, False)
    assert (device["sm_clock_max_mhz"], device["slowdown_c"]) == (1980, 87)
    assert device["memory"]["free"] == 6392119296


@pytest.mark.parametrize("name", ["gb10", "gb10-zero"])
def test_gb10_has_no_memory_of_its_own(library: Path, name: str) -> None:
    device = only(read(library, fixture(name)))
    assert (device["memory"], device["unified"], device["state"]) == (None, True, "OK")
    assert (device["power_limit_w"], device["power_w"], device["energy_scope"]) == (None, 46.11, "gpu")
    assert (device["sm_clock_max_mhz"], device["slowdown_c"]) == (3003, None)
    assert [p["memory_bytes"] for p in device["processes"]] == [87113 * MIB, 43 * MIB, 18 * MIB]


def test_gb10_that_reports_the_hosts_memory_is_unified(library: Path, tmp_path: Path) -> None:
    path = scenario(tmp_path, "gb10", "gpu0.mem.total = 121G", "gpu0.mem.used = 100G")
    assert only(read(library, path))["unified"] is True


def test_thor_answers_little_and_that_is_no_error(library: Path) -> None:
    device = only(read(library, fixture("thor")))
    assert (device["unified"], device["state"], device["reason"]) == (True, "OK", None)
    unknown = ("power_w", "temperature_c", "sm_clock_mhz", "energy_j", "energy_scope")
    assert {device[name] for name in unknown} == {None}
    assert device["util"] == 96


def test_a_part_with_a_carve_out_is_unified_only_by_override(library: Path, tmp_path: Path) -> None:
    path = scenario(tmp_path, "gb10", "gpu0.name = NVIDIA N1X", "gpu0.mem.total = 8128M", "gpu0.mem.used = 199M")
    assert only(read(library, path))["unified"] is False
    assert only(read(library, path, "unified"))["unified"] is True
    assert only(read(library, fixture("gb10"), "discrete"))["unified"] is False


def test_h200x8_names_what_holds_the_clocks(library: Path) -> None:
    devices = read(library, fixture("h200x8"))["devices"]
    assert [device["index"] for device in devices] == list(range(8))
    assert [device["throttle"] for device in devices[4:]] == [[], ["sw power cap"], ["hw thermal"], []]
    assert all(device["throttle_known"] for device in devices)
    assert [device["processes"][0]["pid"] for device in devices] == list(range(3000, 3008))
    assert {device["memory"]["total"] for device in devices} == {143771 * MIB}


def test_a_field_full_of_ones_is_not_a_reading(library: Path, tmp_path: Path) -> None:
    lines = ("gpu0.util = 250", "gpu0.temp = 4294967295", "gpu0.power = 4294967295")
    device = only(read(library, scenario(tmp_path, "h100", *lines)))
    assert (device["state"], device["util"], device["temperature_c"], device["power_w"]) == ("OK", None, None, None)
    assert device["sm_clock_mhz"] == 1830


def test_no_word_on_throttling_is_not_no_throttling(library: Path, tmp_path: Path) -> None:
    device = only(read(library, scenario(tmp_path, "h100", "gpu0.throttle = NOT_SUPPORTED")))
    assert (device["state"], device["throttle"], device["throttle_known"]) == ("OK", [], False)


def test_mig_instances_are_rows_beside_their_parent(library: Path) -> None:
    parent, large, small = read(library, fixture("mig"))["devices"]
    assert (parent["mig"], parent["util"], parent["power_w"], parent["processes"]) == (None, None, 612, [])
    assert [(d["index"], d["mig"], d["uuid"][-1]) for d in (large, small)] == [(0, "1/0", "1"), (0, "9/0", "2")]
    assert [d["memory"]["used"] for d in (large, small)] == [33200 * MIB, 8250 * MIB]
    assert [d["processes"][0]["pid"] for d in (large, small)] == [4001, 4002]
    assert (large["power_w"], large["energy_j"], large["unified"]) == (None, None, False)


def test_a_lost_gpu_is_a_row_and_the_other_one_lives(library: Path) -> None:
    alive, lost = read(library, fixture("lost"))["devices"]
    assert (alive["state"], alive["util"]) == ("OK", 97)
    assert (lost["index"], lost["state"], lost["memory"], lost["util"]) == (1, "LOST", None, None)
    assert lost["reason"].startswith("GPU is lost since ")


def test_a_gpu_whose_handle_is_lost_is_a_row_too(library: Path, tmp_path: Path) -> None:
    path = scenario(tmp_path, "lost", "gpu1.lost = 0", "gpu1.handle = GPU_IS_LOST")
    alive, lost = read(library, path)["devices"]
    assert (alive["state"], lost["state"], lost["index"], lost["unified"]) == ("OK", "LOST", 1, False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mismatch", "driver/library version mismatch: reboot or reload the driver"),
        ("no-driver", "driver not loaded"),
        ("no-permission", "no permission"),
    ],
)
def test_a_library_that_does_not_start_is_a_reason(library: Path, name: str, words: str) -> None:
    answer = read(library, fixture(name))
    assert answer["devices"] == []
    assert words in answer["reason"]


def test_a_container_that_lost_its_devices(library: Path, tmp_path: Path) -> None:
    (tmp_path / "unknown.txt").write_text("init = UNKNOWN\n")
    assert "restart the container" in read(library, tmp_path / "unknown.txt")["reason"]


def test_no_library_at_all(tmp_path: Path) -> None:
    answer = read(tmp_path / "libnvidia-ml.so.1", tmp_path / "none.txt")
    assert answer == {"reason": "no NVIDIA driver library (libnvidia-ml.so.1)", "devices": []}


def test_process_memory_that_is_not_available_is_unknown(library: Path) -> None:
    device = only(read(library, fixture("procs-na")))
    assert [(p["pid"], p["memory_bytes"]) for p in device["processes"]] == [(79, None), (1234, None)]
    assert device["memory"]["free"] == (16376 - 14360) * MIB


def test_processes_are_named_where_their_pid_is_visible(library: Path, tmp_path: Path) -> None:
    (tmp_path / "1001").mkdir()
    (tmp_path / "1001/comm").write_text("VLLM::EngineCor\n")
    (tmp_path / "1001/cmdline").write_text("VLLM::EngineCore\0")
    device = only(read(library, fixture("h100"), proc=tmp_path))
    assert device["processes"][0]["name"] == "VLLM::EngineCore"


def test_shifted_process_records_are_dropped_without_a_crash(library: Path, tmp_path: Path) -> None:
    procs = "gpu0.procs = 7/C/4G/1/2 8/C/5G/3/4 9/C/6G/5/6 10/C/1G/7/8"
    device = only(read(library, scenario(tmp_path, "h100", procs, "gpu0.proc_stride = 32")))
    assert all(0 < p["pid"] <= 4194304 for p in device["processes"])
    assert all((p["memory_bytes"] or 0) <= 81559 * MIB for p in device["processes"])


def test_a_process_above_a_containers_meminfo_stays_and_headroom_is_unknown(library: Path, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    meminfo = "MemTotal: 67108864 kB\nMemFree: 60817408 kB\nMemAvailable: 62914560 kB\n"
    (tmp_path / "proc/meminfo").write_text(meminfo)
    with Live(library, fixture("gb10"), tmp_path) as live:
        seen = live.until(lambda s: s["devices"] and s["devices"][0]["processes"])
        assert seen["devices"][0]["processes"][0] == {"pid": 2001, "name": None, "memory_bytes": 87113 * MIB}
        pool = live.until(lambda s: s["pools"][0]["total_bytes"] is None)["pools"][0]
    assert (pool["kind"], pool["headroom_bytes"], pool["cuda_free_bytes"]) == ("unified", None, None)
    assert pool["reason"] == "GPU processes hold 85.1 GiB, more than the 64.0 GiB of /proc/meminfo"


def test_a_process_above_a_carve_out_stays(library: Path, tmp_path: Path) -> None:
    path = scenario(tmp_path, "thor", "gpu0.mem.total = 8G", "gpu0.mem.used = 1G", "gpu0.mem.reserved = 0")
    assert only(read(library, path))["processes"][0]["memory_bytes"] == 87113 * MIB


def test_one_process_in_two_lists_is_one_row(library: Path, tmp_path: Path) -> None:
    path = scenario(tmp_path, "h100", "gpu0.procs = 5/C/4G 5/G/4G 6/M/1G 7/G/NA 0/C/1G")
    rows = [(p["pid"], p["memory_bytes"]) for p in only(read(library, path))["processes"]]
    assert rows == [(5, 4 * GIB), (6, GIB), (7, None)]


def test_an_old_driver_is_read_with_older_functions(library: Path, tmp_path: Path) -> None:
    missing = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetAddressingMode",
    )
    lines = [f"error.{name} = FUNCTION_NOT_FOUND" for name in missing]
    device = only(read(library, scenario(tmp_path, "h100", *lines, "gpu0.throttle = 4")))
    used = (73214 + 551) * MIB  # the first version counts what the driver reserves as used
    assert device["memory"] == {"total": 81559 * MIB, "used": used, "reserved": 0, "free": 81559 * MIB - used}
    assert (device["state"], device["reason"], device["throttle"]) == ("OK", None, ["sw power cap"])
    assert (device["power_limit_w"], device["temperature_c"]) == (700, 58)
    assert [p["pid"] for p in device["processes"]] == [1001]


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "UNKNOWN", "NO_PERMISSION"])
def test_unknown_memory_of_a_discrete_card_is_never_the_hosts(library: Path, tmp_path: Path, error: str) -> None:
    device = only(read(library, scenario(tmp_path, "h100", f"gpu0.mem.total = {error}")))
    assert (device["memory"], device["unified"], device["util"]) == (None, False, 97)
    assert device["state"] == ("ERROR" if error == "UNKNOWN" else "OK")


def test_a_gb10_whose_memory_fails_otherwise_is_not_declared_unified(library: Path, tmp_path: Path) -> None:
    device = only(read(library, scenario(tmp_path, "gb10", "gpu0.mem.total = UNKNOWN")))
    assert (device["unified"], device["state"], device["reason"]) == (False, "ERROR", "memory: Unknown Error")


def test_static_facts_are_asked_once(library: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls.txt"
    with Live(library, fixture("h100"), FIXTURES / "host/x86-h100", log=log) as live:
        live.until(lambda s: log.exists() and log.read_text().count("GetUtilizationRates") >= 2)
    calls = log.read_text()
    assert calls.count("nvmlDeviceGetName") == 1
    assert calls.count("nvmlDeviceGetMemoryInfo_v2") > calls.count("nvmlDeviceGetUtilizationRates")


# -- pure parts --------------------------------------------------------------------------------------------------


def test_idle_and_application_clocks_are_no_throttling() -> None:
    assert throttle_names(0x1 | 0x2) == ()
    assert throttle_names(0x4 | 0x8 | 0x80) == ("sw power cap", "hw slowdown", "power brake")


def test_unified_needs_evidence_and_a_name() -> None:
    gb10, h100 = "NVIDIA GB10", "NVIDIA H100 80GB HBM3"
    assert is_unified(gb10, "none", None, None, False, "auto")
    assert is_unified("NVIDIA Something", "none", None, None, True, "auto")
    assert not is_unified(h100, "none", None, None, False, "auto")
    assert not is_unified("NVIDIA GH200 480GB", "none", None, None, True, "auto")
    assert not is_unified(gb10, "error", None, HOST_TOTAL, True, "auto")
    assert is_unified(gb10, "memory", HOST_TOTAL, HOST_TOTAL, True, "auto")
    assert not is_unified(gb10, "memory", HOST_TOTAL // 2, HOST_TOTAL, True, "auto")
    assert not is_unified(h100, "memory", HOST_TOTAL, HOST_TOTAL, True, "auto")
    assert not is_unified(gb10, "memory", HOST_TOTAL, None, True, "auto")
    assert is_unified(gb10, "memory", HOST_TOTAL, HOST_TOTAL // 2, True, "auto"), "the host's is a container's"
    assert not is_unified(h100, "memory", HOST_TOTAL, HOST_TOTAL // 2, True, "auto")


def test_impossible_processes_are_dropped() -> None:
    rows = merge_processes([[(0, 1), (99999999, 1), (5, 10 * GIB)], [(6, None), (6, 3)]], 4194304, GIB)
    assert rows == {6: 3}


def test_a_pace_stretches_under_load_and_comes_back() -> None:
    pace = SamplingPace(0.1)
    pace.note(0.04)
    assert (pace.period, pace.words("memory")) == (0.1, None)
    pace.note(0.2)
    pace.note(0.2)
    pace.note(0.001)
    assert pace.period == pytest.approx(0.1), "two slow rounds are a hiccup"
    for _ in range(2 * SLOW_ROUNDS):
        pace.note(0.2)
    assert pace.period == pytest.approx(0.4)
    assert pace.words("memory") == "memory read every 0.4 s instead of 0.1 s: a round takes 200 ms"
    for _ in range(5):
        pace.note(0.001)
    assert pace.period == pytest.approx(0.1)
    for _ in range(20 * SLOW_ROUNDS):
        pace.note(1e6)
    assert pace.period == LONGEST_S


# -- a live machine ----------------------------------------------------------------------------------------------


class Live:
    """A child process with a LiveMachine, asked for samples one at a time."""

    def __init__(self, library: Path, path: Path, host: Path, fast_hz: float = 20.0, log: Path | None = None) -> None:
        command = [sys.executable, "-c", LIVE, str(host / "proc"), str(host / "sys"), str(fast_hz)]
        self._child = subprocess.Popen(
            command,
            env=environment(library, path, log),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

    def sample(self) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("\n")
        answer: dict[str, Any] = json.loads(self._child.stdout.readline())
        return answer

    def samples(self, seconds: float = 20.0) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            yield self.sample()
            time.sleep(0.02)

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for sample in self.samples():
            if wanted(sample):
                return sample
        raise AssertionError(f"never came: last {sample}")

    def end(self) -> float:
        """Close stdin; seconds until the process has ended."""
        began = time.monotonic()
        assert self._child.stdin is not None
        self._child.stdin.close()
        assert self._child.wait(timeout=20) == 0
        return time.monotonic() - began


def ready(sample: dict[str, Any]) -> bool:
    return bool(sample["ready"])


def nvml_status(sample: dict[str, Any]) -> dict[str, Any]:
    (status,) = [status for status in sample["status"] if status["name"] == "nvml"]
    assert isinstance(status, dict)
    return status


@pytest.mark.parametrize("node", ["1", "NOT_SUPPORTED"])
@pytest.mark.parametrize("case", ["gh200-vllm", "gh200-cache-in-hbm"])
def test_two_pools_of_a_live_gh200(library: Path, tmp_path: Path, case: str, node: str) -> None:
    expected = json.loads((FIXTURES / "host" / case / "expect.json").read_text())
    used = f"gpu0.mem.used = {expected['with_device']['mem_used_mib']}M\ngpu0.numa_node = {node}"
    with Live(library, scenario(tmp_path, "gh200", used), FIXTURES / "host" / case) as live:
        found = live.until(ready)["pools"]
    for told, pool in zip(expected["pools"], found, strict=True):
        assert {name: pool[name] for name in told} == told


@pytest.mark.parametrize("case", ["gb10-idle", "gb10-pagecache", "gb10-thrash", "cgroup-128g"])
def test_the_unified_pool_of_a_live_gb10(library: Path, case: str) -> None:
    expected = json.loads((FIXTURES / "host" / case / "expect.json").read_text())
    with Live(library, fixture("gb10"), FIXTURES / "host" / case) as live:
        sample = live.until(ready)
    (pool,), (told,) = sample["pools"], expected["pools"]
    assert {name: pool[name] for name in told} == told
    assert sample["host"]["psi_full_avg10"] == expected.get("psi_full_avg10")
    assert pool["name"] == "GB10 unified"


CALM, LOW = ((FIXTURES / f"host/{case}/proc/meminfo").read_text() for case in ("gb10-idle", "gb10-thrash"))


def host_memory(folder: Path, text: str) -> Path:
    """A /proc tree below `folder` with this meminfo, whose path is returned."""
    path = folder / "proc/meminfo"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_a_peak_of_150_ms_in_device_memory_is_caught(library: Path, tmp_path: Path) -> None:
    path = scenario(tmp_path, "h100", "gpu0.mem.used = 0:10G 1.5:70G 1.65:10G")
    least: dict[str, int] = {}
    with Live(library, path, FIXTURES / "host/x86-h100", fast_hz=10) as live:
        for sample in live.samples():
            for key, dip in sample["dips"].items():
                least[key] = min(dip["headroom_bytes"], least.get(key, dip["headroom_bytes"]))
            if sample["devices"] and (sample["devices"][0]["energy_j"] or 0) > 612 * 2:  # 2 s at 612 W
                break
    assert least["GPU-11111111-0000-0000-0000-000000000001"] == (81559 - 551) * MIB - 70 * GIB


def test_a_peak_of_150_ms_in_host_memory_is_caught(library: Path, tmp_path: Path) -> None:
    meminfo = host_memory(tmp_path, CALM)
    with Live(library, fixture("gb10"), tmp_path, fast_hz=10) as live:
        live.until(lambda s: s["ready"] and "unified" in s["dips"])
        swap(meminfo, LOW)
        time.sleep(0.15)  # the peak itself
        swap(meminfo, CALM)
        sample = live.until(lambda s: "unified" in s["dips"])
    assert sample["dips"]["unified"]["headroom_bytes"] == 1153434 * 1024
    assert sample["pools"][0]["headroom_bytes"] in (1153434 * 1024, 121529958 * 1024)


def test_memory_that_comes_back_is_seen_at_once(library: Path, tmp_path: Path) -> None:
    meminfo = host_memory(tmp_path, LOW)
    with Live(library, fixture("gb10"), tmp_path, fast_hz=10) as live:
        live.until(lambda s: s["ready"] and s["pools"][0]["headroom_bytes"] == 1153434 * 1024)
        swap(meminfo, CALM)
        sample = live.until(lambda s: s["pools"][0]["headroom_bytes"] == 121529958 * 1024)
    assert sample["pools"][0]["cuda_free_bytes"] > 1153434 * 1024


def test_a_lost_gpu_comes_back(library: Path, tmp_path: Path) -> None:
    whole = fixture("lost").read_text().replace("gpu1.lost = 1", "")
    path = tmp_path / "scenario.txt"
    path.write_text(whole)
    with Live(library, path, FIXTURES / "host/x86-h100") as live:
        before = live.until(ready)["devices"][1]
        swap(path, whole + "gpu1.lost = 1\n")
        lost = live.until(lambda s: s["devices"][1]["state"] == "LOST")["devices"]
        assert (lost[1]["uuid"], lost[1]["name"]) == (before["uuid"], before["name"])
        assert (lost[1]["memory"], lost[1]["util"], lost[0]["state"]) == (None, None, "OK")
        swap(path, whole)
        back = live.until(lambda s: s["devices"][1]["util"] == 97)["devices"][1]
        assert (back["state"], back["reason"], back["memory"]) == ("OK", None, before["memory"])


def test_a_gpu_that_is_no_longer_listed_keeps_its_row(library: Path, tmp_path: Path) -> None:
    whole = fixture("h200x8").read_text()
    path = tmp_path / "scenario.txt"
    path.write_text(whole)
    with Live(library, path, FIXTURES / "host/x86-h100") as live:
        live.until(ready)
        swap(path, whole.replace("count = 8", "count = 7"))
        devices = live.until(lambda s: s["devices"][7]["state"] == "LOST")["devices"]
        assert devices[7]["uuid"] == "GPU-33333333-0000-0000-0000-000000000007"
        assert "no longer listed" in devices[7]["reason"]
        swap(path, whole)
        live.until(lambda s: s["devices"][7]["state"] == "OK" and s["devices"][7]["util"] == 97)


def test_a_mismatch_ends_when_the_driver_is_reloaded(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "scenario.txt"
    path.write_text(fixture("mismatch").read_text())
    with Live(library, path, FIXTURES / "host/x86-h100") as live:
        failed = live.until(ready)
        assert "mismatch" in nvml_status(failed)["reason"]
        assert nvml_status(failed)["ok"] is False
        assert [pool["kind"] for pool in failed["pools"]] == ["ram"]
        swap(path, fixture("h100").read_text())
        good = live.until(lambda s: bool(s["devices"]) and s["devices"][0]["util"] == 97)
        assert nvml_status(good) == {**nvml_status(good), "ok": True, "reason": None}
        swap(path, "error.nvmlDeviceGetMemoryInfo_v2 = DRIVER_NOT_LOADED\ninit = DRIVER_NOT_LOADED\n")
        gone = live.until(lambda s: not nvml_status(s)["ok"])
        assert (gone["devices"][0]["state"], gone["devices"][0]["memory"]) == ("ERROR", None)
        swap(path, fixture("h100").read_text())
        live.until(lambda s: s["devices"][0]["state"] == "OK" and s["devices"][0]["util"] == 97)


def test_instances_come_and_go(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "scenario.txt"
    path.write_text(fixture("h100").read_text())
    with Live(library, path, FIXTURES / "host/x86-h100") as live:
        live.until(ready)
        swap(path, fixture("mig").read_text())
        split = live.until(lambda s: len(s["devices"]) == 3 and all(d["memory"] for d in s["devices"]))
        assert [pool["name"] for pool in split["pools"]] == ["GPU 0 MIG 1/0", "GPU 0 MIG 9/0", "RAM"]
        swap(path, fixture("h100").read_text())
        live.until(lambda s: len(s["devices"]) == 1)


def test_a_slow_driver_is_asked_less_often_and_never_blocks(library: Path) -> None:
    with Live(library, fixture("slow200"), FIXTURES / "host/x86-h100") as live:
        longest, hosts = 0.0, 0
        for sample in live.samples(30.0):
            longest = max(longest, sample["took"])
            hosts += (sample["status"][0]["age_s"] or 0.0) < 0.5
            if "instead of" in (nvml_status(sample)["reason"] or "") and sample["ready"]:
                break
        assert nvml_status(sample)["ok"] is True
        assert sample["devices"][0]["memory"]["total"] == 81559 * MIB
        assert longest < 0.19  # one call takes 0.2 s
        assert hosts > 10
        assert live.end() < 5


def test_a_driver_that_hangs_is_reported_and_holds_up_nothing(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "scenario.txt"
    path.write_text(fixture("h100").read_text())
    with Live(library, path, FIXTURES / "host/x86-h100") as live:
        live.until(ready)
        swap(path, fixture("h100").read_text() + "delay_ms = 600000\n")
        sample = live.until(lambda s: not nvml_status(s)["ok"])
        assert nvml_status(sample)["reason"].startswith("no answer for ")
        assert sample["took"] < 1.0
        assert sample["status"][0]["age_s"] < 1.0
        assert sample["devices"][0]["memory"]["used"] == 73214 * MIB
        assert sample["devices"][0]["age_s"] > 1.0
        assert live.end() < 5


def test_a_driver_that_hangs_from_the_start_leaves_the_host_readable(library: Path, tmp_path: Path) -> None:
    path = scenario(tmp_path, "h100", "delay_ms.nvmlInitWithFlags = 600000")
    with Live(library, path, FIXTURES / "host/x86-h100") as live:
        sample = live.until(lambda s: not nvml_status(s)["ok"])
        assert sample["devices"] == []
        assert sample["host"]["mem_total_bytes"] == 528062874 * 1024
        assert live.end() < 5


def test_empty_trees_are_no_error(library: Path, tmp_path: Path) -> None:
    with Live(library, fixture("gb10"), tmp_path) as live:
        sample = live.until(ready)
    assert sample["host"]["mem_total_bytes"] is None
    (pool,) = sample["pools"]
    assert (pool["kind"], pool["total_bytes"], pool["headroom_bytes"]) == ("unified", None, None)
    assert all(status["ok"] for status in sample["status"])
