"""What to watch and how: frozen records, and the one error that says what is wrong with an input."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

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

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def host(self) -> str:
        """The host without brackets."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port, by scheme where the URL has none."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)


@dataclass(frozen=True, slots=True)
class Settings:
    """What to watch and how, validated."""

    targets: tuple[Target, ...] = ()
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
    allow_remote_load: bool = False
    found: bool = False  # the targets were found on this host, not named


def parse_target(text: str) -> Target:
    """A host, host:port or URL as typed; raises UsageError when it cannot be one."""
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
    login = (parts.username, parts.password or "") if parts.username else None
    return Target(url, login=login)


def _sayable(host: str) -> bool:
    """Whether a host name can be put into a request."""
    if host.isascii():
        return True
    import idna

    try:
        idna.encode(host, uts46=True)
    except idna.IDNAError:
        return False
    return True


def _shown(text: str) -> str:
    """What may be repeated of a mistyped server: nothing before an @ and nothing after a ?."""
    return text.rpartition("@")[2].partition("?")[0]
