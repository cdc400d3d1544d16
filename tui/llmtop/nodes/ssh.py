"""How `ssh` is called, and what its words mean: the user's own ssh with the user's configuration, keys and agent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from llmtop.contract.settings import NodeAddress
from llmtop.contract.units import clean
from llmtop.engines.discover import ENGINE_PROCESSES

CONNECT_S = 8
_OPTIONS = (
    "BatchMode=yes",  # never asks: neither for a password nor about a host key
    f"ConnectTimeout={CONNECT_S}",
    "ServerAliveInterval=3",
    "ServerAliveCountMax=3",
    "ControlMaster=yes",
    "ControlPersist=no",
    "ClearAllForwardings=yes",  # of the configuration: they are for the user's own sessions
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "LogLevel=INFO",
)
_BESIDE = (
    "docker-proxy",
    "ray::ServeReplica",
    "ray::RayWorker",
    "raylet",
    "llmster",
    "smg",
)  # what discovery looks at beside servers
_WORDS: Sequence[tuple[str, str]] = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed: find out why, then ssh-keygen -R {host}"),
    ("Host key verification failed", "its host key is not known here: log in once with ssh {host}"),
    ("Permission denied", "no key of yours lets you in: try ssh {host} (llmtop asks for no password)"),
    ("Too many authentication failures", "too many keys were tried: name one with IdentityFile in ~/.ssh/config"),
    ("banner exchange", "its port is open and ssh does not answer: is it out of memory?"),
    ("Could not resolve", "the host name is not known"),
    ("Connection refused", "nothing listens on its ssh port"),
    ("No route to host", "the host is not reachable"),
    ("Network is unreachable", "the host is not reachable"),
    ("timed out", "no answer: is it switched off, or the network down?"),
    ("not responding", "the connection went silent: is it out of memory, or the network down?"),
    ("Connection reset", "it closed the connection"),
    ("Connection closed", "it closed the connection"),
    ("administratively prohibited", "sshd there forbids forwarding, so its servers are not read"),
)


def connect(address: NodeAddress, control: str) -> list[str]:
    """The one connection of a node; its session runs the reader, which comes on standard input."""
    options = [word for option in _OPTIONS for word in ("-o", option)]
    login = ["-l", address.user] if address.user else []
    port = ["-p", str(address.port)] if address.port else []
    return ["ssh", "-T", "-S", control, *options, *login, *port, "--", address.host, "exec sh -s"]


def forward(control: str, path: str, host: str, port: int) -> list[str]:
    """Let the connection forward the Unix socket `path` to an address as the node sees it."""
    place = f"[{host}]" if ":" in host else host
    # no configuration: its own forwards would be asked for again
    return ["ssh", "-F", "none", "-S", control, "-O", "forward", "-L", f"{path}:{place}:{port}", "--", "node"]


def reader(mark: str) -> bytes:
    """What is sent to a shell: the reader for python3, and for a shell where there is none."""
    folder = files("llmtop.nodes")
    python = (folder / "remote.py").read_text("utf-8") + f"\n\nmain({mark!r}, {_hint()!r})\n"
    lines = (
        f"MARK={mark}",
        f"HINT={_quoted(_hint())}",
        f"LLMTOP_READER={_quoted(python)}",
        "if python3 -I -S -c 'import sys; sys.exit(sys.version_info < (3, 7))' >/dev/null 2>&1; then",
        "  export LLMTOP_READER",
        """  exec python3 -I -S -u -c 'import os; exec(os.environ.pop("LLMTOP_READER"))'""",
        "fi",
        "unset LLMTOP_READER",
    )
    return ("\n".join(lines) + "\n" + (folder / "remote.sh").read_text("utf-8")).encode()


def _hint() -> str:
    """What the command line of a model server has in it; the others stay where they are."""
    named = (re.search(r"[A-Za-z_]{4,}", pattern) for pattern in ENGINE_PROCESSES)
    return "|".join(dict.fromkeys((*(found[0] for found in named if found), *_BESIDE)))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def trouble(lines: Sequence[str], host: str) -> str | None:
    """Why there is no connection, from what ssh wrote; None where that tells nothing."""
    text = "\n".join(lines)
    known = next((words for said, words in _WORDS if said in text), None)
    if known is not None:
        return known.format(host=host)
    return clean(lines[-1], 160) if lines else None
