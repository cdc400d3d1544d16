"""Finds the model servers of this host by their processes; never looks at another host."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SERVES = (
    (re.compile(r"(^|/)vllm$"), "serve"),
    (re.compile(r"vllm\.entrypoints\.(openai\.)?api_server$"), None),
    (re.compile(r"sglang\.launch_server$"), None),
    (re.compile(r"(^|/)llama-server$"), None),
)


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A process that serves a model: its port (as told or the default), whether it listens there, its limits."""

    pid: int
    port: int
    listening: bool
    max_num_seqs: int | None
    argv: tuple[str, ...]


def is_server(argv: Sequence[str]) -> bool:
    """Whether a command line serves a model; `python -m`, `bash -c` and launchers in front are looked through."""
    for place, word in enumerate(argv[:8]):
        for pattern, verb in _SERVES:
            if pattern.search(word) and (verb is None or verb in argv[place + 1 : place + 2]):
                return True
    return False


def option(argv: Sequence[str], name: str) -> str | None:
    """The value of `--name VALUE` or `--name=VALUE`; the last one counts, as argparse has it."""
    value = None
    for place, word in enumerate(argv):
        word = word.replace("_", "-") if word.startswith("--") and "=" not in word else word
        if word == name and place + 1 < len(argv):
            value = argv[place + 1]
        elif word.startswith(name + "="):
            value = word[len(name) + 1 :]
    return value


def server_processes(procfs: Path) -> list[ServerProcess]:
    """All model servers of this host, in order of their ports."""
    found = [_describe(procfs, pid, argv) for pid, argv in _command_lines(procfs) if is_server(argv)]
    unique = {process.port: process for process in sorted(found, key=lambda p: (p.listening, -p.pid))}
    return sorted(unique.values(), key=lambda process: process.port)


def _command_lines(procfs: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    try:
        pids = [int(entry.name) for entry in procfs.iterdir() if entry.name.isdecimal()]
    except OSError:
        return
    for pid in pids:
        try:
            raw = (procfs / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if raw:
            yield pid, tuple(raw.decode("utf-8", "replace").rstrip("\0").split("\0"))


def _describe(procfs: Path, pid: int, argv: tuple[str, ...]) -> ServerProcess:
    told = option(argv, "--port")
    default = 30000 if any("sglang" in word for word in argv) else 8080 if "llama-server" in argv[0] else 8000
    port = int(told) if told and told.isdecimal() else default
    seqs = option(argv, "--max-num-seqs") or option(argv, "--max-running-requests")
    listening = port in listening_ports(procfs, pid)
    return ServerProcess(pid, port, listening, int(seqs) if seqs and seqs.isdecimal() else None, argv)


def listening_ports(procfs: Path, pid: int) -> set[int]:
    """The TCP ports a process listens on, by the sockets among its open files."""
    inodes = set(_socket_inodes(procfs / str(pid) / "fd"))
    ports: set[int] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (procfs / str(pid) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _socket_inodes(folder: Path) -> Iterator[str]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            link = str(entry.readlink())
        except OSError:
            continue
        if link.startswith("socket:["):
            yield link[8:-1]


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


def _is_own(address: str, own: set[str]) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback or ip.is_unspecified or str(ip) in own
