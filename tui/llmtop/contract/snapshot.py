"""The frozen records of one instant: exactly the JSON contract, `None` meaning unknown.

Every field of a record is a key of the contract (see `llmtop schema`); names are added freely and never renamed.
Bytes are bytes, fractions are 0..1, times are Unix seconds, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

SCHEMA = 1


class State(StrEnum):
    """What a server is doing, by the rules of `engines.tracker`."""

    STARTING = "STARTING"
    SERVING = "SERVING"
    IDLE = "IDLE"
    STALLED = "STALLED"
    SLEEPING = "SLEEPING"
    STALE = "STALE"
    DOWN = "DOWN"
    NO_ENGINE_METRICS = "NO_ENGINE_METRICS"
    AUTH = "AUTH"

    @property
    def healthy(self) -> bool:
        """Whether a server in this state would make `llmtop --once` exit with 0."""
        return self in (State.SERVING, State.IDLE, State.SLEEPING)

    @property
    def live(self) -> bool:
        """Whether the values beside this state were read from the running engine just now."""
        return self in (State.SERVING, State.IDLE, State.SLEEPING, State.STALLED)


@dataclass(frozen=True, slots=True)
class Quantile:
    """One quantile in seconds; `bound` "<" and ">" say that only the bucket edge is known."""

    value_s: float
    bound: Literal["=", "<", ">"] = "="
    weak: bool = False  # too few observations for this quantile
    low_s: float | None = None  # the edges of the bucket it lies in; no `high_s` in the last one
    high_s: float | None = None

    @property
    def mark(self) -> str:
        """What stands before its value: too few observations, an edge that is all that is known, a wide bucket."""
        wide = self.low_s is not None and self.high_s is not None and self.high_s - self.low_s > 0.1 * self.value_s
        bound = self.bound if self.bound != "=" else "≈" if wide and not self.weak else ""
        return ("~" if self.weak else "") + bound


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram over the window: observations, exact mean, quantiles."""

    n: int | None = None
    mean_s: float | None = None
    p50: Quantile | None = None
    p95: Quantile | None = None
    p99: Quantile | None = None


@dataclass(frozen=True, slots=True)
class LatencySet:
    """The latency histograms of a server over `window_s` seconds."""

    window_s: float | None = None
    ttft: Latency = Latency()
    itl: Latency = Latency()
    tpot: Latency = Latency()
    e2e: Latency = Latency()
    queue: Latency = Latency()


