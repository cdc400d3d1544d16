"""Machines side by side: the figures of each, the sentence above them, and a bar for each that a server runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.contract.snapshot import Device, Node, Pool, ServerView, Snapshot
from llmtop.contract.units import UNKNOWN, duration, gib
from llmtop.machine.tightest import tightest_of, tightness
from llmtop.session.machine_rules import slow_clock
from llmtop.ui.panels.view import LEVEL_STYLE
from llmtop_widgets.gauge import gauge_line
from llmtop_widgets.text import Line, Span, crop, fit, fit_text, line, text_width, width

NODE_STYLE = {"ok": "ok", "stale": "low", "down": "critical", "unknown": "dim"}
LEAST_BAR = 4
NAME = 10


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """One machine: the pool that runs out first, its devices, and the servers that it runs, whole or in part."""

    node: Node
    pool: Pool | None
    devices: tuple[Device, ...]
    servers: tuple[ServerView, ...]
    parts: tuple[ServerView, ...]  # of which it has no port
    rx_bytes_s: float | None = None  # over all its rails
    tx_bytes_s: float | None = None

    @property
    def util(self) -> float | None:
        """The highest of its devices."""
        return max((device.util for device in self.devices if device.util is not None), default=None)

    @property
    def watts(self) -> float | None:
        """All its devices together; None where one does not say."""
        watts = [device.power_w for device in self.devices]
        known = [value for value in watts if value is not None]
        return sum(known) if known and len(known) == len(watts) else None

    @property
    def clock(self) -> float | None:
        """The lowest of its devices."""
        return min((device.sm_clock_mhz for device in self.devices if device.sm_clock_mhz is not None), default=None)

    @property
    def slow(self) -> bool:
        """Whether a clock is held down without a reason."""
        return any(map(slow_clock, self.devices))

    @property
    def words(self) -> str:
        """How it is: its state, with its age where that is old."""
        old = f" {duration(self.node.age_s)}" if self.node.state == "stale" and self.node.age_s is not None else ""
        return {"unknown": UNKNOWN}.get(self.node.state, self.node.state.upper()) + old

    @property
    def headroom(self) -> float | None:
        """Bytes left of its tightest pool."""
        return self.pool.headroom_bytes if self.pool else None


def figures(snapshot: Snapshot) -> list[NodeFigures]:
    """Every machine of a snapshot, in its order."""
    return [_figures(snapshot, node) for node in snapshot.nodes]


def _figures(snapshot: Snapshot, node: Node) -> NodeFigures:
    rails = [rail for rail in snapshot.fabric if rail.node == node.name]
    parts = (s for s in snapshot.servers if any(part.node == node.name for part in s.nodes))
    return NodeFigures(
        node,
        tightest_of(snapshot, node.name),
        tuple(device for device in snapshot.devices if device.node == node.name),
        tuple(server for server in snapshot.servers if server.node == node.name),
        tuple(server for server in parts if server.node != node.name),
        _sum([rail.rx_bytes_s for rail in rails]),
        _sum([rail.tx_bytes_s for rail in rails]),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def nodes_line(rows: Sequence[NodeFigures], cells: int) -> Line:
    """How many machines there are, which are not read, and which has the least memory left."""
    silent = [row for row in rows if row.node.state in ("stale", "down")]
    tight = tightest(rows)
    spans = [Span(f"{len(rows)} node{'s' if len(rows) != 1 else ''}", "bold")]
    if silent:
        spans.append(Span("  " + ", ".join(f"{row.node.name} {row.words}" for row in silent), "low"))
    if tight is not None and tight.pool is not None:
        style = LEVEL_STYLE.get(tight.pool.state or "", "dim")
        spans += [
            Span("  least headroom ", "label"),
            Span(f"{gib(tight.headroom)} GiB", "bold"),
            Span(f" on {tight.node.name}", "label"),
            Span(f"  {(tight.pool.state or UNKNOWN).upper()}", style),
        ]
    return crop(line(*spans), cells)


def tightest(rows: Sequence[NodeFigures]) -> NodeFigures | None:
    """The machine that runs out first, of those that are read now."""
    read = [(tightness(row.pool), place) for place, row in enumerate(rows) if row.pool and row.node.state == "ok"]
    known = [(tight, place) for tight, place in read if rows[place].headroom is not None]
    return rows[min(known)[1]] if known else None


def part_lines(snapshot: Snapshot, server: ServerView, cells: int) -> list[Line]:
    """A bar of taken memory for each machine that a server runs on; empty for one on a single machine."""
    names = dict.fromkeys(part.node for part in server.nodes if part.node is not None)
    rows = [row for row in figures(snapshot) if row.node.name in names]
    if len(rows) < 2:
        return []
    longest = min(max(text_width(row.node.name) for row in rows), max(NAME, cells // 4))
    return [_part(row, longest, cells) for row in rows]


def _part(row: NodeFigures, name: int, cells: int) -> Line:
    pool, old = row.pool, row.node.state != "ok"
    word = row.words if old or pool is None else (pool.state or UNKNOWN).upper()
    style = NODE_STYLE[row.node.state] if old or pool is None else LEVEL_STYLE.get(pool.state or "", "dim")
    right = line(Span(f" {gib(row.headroom):>6} ", "dim" if old else "bold"), Span(f"{word:<8}", style))
    bar = max(LEAST_BAR, cells - name - 1 - width(right))
    taken = None
    if pool is not None and pool.total_bytes and pool.headroom_bytes is not None:
        taken = 1.0 - pool.headroom_bytes / pool.total_bytes
    return fit((Span(fit_text(row.node.name, name) + " ", "label"), *gauge_line(taken, bar), *right), cells)
