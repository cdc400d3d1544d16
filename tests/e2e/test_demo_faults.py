"""The demo server's faults over real HTTP, each seen as a monitor would see it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from fakes.demo_client import ids_request, metrics, status, total, wait_for
from llmtop.demo import profile as profiles
from llmtop.demo.child import DemoProcess, launch


@pytest.fixture(scope="module")
def shared() -> Iterator[DemoProcess]:
    """A quiet, fast server for tests that leave it as it was."""
    with launch("gb10", speed=20, no_traffic=True) as demo:
        yield demo


@pytest.fixture
def own() -> Iterator[DemoProcess]:
    """A server for tests that break it."""
    with launch("gb10", speed=20, no_traffic=True) as demo:
        yield demo


def test_down_and_up_again(own: DemoProcess) -> None:
    own.fault("down")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{own.url}/health")
    own.fault("clear")
    wait_for(lambda: status(f"{own.url}/health"), lambda code: code == 200)


def test_hang_and_slow(own: DemoProcess) -> None:
    own.fault("hang")
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{own.url}/metrics", timeout=0.3)
    own.fault("clear")
    own.fault("slow", 0.4)
    begin = time.monotonic()
    assert httpx.get(f"{own.url}/metrics").status_code == 200
    assert time.monotonic() - begin >= 0.4


def test_a_restart_sets_counters_back_and_moves_the_start_time(own: DemoProcess) -> None:
    httpx.post(f"{own.url}/v1/completions", json=ids_request(10, 4))
    assert total(own.url, "vllm:generation_tokens_total") == 4
    started = total(own.url, "process_start_time_seconds")
    own.fault("restart")
    wait_for(lambda: status(f"{own.url}/health"), lambda code: code == 200)
    assert total(own.url, "vllm:generation_tokens_total") == 0
    assert total(own.url, "process_start_time_seconds") > started
    own.fault("restart-noclock")
    wait_for(lambda: status(f"{own.url}/health"), lambda code: code == 200)
    page = httpx.get(f"{own.url}/metrics").text
    assert "process_start_time" not in page
    assert "_created" not in page


@pytest.mark.parametrize(
    ("name", "code", "start"),
    [
        ("html", 200, b"<!doctype"),
        ("json", 200, b"{"),
        ("http500", 500, b"Internal"),
        ("http404", 404, b"{"),
        ("http401", 401, b"{"),
        ("empty", 200, b""),
    ],
)
def test_pages_that_are_no_pages(shared: DemoProcess, name: str, code: int, start: bytes) -> None:
    assert name in shared.fault(name)
    answer = httpx.get(f"{shared.url}/metrics")
    assert answer.status_code == code
    assert answer.content.startswith(start)
    assert (answer.content == b"") == (name == "empty")
    assert shared.fault("clear") == {}


def test_a_stall_freezes_everything_with_requests_running(own: DemoProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        body = ids_request(100, 400)
        future = pool.submit(httpx.post, f"{own.url}/v1/completions", json=body, timeout=60)
        wait_for(lambda: total(own.url, "vllm:num_requests_running"), lambda n: n == 1)
        own.fault("stall")
        first = metrics(own.url)
        time.sleep(0.3)
        second = metrics(own.url)
        changed = {k for k in first if first[k] != second[k] and k.startswith("vllm:")}
        assert changed == set()
        assert total(own.url, "vllm:num_requests_running") == 1
        own.fault("clear")
        assert future.result().json()["usage"]["completion_tokens"] == 400


def test_sleep_shows_in_the_sleep_state_and_frees_the_weights(own: DemoProcess) -> None:
    profile = profiles.load("gb10")
    assert httpx.get(f"{own.control}/__machine").json()["engine_bytes"] == profile.engine_bytes
    own.fault("sleep")
    key = 'vllm:engine_sleep_state{model_name="gpt-oss-120b",sleep_state="awake"}'
    assert metrics(own.url)[key] == 0
    held = httpx.get(f"{own.control}/__machine").json()["engine_bytes"]
    assert held == profile.engine_bytes - profile.machine.weights
    own.fault("clear")
    assert metrics(own.url)[key] == 1
    assert httpx.get(f"{own.control}/__machine").json()["engine_bytes"] == profile.engine_bytes


def test_two_engines_one_vanishes(own: DemoProcess) -> None:
    own.fault("dp", 2)
    for number in range(4):
        httpx.post(f"{own.url}/v1/completions", json=ids_request(10, 2, first=number * 50))
    page = httpx.get(f"{own.url}/metrics").text
    assert 'engine="1"' in page
    assert "process_" not in page
    own.fault("engine-vanish")
    assert 'engine="1"' not in httpx.get(f"{own.url}/metrics").text


def test_an_unknown_fault_is_refused(shared: DemoProcess) -> None:
    answer = httpx.post(f"{shared.url}/__fault", json={"name": "earthquake"})
    assert answer.status_code == 400
    assert "known: down" in answer.json()["error"]["message"]
    answer = httpx.post(f"{shared.url}/__fault", json={"name": "engine-vanish"})
    assert answer.status_code == 400
    assert "several engines" in answer.json()["error"]["message"]
