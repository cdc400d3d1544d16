"""Servers that answer and are no vLLM: which page is read, which is never asked, and what is said instead."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from fakes.pages import Page, PageServer
from llmtop.contract.settings import Target, parse_target
from llmtop.contract.snapshot import ServerView, State
from llmtop.engines.models import ListedModel, listed, serving
from llmtop.engines.server import ServerSource
from llmtop.engines.tracker import ServerTracker

LOADED = b"llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total 1000\n"
NAMELESS = (400, b'{"error":{"code":400,"message":"model name is missing from the request"}}')


def models(*entries: Mapping[str, object]) -> bytes:
    return json.dumps({"object": "list", "data": list(entries)}).encode()


ROUTER = models(
    *(
        {"id": name, "owned_by": "llamacpp", "status": {"value": status}}
        for name, status in (("embed-0.6b", "unloaded"), ("qwen3-235b", "unloaded"), ("gpt-oss-20b", "loaded"))
    )
)


async def watched(server: PageServer, target: Target | None = None, polls: int = 2) -> ServerView:
    """The server after some polls, its side doors asked after each."""
    source, tracker = ServerSource(target or Target(server.url)), ServerTracker(server.url)
    try:
        for n in range(polls):
            tracker.feed((await source.poll()).result, float(n))
            await source.identify()
            tracker.identity = source.identity
    finally:
        await source.close()
    return tracker.view(float(polls - 1), 1.8e9, 1.0)


def asked(server: PageServer) -> list[str]:
    return [path for _, path, _ in server.requests]


async def test_a_router_wants_a_model_and_loads_none() -> None:
    with PageServer([NAMELESS], {"/v1/models": ROUTER, "/health": b"{}"}) as server:
        view = await watched(server, polls=3)
        assert (view.state, view.engine, view.model) == (State.NO_ENGINE_METRICS, "llamacpp", "gpt-oss-20b")
        assert view.reason == "llama.cpp router: name a model (URL?model=NAME); loaded: gpt-oss-20b"
        assert not [path for path in asked(server) if "model=" in path]


async def test_the_model_that_was_named_is_watched() -> None:
    side: dict[str, Page] = {"/v1/models": ROUTER}
    query = "?model=gpt-oss-20b&autoload=false"
    side[f"/metrics{query}"] = LOADED
    side[f"/slots{query}"] = b'[{"id":0,"n_ctx":8192,"is_processing":true}]'
    with PageServer([NAMELESS], side) as server:
        target = parse_target(f"{server.url}/?model=gpt-oss-20b")
        view = await watched(server, target)
        assert target.url == server.url
        assert (view.state, view.model, view.running) == (State.SERVING, "gpt-oss-20b", 1)
        assert view.kv_capacity_tokens == 8192


async def test_a_model_that_is_not_loaded_is_asked_nothing() -> None:
    with PageServer([NAMELESS], {"/v1/models": ROUTER}) as server:
        view = await watched(server, Target(server.url, model="qwen3-235b"))
        assert view.state is State.NO_ENGINE_METRICS
        assert view.reason is not None
        assert "qwen3-235b is not loaded" in view.reason
        assert set(asked(server)) <= {"/v1/models", "/version", "/health"}


@pytest.mark.parametrize(
    ("page", "state", "words"),
    [
        ((400, b'{"detail":"bad tenant"}'), State.NO_ENGINE_METRICS, "HTTP 400 from /metrics: bad tenant"),
        ((429, b"slow down"), State.NO_ENGINE_METRICS, "HTTP 429 from /metrics: slow down"),
        ((503, b'{"error":{"code":503,"message":"Loading model"}}'), State.STARTING, "HTTP 503: Loading model"),
        ((500, b"oops"), State.NO_ENGINE_METRICS, "HTTP 500 from /metrics: oops"),  # /v1/models answers
        (b"dynamo_router_x 1\n", State.NO_ENGINE_METRICS, "DYN_SYSTEM_PORT"),
        (b"ray_node_cpu_count 4\n", State.NO_ENGINE_METRICS, "Ray's own page"),
        (b"nv_inference_count 0\n", State.NO_ENGINE_METRICS, "Triton"),
    ],
)
async def test_what_answers_is_not_down_and_the_hint_fits(page: Page, state: State, words: str) -> None:
    with PageServer([page], {"/v1/models": models({"id": "m"})}) as server:
        view = await watched(server)
        assert view.state is state
        assert view.reason is not None
        assert words in view.reason
        assert "--disable-log-stats" not in view.reason


async def test_the_page_of_a_proxy_is_no_engine_without_metrics() -> None:
    with PageServer([b"<html>nginx</html>"], {"/v1/models": models({"id": "m", "owned_by": "vllm"})}) as server:
        view = await watched(server)
        assert (view.state, view.reason) == (State.NO_ENGINE_METRICS, "not a metrics page: <html>nginx</html>")


@pytest.mark.parametrize(
    ("owner", "hint"),
    [("sglang", "SGLang: start it with --enable-metrics"), ("llamacpp", "llama.cpp: start it with --metrics")],
)
async def test_an_engine_without_metrics_is_told_its_own_flag(owner: str, hint: str) -> None:
    with PageServer([(501, b"")], {"/v1/models": models({"id": "m", "owned_by": owner})}) as server:
        view = await watched(server)
        assert (view.engine, view.reason) == (owner, f"HTTP 501 from /metrics: {hint}")


async def test_metrics_of_nim_are_at_another_path() -> None:
    page = b'num_requests_running{model_name="m"} 6\ngpu_cache_usage_perc{model_name="m"} 0.4\n'
    with PageServer([(404, b"{}")], {"/v1/metrics": page}) as server:
        view = await watched(server, polls=3)
        assert (view.engine, view.state, view.running, view.kv_usage) == ("nim", State.SERVING, 6, 0.4)
        assert len(server.scrapes()) == 1  # then only the right one is asked


async def test_ollama_tells_its_models_and_counts_nothing() -> None:
    held = {
        "name": "qwen3:8b", "size": 6_000_000_000, "size_vram": 5_000_000_000,
        "context_length": 8192, "expires_at": "2026-12-02T12:00:00Z",
    }  # fmt: skip
    side: dict[str, Page] = {
        "/api/ps": json.dumps({"models": [held]}).encode(),
        "/api/version": b'{"version":"0.14.0"}',
    }
    with PageServer([(404, b"404 page not found")], side) as server:
        view = await watched(server)
        assert (view.engine, view.state, view.model, view.version) == ("ollama", State.SERVING, "qwen3:8b", "0.14.0")
        assert (view.running, view.waiting, view.kv_usage, view.rates.generation_tok_s) == (None, None, None, None)
        row = view.engines[0]
        assert (row.memory_bytes, row.gpu_memory_bytes, view.max_model_len) == (6_000_000_000, 5_000_000_000, 8192)
        assert row.unload_time == 1796212800.0
        side["/api/ps"] = b'{"models":[]}'
        server.side.update(side)
        view = await watched(server)
        assert (view.state, view.reason) == (State.IDLE, "no model is loaded")


async def test_metrics_that_are_json() -> None:
    page = json.dumps(
        {
            "summary": {"in_flight": 2, "prompt_tokens_total": 70, "completion_tokens_total": 50},
            "server": {"loaded_model": "mlx/m", "effective_context_limit": 4096},
        }
    ).encode()
    with PageServer([page]) as server:
        view = await watched(server)
        assert (view.engine, view.running, view.model, view.max_model_len) == ("mlx-vlm", 2, "mlx/m", 4096)


def test_of_several_models_the_one_that_serves() -> None:
    named = listed(json.loads(models({"id": "nomic-embed-text"}, {"id": "qwen3-coder-30b"}, {"id": "gpt-oss-120b"})))
    assert serving(named) == ListedModel("qwen3-coder-30b")
    assert serving(listed(json.loads(models({"id": "only-embed"})))) == ListedModel("only-embed", generates=False)
    states = models({"id": "a", "state": "not-loaded"}, {"id": "b", "state": "loaded", "type": "embeddings"})
    held = serving(listed(json.loads(states)))
    assert held is not None
    assert held.name == "b"  # nothing is loaded unasked
    assert serving(listed(json.loads(models({"id": "a", "status": {"value": "unloaded"}})))) is None
    assert listed({"data": [{"id": 7}, "x", None]}) == ()
