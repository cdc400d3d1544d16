"""Which statements about a snapshot hold now: what is wrong, what shows it, what to change.

A finding speaks of the snapshot it stands in: its words are made from it, and it ends with its cause. So that none
flickers, a rule must hold for its `sustain_s` before it speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llmtop.contract.snapshot import Finding, Snapshot
from llmtop.session import fabric_rules as fabric
from llmtop.session import machine_rules as machine
from llmtop.session import server_rules as server
from llmtop.session import spread_rules as spread


@dataclass(frozen=True, slots=True)
class Rule:
    """A test of one snapshot, and how long it must hold before it speaks."""

    check: Callable[[Snapshot], Iterable[Finding]]
    sustain_s: float = 0.0


class Findings:
    """Applies the rules to every snapshot and remembers since when each finding holds."""

    def __init__(self, rules: tuple[Rule, ...] | None = None) -> None:
        self._rules = RULES if rules is None else rules
        self._since: dict[str, float] = {}

    def update(self, snapshot: Snapshot, t: float) -> tuple[Finding, ...]:
        """The findings at monotonic time `t`, the worst first."""
        found = [(rule, finding) for rule in self._rules for finding in rule.check(snapshot)]
        self._since = {finding.id: self._since.get(finding.id, t) for _, finding in found}
        held = [finding for rule, finding in found if t - self._since[finding.id] >= rule.sustain_s]
        return tuple(sorted(held, key=_weight))


def _weight(finding: Finding) -> tuple[int, str]:
    return ("critical", "warning", "info").index(finding.level), finding.id


RULES: tuple[Rule, ...] = (
    Rule(machine.memory),
    Rule(machine.not_ours),
    Rule(machine.cache_in_the_way, sustain_s=2.0),
    Rule(spread.wedge),
    Rule(server.stalled),
    Rule(spread.imbalance, sustain_s=5.0),
    Rule(spread.missing, sustain_s=5.0),
    Rule(server.unreachable),
    Rule(server.unhealthy),
    Rule(server.kv_pressure, sustain_s=3.0),
    Rule(server.kv_filling, sustain_s=8.0),
    Rule(server.seq_cap, sustain_s=20.0),
    Rule(server.errors),
    Rule(server.prefix_cache, sustain_s=15.0),
    Rule(server.speculation, sustain_s=15.0),
    Rule(server.rejections),
    Rule(server.slow_scrapes, sustain_s=5.0),
    Rule(fabric.one_rail),
    Rule(fabric.capped),
    Rule(fabric.sockets),
    Rule(fabric.errors),
    Rule(machine.devices),
    Rule(machine.low_clock, sustain_s=10.0),
    Rule(machine.hot, sustain_s=5.0),
    Rule(machine.swapped, sustain_s=5.0),
    Rule(machine.sources),
)
