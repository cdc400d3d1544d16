"""Finds the model servers of this host by their processes; never looks at another host."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from llmtop.engines.command_line import Process, is_worker, number, options, program, settings
from llmtop.engines.registry import BY_NAME
from llmtop.engines.registry.entry import EngineEntry
from llmtop.engines.registry.silent import DEMO, OMLX
from llmtop.machine.containers import Address, proxies, reachable, shares_network
from llmtop.machine.owners import parent_of
from llmtop.machine.tree import Folder

_LARGEST_SETTINGS = 65536
Argv = tuple[str, ...]
_ENGINES = (*BY_NAME.values(), OMLX, DEMO)
ENGINE_PROCESSES = tuple(dict.fromkeys(one.program.pattern for engine in _ENGINES for one in engine.processes))


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A process that serves a model: where it is reached, whether it listens there, how many requests it runs."""

    pid: int
    engine: str
    host: str
    port: int
    listening: bool
    max_num_seqs: int | None
    argv: Argv

    @property
    def url(self) -> str:
        """The address of its pages."""
        told = options(self.argv)
        scheme = "https" if any(name.startswith("--ssl-cert") for name in told) else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}" + told.get("--api-prefix", "").rstrip("/")


@dataclass(frozen=True, slots=True)
class Match:
    """A process whose command line starts a server or a part of one, with what that line and its settings file tell."""

    pid: int
    engine: EngineEntry
    argv: Argv
    told: Mapping[str, str]


def server_processes(procfs: Folder) -> list[ServerProcess]:
    """All model servers of this host, in order of their ports."""
    running = dict(command_lines(procfs))
    found = {pid: match for pid, match in started(procfs, running).items() if _opens_a_port(match.told)}
    if not found:
        return []
    parents = {pid: parent_of(procfs, pid) for pid in running}
    forwarded = proxies(running.values())
    servers = (
        _describe(procfs, match, _family(match.pid, parents), forwarded)
        for match in found.values()
        if not _is_part(match, found, parents)
    )
    listed = sorted(filter(None, servers), key=lambda server: (server.listening, -server.pid))
    unique = {(server.host, server.port): server for server in listed}
    return sorted(unique.values(), key=lambda server: (server.port, server.host))


def started(procfs: Folder, running: Mapping[int, Argv]) -> dict[int, Match]:
    """What the command lines start: servers, and the parts of servers that open no port."""
    found = ((pid, _match(procfs, pid, argv, running.values())) for pid, argv in running.items())
    return {pid: match for pid, match in found if match is not None}


def _opens_a_port(told: Mapping[str, str]) -> bool:
    return not is_worker(told) and "--uds" not in told  # a Unix socket is no port


def process_of(procfs: Folder, host: str, port: int) -> ServerProcess | None:
    """The process that serves an address of this machine."""
    there = [server for server in server_processes(procfs) if server.port == port]
    exact = next((server for server in there if server.host == host), None)
    return exact or next((server for server in there if server.host.startswith("127.")), None)