@dataclass(frozen=True, slots=True)
class Rates:
    """Counter deltas over `window_s` seconds, per second."""

    window_s: float | None = None
    generation_tok_s: float | None = None
    prompt_tok_s: float | None = None
    prompt_computed_tok_s: float | None = None
    prompt_cached_tok_s: float | None = None
    requests_s: float | None = None
    preemptions_s: float | None = None
    errors_s: float | None = None  # requests that the engine ended with an error
    http_4xx_s: float | None = None
    http_5xx_s: float | None = None
    rejections_s: float | None = None  # requests that a limit of the queue turned away


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine of a server (a data-parallel rank, or one model of several on the same page)."""

    engine: str
    model: str | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    state: State = State.SERVING
    generation_tok_s: float | None = None
    preemptions_total: int | None = None
    max_num_seqs: int | None = None
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict)
    role: str | None = None  # "prefill" or "decode" where the two are done by different engines
    memory_bytes: int | None = None  # of its model, as the server says, and the part of it on the GPU
    gpu_memory_bytes: int | None = None
    unload_time: float | None = None  # when the server gives the model up


@dataclass(frozen=True, slots=True)
class ServerNode:
    """One machine's part in a server that runs on several, with the least headroom and the devices it has there."""

    node: str | None  # None where its machine is not read
    rank: int | None = None  # 0 opens the port; None where the command line does not say
    headless: bool = False  # opens no port
    pid: int | None = None
    headroom_bytes: int | None = None
    pool: str | None = None  # the pool that has it
    util: float | None = None  # the highest of its devices, 0..100
    power_w: float | None = None  # of all its devices
    rdma_rx_bytes_s: float | None = None  # over all rails of the machine
    rdma_tx_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class ServerView:
    """One watched server: what its page said, and what follows from its recent pages."""

    url: str
    state: State = State.DOWN
    reason: str | None = None
    engine: str | None = None
    version: str | None = None
    model: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    age_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict)
    kv_usage: float | None = None
    kv_engine: str | None = None
    kv_capacity_tokens: int | None = None
    kv_capacity_approx: bool = False
    kv_used_tokens: int | None = None
    room_requests: int | None = None
    preemptions_total: int | None = None
    admission_rejections_total: int | None = None
    engines: tuple[EngineRow, ...] = ()
    lora: tuple[str, ...] = ()
    restarts: int = 0
    rates: Rates = Rates()
    prefix_hit_rate: float | None = None
    prefix_hit_scope: Literal["local", "all"] | None = None  # "local" beside an external cache
    external_prefix_hit_rate: float | None = None
    spec_tokens_per_step: float | None = None
    spec_acceptance_rate: float | None = None  # accepted of the drafted tokens
    finished_by_reason: Mapping[str, float] = field(default_factory=dict)  # requests per second, over rates.window_s
    spec_accepted_length: float | None = None  # tokens a draft gave on average, the target's own included
    spec_accepted_by_position: tuple[float, ...] = ()  # of the drafts: how many had it accepted
    offload_usage: float | None = None  # of the cache outside the GPU, 0..1
    pool_usage: Mapping[str, float] = field(default_factory=dict)  # of a cache of several pools, 0..1 each
    kv_transfer_failures_total: int | None = None
    prefix_hit_rate_total: float | None = None  # local, since the server started
    spec_acceptance_rate_total: float | None = None  # since the server started
    servers_in_turn: int | None = None  # how many answer behind this one address; None for one
    joules_per_token: float | None = None
    joules_scope: Literal["gpu", "module"] | None = None
    latency: LatencySet = LatencySet()
    # beyond the first contract
    name: str | None = None
    limited_by: str | None = None
    limited_by_share: float | None = None
    limited_by_evidence: str | None = None
    kv_growth_tok_s: float | None = None
    kv_full_in_s: float | None = None
    up_s: float | None = None
    scrape_s: float | None = None
    interval_s: float | None = None
    interval_wanted_s: float | None = None
    local: bool = False
    gpu_memory_utilization: float | None = None
    node: str | None = None  # the machine it runs on; None when that is not known
    via: Literal["ssh"] | None = None  # its address is the node's, and ssh alone leads there
    health: str | None = None  # what is wrong with /health beside a good page
    tensor_parallel: int | None = None  # as its command line says
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    nodes_total: int | None = None  # on how many machines it says it runs; None for one
    nodes: tuple[ServerNode, ...] = ()  # those, as far as they are seen; empty for one
    headroom_bytes: int | None = None  # of the machine with the least, of a server on several
    headroom_node: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether it is up, and says so itself."""
        return self.state.healthy and self.health is None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Device memory in bytes; `free` = total - reserved - used."""

    total: int
    used: int
    reserved: int
    free: int


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process on a device; `pid` is the host's, `memory_bytes` None where the driver does not say."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or MIG instance; a field the driver does not support is None."""

    index: int
    uuid: str | None = None
    name: str | None = None
    state: Literal["OK", "LOST", "ERROR"] = "OK"
    reason: str | None = None
    util: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    memory: DeviceMemory | None = None
    unified: bool = False
    processes: tuple[DeviceProcess, ...] = ()
    # beyond the first contract
    mig: str | None = None  # "GI/CI" of a MIG instance
    throttle_known: bool = False  # the driver tells; only then does an empty `throttle` mean none
    age_s: float | None = None
    energy_j: float | None = None  # the driver's counter
    energy_time: float | None = None  # when it was read (Unix time)
    energy_scope: Literal["gpu", "module"] | None = None
    numa_node: int | None = None
    simulated: bool = False
    node: str | None = None
    sm_clock_max_mhz: float | None = None
    slowdown_c: float | None = None  # the temperature at which the driver slows it down


