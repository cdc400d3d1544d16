"""Prints the budget table: `python tests/bench/table.py [--rivals]`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.budgets import MANY, Measured, measure, rivals
from bench.measure import Usage, bench

HEAD = f"{'':34} {'B/s':>8} {'frames/s':>9} {'CPU %':>7} {'RSS MiB':>8}"


def row(name: str, usage: Usage) -> str:
    """A line of the table."""
    return f"{name:34} {usage.bytes_s:8,.0f} {usage.frames_s:9.2f} {usage.cpu_percent:7.2f} {usage.rss / 2**20:8.1f}"


def table(measured: Measured) -> str:
    """The measurements and the gates."""
    lines = [
        HEAD,
        row("llmtop 200x50, everything changes", measured.wide),
        row("llmtop 80x24, everything changes", measured.narrow),
        row("llmtop 80x24, nothing changes", measured.still),
        row(f"llmtop 80x24, {MANY} servers", measured.many),
        row("llmtop 80x24, 1 server beside them", measured.one),
        row("floor 200x50: one line a second", measured.floor),
        row("floor 80x24: one line a second", measured.narrow_floor),
        "",
        f"CPU to the first frame: llmtop {measured.starts[0]:.2f} s, floor {measured.starts[1]:.2f} s",
        f"a 54 KB page: llmtop {measured.parse[0]:.2f} ms, prometheus_client {measured.parse[1]:.2f} ms",
        "",
    ]
    return "\n".join([*lines, *(f"{'ok  ' if gate.passed else 'MISS'} {gate}" for gate in measured.gates())])


def main() -> int:
    """Print the table; 1 when a budget is missed."""
    measured = measure()
    print(table(measured))
    if "--rivals" in sys.argv[1:]:
        print("\n" + HEAD)
        with bench() as served:
            for name, usage in rivals(served):
                print(row(f"{name} 200x50", usage) if usage else f"{name}: shows nothing")
    return 0 if all(gate.passed for gate in measured.gates()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
