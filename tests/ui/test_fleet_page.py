"""A fleet on the screen: its models, its replicas by what hurts, and the dashboard of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fakes.snapshots as fakes
from cranked_app import Session, session
from fakes import replicas
from fakes.prometheus_api import FakePrometheus
from llmtop.contract.settings import FleetAddress, Settings, parse_target
from llmtop.contract.snapshot import FleetView, Snapshot, State
from llmtop.fleet.models import models
from llmtop.ui.app import LlmtopApp
from llmtop.ui.panels.fleet import fleet_line
from llmtop.ui.session import REMEMBERED
from llmtop.ui.source import Live
from llmtop_widgets.linetable import LineTable
from llmtop_widgets.text import Span, line, plain
from load_page import SilentButReady, until


def fleet_of(number: int) -> Snapshot:
    """The last replica is down, the one before lets requests wait."""
    servers = [
        replace(fakes.BUSY_SERVER, url=f"http://10.0.0.{place}:8000", model=replicas.model(place), waiting=0)
        for place in range(number)
    ]
    servers[-1] = replace(servers[-1], state=State.DOWN)
    servers[-2] = replace(servers[-2], waiting=9)
    return replace(
        fakes.busy(),
        servers=tuple(servers),
        fleet=FleetView("http://prometheus:9090"),
        models=models(servers, "http://prometheus:9090"),
    )


async def test_models_stand_first_and_then_what_hurts() -> None:
    async with session((100, 24)) as s:
        await s.press("e")
        await s.push(fleet_of(6))
        names = [row.split()[0] for row in s.rows[3:10]]
        assert names[:4] == ["llama", "qwen", "10.0.0.5:8000", "10.0.0.4:8000"]
        assert "2/3 well" in s.rows[4]
        assert "Enter Open" in s.rows[-1]
        await s.press("home", "down", "enter")  # a model shows its replicas alone
        shown = [row.split()[0] for row in s.rows[3:8] if row.strip()]
        assert sorted(shown) == ["10.0.0.1:8000", "10.0.0.3:8000", "10.0.0.5:8000"]


async def test_the_whole_fleet_has_a_header_and_a_verdict_not_its_first_replica() -> None:
    async with session((100, 24)) as s:
        await s.press("e")
        await s.push(fleet_of(6))
        assert s.rows[0].startswith(" llmtop  6 replicas of 2 models  Prometheus prometheus:9090")
        assert "● 1 OF 6 NOT WELL  1 DOWN: 10.0.0.5:8000; 9 wait on 1 of the others" in s.rows[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{}, {}], "● ALL 2 WELL  16 run, nobody waits"),
        ([{"running": None}, {}], "● ALL 2 WELL  8 run, nobody waits"),
        ([{"running": None, "waiting": None}, {"running": None, "waiting": None}], "● ALL 2 WELL"),
        ([{"waiting": 2}, {"waiting": 3}], "● 5 WAIT ON 2 OF 2  b, a"),
        ([{"kv_usage": 0.96}, {}], "● KV CACHE FULL ON 1 OF 2  a"),
        ([{"state": State.STARTING}, {}], "● ALL 1 WELL  8 run, nobody waits, 1 start"),
        ([{"state": State.STALE, "waiting": 7}, {}], "● 1 OF 2 NOT WELL  1 STALE: a"),
    ],
)
def test_the_verdict_over_many_servers_names_the_worst(changes: list[dict[str, object]], words: str) -> None:
    servers = [
        replace(replace(fakes.BUSY_SERVER, url=f"http://{name}", name=None, waiting=0), **change)  # type: ignore[arg-type]
        for name, change in zip("ab", changes, strict=True)
    ]
    assert plain(fleet_line(replace(fakes.busy(), servers=tuple(servers)), 100)) == words


def test_a_prometheus_that_does_not_answer_is_no_server_that_is_down() -> None:
    fleet = FleetView("http://p:9090", reason="Prometheus: connection refused")
    own = replace(fakes.BUSY_SERVER, url="http://p:9090", state=State.DOWN)
    snapshot = replace(fakes.busy(), servers=(own,), fleet=fleet)
    assert plain(fleet_line(snapshot, 100)) == "● NO REPLICAS  Prometheus: connection refused"


async def test_a_column_has_a_colour_where_its_threshold_is_reached() -> None:
    servers = [replace(fakes.BUSY_SERVER, url=f"http://s{kv}", kv_usage=kv / 100) for kv in (50, 90, 97)]
    async with session((150, 24)) as s:
        await s.press("e")
        await s.push(replace(fakes.busy(), servers=tuple(servers)))
        rows = [
            [line(*cell) if not isinstance(cell, Span) else (cell,) for cell in row.cells]
            for row in s.app.screen.query_one(LineTable).rows
        ]
        shown = [[(row[3][0].text[:1], row[3][0].style), row[4][0].style] for row in rows]
        assert shown == [[("▄", "bar"), "value"], [("▄", "low"), "low"], [("▄", "alarm"), "alarm"]]


async def test_of_many_replicas_charts_are_kept_for_those_that_were_opened() -> None:
    async with session((100, 24)) as s:
        snapshot = fleet_of(REMEMBERED + 6)
        s.app.selected = "http://10.0.0.9:8000"
        for seconds in (0, 5, 10):
            await s.push(replace(snapshot, time=snapshot.time + seconds))
        assert {owner for owner, _ in s.app.history._series if owner.startswith("http")} == {"http://10.0.0.9:8000"}


async def test_a_fleet_opens_on_its_table_and_enter_leads_to_the_same_panels() -> None:
    with FakePrometheus() as prometheus:
        began = prometheus.now - 3600
        for place in range(12):
            at = prometheus.now - (11 - place) * 15.0
            for number in range(4):
                labels = {"job": "vllm", "instance": f"10.0.0.{number}:8000"}
                prometheus.scrape(replicas.page(number, at - began), labels, at)
        address = FleetAddress(parse_target(prometheus.url), 'job="vllm"')
        settings = Settings(fleet=address)
        app = LlmtopApp(settings, Live(settings, SilentButReady()))
        async with app.run_test(size=(110, 30)) as pilot:
            s = Session(app, pilot)
            await until(s, lambda: "10.0.0.3:8000" in s.text, "the replicas")
            assert s.page == "engines"
            await s.press("end", "enter")
            assert s.page == "dashboard"
            await until(s, lambda: "<300 ms" in s.text, "quantiles")  # quantiles by our own rule
            assert "Latency" in s.text
            assert "60 s" in s.text  # the window of four scrapes is printed
