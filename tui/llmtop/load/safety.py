"""Who may be put under load, and what a person must say first."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import psutil

from llmtop.net.connection import Origin


class Place(StrEnum):
    """Where a target is, seen from this host."""

    LOOPBACK = "loopback"
    OWN = "own"
    PRIVATE = "private"
    PUBLIC = "public"


class Confirm(StrEnum):
    """What a person must do before the start."""

    ONCE = "once"  # one yes
    NAME = "name"  # type the name of the host
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether and how a run may start; `reasons` are whole sentences."""

    place: Place
    confirm: Confirm
    reasons: tuple[str, ...] = ()


def addresses(host: str) -> list[str]:
    """The addresses of a host name; raises `OSError` when there is none."""
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})


def own_addresses() -> frozenset[str]:
    """The addresses of this host's interfaces."""
    entries = (entry.address for found in psutil.net_if_addrs().values() for entry in found)
    return frozenset(address.split("%")[0] for address in entries)


def place_of(found: Iterable[str], own: frozenset[str]) -> Place:
    """The most distant place of some addresses; a name that resolves to nothing is public."""
    order = list(Place)
    places = [_place(address.split("%")[0], own) for address in found]
    return max(places, key=order.index, default=Place.PUBLIC)


def _place(address: str, own: frozenset[str]) -> Place:
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_loopback or ip.is_unspecified:
        return Place.LOOPBACK
    if str(ip) in own:
        return Place.OWN
    shared = ip.version == 4 and ip in ipaddress.ip_network("100.64.0.0/10")  # tailnets, carrier NAT
    return Place.PRIVATE if ip.is_private or ip.is_link_local or shared else Place.PUBLIC


def permission(place: Place, host: str, has_key: bool, allow_remote: bool) -> Permission:
    """What a run against a host at `place` needs; public hosts and keys sent abroad need `allow_remote`."""
    if place in (Place.LOOPBACK, Place.OWN):
        return Permission(place, Confirm.ONCE)
    if place is Place.PUBLIC and not allow_remote:
        key = ", and an API key would be sent there" if has_key else ""
        reason = f"{host} is a public host{key}; --allow-remote-load permits it."
        return Permission(place, Confirm.REFUSED, (reason,))
    return Permission(place, Confirm.NAME, (f"{host} is another host: type its name to load it.",))


def ask(url: str, has_key: bool, allow_remote: bool, node: str | None = None) -> Permission:
    """The permission for a URL; resolves its host, unless it is a `node` by ssh. Raises `BadUrl` or `OSError`."""
    host = Origin.parse(url).host
    if node is not None:  # one may log in there: it is no stranger's
        return permission(Place.PRIVATE, host, has_key, allow_remote)
    return permission(place_of(addresses(host), own_addresses()), host, has_key, allow_remote)


def busy_words(running: int | None, waiting: int | None) -> str | None:
    """The extra question for a server that already has work; None when it is idle or unknown."""
    if not (running or 0) + (waiting or 0):
        return None
    return f"The server is busy: {running or 0} running, {waiting or 0} waiting. Load it all the same?"


def typed_right(typed: str, host: str, names: Sequence[str] = ()) -> bool:
    """Whether what a person typed names the host."""
    return typed.strip().lower().rstrip(".") in {name.lower().rstrip(".") for name in (host, *names)}
