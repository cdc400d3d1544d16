"""A fleet on the screen: its models, its replicas by what hurts, and the dashboard of one."""

from __future__ import annotations

from dataclasses import replace

import fakes.snapshots as fakes
from cranked_app import Session, session
from fakes import replicas
from fakes.prometheus_api import FakePrometheus
from llmtop.contract.settings import FleetAddress, Settings, parse_target
from llmtop.contract.snapshot import FleetView, Snapshot, State
from llmtop.fleet.models import models
from llmtop.ui.app import LlmtopApp
from llmtop.ui.session import REMEMBERED
from llmtop.ui.source import Live
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
        names = [row.split()[0] for row in s.rows[2:10]]
        assert names[:4] == ["llama", "qwen", "10.0.0.5:8000", "10.0.0.4:8000"]
        assert "all 3" in s.rows[3]
        assert "2 well" in s.rows[3]
        await s.press("home", "down", "enter")  # a model shows its replicas alone
        shown = [row.split()[0] for row in s.rows[2:8] if row.strip()]
        assert sorted(shown) == ["10.0.0.1:8000", "10.0.0.3:8000", "10.0.0.5:8000"]


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
