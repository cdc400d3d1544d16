"""What to watch and how: frozen records, and the one error that says what is wrong with an input."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from llmtop.contract.secrets import KNOWN

DEFAULT_PORT = 8000
INTERVAL_S = 1.0
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 60.0
MemoryMode = Literal["auto", "unified", "discrete"]


class UsageError(Exception):
    """Bad input: one line that says what to do; exit code 2."""


@dataclass(frozen=True, slots=True)
class Target:
    """One server to watch. The key is sent to `origin` alone and is never shown."""

    url: str
    name: str | None = None
    key: str | None = field(default=None, repr=False)
    login: tuple[str, str] | None = field(default=None, repr=False)
    ca: Path | None = None
    insecure: bool = False
    max_num_seqs: int | None = None
    model: str | None = None  # of several behind one address, the one that is meant
    node: str | None = None  # the machine it runs on, where that is read by ssh
    via: str | None = None  # the Unix socket that ssh forwards to it
    pid: int | None = None  # of the process that serves it, where that cannot be found by its command line

    def __post_init__(self) -> None:
        """Have the key or the password hidden wherever it comes back; a name alone is one too."""
        KNOWN.add(self.key)
        if self.login is not None:
            KNOWN.add(self.login[1] or self.login[0])
            KNOWN.add_header(self.authorization)

    @property
    def origin(self) -> str:
        """Scheme, host and port, or the Unix socket."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}" if parts.netloc else self.url

    @property
    def authorization(self) -> str | None:
        """The value of that header: what stood in the URL, else the key."""
        if self.login is not None:
            return basic(*self.login)
        return f"Bearer {self.key}" if self.key else None

    @property
    def host(self) -> str:
        """The host without brackets; that of a Unix socket is this machine."""
        return "localhost" if self.url.startswith("unix:") else urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port, by scheme where the URL has none."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A machine that is read by ssh: its name, and what ssh is told. The key is for the only server there."""

    name: str
    host: str
    user: str | None = None
    port: int | None = None
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class FleetAddress:
    """A Prometheus that scrapes many servers, and which of them are meant: matchers as they stand between `{}`."""

    target: Target
    select: str = ""
    tenant: str | None = None  # of several that share it


@dataclass(frozen=True, slots=True)
class Settings:
    """What to watch and how, validated."""

    targets: tuple[Target, ...] = ()
    nodes: tuple[NodeAddress, ...] = ()
    fleet: FleetAddress | None = None  # servers as a Prometheus saw them
    interval_s: float = INTERVAL_S
    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    memory: MemoryMode = "auto"
    ascii: bool = False
    mouse: bool = True
    theme: str | None = None
    record: Path | None = None
    record_raw: bool = False
    prometheus_file: Path | None = None
    export: tuple[str, int] | None = None  # host and port of a page for Prometheus
    allow_remote_load: bool = False
    this_machine: bool = False  # shown also where no watched server runs on it
    found: bool = False  # the targets were found on this host, not named
    startup: bool = False  # the start-up of the first target is watched from the first moment on
    reserve_gib: float | None = None  # what must stay free after a start-up


def basic(name: str, password: str) -> str:
    """The value of an `Authorization` header for a name and a password."""
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


def parse_target(text: str) -> Target:
    """A host, host:port or URL as typed; raises UsageError when it cannot be one."""
    if is_node(text):
        parse_node(text)
        raise UsageError(f"{_shown(text)}: this command does not go through ssh; run llmtop there")
    if text.startswith("unix:/"):
        return Target(text.replace("unix://", "unix:", 1).partition("?")[0])
    text = f"127.0.0.1{text}" if text[:1] == ":" and text[1:].isdecimal() else text
    typed = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(typed)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError(
            f"{_shown(text)!r} is not a server; write HOST:PORT or http(s)://HOST[:PORT][/PREFIX]"
        ) from None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or port == 0
        or any(map(str.isspace, typed))
        or "@" in parts.path + parts.query + parts.fragment  # behind a password that is not percent-encoded
        or not _sayable(host)
    ):
        raise UsageError(f"{_shown(text)!r} is not a server; write HOST:PORT or http(s)://HOST[:PORT][/PREFIX]")
    if "://" not in text and port is None:
        port = DEFAULT_PORT
    place = f"[{host}]" if ":" in host else host
    path = parts.path.rstrip("/")
    for suffix in ("/metrics", "/v1"):
        path = path.removesuffix(suffix)
    url = f"{parts.scheme}://{place}" + (f":{port}" if port is not None else "") + path
    login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return Target(url, login=login, model=next(iter(parse_qs(parts.query).get("model", ())), None))


def is_node(text: str) -> bool:
    """Whether what was typed is a machine to be read by ssh."""
    return text.startswith("ssh:")


def parse_node(text: str, name: str | None = None) -> NodeAddress:
    """`ssh://[USER@]HOST[:PORT]`; raises UsageError when it is not that."""
    wrong = UsageError(f"{_shown(text)!r} is not a node; write ssh://[USER@]HOST[:PORT]")
    try:
        parts = urlsplit(text)
        user, host, port = parts.username, parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.password is not None:
        raise UsageError("llmtop takes no password for ssh; let a key or an agent log in")
    typed = parts.netloc.rpartition("@")[2]
    host = typed[: len(host or "")] if typed.lower().startswith(host or "-") else host  # aliases of ssh have a case
    words = [word for word in (user, host) if word is not None]
    odd = any(word.startswith("-") or not word.isprintable() or set(word) & set(" '\"\\`$;&|<>%") for word in words)
    if parts.scheme != "ssh" or not host or port == 0 or odd or parts.path.strip("/") or parts.query or parts.fragment:
        raise wrong
    return NodeAddress(name or host, host, user, port)


def named_apart(nodes: Sequence[NodeAddress]) -> tuple[NodeAddress, ...]:
    """Each node once, and of two with one name each with its port or user too."""
    unique = {(node.host, node.user, node.port): node for node in nodes}.values()
    often = {node.name for node in unique if sum(other.name == node.name for other in unique) > 1}
    return tuple(replace(node, name=_apart(node)) if node.name in often else node for node in unique)


def _apart(node: NodeAddress) -> str:
    return "-".join(str(word) for word in (node.name, node.port, node.user) if word is not None)


def _sayable(host: str) -> bool:
    """Whether a host name can be put into a request."""
    if host.isascii():
        return True
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def _shown(text: str) -> str:
    """What may be repeated of a mistyped server: nothing before an @ and nothing after a ?."""
    return text.rpartition("@")[2].partition("?")[0]