@dataclass(frozen=True, slots=True)
class Host:
    """A machine; that of a snapshot is its first node's."""

    name: str | None = None
    cpu_percent: float | None = None
    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_out_bytes_s: float | None = None
    psi_full_avg10: float | None = None
    simulated: bool = False
    simulated_speed: float | None = None  # times the speed of the machine it imitates
    node: str | None = None
    net_rx_bytes_s: float | None = None  # of its network cards; what RDMA moves is not among it
    net_tx_bytes_s: float | None = None
    power_w: float | None = None  # of the whole machine, where a driver tells it
    power_rails_w: Mapping[str, float] = field(default_factory=dict)  # as that driver calls them
    prochot: bool | None = None  # whether it signals that it is too hot


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: what carries its name as `node` (servers, devices, pools) belongs to it."""

    name: str
    local: bool = True  # llmtop runs there
    simulated: bool = False
    state: Literal["ok", "stale", "down", "unknown"] = "ok"
    reason: str | None = None  # why it is not ok
    asked: bool = False  # shown though no watched server runs there
    age_s: float | None = None
    host: Host | None = None


@dataclass(frozen=True, slots=True)
class Killer:
    """A program that kills when memory runs short, and the headroom at which it does."""

    name: str
    headroom_bytes: int | None = None  # None: it runs, and at what it kills is not known
    basis: str | None = None
    armed: bool | None = None  # whether its other condition (swap) holds too


@dataclass(frozen=True, slots=True)
class Rail:
    """One port of an RDMA device, and what it moves per second over `window_s`."""

    device: str
    port: int = 1
    node: str | None = None
    netdev: str | None = None
    cable: str | None = None  # rails with the same one share a physical port
    state: Literal["active", "down"] | None = None
    link_gbit: float | None = None  # as the port signals
    pcie_gbit: float | None = None  # as its PCIe link can carry it
    usable_gbit: float | None = None  # the lesser of the two
    window_s: float | None = None
    rx_bytes_s: float | None = None
    tx_bytes_s: float | None = None
    steadiness: float | None = None  # of the rates from reading to reading: the least by the most, 1 is the same
    errors: Mapping[str, int] = field(default_factory=dict)  # by how much counters of errors grew over `errors_s`
    errors_s: float | None = None
    subnet: str | None = None  # of its netdev
    peer: str | None = None  # "NODE DEVICE" at the other end of its cable, where two share a subnet


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds memory of a pool, a server or another program; `bytes` are the driver's, None where it does not say."""

    name: str | None = None
    server: str | None = None  # its URL
    container: str | None = None
    pids: tuple[int, ...] = ()
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool of memory and what is left of it, with the formula in `basis`."""

    name: str
    kind: Literal["hbm", "unified", "lpddr", "ram"]
    device: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    headroom_bytes: int | None = None
    cuda_free_bytes: int | None = None
    reclaimable_bytes: int | None = None
    low_water_bytes: int | None = None
    low_water_time: float | None = None
    basis: str | None = None
    state: Literal["ok", "low", "critical"] | None = None
    # beyond the first contract
    reserved_bytes: int | None = None
    falling_bytes_s: float | None = None  # how fast headroom falls, when it does
    empty_in_s: float | None = None
    reason: str | None = None  # why the state is not ok
    node: str | None = None
    killers: tuple[Killer, ...] = ()  # the one that strikes first is the first
    holders: tuple[Holder, ...] = ()  # of GPU memory, the largest first
    other_bytes: int | None = None  # used, and of no process that the driver lists
    holders_note: str | None = None  # why holders and other are not all of what is used, or not by whom


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about what is wrong, what shows it and what to change."""

    id: str
    level: Literal["info", "warning", "critical"]
    text: str
    evidence: str | None = None
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A line in every chart; one of kind "mark" was set by hand and begins a new epoch of peaks and low-water marks."""

    kind: Literal["mark", "restart", "level", "note"]
    text: str
    time: float


EventKind = Literal["mark", "restart", "preemptions", "low_water", "peak", "level", "finding", "cleared", "state"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened between the snapshot before and this one, in words."""

    time: float
    kind: EventKind
    text: str
    server: str | None = None  # the URL
    node: str | None = None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How one source of this snapshot is doing."""

    name: str
    ok: bool
    reason: str | None = None
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class FleetView:
    """How the servers of a fleet are read: through which Prometheus, over which windows, at what cost."""

    source: str  # the URL
    select: str | None = None
    scrape_interval_s: float | None = None
    rate_window_s: float | None = None
    latency_window_s: float | None = None
    requests: int | None = None  # of the last refresh
    refresh_s: float | None = None  # and how long it took
    age_s: float | None = None  # since the last one that was answered
    reason: str | None = None  # why the last one was not


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model of a fleet: its replicas added up; `kv_usage` is of the fullest, `kv_server`."""

    model: str | None = None
    replicas: int = 0
    healthy: int = 0
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_server: str | None = None
    generation_tok_s: float | None = None
    prompt_tok_s: float | None = None
    requests_s: float | None = None
    preemptions_total: int | None = None
    ttft_mean_s: float | None = None
    itl_mean_s: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything known at one instant; one line of `--json`."""

    time: float
    servers: tuple[ServerView, ...] = ()
    devices: tuple[Device, ...] = ()
    host: Host = Host()
    pools: tuple[Pool, ...] = ()
    findings: tuple[Finding, ...] = ()
    limited_by: str | None = None
    schema: int = SCHEMA
    # beyond the first contract
    sources: tuple[SourceStatus, ...] = ()
    marks: tuple[Mark, ...] = ()
    simulated: bool = False
    nodes: tuple[Node, ...] = ()  # `host` is that of the first
    events: tuple[Event, ...] = ()
    fleet: FleetView | None = None
    models: tuple[ModelView, ...] = ()  # of a fleet
    fabric: tuple[Rail, ...] = ()

    @property
    def simulation(self) -> str | None:
        """Words for a machine that is none, with its speed where that is not the imitated machine's."""
        speed = self.host.simulated_speed
        return None if not self.simulated else "simulated" if speed in (None, 1) else f"simulated x{speed:g}"

    def node_of(self, server: ServerView | None) -> Node | None:
        """The machine a server runs on; None where that was not recorded."""
        return next((node for node in self.nodes if server is not None and node.name == server.node), None)

    def on(self, node: str | None) -> str:
        """Where a pool or a device is, as the end of its name, when servers of other machines are watched too."""
        return f" on {node}" if node is not None and len(self.nodes) > 1 else ""

    def current(self, node: str | None) -> bool:
        """Whether pools and devices of a machine say how it is now, and not how it was before it fell silent."""
        return not any(known.name == node and known.state == "stale" for known in self.nodes)

    def beyond(self, node: str | None) -> str:
        """As `on`, where files need it to tell two machines apart: of the first one names stay as they always were."""
        return f" on {node}" if node is not None and self.nodes and node != self.nodes[0].name else ""

    def at(self, name: str) -> Snapshot:
        """Only what is of one machine, its servers among it."""
        node = next((node for node in self.nodes if node.name == name), None)
        return replace(
            self,
            servers=tuple(server for server in self.servers if server.node == name),
            devices=tuple(device for device in self.devices if device.node == name),
            pools=tuple(pool for pool in self.pools if pool.node == name),
            host=(node.host if node is not None else None) or Host(),
        )

    def beside(self, server: ServerView | None) -> Snapshot:
        """Only what may stand beside a server: memory and devices of its own machines, or of one that was asked for."""
        own = self.node_of(server)
        if own is None:
            return self
        parts = server.nodes if server is not None else ()
        names = {own.name, *(part.node for part in parts), *(node.name for node in self.nodes if node.asked)}
        return replace(
            self,
            devices=tuple(device for device in self.devices if device.node in names),
            pools=tuple(pool for pool in self.pools if pool.node in names),
            host=own.host or (self.host if self.host.node in names else Host()),
        )
