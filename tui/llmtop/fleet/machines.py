"""Memory and GPUs of the machines that replicas run on, as dcgm-exporter and node_exporter tell them to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmtop.contract.snapshot import Device, DeviceMemory, Host
from llmtop.contract.units import clean
from llmtop.fleet.api import ScrapedSeries, one_of
from llmtop.fleet.replica import Replica
from llmtop.machine.nvml_fields import may_share
from llmtop.machine.sample import MachineSample, MemInfo
from llmtop.nodes.reading import NodeReading

MIB = 2**20
_GPU = "DCGM_FI_DEV_"
_GPU_FIGURES = ("FB_TOTAL", "FB_USED", "FB_FREE", "FB_RESERVED", "GPU_UTIL", "POWER_USAGE", "GPU_TEMP", "SM_CLOCK")
_MEMORY = "node_memory_"
_MEMORY_FIGURES = ("MemTotal_bytes", "MemFree_bytes", "MemAvailable_bytes", "SwapTotal_bytes", "SwapFree_bytes")
_NAMES = (*(_GPU + name for name in _GPU_FIGURES), *(_MEMORY + name for name in _MEMORY_FIGURES))
_HOSTS = ("Hostname", "node", "nodename", "kubernetes_node", "hostname")
_PODS = ("pod", "exported_pod")
Figures = dict[str, float]


def machines_query(replicas: Iterable[Replica]) -> str:
    """The query for what exporters tell of the machines of these replicas."""
    hosts, pods = set[str](), set[str]()
    for replica in replicas:
        hosts |= {replica.host, replica.node}
        pods |= {replica.pod} if replica.pod else set()
    names = f"__name__=~{one_of(_NAMES)}"
    places = one_of(hosts)
    parts = [f'{names},instance=~"({places[1:-1]})(:[0-9]+)?"', *(f"{names},{host}=~{places}" for host in _HOSTS[:2])]
    parts += [f"{names},{pod}=~{one_of(pods)}" for pod in _PODS if pods]
    return " or ".join(f"{{{part}}}" for part in parts)


def machines(series: Sequence[ScrapedSeries], replicas: Iterable[Replica], now: float) -> tuple[NodeReading, ...]:
    """The machines of which something is told; a replica learns the name of its machine from the GPUs of its pod."""
    by_host: dict[str, list[ScrapedSeries]] = {}
    by_pod: dict[str, list[ScrapedSeries]] = {}
    for one in series:
        labels = dict(one.labels)
        for host in {*_hosts(labels)}:
            by_host.setdefault(host, []).append(one)
        for pod in {labels[name] for name in _PODS if name in labels}:
            by_pod.setdefault(pod, []).append(one)
    found: dict[str, NodeReading] = {}
    for replica in replicas:
        here = [*by_host.get(replica.host, ()), *by_host.get(replica.node, ())]
        if not here and replica.pod in by_pod:
            replica.node = next(iter(_hosts(dict(by_pod[replica.pod][0].labels))), replica.node)
            here = by_host.get(replica.node, [])
        if here and replica.node not in found:
            found[replica.node] = NodeReading(replica.node, "ok", sample=_sample(replica.node, here, now))
    return tuple(found.values())


def _hosts(labels: dict[str, str]) -> list[str]:
    """What the machine of a series may be called, the best first."""
    names = [labels[name] for name in _HOSTS if labels.get(name)]
    instance = labels.get("instance", "")
    return [*names, *([instance.rpartition(":")[0] or instance] if instance else [])]


def _sample(name: str, series: Iterable[ScrapedSeries], now: float) -> MachineSample:
    memory: Figures = {}
    gpus: dict[tuple[str, str], tuple[dict[str, str], Figures]] = {}
    for one in series:
        labels, value = dict(one.labels), one.points[-1][1]
        if one.name.startswith(_MEMORY):
            memory[one.name.removeprefix(_MEMORY).removesuffix("_bytes")] = value
        else:
            key = (labels.get("gpu", ""), labels.get("GPU_I_ID", ""))
            gpus.setdefault(key, (labels, {}))[1][one.name.removeprefix(_GPU)] = value
    devices = tuple(_device(labels, figures) for _, (labels, figures) in sorted(gpus.items()))
    total, free, available = (_bytes(memory.get(name)) for name in ("MemTotal", "MemFree", "MemAvailable"))
    swap = (_bytes(memory.get("SwapTotal")), _bytes(memory.get("SwapFree")))
    used = swap[0] - swap[1] if swap[0] is not None and swap[1] is not None else None
    host = Host(name, mem_total_bytes=total, mem_available_bytes=available, swap_used_bytes=used)
    mem = MemInfo(total, free, available, swap_total=swap[0], swap_free=swap[1])
    return MachineSample(now, host, mem, devices)


def _device(labels: dict[str, str], figures: Figures) -> Device:
    name = clean(labels.get("modelName", "")) or None
    index = labels.get("gpu", "")
    memory = _device_memory(figures)
    return Device(
        int(index) if index.isdecimal() and len(index) < 5 else 0,
        clean(labels.get("UUID", "")) or None,
        name,
        util=figures.get("GPU_UTIL"),
        power_w=figures.get("POWER_USAGE"),
        temperature_c=figures.get("GPU_TEMP"),
        sm_clock_mhz=figures.get("SM_CLOCK"),
        memory=memory,
        unified=memory is None and may_share(name, False, "auto"),
        mig=clean(labels.get("GPU_I_ID", "")) or None,
    )


def _device_memory(figures: Figures) -> DeviceMemory | None:
    """Of bytes in MiB; what is reserved is what total, used and free leave, where the exporter does not tell."""
    used, free = _bytes(figures.get("FB_USED"), MIB), _bytes(figures.get("FB_FREE"), MIB)
    if used is None or free is None or used + free == 0:
        return None
    reserved, total = _bytes(figures.get("FB_RESERVED"), MIB), _bytes(figures.get("FB_TOTAL"), MIB)
    if total is None:
        total = used + free + (reserved or 0)
    return DeviceMemory(total, used, max(0, total - used - free), free)


def _bytes(value: float | None, unit: int = 1) -> int | None:
    return int(value * unit) if value is not None and 0 <= value < 2**63 / unit else None
