"""The demo server as a process: real HTTP, streams, counters that equal what clients got, and its end."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from fakes.demo_client import events, ids_request, metrics, raw_stream, status, total, wait_for
from llmtop.demo import profile as profiles
from llmtop.demo.child import DemoProcess, launch
from llmtop.demo.machine import SimulatedMachine
from program import COMMAND


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


def test_the_small_endpoints(shared: DemoProcess) -> None:
    with httpx.Client(base_url=shared.url) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/ping").status_code == 200
        assert client.get("/version").json() == {"version": "0.32.0"}
        assert client.get("/load").json() == {"server_load": 0}
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == ("gpt-oss-120b", 32768)
        page = client.get("/metrics")
        assert page.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        assert int(page.headers["content-length"]) == len(page.content)
        assert client.get("/nothing").status_code == 404
        assert client.get("/v1/completions").status_code == 405
        short = client.get("/metrics/", params={"name[]": "vllm:num_requests_running"}).text
        assert len(short.splitlines()) == 3


def test_a_stream_has_vllm_s_shape_and_its_counts(shared: DemoProcess) -> None:
    before = metrics(shared.url)
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = ids_request(50, 5, stream=True, stream_options=options)
    answer = httpx.post(f"{shared.url}/v1/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer.text)
    assert [c["usage"]["completion_tokens"] for c in chunks] == [1, 2, 3, 4, 5, 5]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 4 + ["length"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 50, "total_tokens": 55, "completion_tokens": 5}
    after = metrics(shared.url)
    names = {"prompt_tokens_total": 50, "generation_tokens_total": 5, "time_to_first_token_seconds_count": 1}
    for name, count in names.items():
        key = f'vllm:{name}{{model_name="gpt-oss-120b"}}'
        assert after[key] - before[key] == count


async def test_totals_of_concurrent_clients_equal_the_counters(shared: DemoProcess) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
    before = [total(shared.url, name) for name in names]

    requests = [ids_request(20 + number, 8, first=1000 * number) for number in range(40)]
    got = await asyncio.gather(*(raw_stream(shared.url, request) for request in requests))
    after = [total(shared.url, name) for name in names]
    grown = [b - a for a, b in zip(before, after, strict=True)]
    assert grown == [sum(range(20, 60)), sum(got), 40]
    assert got == [8] * 40


def test_a_chat_starts_with_the_role_and_ends_with_done(shared: DemoProcess) -> None:
    body = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 3, "stream": True}
    first, *rest = events(httpx.post(f"{shared.url}/v1/chat/completions", json=body).text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(rest) == 3
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in rest)


def test_an_answer_in_one_piece(shared: DemoProcess) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "ignore_eos": True}
    answer = httpx.post(f"{shared.url}/v1/chat/completions", json=chat).json()
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][0]["finish_reason"] == "length"
    again = httpx.post(f"{shared.url}/v1/chat/completions", json=chat).json()
    assert again["choices"][0]["message"] == answer["choices"][0]["message"]


def test_tokens_round_trip(shared: DemoProcess) -> None:
    with httpx.Client(base_url=shared.url) as client:
        text = "The quick brown fox jumps over the lazy dog, twice."
        answer = client.post("/tokenize", json={"prompt": text}).json()
        assert answer["count"] == len(answer["tokens"])
        assert 3 < len(text) / answer["count"] < 6
        back = client.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
        assert client.post("/tokenize", json={"prompt": back}).json()["tokens"] == answer["tokens"]


@pytest.mark.parametrize(
    ("change", "status", "param", "words"),
    [
        ({"model": "nope"}, 404, "model", "The model `nope` does not exist. Valid aliases: gpt-oss-120b."),
        ({"max_tokens": 0}, 400, "max_tokens", "max_tokens must be at least 1, got 0."),
        ({"max_tokens": 40000}, 400, "max_tokens", "cannot be greater than max_model_len=32768"),
        ({"prompt": [1] * 33000}, 400, "input_tokens", "maximum context length is 32768 tokens"),
        ({"prompt": [1] * 32760}, 400, "input_tokens", "you requested 16 output tokens"),
        ({"prompt": ""}, 400, "prompt", "must be provided and non-empty"),
        ({"prompt": [1, "x"]}, 400, "body.prompt", "list of token ids"),
        ({"min_tokens": 17}, 400, None, "min_tokens must be less than or equal to max_tokens=16, got 17."),
        ({"max_tokens": "many"}, 400, "body.max_tokens", "valid integer"),
    ],
)
def test_refusals_have_vllm_s_words(
    shared: DemoProcess, change: dict[str, object], status: int, param: str | None, words: str
) -> None:
    before = total(shared.url, "vllm:prompt_tokens_total")
    answer = httpx.post(f"{shared.url}/v1/completions", json=ids_request(10, 16) | change)
    error = answer.json()["error"]
    assert answer.status_code == error["code"] == status
    assert error["param"] == param
    assert words in error["message"]
    assert total(shared.url, "vllm:prompt_tokens_total") == before


def test_bad_json_is_refused(shared: DemoProcess) -> None:
    answer = httpx.post(f"{shared.url}/v1/completions", content=b"{bad")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body.1"


def test_a_client_that_goes_frees_its_kv_and_is_no_success(own: DemoProcess) -> None:
    body = ids_request(2000, 30000, stream=True)
    with httpx.stream("POST", f"{own.url}/v1/completions", json=body) as answer:
        received = answer.iter_bytes()
        next(received)
        assert total(own.url, "vllm:num_requests_running") == 1
        assert total(own.url, "vllm:kv_cache_usage_perc") > 0.002
    wait_for(lambda: total(own.url, "vllm:num_requests_running"), lambda n: n == 0, 1.0)
    assert total(own.url, "vllm:kv_cache_usage_perc") == 0
    assert total(own.url, "vllm:request_success_total") == 0
    assert total(own.url, "vllm:time_to_first_token_seconds_count") == 1


async def test_256_streams_at_once(own: DemoProcess) -> None:
    requests = [ids_request(8, 16, first=number * 10) for number in range(256)]
    counts = await asyncio.gather(*(raw_stream(own.url, request) for request in requests))
    assert counts == [16] * 256
    assert total(own.url, "vllm:generation_tokens_total") == 256 * 16


def test_the_key_guards_v1_only() -> None:
    env_name = "LLMTOP_TEST_DEMO_KEY"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(env_name, "s3cret")
        with launch("gb10", no_traffic=True, api_key_env=env_name) as demo:
            assert httpx.get(f"{demo.url}/v1/models").status_code == 401
            assert httpx.get(f"{demo.url}/v1/models").json() == {"error": "Unauthorized"}
            good = {"authorization": "Bearer s3cret"}
            assert httpx.get(f"{demo.url}/v1/models", headers=good).status_code == 200
            assert httpx.get(f"{demo.url}/metrics").status_code == 200


def test_kill_and_end_of_the_parent(own: DemoProcess) -> None:
    own.fault("kill")
    assert own.process.wait(5) == -9
    assert status(f"{own.url}/health") is None


def test_the_server_ends_with_its_parent() -> None:
    code = (
        "from llmtop.demo.child import launch; import os;"
        "d = launch('gb10', no_traffic=True); print(d.process.pid, d.url, flush=True); os._exit(0)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    _, url = out.stdout.split()
    wait_for(lambda: status(f"{url}/health"), lambda code: code is None, 5.0)


def test_sigterm_is_quick_even_with_streams(own: DemoProcess) -> None:
    with socket.create_connection(("127.0.0.1", int(own.url.rpartition(":")[2]))) as client:
        body = json.dumps(ids_request(10, 20000, stream=True)).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
        begin = time.monotonic()
        own.process.terminate()
        assert own.process.wait(5) == 0
        assert time.monotonic() - begin < 1.0


def test_a_taken_port_is_said_and_exits_with_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "llmtop.demo", "gb10", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "llmtop-demo-server:" in done.stderr
    assert "Traceback" not in done.stderr


def test_own_traffic_makes_the_page_live_and_the_machine_follows() -> None:
    with launch("gb10", speed=5, seed=1) as demo:
        wait_for(lambda: total(demo.url, "vllm:generation_tokens_total"), lambda n: n > 50)
        wait_for(lambda: total(demo.url, "vllm:prefix_cache_hits_total"), lambda n: n > 0)
        machine = SimulatedMachine(profiles.load("gb10"), demo.control)
        machine.start()
        try:
            sample = wait_for(machine.sample, lambda s: (s.devices[0].util or 0) > 0)
        finally:
            machine.stop()
    (device,) = sample.devices
    assert device.memory is None
    assert device.unified
    assert device.simulated
    assert device.processes[0].memory_bytes == profiles.load("gb10").engine_bytes
    assert sample.dips["unified"].headroom_bytes <= (sample.mem.available or 0) + 2**28
    assert sample.status[0].ok


def test_own_traffic_gives_way_to_a_client_and_comes_back() -> None:
    with launch("gb10", speed=20, seed=1) as demo:

        def running() -> float:
            return total(demo.url, "vllm:num_requests_running")

        wait_for(running, lambda n: n >= 1, 30)
        begun = total(demo.url, "vllm:generation_tokens_total")
        body = ids_request(20, 400, stream=True)
        with httpx.stream("POST", f"{demo.url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            wait_for(running, lambda n: n == 1)  # the client's own
            for _ in lines:
                pass
        assert running() == 0
        done = total(demo.url, "vllm:generation_tokens_total")
        assert done > begun
        wait_for(running, lambda n: n >= 1, 30)


def test_the_first_sample_is_of_the_machine_as_it_is_and_names_its_speed() -> None:
    with launch("gb10", speed=5, no_traffic=True) as demo:
        profile = profiles.load("gb10")
        machine = SimulatedMachine(profile, demo.control, speed=5)
        machine.start()
        first = machine.sample()
        machine.stop()
    assert first.devices[0].processes[0].memory_bytes == profile.engine_bytes
    assert (first.mem.total or 0) - (first.mem.available or 0) >= profile.engine_bytes
    assert (first.host.name, first.host.simulated_speed) == ("gb10 (simulated at 5 x its speed)", 5)


def test_llama_cpp_speaks_its_own_dialect() -> None:
    with launch("gb10-llamacpp", speed=20, no_traffic=True) as demo, httpx.Client(base_url=demo.url) as client:
        page = client.get("/metrics")
        assert "vllm:" not in page.text
        assert abs(int(page.headers["process-start-time-unix"]) - time.time()) < 60
        assert client.get("/props").json()["total_slots"] == 4
        request = {"prompt": list(range(64)), "max_tokens": 3000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=request) as answer:
            received = answer.iter_bytes()
            next(received)
            busy = [s for s in httpx.get(f"{demo.url}/slots").json() if s["is_processing"]]
            assert busy[0]["next_token"][0]["n_decoded"] > 0
            # the counter moves only when the request ends
            assert "llamacpp:tokens_predicted_total 0\n" in httpx.get(f"{demo.url}/metrics").text
        done = {"prompt": "hello", "max_tokens": 7, "ignore_eos": True}
        assert client.post("/v1/completions", json=done).json()["usage"]["completion_tokens"] == 7
        assert "llamacpp:tokens_predicted_total 7\n" in client.get("/metrics").text


@pytest.mark.parametrize("flag", [("--port", "99999"), ("--port", "-5"), ("--speed", "0"), ("--speed", "nan")])
@pytest.mark.parametrize("how", ["--serve", "--once"])
def test_a_bad_flag_is_one_clear_line(flag: tuple[str, str], how: str) -> None:
    done = subprocess.run([COMMAND, "demo", how, *flag], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert flag[0] in done.stderr


def test_two_engines_side_by_side_on_one_machine() -> None:
    done = subprocess.run(
        [COMMAND, "demo", "--engine", "both", "--once", "--json"], capture_output=True, text=True, check=False
    )
    shown = json.loads(done.stdout)
    assert [server["engine"] for server in shown["servers"]] == ["llamacpp", "vllm"]
    (device,) = shown["devices"]
    held = {process["name"]: process["memory_bytes"] for process in device["processes"]}
    assert set(held) == {"llama-server", "VLLM::EngineCore"}
    (pool,) = shown["pools"]
    assert 0 < pool["headroom_bytes"] < pool["total_bytes"] - sum(held.values())
    refused = subprocess.run(
        [COMMAND, "demo", "--engine", "both", "--serve"], capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
