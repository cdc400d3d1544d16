"""Frozen snapshots of machines and servers as the poller hands them to the screen, and a crank that pushes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from llmtop.contract.snapshot import (
    Device,
    DeviceMemory,
    DeviceProcess,
    EngineRow,
    Finding,
    Holder,
    Host,
    Latency,
    LatencySet,
    Node,
    Pool,
    Quantile,
    Rail,
    Rates,
    ServerNode,
    ServerView,
    Snapshot,
    SourceStatus,
    State,
)
from llmtop.machine.sample import MachineSample

GIB = 2**30
NOON = 1_800_000_000.0
URL = "http://127.0.0.1:8000"
HOSTILE = 'evil"\\\x1b[31mred\x1b[0m\n[bold red]markup[/] 模型 \u2028\u202e\x07\x9b5m'

LATENCY = LatencySet(
    60.0,
    ttft=Latency(212, 0.41, Quantile(0.38), Quantile(1.9), Quantile(3.9)),
    itl=Latency(18_400, 0.0842, Quantile(0.0801), Quantile(0.1204), Quantile(0.1502, weak=True)),
    tpot=Latency(205, 0.0839, Quantile(0.0797), Quantile(0.1197), Quantile(0.1489)),
    e2e=Latency(205, 10.9, Quantile(10.7), Quantile(11.8), Quantile(12.1)),
    queue=Latency(212, 0.12, Quantile(0.3, "<"), Quantile(0.9), Quantile(2.0, ">")),
)

BUSY_SERVER = ServerView(
    URL,
    State.SERVING,
    engine="vllm",
    version="0.32.0",
    model="gpt-oss-120b",
    max_model_len=32_768,
    max_num_seqs=32,
    age_s=0.2,
    running=8,
    waiting=3,
    waiting_by_reason={"capacity": 3},
    kv_usage=0.612,
    kv_engine="0",
    kv_capacity_tokens=849_942,
    kv_used_tokens=520_164,
    room_requests=10,
    preemptions_total=7,
    admission_rejections_total=2,
    engines=(EngineRow("0", "gpt-oss-120b", 8, 3, 0.612, 849_942, State.SERVING, 94.3, 7),),
    rates=Rates(10.0, 94.3, 1620.0, 910.0, 710.0, 0.9, 0.0),
    prefix_hit_rate=0.43,
    joules_per_token=0.49,
    joules_scope="gpu",
    latency=LATENCY,
    limited_by="SEQ_CAP",
    limited_by_share=0.8,
    limited_by_evidence="24 of 30 pages",
    kv_growth_tok_s=1200.0,
    kv_full_in_s=275.0,
    up_s=11_520.0,
    scrape_s=0.004,
    interval_s=1.0,
    local=True,
)

GB10 = Device(
    0,
    "GPU-gb10",
    "NVIDIA GB10",
    util=96.0,
    power_w=46.2,
    temperature_c=71.0,
    sm_clock_mhz=2405.0,
    unified=True,
    processes=(DeviceProcess(4242, "VLLM::EngineCore", 83 * GIB),),
    energy_j=5e5,
    energy_scope="gpu",
    throttle_known=True,
)

UNIFIED_POOL = Pool(
    "GB10 unified",
    "unified",
    total_bytes=int(119.6 * GIB),
    used_bytes=int(96.3 * GIB),
    headroom_bytes=int(23.3 * GIB),
    cuda_free_bytes=int(9.1 * GIB),
    reclaimable_bytes=int(14.2 * GIB),
    low_water_bytes=int(11.8 * GIB),
    low_water_time=NOON - 600,
    basis="MemAvailable",
    state="ok",
    holders=(Holder("gpt-oss-120b", URL, None, (4242,), 83 * GIB),),
    other_bytes=int(96.3 * GIB) - 83 * GIB,
)

HOST = Host("spark-a", 12.0, int(119.6 * GIB), int(23.3 * GIB), 2 * GIB, 0.0, 0.4)


def busy() -> Snapshot:
    """A GB10 with one busy vLLM."""
    return Snapshot(NOON, (BUSY_SERVER,), (GB10,), HOST, (UNIFIED_POOL,), limited_by="SEQ_CAP")


def four_nodes() -> Snapshot:
    """A model on two GB10, another one on a third, and a fourth that fell silent; read by ssh."""
    pair = (ServerNode("spark-a", 0), ServerNode("spark-b", 1, headless=True))
    big = replace(
        BUSY_SERVER,
        url="http://spark-a:8000",
        local=False,
        node="spark-a",
        via="ssh",
        nodes_total=2,
        nodes=pair,
        headroom_bytes=3 * GIB,
        headroom_node="spark-b",
    )
    small = replace(BUSY_SERVER, url="http://spark-c:8000", local=False, node="spark-c", via="ssh", model="qwen3-32b")
    names = ("spark-a", "spark-b", "spark-c", "spark-d")
    left = dict(zip(names, (12, 3, 61, 40), strict=True))
    state: dict[str, Literal["ok", "low", "critical"] | None] = {"spark-b": "low", "spark-d": None}
    pools = tuple(
        replace(
            UNIFIED_POOL,
            node=name,
            headroom_bytes=free * GIB,
            used_bytes=(UNIFIED_POOL.total_bytes or 0) - free * GIB,
            low_water_bytes=(free - 1) * GIB,
            state=state.get(name, "ok"),
            holders=(),
            other_bytes=None,
        )
        for name, free in left.items()
    )
    slow = {"sm_clock_mhz": 513.0, "sm_clock_max_mhz": 3003.0, "power_w": 14.0}
    devices = tuple(
        replace(GB10, uuid=f"GPU-{name}", node=name, **(slow if name == "spark-c" else {}))  # type: ignore[arg-type]
        for name in names
    )
    nodes = tuple(
        Node(
            name,
            local=False,
            state="stale" if name == "spark-d" else "ok",
            reason="the connection went silent" if name == "spark-d" else None,
            age_s=72.0 if name == "spark-d" else 0.4,
            host=replace(HOST, name=f"gx10-{name[-1]}", node=name),
        )
        for name in names
    )
    rails = (Rail("rocep1s0f0", node="spark-a", rx_bytes_s=1.2e9, tx_bytes_s=3.4e9), Rail("r", node="spark-b"))
    host = nodes[0].host or Host()
    return Snapshot(NOON, (big, small), devices, host, pools, nodes=nodes, fabric=rails)


def idle() -> Snapshot:
    """The same machine doing nothing: every figure is a true zero."""
    rates = Rates(10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    server = replace(
        BUSY_SERVER,
        state=State.IDLE,
        running=0,
        waiting=0,
        waiting_by_reason={},
        kv_usage=0.0,
        kv_used_tokens=0,
        room_requests=25,
        rates=rates,
        latency=LatencySet(60.0, *(Latency(0),) * 5),
        limited_by=None,
        limited_by_evidence=None,
        kv_growth_tok_s=0.0,
        kv_full_in_s=None,
        joules_per_token=None,
        joules_scope=None,
    )
    return replace(busy(), servers=(server,), limited_by=None)


def data_parallel() -> Snapshot:
    """Four data-parallel engines behind one page; rank 2 is the fullest."""
    usage = (0.31, 0.42, 0.87, 0.12)
    engines = tuple(
        EngineRow(str(rank), "gpt-oss-120b", 4 + rank, rank, kv, 400_000, State.SERVING, 50.0 + rank, rank)
        for rank, kv in enumerate(usage)
    )
    server = replace(
        BUSY_SERVER,
        running=22,
        waiting=6,
        kv_usage=0.87,
        kv_engine="2",
        kv_capacity_tokens=400_000,
        kv_used_tokens=348_000,
        room_requests=1,
        engines=engines,
        rates=replace(BUSY_SERVER.rates, generation_tok_s=206.0),
    )
    return replace(busy(), servers=(server,))


def down() -> Snapshot:
    """The server refuses connections; the machine is well."""
    return replace(busy(), servers=(ServerView(URL, State.DOWN, "connection refused"),), limited_by=None)


def stale() -> Snapshot:
    """The last good page is 14 s old."""
    server = replace(BUSY_SERVER, state=State.STALE, reason="no answer for 14 s", age_s=14.0)
    return replace(busy(), servers=(server,))


def gh200() -> Snapshot:
    """HBM and Grace memory as two pools."""
    device = Device(
        0,
        "GPU-gh200",
        "NVIDIA GH200 480GB",
        util=88.0,
        power_w=612.0,
        power_limit_w=700.0,
        temperature_c=64.0,
        sm_clock_mhz=1980.0,
        memory=DeviceMemory(96 * GIB, 88 * GIB, GIB, 7 * GIB),
        processes=(DeviceProcess(900, "python3", 87 * GIB),),
        energy_scope="module",
    )
    hbm = Pool(
        "GPU 0 HBM",
        "hbm",
        "GPU-gh200",
        96 * GIB,
        88 * GIB,
        7 * GIB,
        low_water_bytes=6 * GIB,
        low_water_time=NOON - 60,
        basis="NVML total - reserved - used",
        state="low",
        reserved_bytes=GIB,
    )
    grace = Pool("Grace LPDDR", "lpddr", None, 480 * GIB, 60 * GIB, 420 * GIB, low_water_bytes=400 * GIB, state="ok")
    server = replace(BUSY_SERVER, joules_scope="module")
    finding = Finding("memory:GPU 0 HBM", "warning", "GPU 0 HBM: headroom 7.0 GiB", "below 5 %", "lower the share")
    return Snapshot(NOON, (server,), (device,), HOST, (hbm, grace), (finding,))


def h200x8() -> Snapshot:
    """Eight H200; number 5 is throttled, number 7 is lost."""

    def device(index: int) -> Device:
        memory = DeviceMemory(141 * GIB, (100 + index) * GIB, GIB, (40 - index) * GIB)
        common = Device(
            index, f"GPU-{index}", "NVIDIA H200", util=90.0 + index, power_w=640.0 + index, temperature_c=60.0 + index
        )
        if index == 7:
            return replace(common, state="LOST", reason="fell off the bus", util=None, power_w=None, temperature_c=None)
        slowed = ("power cap", "thermal") if index == 5 else ()
        return replace(
            common, power_limit_w=700.0, sm_clock_mhz=1980.0, memory=memory, throttle=slowed, processes=(_rank(index),)
        )

    def pool(index: int) -> Pool:
        return Pool(
            f"GPU {index} memory",
            "hbm",
            f"GPU-{index}",
            141 * GIB,
            (100 + index) * GIB,
            (40 - index) * GIB,
            reserved_bytes=GIB,
            state="ok",
        )

    devices = tuple(device(index) for index in range(8))
    ram = Pool("RAM", "ram", None, 2048 * GIB, 200 * GIB, 1848 * GIB, state="ok")
    return Snapshot(NOON, (BUSY_SERVER,), devices, HOST, (*(pool(index) for index in range(7)), ram))


def _rank(index: int) -> DeviceProcess:
    return DeviceProcess(1000 + index, f"VLLM::Worker_TP{index}", (99 + index) * GIB)


def no_gpu() -> Snapshot:
    """A server elsewhere, watched from a laptop without a GPU library."""
    status = (SourceStatus("gpu", False, "no NVIDIA library (libnvidia-ml.so.1)"),)
    ram = Pool("RAM", "ram", None, 32 * GIB, 12 * GIB, 20 * GIB, state="ok")
    server = replace(BUSY_SERVER, local=False, joules_per_token=None, joules_scope=None)
    return Snapshot(NOON, (server,), (), HOST, (ram,), sources=status)


def unknown() -> Snapshot:
    """Everything is there and nothing says a number."""
    device = Device(0, "GPU-x", "NVIDIA Thing")
    pool = Pool("GPU 0 memory", "hbm", "GPU-x")
    return Snapshot(NOON, (ServerView(URL, State.SERVING, model="mystery"),), (device,), Host(), (pool,))


def hostile() -> Snapshot:
    """Control characters, escape sequences, markup, line breaks and wide characters in every text."""
    engine = EngineRow(HOSTILE, HOSTILE, 1, 0, 0.5, 1000, State.SERVING, 1.0, 0)
    server = replace(
        BUSY_SERVER,
        model=HOSTILE,
        version=HOSTILE,
        reason=HOSTILE,
        engines=(engine, replace(engine, engine="1")),
        kv_engine=HOSTILE,
        lora=(HOSTILE,),
        waiting_by_reason={HOSTILE: 2},
        limited_by_evidence=HOSTILE,
    )
    device = replace(GB10, name=HOSTILE, throttle=(HOSTILE,), processes=(DeviceProcess(1, HOSTILE, GIB),))
    finding = Finding("x", "critical", HOSTILE, HOSTILE, HOSTILE)
    pool = replace(UNIFIED_POOL, name=HOSTILE)
    return Snapshot(NOON, (server,), (device,), replace(HOST, name=HOSTILE), (pool,), (finding,))


def three_servers() -> Snapshot:
    """Three servers in different states."""
    urls = ("http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000")
    first = replace(BUSY_SERVER, url=urls[0], name="alpha", kv_usage=0.612)
    second = replace(BUSY_SERVER, url=urls[1], name="beta", model="llama", kv_usage=0.93, running=31, waiting=0)
    third = ServerView(urls[2], State.DOWN, "connection refused", name="gamma")
    return replace(busy(), servers=(first, second, third))


ALL: dict[str, Callable[[], Snapshot]] = {
    "busy": busy,
    "idle": idle,
    "data_parallel": data_parallel,
    "down": down,
    "stale": stale,
    "gh200": gh200,
    "h200x8": h200x8,
    "no_gpu": no_gpu,
    "unknown": unknown,
    "hostile": hostile,
    "three_servers": three_servers,
    "nothing": lambda: Snapshot(NOON),
}


class SilentMachine:
    """A machine whose driver hangs while it is opened: the poller never gets to its first tick.

    Only the snapshots that a test pushes reach the screen.
    """

    def __init__(self) -> None:
        self._gone = threading.Event()

    def start(self) -> None:
        """Hang until the session ends."""
        self._gone.wait()

    def sample(self) -> MachineSample:
        """Nothing was ever read."""
        return MachineSample(NOON)

    def ready(self) -> bool:
        """Never."""
        return False

    def stop(self) -> None:
        """The driver call returns."""
        self._gone.set()
