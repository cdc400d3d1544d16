"""The /proc of a node with model servers, and an nvidia-smi, as the reader over ssh finds them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

HOSTS = Path(__file__).parent.parent / "fixtures" / "host"
GB10 = "0, GPU-4e84, NVIDIA GB10, {util}, 13.46, [N/A], 55, 2405, 0x0000000000000000, [N/A], [N/A]"
H100 = "0, GPU-11aa, NVIDIA H100 80GB HBM3, 96, 412.5, 700.00, 61, 1980, 0x0000000000000004, 81559, 70000"
H100_MORE = ", 551"
_PROBE = """\
case "$*" in
*--query-compute-apps*) {apps} ;;
*memory.reserved*) {whole} ;;
*) {basic} ;;
esac
case "$*" in
*-lms*) exec sleep 1000 ;;
esac
"""


def nvidia_smi(row: str, more: str | None = ", [N/A]", app: str = "", clock: str = ", 3003") -> str:
    """An nvidia-smi with this row; without `more` it is too old to know all fields."""
    refusal = 'echo "Field \\"memory.reserved\\" is not a valid field to query."; exit 2'
    whole = refusal if more is None else f"echo '{row}{more}{clock}'"
    apps = f"echo '{app}'" if app else ":"
    steady = _PROBE.format(apps=apps, whole=whole, basic=f"echo '{row}{clock}'")
    return (
        steady.replace("exec sleep 1000", "while sleep 0.3; do echo '" + row + (more or "") + clock + "'; done")
        if not app
        else steady
    )


class NodeRoot:
    """A machine's tree under construction, from one of the fixtures."""

    def __init__(self, folder: Path, host: str = "gb10-idle", name: str = "gx10-b") -> None:
        self.root = folder
        shutil.copytree(HOSTS / host, folder)
        self._put("proc/sys/kernel/hostname", name + "\n")
        self._put("proc/uptime", "1000.00 900.00\n")
        self._put("proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\n")
        self._network("self", "")

    def _put(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode())

    def _network(self, process: str, table: str) -> None:
        self._put(f"proc/{process}/net/tcp", "  sl  local_address rem_address   st\n" + table)
        (self.root / f"proc/{process}/ns").mkdir(parents=True, exist_ok=True)
        (self.root / f"proc/{process}/ns/net").symlink_to("net:[1]")

    def serve(self, pid: int, port: int, words: str = "vllm serve m") -> None:
        """A process that listens on a loopback port."""
        line = f"{words} --port {port}"
        self._put(f"proc/{pid}/cmdline", line.replace(" ", "\0") + "\0")
        self._put(f"proc/{pid}/stat", f"{pid} (vllm (x)) S 1 0 0")
        self._network(str(pid), f"   0: 0100007F:{port:04X} 00000000:0000 0A 0:0 00:0 0 0 0 7{pid} 1\n")
        (self.root / f"proc/{pid}/fd").mkdir()
        (self.root / f"proc/{pid}/fd/3").symlink_to(f"socket:[7{pid}]")

    def worker(self, pid: int, parent: int, container: str = "") -> None:
        """A process that a server has started, or that runs in a container."""
        self._put(f"proc/{pid}/cmdline", "VLLM::Worker\0")
        self._put(f"proc/{pid}/stat", f"{pid} (VLLM::Worker) S {parent} 0 0")
        self._put(f"proc/{pid}/cgroup", f"0::/system.slice/docker-{container}.scope\n" if container else "0::/\n")
        self._network(str(pid), "")

    def board(self, watts: Mapping[str, float], prochot: int = 0) -> None:
        """The driver that tells the power of the whole machine."""
        folder = "sys/class/hwmon/hwmon3"
        self._put("sys/class/hwmon/hwmon0/name", "nvme\n")
        self._put(folder + "/name", "spbm\n")
        self._put(folder + "/prochot", f"{prochot}\n")
        for number, (label, value) in enumerate(watts.items(), 1):
            self._put(f"{folder}/power{number}_label", label + "\n")
            self._put(f"{folder}/power{number}_input", f"{value * 1e6:.0f}\n")

    def meminfo(self, **kib: int) -> None:
        """Change lines of /proc/meminfo."""
        place = self.root / "proc/meminfo"
        lines = [line.partition(":") for line in place.read_text().splitlines()]
        new = place.with_suffix(".new")
        new.write_text("".join(f"{k}: {kib[k]} kB\n" if k in kib else f"{k}:{v}\n" for k, _, v in lines))
        new.replace(place)