def command_lines(procfs: Folder) -> Iterator[tuple[int, Argv]]:
    """Every process with its command line."""
    try:
        pids = sorted(int(entry.name) for entry in procfs.iterdir() if entry.name.isdecimal())
    except OSError:
        return
    for pid in pids:
        try:
            raw = (procfs / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if raw:
            yield pid, tuple(raw.decode("utf-8", "replace").rstrip("\0").split("\0"))


def _match(procfs: Folder, pid: int, argv: Argv, running: Iterable[Argv]) -> Match | None:
    found = next((pair for pair in _starts(argv) if _has_company(pair[1], running)), None)
    if found is None:
        return None
    engine, words = found[0], program(argv)[1]
    told = options(words)
    if told.get("--config"):
        told = settings(_settings_file(procfs, pid, told["--config"])) | told
    return Match(pid, engine, argv, told)


@lru_cache(maxsize=4096)  # most processes are the same and none of ours at every look
def _starts(argv: Argv) -> tuple[tuple[EngineEntry, Process], ...]:
    """The engines that a command line may start."""
    name, words = program(argv)
    pairs = ((engine, process) for engine in _ENGINES for process in engine.processes)
    return tuple((engine, process) for engine, process in pairs if process.matches(name, words))


def _has_company(process: Process, running: Iterable[Argv]) -> bool:
    return process.beside is None or any(re.search(process.beside, argv[0]) for argv in running)


def _settings_file(procfs: Folder, pid: int, path: str) -> str:
    """A file as the process sees it; empty where it may not be read."""
    folder = procfs / str(pid)
    place = folder / "root" / path.lstrip("/") if path.startswith("/") else folder / "cwd" / path
    if not isinstance(place, Path):
        return _streamed(place)
    try:
        file = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        regular = stat.S_ISREG(os.fstat(file).st_mode)
        return os.read(file, _LARGEST_SETTINGS).decode("utf-8", "replace") if regular else ""
    except OSError:
        return ""
    finally:
        os.close(file)


def _streamed(place: Folder) -> str:
    try:
        return place.read_text("utf-8", "replace")
    except OSError:
        return ""


def _above(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    for _ in range(len(parents)):  # a torn reading could go in circles
        pid = parents.get(pid, 0)
        if pid <= 0:
            return
        yield pid


def _family(pid: int, parents: Mapping[int, int]) -> list[int]:
    """A process and all below it: an API server's child, or a launcher's, has the socket."""
    return [other for other in parents if other == pid or pid in _above(other, parents)]


def _is_part(match: Match, found: Mapping[int, Match], parents: Mapping[int, int]) -> bool:
    """Whether it serves for another server that started it, on a port of their own."""
    for pid in _above(match.pid, parents):
        above = found.get(pid)
        if above is None:
            continue
        if above.engine.has_children:
            return True
        same = above.engine is match.engine
        if same and _told_port(above) != _told_port(match):
            return True
    return False


def _told_port(match: Match) -> int | None:
    return number(match.told, match.engine.port_options) or match.engine.port or None


def _describe(
    procfs: Folder, match: Match, family: list[int], forwarded: Mapping[Address, Address]
) -> ServerProcess | None:
    engine, pid = match.engine, match.pid
    open_ports = listening(procfs, family)
    port = _told_port(match)
    if number(match.told, engine.port_options) is None and engine.port_elsewhere and port not in open_ports:
        port = next(iter(open_ports)) if len(open_ports) == 1 else port
    if port is None or (engine.only_listening and port not in open_ports):
        return None
    limit = number(match.told, engine.limit_options)
    server = ServerProcess(pid, engine.name, "127.0.0.1", port, port in open_ports, limit, match.argv)
    if shares_network(procfs, pid):
        return replace(server, host=open_ports.get(port, server.host))
    place = reachable(procfs, pid, port, forwarded)
    return None if place is None else replace(server, host=place[0], port=place[1])


def listening(procfs: Folder, pids: Iterable[int]) -> dict[int, str]:
    """The TCP ports on which processes of one network listen, and the address under which each is reached.

    By the sockets among their open files; where these may not be seen, all listening sockets of their network.
    """
    pids = list(pids)
    sockets = [inodes for pid in pids if (inodes := _sockets(procfs / str(pid) / "fd")) is not None]
    inodes = set[str]().union(*sockets)
    ports: dict[int, str] = {}
    for table in ("tcp", "tcp6") if pids else ():
        try:
            lines = (procfs / str(pids[0]) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and (fields[9] in inodes or not sockets):
                address, _, port = fields[1].rpartition(":")
                ports.setdefault(int(port, 16), _reached(address))
    return ports


def _reached(bound: str) -> str:
    """Where a socket bound to an address, as /proc/net writes it (words of the CPU's byte order), is reached."""
    words = [bytes.fromhex(bound[place : place + 8])[::-1] for place in range(0, len(bound), 8)]
    ip = ipaddress.ip_address(b"".join(words))
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return "127.0.0.1" if ip.is_unspecified else str(ip)


def _sockets(folder: Folder) -> set[str] | None:
    """The inodes of a process's sockets; None where its open files may not be seen."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return None
    found = set()
    for entry in entries:
        try:
            link = str(entry.readlink())
        except OSError:
            continue
        if link.startswith("socket:["):
            found.add(link[8:-1])
    return found


def own_addresses() -> set[str]:
    """The addresses of this host's interfaces."""
    import psutil

    entries = (entry.address for found in psutil.net_if_addrs().values() for entry in found)
    return {address.partition("%")[0] for address in entries}


def is_local(host: str) -> bool:
    """Whether a host name or address is this machine; may ask the resolver, which can take seconds."""
    name, own_name = host.casefold().rstrip("."), socket.gethostname().casefold()
    if name in ("localhost", own_name, f"{own_name}.local"):
        return True
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    own = own_addresses()
    return any(_is_own(address, own) for address in found)


def is_here(procfs: Folder, host: str) -> bool:
    """Whether a host is this machine, or the address of a container on it that serves a model."""
    return is_local(host) or any(server.host == host for server in server_processes(procfs))


def _is_own(address: str, own: set[str]) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback or ip.is_unspecified or str(ip) in own
