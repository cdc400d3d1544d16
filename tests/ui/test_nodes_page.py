"""Several machines on the screen: a row each, the way into one and back, a bar for each that a server runs on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cranked_app import Session, session
from fakes.snapshots import NOON, busy, four_nodes
from llmtop.contract.settings import parse_node
from llmtop.contract.snapshot import Node, Snapshot
from llmtop.ui.panels.nodes import figures
from llmtop_widgets.text import text_width
from load_page import until

NODES = tuple(parse_node(f"ssh://spark-{letter}") for letter in "abcd")


async def opened(s: Session, snapshot: Snapshot) -> None:
    """The page of nodes."""
    await s.push(snapshot)
    await s.press("n")
    await until(s, lambda: s.page == "nodes", "the page")
    await s.pilot.pause()


def names(s: Session) -> list[str]:
    return [row.split()[0] for row in s.rows[3:-2] if row.strip()]


def row_of(s: Session, name: str) -> str:
    return next(row for row in s.rows[3:] if row.startswith(name))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50), (40, 12)], ids=str)
async def test_four_machines_have_a_row_each_at_every_size(size: tuple[int, int]) -> None:
    async with session(size, nodes=NODES) as s:
        await opened(s, four_nodes())
        assert {text_width(row) for row in s.rows} == {size[0]}
        assert names(s) == ["spark-a", "spark-b", "spark-c", "spark-d"]
        assert " 3.0 " in row_of(s, "spark-b")
        assert "STALE 1m12s" in row_of(s, "spark-d")
        assert size[0] < 80 or "least headroom 3.0 GiB on spark-b  LOW" in s.rows[1]
        if size[0] >= 80:
            for name, words in {"a": "1.2/3.4 gpt-oss-120b", "b": "part of gpt-oss", "c": "qwen3-32b"}.items():
                assert words in row_of(s, f"spark-{name}")
        assert size[0] < 120 or "513 MHz" in row_of(s, "spark-c")


async def test_machines_are_sorted_by_what_hurts_and_filtered() -> None:
    async with session((120, 24), nodes=NODES) as s:
        await opened(s, four_nodes())
        await s.press("o", "o", "o")
        assert names(s) == ["spark-b", "spark-a", "spark-d", "spark-c"]  # headroom, the least first
        await s.press("slash", *"qwen", "enter")
        assert names(s) == ["spark-c"]
        await s.press("escape")
        assert len(names(s)) == 4


async def test_enter_shows_a_machine_without_a_server_and_escape_leads_back() -> None:
    async with session((100, 30), nodes=NODES) as s:
        await opened(s, four_nodes())
        await s.press("down", "enter")
        await until(s, lambda: s.page == "dashboard", "the machine")
        assert s.rows[0].startswith(" llmtop  spark-b  OK  gx10-b")
        assert "headroom 3.0 of 119.6 GiB" in s.text
        await s.press("2")
        assert "What it means" in s.text
        await s.press("escape", "escape")
        await until(s, lambda: s.page == "nodes", "the page again")
        await s.press("down", "enter")  # whoever has a server is shown with it
        await until(s, lambda: "qwen3-32b" in s.rows[0], "the server")
        await s.press("n", "down", "enter")
        await until(s, lambda: s.rows[0].startswith(" llmtop  spark-d  STALE"), "the machine that fell silent")
        assert "72 s ago" in s.rows[0]
        await s.press("tab")
        await until(s, lambda: "SERVING" in s.rows[0], "a server")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_a_server_on_several_machines_has_a_bar_for_each_and_the_tightest_leads(size: tuple[int, int]) -> None:
    async with session(size, nodes=NODES) as s:
        await s.run(four_nodes(), 3)
        bars = [row for row in s.rows if "spark-a " in row or "spark-b " in row]
        assert any("spark-a" in row and "12.0 OK" in row for row in bars)
        assert any("spark-b" in row and "3.0 LOW" in row for row in bars)
        assert " n Nodes " in s.rows[-1]
        assert "12.0 GiB" not in s.text
        assert {text_width(row) for row in s.rows} == {size[0]}


async def test_one_machine_and_one_that_is_not_read_are_rows_too() -> None:
    lone = replace(
        busy(), nodes=(Node("spark-a", host=busy().host), Node("b", local=False, state="unknown", reason="no"))
    )
    async with session() as s:
        await opened(s, lone)
        assert names(s) == ["spark-a", "b"]
        assert " n Nodes" not in s.rows[-1]
    assert [row.words for row in figures(Snapshot(NOON, nodes=lone.nodes))] == ["OK", "–"]
    assert figures(Snapshot(NOON)) == []
