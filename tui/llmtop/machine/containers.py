"""Processes in containers with a network of their own: where this machine reaches what they listen on.

Nothing here raises or waits for long: what docker does not tell (no permission, no answer) is not known.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmtop.contract.secrets import tool_environment
from llmtop.contract.units import clean
from llmtop.machine.tree import Folder

Address = tuple[str, int]
_TIMEOUT_S = 3.0
_PATIENCE_S = 1.0  # that all looks together wait for first answers: nobody has seen a screen yet
_RETRY_S = 60.0
_ID = re.compile(r"[-/:]([0-9a-f]{12,64})(?=\.scope|/|\s|$)")  # docker-ID.scope, /docker/ID, libpod-ID.scope, …
_LOCAL = re.compile(r"\|-- ([\d.]+)\n\s+/32 host LOCAL")
_NO_WAY_IN = ("127.", "0.", "10.0.2.100")  # the last is what slirp4netns gives every container


@dataclass(frozen=True, slots=True)
class Container:
    """What a container engine says: its name, host addresses by inner port, its own address, whose network it uses."""

    ports: Mapping[int, Address] = field(default_factory=dict)
    address: str | None = None
    network_of: str | None = None
    host_network: bool = False
    name: str | None = None


class Inspector:
    """Asks docker, then podman, about a container: once per id, in a thread of its own."""

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._lock = threading.Lock()
        self._patience_s = patience_s
        self._known: dict[str, Container] = {}
        self._asked: dict[str, float] = {}
        self._workers: list[threading.Thread] = []

    def container(self, container: str) -> Container | None:
        """What is known of a container; None while nothing is, and then it is asked for."""
        with self._lock:
            now, patience_s = time.monotonic(), self._patience_s
            worker = self._begin(container, now)
        if worker is not None:
            worker.join(patience_s)  # without the lock: who asks for a name waits for nothing
            with self._lock:
                self._patience_s = max(0.0, self._patience_s - (time.monotonic() - now))
        return self._known.get(container)

    def name(self, container: str) -> str | None:
        """What a container is called, as soon as that is known; waits for nothing."""
        with self._lock:
            self._begin(container, time.monotonic())
            known = self._known.get(container)
        return known.name if known is not None else None

    def _begin(self, container: str, now: float) -> threading.Thread | None:
        """Ask about a container, unless it is known or was asked for."""
        if container in self._known or now < self._asked.get(container, now):
            return None
        self._asked[container] = now + _RETRY_S
        worker = threading.Thread(target=self._ask, args=(container,), name="llmtop-inspect", daemon=True)
        self._workers = [*filter(threading.Thread.is_alive, self._workers), worker]
        worker.start()
        return worker

    def pending(self) -> bool:
        """Whether an answer may still come."""
        return any(worker.is_alive() for worker in self._workers)

    def _ask(self, container: str) -> None:
        answers = (inspect(tool, container) for tool in ("docker", "podman"))
        found = next((answer for answer in answers if answer is not None), None)
        if found is not None:
            self._known[container] = found


INSPECTOR = Inspector()


def inspect(tool: str, container: str) -> Container | None:
    """What `docker inspect` or `podman inspect` says; None without the tool, the permission or a usable answer."""
    path = shutil.which(tool)
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, "inspect", container],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
            env=tool_environment(os.environ),
        )
        return _parsed(json.loads(done.stdout)[0])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _parsed(told: Any) -> Container:
    mode = str((told.get("HostConfig") or {}).get("NetworkMode") or "")
    network = told.get("NetworkSettings") or {}
    networks = (network, *(network.get("Networks") or {}).values())
    address = next((text for one in networks if (text := one.get("IPAddress"))), None)
    ports: dict[int, Address] = {}
    for inner, bindings in (network.get("Ports") or {}).items():
        number, _, protocol = inner.partition("/")
        for binding in (bindings or ()) if protocol in ("", "tcp") else ():
            ports.setdefault(int(number), (_reached(binding.get("HostIp")), int(binding["HostPort"])))
    network_of = mode.removeprefix("container:") if mode.startswith("container:") else None
    name = clean(str(told.get("Name") or "").lstrip("/")) or None
    return Container(ports, address, network_of, mode == "host", name)


def _reached(address: str | None) -> str:
    """The address under which a socket bound to `address` is reached from this machine."""
    return "127.0.0.1" if address in (None, "", "*", "0.0.0.0", "::") else address


def proxies(command_lines: Iterable[Sequence[str]]) -> dict[Address, Address]:
    """Host addresses by container addresses, from the processes that docker forwards published ports with."""
    found: dict[Address, Address] = {}
    for argv in command_lines:
        if not argv[0].endswith("docker-proxy"):
            continue
        told = dict(itertools.pairwise(argv))
        inner, outer = told.get("-container-port", ""), told.get("-host-port", "")
        if inner.isdecimal() and outer.isdecimal() and told.get("-proto", "tcp") == "tcp":
            host = (_reached(told.get("-host-ip")), int(outer))
            found.setdefault((told.get("-container-ip", ""), int(inner)), host)
    return found


def shares_network(procfs: Folder, pid: int) -> bool:
    """Whether a process uses this machine's network; by its addresses where the namespaces may not be seen."""
    ours = _link(procfs / "self/ns/net") or _link(procfs / "1/ns/net")  # a copy of a tree has no self
    its = _link(procfs / str(pid) / "ns/net")
    if ours is not None and its is not None:
        return ours == its
    own, other = addresses(procfs, "self"), addresses(procfs, str(pid))
    return not own or not other or own == other


def addresses(procfs: Folder, process: str) -> tuple[str, ...]:
    """The IPv4 addresses of the network a process is in."""
    return tuple(dict.fromkeys(_LOCAL.findall(_text(procfs / process / "net/fib_trie"))))


def container_of(procfs: Folder, pid: int | str) -> str | None:
    """The id of the container a process runs in."""
    mounts = re.findall(r"/containers/[0-9a-f]{64}/", _text(procfs / str(pid) / "mountinfo"))
    found = _ID.findall(_text(procfs / str(pid) / "cgroup")) or _ID.findall("\n".join(mounts))
    return str(found[-1]) if found else None


def reachable(procfs: Folder, pid: int, port: int, forwarded: Mapping[Address, Address]) -> Address | None:
    """Where this machine reaches what a process in another network listens on; None where that is not known,
    or not yet: a server must not be found at two addresses.

    First the published port that the container engine tells, then docker's forwarding processes, then its own address.
    """
    here = addresses(procfs, "self")  # pasta gives a container those of its machine, where others listen
    inside = (address for address in addresses(procfs, str(pid)) if address not in here)
    own = [address for address in inside if not address.startswith(_NO_WAY_IN)]
    published = (forwarded[address, port] for address in own if (address, port) in forwarded)
    here_told = isinstance(procfs, Path)  # of another machine's containers nobody here knows
    known = (_told(container_of(procfs, pid), port) if here_told else None) or next(published, None)
    if known is not None or INSPECTOR.pending():
        return known
    return next(((address, port) for address in own), None)


def _told(container: str | None, port: int) -> Address | None:
    for _ in range(3):  # a pod's containers use the network of another one
        found = INSPECTOR.container(container) if container is not None else None
        if found is None:
            return None
        if found.host_network:
            return "127.0.0.1", port
        if port in found.ports:
            return found.ports[port]
        if found.network_of is None:
            return (found.address, port) if found.address else None
        container = found.network_of
    return None


def _link(path: Folder) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None


def _text(path: Folder) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
