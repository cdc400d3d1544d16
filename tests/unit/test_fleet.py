"""Replicas as a Prometheus saw them: figures, windows, ages, death, and what it costs to ask."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes import replicas
from fakes.prometheus_api import FakePrometheus
from llmtop.contract.settings import FleetAddress, Settings, parse_target
from llmtop.contract.snapshot import ServerView, State
from llmtop.fleet.fleet import Fleet
from llmtop.fleet.models import models
from llmtop.fleet.replica import scrape_interval, spans_for
from program import once, validator

STEP_S = 15.0


class Scraped:
    """A fake Prometheus that scrapes replicas every `step_s`, and the fleet that reads it."""

    def __init__(self, number: int, step_s: float = STEP_S, select: str = 'job="vllm"') -> None:
        self.number, self.step_s = number, step_s
        self.prometheus = FakePrometheus()
        self.dead: set[int] = set()
        self.began = self.prometheus.now - 3600
        self._scraped = self.prometheus.now - 20 * step_s
        self.more: Callable[[float], None] = lambda at: None
        self.select = select
        self.target = "http://127.0.0.1:1"

    def labels(self, number: int) -> dict[str, str]:
        return {"job": "vllm", "instance": f"10.0.0.{number}:8000"}

    def until(self, now: float) -> None:
        """Scrape up to a moment, which is now."""
        while self._scraped + self.step_s <= now:
            self._scraped += self.step_s
            for number in range(self.number):
                text = None if number in self.dead else replicas.page(number, self._scraped - self.began)
                self.prometheus.scrape(text, self.labels(number), self._scraped)
            self.more(self._scraped)
        self.prometheus.now = now

    def fleet(self) -> Fleet:
        address = FleetAddress(parse_target(self.prometheus.url), self.select)
        return Fleet(Settings(fleet=address))


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    scraped = Scraped(6)
    with scraped.prometheus:
        scraped.until(scraped.prometheus.now)
        yield scraped


async def refresh(fleet: Fleet) -> dict[str, ServerView]:
    """The views by instance after one more refresh, however soon after the last."""
    fleet._due = 0.0
    task = fleet.begin(5.0)
    assert task is not None
    await task
    return {view.url.removeprefix("http://"): view for view in fleet.views()}


async def test_the_first_refresh_has_all_figures_of_its_windows(scraped: Scraped) -> None:
    fleet = scraped.fleet()
    views = await refresh(fleet)
    assert len(views) == 6
    for number in range(6):
        view = views[f"10.0.0.{number}:8000"]
        assert (view.state, view.engine, view.model) == (State.SERVING, "vllm", replicas.model(number))
        assert view.rates.window_s == 60.0  # four scrapes
        assert view.rates.generation_tok_s == pytest.approx(replicas.requests_s(number) * 100, rel=1e-3)
        assert view.kv_usage == number / 20
        ttft = view.latency.ttft
        assert ttft.mean_s == pytest.approx(0.257)
        assert ttft.p95 is not None
        assert 0.25 < ttft.p95.value_s <= 2.5
        queue = view.latency.queue.p95
        assert queue is not None
        assert (queue.value_s, queue.bound) == (0.3, "<")  # Prometheus would say 0.285
        assert view.interval_s == STEP_S
    await fleet.stop()


async def test_windows_hold_four_scrapes_and_are_told(scraped: Scraped) -> None:
    fleet = scraped.fleet()
    await refresh(fleet)
    told = fleet.view()
    assert (told.scrape_interval_s, told.rate_window_s, told.latency_window_s) == (15.0, 60.0, 60.0)
    assert (spans_for(1.0).rate_s, spans_for(1.0).latency_s, spans_for(30.0).latency_s) == (10.0, 60.0, 120.0)
    assert scrape_interval([30.0, 0.0, 15.0, 45.0, 100.0]) == 15.0
    await fleet.stop()


async def test_no_rate_of_a_dead_replica_lives_on(scraped: Scraped) -> None:
    fleet = scraped.fleet()
    before = (await refresh(fleet))["10.0.0.3:8000"]
    assert before.rates.generation_tok_s
    scraped.dead.add(3)
    scraped.until(scraped.prometheus.now + STEP_S)
    views = await refresh(fleet)
    dead = views.pop("10.0.0.3:8000")
    assert (dead.state, dead.rates.generation_tok_s, dead.latency.ttft.n) == (State.DOWN, None, None)
    assert (dead.running, dead.kv_usage, dead.model) == (None, None, "qwen")
    assert "up = 0" in (dead.reason or "")
    assert dead.age_s is not None
    assert all(view.state is State.SERVING for view in views.values())
    scraped.dead.clear()  # it comes back
    scraped.until(scraped.prometheus.now + 5 * STEP_S)
    back = (await refresh(fleet))["10.0.0.3:8000"]
    assert (back.state, back.restarts) == (State.SERVING, 0)
    assert back.rates.generation_tok_s == pytest.approx(before.rates.generation_tok_s, rel=0.01)
    await fleet.stop()


async def test_why_a_scrape_fails_is_told_where_prometheus_tells_it(scraped: Scraped) -> None:
    fleet = scraped.fleet()
    await refresh(fleet)
    scraped.dead = {3, 4}
    words = 'Get "http://10.0.0.3:8000/metrics": dial tcp 10.0.0.3:8000: connect: connection refused'
    scraped.prometheus.errors = {frozenset(scraped.labels(3).items()): words, frozenset(scraped.labels(0).items()): ""}
    scraped.until(scraped.prometheus.now + STEP_S)
    views = await refresh(fleet)
    assert (views["10.0.0.3:8000"].reason or "").startswith(
        "Prometheus cannot scrape it: dial tcp 10.0.0.3:8000: connect: connection refused, last sample "
    )
    assert "up = 0" in (views["10.0.0.4:8000"].reason or "")
    assert views["10.0.0.0:8000"].reason is None
    scraped.prometheus.errors = {frozenset(scraped.labels(3).items()): "server returned HTTP status 500"}
    fleet._reasons_at = 0.0  # a minute later
    scraped.until(scraped.prometheus.now + STEP_S)
    assert "it: server returned HTTP status 500, last" in ((await refresh(fleet))["10.0.0.3:8000"].reason or "")
    scraped.dead = set()
    scraped.until(scraped.prometheus.now + STEP_S)
    assert {view.reason for view in (await refresh(fleet)).values()} == {None}
    await fleet.stop()


async def test_a_source_that_tells_no_targets_is_asked_for_them_once_a_minute(scraped: Scraped) -> None:
    scraped.dead, scraped.prometheus.errors = {3}, None
    scraped.until(scraped.prometheus.now + STEP_S)
    fleet = scraped.fleet()
    assert (await refresh(fleet))["10.0.0.3:8000"].state is State.DOWN
    asked = fleet.view().requests
    scraped.until(scraped.prometheus.now + STEP_S)
    await refresh(fleet)
    assert asked is not None
    assert fleet.view().requests == asked - 4  # neither the clock, the names, the probe nor the targets
    await fleet.stop()


async def test_victoria_metrics_tells_its_time_in_whole_seconds_as_a_vector(scraped: Scraped) -> None:
    scraped.prometheus.whole_seconds = True
    fleet = scraped.fleet()
    views = await refresh(fleet)
    assert {view.state for view in views.values()} == {State.SERVING}
    assert abs(fleet._clock - (scraped.prometheus.now - time.time())) < 2
    await fleet.stop()


async def test_what_comes_two_seconds_late_is_not_stale() -> None:
    scraped = Scraped(1, step_s=1.0)
    with scraped.prometheus:
        scraped.until(scraped.prometheus.now)
        fleet = scraped.fleet()
        await refresh(fleet)
        for late, state in ((4.0, State.SERVING), (6.5, State.STALE)):
            scraped.prometheus.now = scraped._scraped + late
            fleet._look_around_at = 0.0
            (view,) = (await refresh(fleet)).values()
            assert view.state is state, late
        await fleet.stop()


async def test_one_that_was_dead_before_we_came_is_there() -> None:
    scraped = Scraped(3)
    scraped.dead = {1}
    with scraped.prometheus:
        scraped.until(scraped.prometheus.now)
        fleet = scraped.fleet()
        assert (await refresh(fleet))["10.0.0.1:8000"].state is State.DOWN
        await fleet.stop()


async def test_a_source_without_up_grows_stale_and_has_no_rates_then() -> None:
    """What a federation or a remote write hands on lingers; it has an age all the same."""
    scraped = Scraped(0, select="")
    with scraped.prometheus:
        began, now = scraped.began, scraped.prometheus.now
        labels = {"job": "remote", "instance": "far:8000"}
        for place in range(12):
            at = now - (12 - place) * STEP_S
            scraped.prometheus.scrape(replicas.page(1, at - began), labels, at, up=False)
        fleet = scraped.fleet()
        view = (await refresh(fleet))["far:8000"]
        assert (view.state, view.rates.window_s) == (State.SERVING, 60.0)
        scraped.prometheus.now = now + 4 * STEP_S
        fleet._look_around_at = 0.0  # and its clock with it
        view = (await refresh(fleet))["far:8000"]
        assert (view.state, view.rates.generation_tok_s, view.latency.ttft.n) == (State.STALE, None, None)
        assert view.age_s == pytest.approx(5 * STEP_S, abs=2.0)
        scraped.prometheus.now = now + 500
        fleet._look_around_at = 0.0
        (gone,) = (await refresh(fleet)).values()
        assert gone.state is State.NO_ENGINE_METRICS  # nobody is left, and that is said
        await fleet.stop()


async def test_a_restart_begins_new_windows(scraped: Scraped) -> None:
    fleet = scraped.fleet()
    await refresh(fleet)
    scraped.began = scraped.prometheus.now + 1
    text = replicas.page(2, 10.0).replace(str(replicas.START), str(replicas.START + 9))
    scraped.prometheus.scrape(text, scraped.labels(2), scraped.prometheus.now + 1)
    scraped.prometheus.now += 2
    view = (await refresh(fleet))["10.0.0.2:8000"]
    assert (view.restarts, view.rates.generation_tok_s) == (1, None)
    await fleet.stop()


async def test_labels_of_the_target_name_no_engine_of_it() -> None:
    """Pods behind one service: each a replica with a name, and two engines of one pod are its rows."""
    scraped = Scraped(0)
    with scraped.prometheus:
        now = scraped.prometheus.now
        for pod in ("vllm-a", "vllm-b"):
            labels = {"job": "vllm", "instance": f"{pod}.svc:8000", "namespace": "prod", "pod": pod, "container": "c"}
            for place in range(6):
                one = replicas.page(4, 3000 + place * STEP_S)
                two = one.replace('engine="0"', 'engine="1"').replace("process_start_time_seconds", "ignored")
                scraped.prometheus.scrape(one + two, labels, now - (6 - place) * STEP_S)
        fleet = scraped.fleet()
        views = (await refresh(fleet)).values()
        assert [view.name for view in views] == ["vllm-a", "vllm-b"]
        assert [[row.engine for row in view.engines] for view in views] == [["0", "1"]] * 2
        assert all(view.rates.generation_tok_s == pytest.approx(2 * 600, rel=1e-3) for view in views)
        await fleet.stop()


async def test_matchers_of_labels_that_up_has_not_still_tell_the_dead(scraped: Scraped) -> None:
    scraped.select = 'model_name="qwen"'
    fleet = scraped.fleet()
    assert len(await refresh(fleet)) == 3
    scraped.dead = {1, 2}
    scraped.until(scraped.prometheus.now + STEP_S)
    views = await refresh(fleet)
    assert {url: view.state for url, view in views.items()} == {
        "10.0.0.1:8000": State.DOWN,
        "10.0.0.3:8000": State.SERVING,
        "10.0.0.5:8000": State.SERVING,
    }
    await fleet.stop()


async def test_other_jobs_of_the_same_prometheus_are_no_replicas(scraped: Scraped) -> None:
    now = scraped.prometheus.now
    for at in (now - 20, now - 5):
        scraped.prometheus.scrape("process_start_time_seconds 5\n", {"job": "node", "instance": "x:9100"}, at)
        scraped.prometheus.scrape(None, {"job": "vllm", "instance": "other:1"}, at)
    scraped.select = ""
    fleet = scraped.fleet()
    assert (await refresh(fleet))["other:1"].state is State.DOWN  # of a job that serves models alone
    await fleet.stop()
    scraped.prometheus.scrape("http_requests_total 3\n", {"job": "vllm", "instance": "web:80"}, now - 5)
    fleet = scraped.fleet()
    assert len(await refresh(fleet)) == 6  # of one that does not, nobody knows what it was
    await fleet.stop()


@pytest.mark.parametrize(
    ("trouble", "state", "words"),
    [
        ((401, b""), State.AUTH, "--api-key-env"),
        ((404, b"404 page not found"), State.NO_ENGINE_METRICS, "no Prometheus API"),
        ((200, b"<html>"), State.NO_ENGINE_METRICS, "no Prometheus API"),
        ((200, b'{"status":"success","data":{"result":[[1]]}}'), State.DOWN, "not Prometheus'"),
        ((200, b'{"status":"success"}'), State.DOWN, "not Prometheus'"),
        ((400, b'{"status":"error","error":"parse \\u001b[31merror"}'), State.NO_ENGINE_METRICS, "parse [31merror"),
    ],
)
async def test_where_nothing_is_to_be_had_one_row_says_why(
    scraped: Scraped, trouble: tuple[int, bytes], state: State, words: str
) -> None:
    scraped.prometheus.trouble = trouble
    fleet = scraped.fleet()
    (view,) = (await refresh(fleet)).values()
    assert view.state is state
    assert words in (view.reason or "")
    told = fleet.view()
    assert (told.scrape_interval_s, told.rate_window_s, told.latency_window_s) == (None, None, None)
    assert models([view], told.source) == ()
    await fleet.stop()


async def test_a_prometheus_that_falls_silent_leaves_stale_replicas(scraped: Scraped) -> None:
    fleet = scraped.fleet()
    await refresh(fleet)
    scraped.prometheus.trouble = (503, b"")
    fleet._clock += 4 * STEP_S
    views = await refresh(fleet)
    assert {view.state for view in views.values()} == {State.STALE}
    assert all("Prometheus" in (view.reason or "") and view.rates.generation_tok_s is None for view in views.values())
    assert fleet.view().reason
    await fleet.stop()


async def test_quantiles_are_read_for_what_is_on_screen_alone(scraped: Scraped) -> None:
    fleet = scraped.fleet()
    fleet.look_at(["http://10.0.0.4:8000"])
    views = await refresh(fleet)
    known = {url for url, view in views.items() if view.latency.ttft.p95 is not None}
    assert known == {"10.0.0.4:8000"}
    assert all(view.latency.ttft.mean_s == pytest.approx(0.257) for view in views.values())  # exact, and cheap
    buckets = [query for query in scraped.prometheus.queries if "_bucket" in query]
    assert len(buckets) == 1
    assert "10\\\\.0\\\\.0\\\\.4:8000" in buckets[0]
    await fleet.stop()


async def test_five_hundred_replicas_take_ten_questions_at_most() -> None:
    scraped = Scraped(500, step_s=60.0)
    scraped._scraped = scraped.prometheus.now - 180.0
    with scraped.prometheus:
        scraped.until(scraped.prometheus.now)
        fleet = scraped.fleet()
        views = await refresh(fleet)
        assert len(views) == 500
        assert fleet.view().requests is not None
        assert (fleet.view().requests or 0) <= 10
        assert all(view.latency.ttft.p95 is not None for view in views.values())
        await refresh(fleet)
        assert (fleet.view().requests or 0) <= 7
        await fleet.stop()


async def test_memory_of_the_machines_comes_from_their_exporters(scraped: Scraped) -> None:
    now = scraped.prometheus.now
    gpu = 'gpu="0",UUID="GPU-1",modelName="NVIDIA H100"'
    dcgm = "".join(
        f"DCGM_FI_DEV_{name}{{{gpu}}} {value}\n"
        for name, value in {"FB_USED": 70000, "FB_FREE": 10000, "FB_RESERVED": 500, "GPU_UTIL": 93}.items()
    )
    node = "node_memory_MemTotal_bytes 1e11\nnode_memory_MemAvailable_bytes 4e10\nnode_memory_MemFree_bytes 1e10\n"
    scraped.prometheus.scrape(dcgm, {"job": "dcgm", "instance": "10.0.0.2:9400"}, now - 1)
    scraped.prometheus.scrape(node, {"job": "node", "instance": "10.0.0.2:9100"}, now - 1)
    fleet = scraped.fleet()
    await refresh(fleet)
    (reading,) = fleet.machines
    assert reading.name == "10.0.0.2"
    assert reading.sample is not None
    (device,) = reading.sample.devices
    assert device.memory is not None
    assert (device.memory.free, device.memory.total, device.util) == (10000 * 2**20, 80500 * 2**20, 93.0)
    assert reading.sample.mem.available == 40_000_000_000
    await fleet.stop()


async def test_a_pod_stands_on_the_machine_that_its_gpus_are_of() -> None:
    scraped = Scraped(0)
    with scraped.prometheus:
        now = scraped.prometheus.now
        for at in (now - 30, now - 15, now - 1):
            labels = {"job": "vllm", "instance": "10.1.2.3:8000", "pod": "vllm-0"}
            scraped.prometheus.scrape(replicas.page(1, at), labels, at)
            gpu = 'gpu="3",modelName="NVIDIA GB10",Hostname="spark-a",exported_pod="vllm-0"'
            told = {"job": "dcgm", "instance": "10.9.9.9:9400"}
            scraped.prometheus.scrape(f"DCGM_FI_DEV_GPU_UTIL{{{gpu}}} 50\n", told, at)
        fleet = scraped.fleet()
        (view,) = (await refresh(fleet)).values()
        assert view.node == "spark-a"
        assert [reading.name for reading in fleet.machines] == ["spark-a"]
        sample = fleet.machines[0].sample
        assert sample is not None
        assert sample.devices[0].unified  # a GB10, of which dcgm-exporter tells no memory
        await fleet.stop()


async def test_a_page_that_is_still_coming_in_waits_for_its_rest(scraped: Scraped) -> None:
    fleet = scraped.fleet()
    await refresh(fleet)
    at = scraped.prometheus.now + 3
    part = "\n".join(replicas.page(0, at - scraped.began).splitlines()[:3]) + "\n"
    scraped.prometheus.scrape(part, scraped.labels(0), at)
    scraped.prometheus.now = at + 1
    view = (await refresh(fleet))["10.0.0.0:8000"]
    assert view.rates.generation_tok_s  # of the page before: this one has no tokens yet
    await fleet.stop()


async def test_models_add_up_their_replicas(scraped: Scraped) -> None:
    fleet = scraped.fleet()
    await refresh(fleet)
    scraped.dead = {5}
    scraped.until(scraped.prometheus.now + STEP_S)
    llama, qwen = models((await refresh(fleet)).values(), "http://prometheus:9090")
    assert (llama.model, llama.replicas, llama.healthy, llama.running) == ("llama", 3, 3, 1 + 3 + 5)
    assert (qwen.model, qwen.replicas, qwen.healthy) == ("qwen", 3, 2)
    assert (qwen.kv_usage, qwen.kv_server) == (0.15, "http://10.0.0.3:8000")
    assert qwen.generation_tok_s == pytest.approx((3 + 5) * 100, rel=1e-3)
    assert qwen.ttft_mean_s == pytest.approx(0.257)
    await fleet.stop()


# the program


def test_once_json_keeps_the_contract_and_the_key_goes_to_prometheus_alone(tmp_path: Path) -> None:
    scraped = Scraped(3)
    scraped.prometheus._key = "key-of-the-prometheus"
    scraped.prometheus.now = time.time()
    with scraped.prometheus:
        scraped.until(scraped.prometheus.now)
        args = ["--from-prometheus", scraped.prometheus.url, "--select", '{job="vllm"}', "--once"]
        env = {"PROM_KEY": "key-of-the-prometheus", "VLLM_API_KEY": "key-of-the-server"}
        done = once(tmp_path, *args, "--json", "--api-key-env", "PROM_KEY", env=env)
        line = json.loads(done.stdout)
        validator().validate(line)
        assert done.returncode == 0
        assert [server["state"] for server in line["servers"]] == ["SERVING"] * 3
        assert line["fleet"]["source"] == scraped.prometheus.url
        assert [model["model"] for model in line["models"]] == ["llama", "qwen"]
        assert "key-of-the-prometheus" not in done.stdout
        without = once(tmp_path, *args, "--json", env=env)
        assert (without.returncode, json.loads(without.stdout)["servers"][0]["state"]) == (1, "AUTH")
        assert not any("key-of-the-server" in str(headers) for headers in scraped.prometheus.headers)


@pytest.mark.parametrize(
    "flags",
    [
        ["--select", 'job="x"'],
        ["--from-prometheus", "http://h:1", "127.0.0.1:8000"],
        ["--from-prometheus", "ftp://h"],
        ["--from-prometheus", "h:1", "--tenant", "a\nb"],
        ["--from-prometheus", "h:1", "--select", "job="],
        ["--from-prometheus", "h:1", "--select", "job=vllm"],
        ["--from-prometheus", "h:1", "--select", 'up{job="x"}'],
        ["--from-prometheus", "h:1", "--select", 'job="a" or job="b"'],
    ],
)
def test_what_cannot_be_meant_is_one_line(tmp_path: Path, flags: list[str]) -> None:
    done = once(tmp_path, "--once", *flags)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


async def test_the_tenant_goes_along(scraped: Scraped) -> None:
    fleet = Fleet(Settings(fleet=FleetAddress(parse_target(scraped.prometheus.url), "", "team-a")))
    await refresh(fleet)
    assert all(headers.get("X-Scope-OrgID") == "team-a" for headers in scraped.prometheus.headers)
    await asyncio.wait_for(fleet.stop(), 5)
