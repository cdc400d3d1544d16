"""The budgets as tests. A gate on time is a ratio within one run, and is measured anew before it fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.budgets import (
    NARROW,
    WIDE,
    Gate,
    Measured,
    busy,
    byte_gates,
    cpu_gate,
    many_gate,
    measure,
    parse_gate,
    parsing,
    servers,
    start_gate,
    starts,
)
from bench.measure import Bench, bench

RETRIES = 2


@pytest.fixture(scope="module")
def measured() -> Measured:
    """One run of everything."""
    return measure()


def assert_kept(gate: Gate, again: Callable[[], Gate]) -> None:
    """Other work on the machine can spoil a ratio: the best of three runs counts."""
    gates = [gate]
    while not gates[-1].passed and len(gates) <= RETRIES:
        gates.append(again())
    assert gates[-1].passed, "; ".join(map(str, gates))


def on_bench(run: Callable[[Bench], Gate]) -> Callable[[], Gate]:
    """Run a measurement on a bench of its own."""

    def again() -> Gate:
        with bench() as served:
            return run(served)

    return again


@pytest.mark.parametrize("place", range(3), ids=("200x50", "80x24", "still"))
def test_the_terminal_gets_few_bytes(measured: Measured, place: int) -> None:
    gate = byte_gates(measured)[place]
    assert gate.passed, gate


def test_watching_costs_little_cpu(measured: Measured) -> None:
    assert_kept(
        cpu_gate(measured.narrow, measured.narrow_floor, NARROW),
        on_bench(lambda served: cpu_gate(*busy(served, NARROW), NARROW)),
    )


def test_watching_on_a_large_screen_costs_little_cpu(measured: Measured) -> None:
    assert_kept(
        cpu_gate(measured.wide, measured.floor, WIDE),
        on_bench(lambda served: cpu_gate(*busy(served, WIDE), WIDE)),
    )


def test_the_first_frame_costs_little_cpu(measured: Measured) -> None:
    assert_kept(start_gate(*measured.starts), on_bench(lambda served: start_gate(*starts(served))))


def test_watching_takes_little_memory(measured: Measured) -> None:
    (gate,) = [gate for gate in measured.gates() if gate.name == "resident"]
    assert gate.passed, gate


def test_a_page_is_read_much_faster_than_by_the_official_parser(measured: Measured) -> None:
    assert_kept(parse_gate(*measured.parse), lambda: parse_gate(*parsing()))


def test_many_servers_cost_little_more_than_one(measured: Measured) -> None:
    assert_kept(many_gate(measured.many, measured.one), on_bench(lambda served: many_gate(*servers(served))))
