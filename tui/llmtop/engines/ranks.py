"""Servers that run on several machines, by their command lines: which process is which part of which server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from llmtop.engines.command_line import Options, is_worker, number, program
from llmtop.engines.discover import Argv, Match, command_lines, started
from llmtop.machine.tree import Folder

_TENSOR = ("-tp", "--tensor-parallel-size", "--tp-size", "--tp")
_PIPELINE = ("-pp", "--pipeline-parallel-size", "--pp-size", "--pp")
_DATA = ("-dp", "--data-parallel-size", "--dp-size", "--dp")
_DATA_HERE = ("-dpl", "--data-parallel-size-local")
_NODES = ("--nnodes", "-n")
_RAY_WORKER = re.compile(r"^ray::Ray(Worker|Executor)\w*")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A process that is, or may be, a part of a server on several machines."""

    pid: int
    engine: str
    master: str | None = None  # where the parts meet: "ADDRESS:PORT"
    model: str | None = None
    rank: int | None = None
    headless: bool = False
    nodes: int | None = None  # on how many machines, as it says
    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    ray: bool = False

    @property
    def address(self) -> str | None:
        """The machine where the parts meet; None where that means its own."""
        host = (self.master or "").rpartition(":")[0].strip("[]")
        return None if not host or host in _LOOPBACK else host

    def belongs_to(self, head: RankProcess) -> bool:
        """Whether it is a part of the server that a process opens the port of."""
        if self.ray or head.ray:
            return self.ray and head.ray and self.master is not None and self.master == head.master
        if self.engine != head.engine or self.nodes != head.nodes:
            return False
        if self.master == head.master:
            return True
        # one machine has several names: with the same port and model they are the same
        ports = {each.master.rpartition(":")[2] if each.master else None for each in (self, head)}
        return len(ports) == 1 and self.model is not None and self.model == head.model


def rank_processes(procfs: Folder) -> tuple[RankProcess, ...]:
    """The processes of a machine that tell how a server is spread, and those of its parts that serve nobody."""
    running = dict(command_lines(procfs))
    ray = _ray_address(running)
    found = [_rank(match, ray) for match in started(procfs, running).values()]
    workers = (pid for pid, argv in sorted(running.items()) if ray and _RAY_WORKER.match(argv[0]))
    found += [RankProcess(pid, "", ray, headless=True, ray=True) for pid in workers]
    unique: dict[object, RankProcess] = {}  # a launcher and what it starts have the same words
    for rank in sorted(filter(None, found), key=lambda rank: rank.pid):
        unique.setdefault((rank.engine, rank.master, rank.rank) if rank.headless else rank.pid, rank)
    return tuple(unique.values())


def _rank(match: Match, ray: str | None) -> RankProcess | None:
    told = match.told
    over_ray = any(told.get(name) == "ray" for name in ("--distributed-executor-backend", "--data-parallel-backend"))
    rank = number(told, ("--node-rank", "-r"))
    tensor, pipeline, data = (number(told, names) for names in (_TENSOR, _PIPELINE, _DATA))
    nodes = _nodes(told)
    if nodes is None and not is_worker(told) and not over_ray and not (tensor or pipeline or data):
        return None
    return RankProcess(
        match.pid,
        match.engine.name,
        ray if over_ray else _master(told),
        _model(match),
        rank if rank is not None else None if is_worker(told) else 0,
        is_worker(told),
        nodes,
        tensor,
        pipeline,
        data,
        over_ray,
    )


def _nodes(told: Options) -> int | None:
    """On how many machines a server runs; None for one, or where that is not said."""
    nodes = number(told, _NODES)
    every, here = number(told, _DATA), number(told, _DATA_HERE)
    if nodes is None and every and here and every > here:
        nodes = -(-every // here)
    return nodes if nodes is not None and nodes > 1 else None


def _master(told: Options) -> str:
    """Where the parts meet, as they were told or as vLLM has it by default."""
    met = told.get("--dist-init-addr") or told.get("--nccl-init-addr")
    if met:
        return met.lower()
    data = told.get("--data-parallel-address") or told.get("-dpa")
    if data and "--master-addr" not in told:
        return f"{data.lower()}:{number(told, ('--data-parallel-rpc-port', '-dpp')) or 29550}"
    return f"{told.get('--master-addr', '127.0.0.1').lower()}:{number(told, ('--master-port',)) or 29501}"


def _model(match: Match) -> str | None:
    words = program(match.argv)[1]
    given = match.told.get("--model") or match.told.get("--model-path")
    first = next((word for word in words[1:2] if words[0] == "serve" and not word.startswith("-")), None)
    return given or first


def _ray_address(running: Mapping[int, Argv]) -> str | None:
    """The head of the Ray cluster that a machine is in, as its raylet knows it."""
    for argv in running.values():
        if argv[0].rpartition("/")[2] == "raylet":
            return next((word.partition("=")[2] for word in argv if re.match(r"--gcs[-_]address=", word)), None)
    return None
