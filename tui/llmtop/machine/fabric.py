"""RDMA ports (ConnectX and its kin) from /sys/class/infiniband: what each rail moves, and against what it could.

Reads few, named files: each counter of `hw_counters` traps into firmware. `port_rcv_data` and `port_xmit_data` count
words of 4 bytes. /proc/net/dev does not contain what RDMA moves.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from llmtop.contract.snapshot import Rail
from llmtop.machine.tree import Files

FOLDER = "class/infiniband"
WINDOW_S = 10.0
ERRORS_S = 30.0
ERRORS_EVERY = 3  # readings
WORD = 4
# what PCIe leaves of its link for data: 128b/130b from 8 GT/s on, and headers of packets
PCIE_SHARE = 0.8
DATA = ("port_rcv_data", "port_xmit_data")
ERRORS = (
    *("counters/port_rcv_errors", "counters/port_xmit_discards", "counters/link_downed", "counters/symbol_error"),
    *("hw_counters/out_of_sequence", "hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err"),
    *("hw_counters/rnr_nak_retry_err", "hw_counters/req_transport_retries_exceeded"),
)
ABOUT = ("device/current_link_speed", "device/current_link_width")
_CARD = re.compile(r"^(en|eth|ib|wl)\w*$")  # the names that network cards have; bridges and their ends have others


@dataclass(slots=True)
class _Port:
    """What is remembered of one port: readings of its data and of its errors, with their times."""

    rail: Rail
    data: deque[tuple[float, int, int]] = field(default_factory=deque)
    errors: deque[tuple[float, Mapping[str, int]]] = field(default_factory=deque)


class FabricReader:
    """Reads one /sys tree again and again; `files` may be streamed from another machine."""

    def __init__(self, sysfs: str, procfs: str, files: Files) -> None:
        self._sysfs, self._folder, self._files = sysfs, f"{sysfs}/{FOLDER}", files
        self._routes = f"{procfs}/net/route"
        self._cards = f"{procfs}/net/dev"
        self._ports: dict[tuple[str, int], _Port] = {}
        self._net: deque[tuple[float, int, int]] = deque()
        self._round = 0

    def there(self) -> bool:
        """Whether there is any RDMA device."""
        return bool(self._files.names(self._folder))

    def read(self, clock: Callable[[], float]) -> None:
        """Take a reading; the clock is asked directly before and after the counters."""
        if self._round % 10 == 0 or any(port.rail.state is None for port in self._ports.values()):
            self._look()
        subnets = self._subnets()
        for key, port in self._ports.items():
            port.rail = replace(port.rail, state=self._state(key), subnet=subnets.get(port.rail.netdev or ""))
        active = {key: port for key, port in self._ports.items() if port.rail.state != "down"}
        before = clock()
        found = {key: [self._count(key, f"counters/{name}") for name in DATA] for key in active}
        t = (before + clock()) / 2
        for key, (received, sent) in found.items():
            _note(active[key].data, t, received, sent)
        for key in self._ports.keys() - active.keys():
            self._ports[key].data.clear()
        if self._round < 2 or self._round % ERRORS_EVERY == 0:
            for key, port in active.items():
                self._note_errors(key, port, t)
        self._round += 1

    def read_cards(self, clock: Callable[[], float]) -> None:
        """Take a reading of what the network cards moved without RDMA."""
        text, t = self._files.read(self._cards), clock()
        rows = [line.replace(":", " ").split() for line in (text or b"").decode("utf-8", "replace").splitlines()[2:]]
        cards = [
            row for row in rows if len(row) > 9 and _CARD.match(row[0]) and row[1].isdecimal() and row[9].isdecimal()
        ]
        if cards:
            _note(self._net, t, sum(int(row[1]) for row in cards), sum(int(row[9]) for row in cards))

    @property
    def cards(self) -> tuple[float | None, float | None]:
        """Bytes per second received and sent by the network cards."""
        _, received, sent, _ = _rates(self._net, 1)
        return received, sent

    @property
    def rails(self) -> tuple[Rail, ...]:
        """Every port, in the order of their names."""
        return tuple(_measured(self._ports[key]) for key in sorted(self._ports))

    def _look(self) -> None:
        """Which ports there are, and what does not change from second to second."""
        found = {}
        for device in self._files.names(self._folder):
            for name in self._files.names(f"{self._folder}/{device}/ports"):
                if name.isdecimal():
                    key = device, int(name)
                    port = self._ports.get(key) or _Port(Rail(device, int(name)))
                    port.rail = self._about(port.rail)
                    found[key] = port
        self._ports = found

    def _about(self, rail: Rail) -> Rail:
        folder = f"{self._folder}/{rail.device}"
        netdev = next(iter(sorted(self._files.names(f"{folder}/device/net"))), None)
        link = _number(self._text(f"{folder}/ports/{rail.port}/rate"))
        speed, width = (_number(self._text(f"{folder}/{name}")) for name in ABOUT)
        pcie = round(speed * width * (128 / 130 if speed >= 8 else 0.8) * PCIE_SHARE, 1) if speed and width else None
        known = [rate for rate in (link, pcie) if rate is not None]
        port_name = (self._text(f"{folder}/device/net/{netdev}/phys_port_name") or "").strip() if netdev else ""
        function = re.search(r"(f\d+)(np\d+)?$", rail.device) or re.search(r"(f\d+)(np\d+)?$", netdev or "")
        return replace(
            rail,
            netdev=netdev,
            cable=port_name or (function[1] if function else None),
            link_gbit=link,
            pcie_gbit=pcie,
            usable_gbit=min(known, default=None),
        )

    def _state(self, key: tuple[str, int]) -> Literal["active", "down"] | None:
        text = self._text(f"{self._folder}/{key[0]}/ports/{key[1]}/state")
        return None if text is None else "active" if "ACTIVE" in text.upper() else "down"

    def _note_errors(self, key: tuple[str, int], port: _Port, t: float) -> None:
        counts = {name.rpartition("/")[2]: self._count(key, name) for name in ERRORS}
        port.errors.append((t, {name: count for name, count in counts.items() if count is not None}))
        while len(port.errors) > 2 and port.errors[1][0] <= t - ERRORS_S:
            port.errors.popleft()

    def _count(self, key: tuple[str, int], name: str) -> int | None:
        text = (self._text(f"{self._folder}/{key[0]}/ports/{key[1]}/{name}") or "").strip()
        return int(text) if text.isdecimal() and len(text) < 21 else None  # "N/A (no PMA)"

    def _subnets(self) -> dict[str, str]:
        """The IPv4 subnet that each interface is in, from the routes without a gateway."""
        rows = (line.split() for line in (self._text(self._routes) or "").splitlines()[1:])
        told = [row for row in rows if len(row) > 7 and row[2] == "0" * 8 and row[7] not in ("0" * 8, "FFFFFFFF")]
        return {row[0]: subnet for row in told if (subnet := _subnet(row[1], row[7])) is not None}

    def _text(self, path: str) -> str | None:
        raw = self._files.read(path)
        return None if raw is None else raw.decode("utf-8", "replace")


def _subnet(address: str, mask: str) -> str | None:
    try:
        octets, bits = bytes.fromhex(address)[::-1], int(mask, 16).bit_count()
    except ValueError:
        return None
    return f"{'.'.join(map(str, octets))}/{bits}" if len(octets) == 4 else None


def _number(text: str | None) -> float | None:
    """The number that a text begins with, above 0."""
    match = re.match(r"\s*(\d{1,9}(?:\.\d{1,6})?)", text or "")
    return float(match[1]) or None if match else None


def _note(readings: deque[tuple[float, int, int]], t: float, received: int | None, sent: int | None) -> None:
    """Add a reading; counters that fell, or are not told, begin anew."""
    if received is None or sent is None:
        readings.clear()
        return
    if readings and (t <= readings[-1][0] or received < readings[-1][1] or sent < readings[-1][2]):
        readings.clear()
    readings.append((t, received, sent))
    while len(readings) > 2 and readings[1][0] <= t - WINDOW_S:
        readings.popleft()


def _rates(
    readings: deque[tuple[float, int, int]], word: int
) -> tuple[float | None, float | None, float | None, float | None]:
    """Window, bytes per second received and sent over it, and their steadiness from reading to reading."""
    if len(readings) < 2:
        return None, None, None, None
    pairs = [*zip(readings, list(readings)[1:], strict=False)]
    each = [max(new[1] - old[1], new[2] - old[2]) / (new[0] - old[0]) for old, new in pairs]
    steady = min(each) / max(each) if len(each) > 2 and max(each) > 0 else None
    first, last = readings[0], readings[-1]
    window = last[0] - first[0]
    return window, (last[1] - first[1]) * word / window, (last[2] - first[2]) * word / window, steady


def _measured(port: _Port) -> Rail:
    window, received, sent, steady = _rates(port.data, WORD)
    rail = replace(port.rail, window_s=window, rx_bytes_s=received, tx_bytes_s=sent, steadiness=steady)
    if len(port.errors) < 2:
        return rail
    (began, old), (ended, new) = port.errors[0], port.errors[-1]
    grown = {name: count - old[name] for name, count in new.items() if count > old.get(name, count)}
    return replace(rail, errors=grown, errors_s=ended - began)
