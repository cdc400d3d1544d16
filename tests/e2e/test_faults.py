"""The installed command against servers that fail in every way: honest states, no spike, no traceback, quiet ends."""

from __future__ import annotations

import json
import random
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from crank import FIXTURES, case, expected, vllm_page
from fakes.pages import Engine, Page, PageServer, RawServer, free_port
from program import COMMAND, PATIENCE_S, Line, Program, bare, environment, once, validator

FAST = ("-d", "0.3")
SPIKE = 1.25  # of the true rate: more than that was never there


def no_spike(servers: list[Line], tokens_s: float) -> None:
    """Whether no line shows more tokens per second than the server ever made."""
    for server in servers:
        rate = server["rates"]["generation_tok_s"]
        assert rate is None or rate <= tokens_s * SPIKE, rate


def nothing_known(server: Line) -> None:
    """A server that cannot be read has no numbers, least of all zeros."""
    assert [server[name] for name in ("running", "waiting", "kv_usage", "kv_used_tokens")] == [None] * 4
    assert set(server["rates"].values()) == {None}
    assert server["engines"] == []


def a_window(line: Line, seconds: float) -> bool:
    """Whether the rates of the first server rest on so many seconds."""
    return (line["servers"][0]["rates"]["window_s"] or 0.0) >= seconds


def a_tick(program: Program, lines: int = 3) -> None:
    """Let some more lines come."""
    program.wait_lines(len(program.lines) + lines)


# --- coming, going, coming back ---------------------------------------------------------------------------------------


def test_absent_at_start_then_there_then_dead(tmp_path: Path) -> None:
    port = free_port()
    with Program(tmp_path, f"127.0.0.1:{port}", *FAST) as program:
        line = program.wait(lambda line: line["servers"][0]["reason"] == "connection refused", "a refusal")
        assert line["servers"][0]["state"] == "DOWN"
        nothing_known(line["servers"][0])
        with PageServer([Engine().page], port=port):
            program.wait_state("SERVING")
            a_tick(program, 6)
        alive = len(program.lines)
        nothing_known(program.wait_state("DOWN", alive))
        a_tick(program)
        states = [server["state"] for server in program.servers]
        assert "IDLE" not in states
        assert set(states[alive + 2 :]) == {"DOWN"}
        no_spike(program.servers, 1000)
        assert program.stop() == 0


def test_restart_with_counters_at_zero(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(PageServer([Engine(already=10_000_000).page]))
        program = stack.enter_context(Program(tmp_path, first.url, *FAST))
        program.wait(lambda line: bool(line["servers"][0]["rates"]["generation_tok_s"]), "a rate")
        first.__exit__(None, None, None)
        program.wait_state("DOWN", len(program.lines))
        stack.enter_context(PageServer([Engine(tokens_s=500).page], port=first.port))
        line = program.wait(lambda line: line["servers"][0]["restarts"] == 1, "a restart")
        assert any(mark["kind"] == "restart" for mark in line["marks"])
        line = program.wait(lambda line: a_window(line, 2.0), "a window after it", program.lines.index(line))
        assert line["servers"][0]["restarts"] == 1
        assert line["servers"][0]["rates"]["generation_tok_s"] == pytest.approx(500, rel=0.1)
        no_spike(program.servers, 1000)


def test_restart_between_two_polls(tmp_path: Path) -> None:
    old, new = Engine(already=5_000_000), Engine(tokens_s=500)
    with PageServer([old.page] * 8 + [new.page]) as server, Program(tmp_path, server.url, *FAST) as program:
        program.wait(lambda line: line["servers"][0]["restarts"] == 1, "a restart")
        a_tick(program, 4)
        no_spike(program.servers, 1000)
        assert {server["state"] for server in program.servers[2:]} == {"SERVING"}


def test_replaced_by_another_model(tmp_path: Path) -> None:
    with ExitStack() as stack:
        side: dict[str, Page] = {"/v1/models": (200, b'{"data":[{"id":"old","max_model_len":100}]}')}
        first = stack.enter_context(PageServer([Engine(model="old", already=9_000_000).page], side))
        program = stack.enter_context(Program(tmp_path, first.url, *FAST))
        program.wait(lambda line: line["servers"][0]["max_model_len"] == 100, "the length of the old model")
        first.__exit__(None, None, None)
        side = {"/v1/models": (200, b'{"data":[{"id":"new","max_model_len":200}]}')}
        stack.enter_context(PageServer([Engine(model="new", already=10_000_000).page], side, port=first.port))
        line = program.wait(lambda line: line["servers"][0]["max_model_len"] == 200, "the length of the new model")
        assert line["servers"][0]["model"] == "new"
        assert [row["model"] for row in line["servers"][0]["engines"]] == ["new"]
        a_tick(program, 5)
        no_spike(program.servers, 1000)


def test_engines_appear_and_vanish(tmp_path: Path) -> None:
    engines = {name: Engine(tokens_s=100, already=1_000_000) for name in "0123"}
    chance = random.Random(11)

    def page() -> bytes:
        present = [name for name in engines if chance.random() < 0.7] or ["0"]
        return b"".join(engines[name].page().replace(b'engine="0"', f'engine="{name}"'.encode()) for name in present)

    with PageServer([page]) as server, Program(tmp_path, server.url, "-d", "0.2") as program:
        program.wait_lines(40)
        no_spike(program.servers, 400)
        assert len({len(server["engines"]) for server in program.servers[2:]}) >= 2
        for shown in program.servers[2:]:
            assert shown["running"] == 4 * len(shown["engines"])
            assert shown["restarts"] == 0


# --- slow and silent --------------------------------------------------------------------------------------------------


def test_a_server_that_accepts_and_never_answers(tmp_path: Path) -> None:
    with RawServer(None) as server, Program(tmp_path, server.url, "-d", "0.5") as program:
        line = program.wait(lambda line: "no answer within" in str(line["servers"][0]["reason"]), "a time-out")
        assert line["servers"][0]["state"] == "DOWN"
        nothing_known(line["servers"][0])
        gaps = [b["time"] - a["time"] for a, b in pairwise(program.lines)]
        assert max(gaps) < 2.5  # lines go on while the request hangs
        assert server.most_open == 1
        began = time.monotonic()
        assert program.stop() == 0
        assert time.monotonic() - began < 3.0  # and quitting does not wait for it


def test_a_server_that_falls_silent_is_stale_and_keeps_its_values(tmp_path: Path) -> None:
    engine, silent = Engine(), 60.0
    with PageServer([engine.page]) as server, Program(tmp_path, server.url, "-d", "0.5") as program:
        program.wait(lambda line: bool(line["servers"][0]["rates"]["generation_tok_s"]), "a rate")
        engine.delay = lambda: silent
        silenced = len(program.lines)
        stale = program.wait_state("STALE", silenced)
        assert stale["age_s"] > 1.5
        assert stale["running"] == 4
        assert stale["reason"]
        later = program.wait(
            lambda line: line["servers"][0]["age_s"] > stale["age_s"] + 1.0, "an older sample", silenced
        )
        assert later["servers"][0]["state"] == "STALE"
        assert server.most_in_flight == 1
        assert not {server["state"] for server in program.servers[silenced:]} & {"IDLE", "STALLED"}


def test_answers_in_three_seconds(tmp_path: Path) -> None:
    engine = Engine()
    engine.delay = lambda: 3.0
    with PageServer([engine.page]) as server, Program(tmp_path, server.url, "-d", "1") as program:
        program.wait(lambda line: bool(line["servers"][0]["rates"]["generation_tok_s"]), "a rate")
        shown = program.servers[-1]
        assert shown["rates"]["generation_tok_s"] == pytest.approx(1000, rel=0.02)
        assert server.most_in_flight == 1
        assert "IDLE" not in {server["state"] for server in program.servers}


def test_once_with_a_server_that_answers_in_three_seconds(tmp_path: Path) -> None:
    engine = Engine()
    engine.delay = lambda: 3.0
    with PageServer([engine.page]) as server:
        done = once(tmp_path, server.url, "--once", "--json")
    shown = json.loads(done.stdout)["servers"][0]
    assert (done.returncode, shown["state"]) == (0, "SERVING")
    assert shown["rates"]["generation_tok_s"] == pytest.approx(1000, rel=0.02)


def test_once_has_a_deadline(tmp_path: Path) -> None:
    began = time.monotonic()
    with RawServer(None) as silent, PageServer([Engine().page]) as well:
        done = once(tmp_path, silent.url, well.url, "--once", "--json")
    assert time.monotonic() - began < 22.0  # 15 s and a slow start
    first, second = json.loads(done.stdout)["servers"]
    assert (done.returncode, first["state"], second["state"]) == (1, "DOWN", "SERVING")
    assert second["rates"]["generation_tok_s"] == pytest.approx(1000, rel=0.02)


def test_pages_that_come_up_to_a_third_of_a_second_late(tmp_path: Path) -> None:
    engine, chance = Engine(), random.Random(3)
    engine.delay = lambda: chance.uniform(0.0, 0.3)
    with PageServer([engine.page]) as server, Program(tmp_path, server.url, "-d", "1") as program:
        program.wait(lambda line: a_window(line, 9.0), "a whole window")
        a_tick(program, 4)
        seen = [s["rates"] for s in program.servers if s["rates"]["generation_tok_s"] is not None]
        assert all(990 <= rates["generation_tok_s"] <= 1010 for rates in seen), seen
        assert server.most_in_flight == 1


def test_one_scrape_per_interval_and_one_request_in_flight(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as server, Program(tmp_path, server.url, "-d", "0.5") as program:
        program.wait_lines(14)
        scrapes = server.scrapes()
        gaps = [later - earlier for earlier, later in pairwise(scrapes)]
        assert min(gaps) > 0.25  # no burst catches up
        assert 0.44 <= sum(gaps) / len(gaps) <= 1.0
        assert len(scrapes) <= len(program.lines) + 2
        assert server.most_in_flight == 1
        assert {path for _, path, _ in server.requests} <= {"/metrics", "/v1/models", "/version", "/health"}


def test_the_interval_stretches_for_a_page_that_costs_much(tmp_path: Path) -> None:
    engine = Engine()
    engine.delay = lambda: 0.15
    with PageServer([engine.page]) as server, Program(tmp_path, server.url, "-d", "0.5") as program:
        shown = program.wait(lambda line: line["servers"][0]["interval_s"] >= 3.0, "a longer interval")["servers"][0]
        assert shown["interval_s"] == pytest.approx(shown["scrape_s"] / 0.05, rel=0.7)
        settled = len(server.scrapes())
        program.wait(lambda line: len(server.scrapes()) >= settled + 2, "two more scrapes")
        before, after = server.scrapes()[-2:]
        assert after - before > 2.0
        engine.delay = lambda: 0.0
        program.wait(lambda line: line["servers"][0]["interval_s"] < 2.0, "a shorter interval", len(program.lines))
        # the page after a cheap one still comes late: a healthy server is never called stale for that
        assert "STALE" not in {server["state"] for server in program.servers}


def test_stalled_after_three_polls_and_five_seconds(tmp_path: Path) -> None:
    engine = Engine()
    with PageServer([engine.page]) as server, Program(tmp_path, server.url, "-d", "0.5") as program:
        program.wait_state("SERVING")
        engine.freeze()
        stalled = program.wait_state("STALLED")
        assert engine.frozen_at is not None
        assert 4.4 <= time.monotonic() - engine.frozen_at <= 30.0  # a busy machine polls less often
        assert "4 running" in stalled["reason"]
        assert any(finding["id"].startswith("stalled:") for finding in program.lines[-1]["findings"])


# --- answers that are no page -----------------------------------------------------------------------------------------

HALF = vllm_page(running=3, waiting=1)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
BAD_PAGES: dict[str, tuple[Page, str, str]] = {
    "401": ((401, b'{"error":"Unauthorized"}'), "AUTH", "401"),
    "403": ((403, b""), "AUTH", "403"),
    "404": ((404, b'{"detail":"Not Found"}'), "NO_ENGINE_METRICS", "404"),
    "500": ((500, b"Internal Server Error"), "DOWN", "HTTP 500 from /metrics: Internal Server Error"),
    "502": ((502, case("50-not-metrics", "html.txt")), "DOWN", "502"),
    "html": (case("50-not-metrics", "html.txt"), "NO_ENGINE_METRICS", "502 Bad Gateway"),
    "json": (case("50-not-metrics", "json.txt"), "NO_ENGINE_METRICS", "Not Found"),
    "empty": (b"", "NO_ENGINE_METRICS", "empty page"),
    "no families": (case("43-no-vllm-families", "a.txt"), "NO_ENGINE_METRICS", "--disable-log-stats"),
    "64 MB": (b'x{y="z"} 1\n' * (64 * 2**20 // 11), "DOWN", "larger than 32 MiB"),
    "binary": (random.Random(0).randbytes(100_000), "NO_ENGINE_METRICS", ""),
    "hostile 500": ((500, b"\x1b[31m[bold]\x07\r\nboo\xff"), "DOWN", "[bold]"),
}
BAD_BYTES: dict[str, tuple[bytes, str]] = {
    "half, by length": (HEAD + b"Content-Length: 9999\r\n\r\n" + HALF, "broke off"),
    "half, by chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(HALF) + HALF, "broke off"),
    "closed": (b"", "broke off"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "broke off"),
    "headers without end": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, "broke off"),
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Line]]:
    """All bad servers watched at once: what a single line of `--once` says about each."""
    folder = tmp_path_factory.mktemp("bad")
    with ExitStack() as stack:
        urls = {name: stack.enter_context(PageServer([page])).url for name, (page, _, _) in BAD_PAGES.items()}
        urls |= {name: stack.enter_context(RawServer(raw)).url for name, (raw, _) in BAD_BYTES.items()}
        done = once(folder, *urls.values(), "--once", "--json")
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (1, "", 1)
        line = json.loads(done.stdout)
        validator().validate(line)
        by_url = {server["url"]: server for server in line["servers"]}
        yield {name: by_url[url] for name, url in urls.items()}


@pytest.mark.parametrize("name", BAD_PAGES)
def test_a_bad_page(bad: dict[str, Line], name: str) -> None:
    _, state, words = BAD_PAGES[name]
    assert bad[name]["state"] == state
    assert words in bad[name]["reason"]
    assert bad[name]["reason"].isprintable()
    nothing_known(bad[name])


@pytest.mark.parametrize("name", BAD_BYTES)
def test_a_broken_answer(bad: dict[str, Line], name: str) -> None:
    assert bad[name]["state"] == "DOWN"
    assert BAD_BYTES[name][1] in bad[name]["reason"]
    nothing_known(bad[name])


@pytest.mark.parametrize("name", ["500", "html", "empty", "64 MB"])
def test_one_bad_page_between_good_ones_drops_nothing(tmp_path: Path, name: str) -> None:
    engine = Engine()
    pages: list[Page] = [*[engine.page] * 6, BAD_PAGES[name][0], engine.page]
    with PageServer(pages) as server, Program(tmp_path, server.url, "-d", "0.5") as program:
        program.wait(lambda line: len(server.scrapes()) >= 10, "ten scrapes")
        shown = program.servers[-1]
        assert (shown["state"], shown["restarts"], shown["running"]) == ("SERVING", 0, 4)
        assert shown["rates"]["window_s"] > 3.0  # the window reaches over the bad page
        assert shown["rates"]["generation_tok_s"] == pytest.approx(1000, rel=0.03)
        assert "IDLE" not in {server["state"] for server in program.servers}


def test_bad_pages_after_good_ones_go_stale(tmp_path: Path) -> None:
    pages: list[Page] = [*[Engine().page] * 4, (500, b"boom")]
    with PageServer(pages) as server, Program(tmp_path, server.url, *FAST) as program:
        program.wait(lambda line: "HTTP 500" in str(line["servers"][0]["reason"]), "the words of the failure")
        stale = program.wait_state("STALE", len(program.lines) - 1)
        assert (stale["running"], "HTTP 500" in stale["reason"]) == (4, True)
        a_tick(program)
        assert program.servers[-1]["state"] == "STALE"


def test_a_huge_page_does_not_fill_the_memory(tmp_path: Path) -> None:
    with PageServer([BAD_PAGES["64 MB"][0]]) as server, Program(tmp_path, server.url, *FAST) as program:
        program.wait(lambda line: len(server.scrapes()) >= 4, "four scrapes")
        status = Path(f"/proc/{program.process.pid}/status").read_text()
        peak_kb = int(status.partition("VmHWM:")[2].split()[0])
        assert peak_kb < 200_000


def test_a_page_cut_mid_line_where_only_the_end_tells(tmp_path: Path) -> None:
    cut = case("49-truncated", "a.txt")
    with RawServer(HEAD + b"Connection: close\r\n\r\n" + cut) as server:
        shown = json.loads(once(tmp_path, server.url, "--once", "--json").stdout)["servers"][0]
    assert (shown["state"], shown["running"], shown["waiting"]) == ("SERVING", 3, 1)
    assert "cut short" in shown["reason"]
    assert shown["rates"]["generation_tok_s"] is None


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    def page() -> bytes:
        text = vllm_page(running=2, waiting=1.0, kv=0.5, generation=1e6, prompt=5, preemptions=3)
        for number, odd in ((b" 1.0\n", b" NaN\n"), (b" 0.5\n", b" +Inf\n"), (b" 1000000.0\n", b" -Inf\n")):
            text = text.replace(number, odd)
        return text

    with PageServer([page]) as server:
        done = once(tmp_path, server.url, "--once", "--json")
    shown = json.loads(done.stdout)["servers"][0]
    assert (shown["state"], shown["running"], shown["preemptions_total"]) == ("SERVING", 2, 3)
    assert (shown["waiting"], shown["kv_usage"], shown["rates"]["generation_tok_s"]) == (None, None, None)
    assert shown["rates"]["prompt_tok_s"] == 0.0


@pytest.mark.parametrize("form", ["--json", "--plain", ""])
def test_hostile_text_is_printed_as_text(tmp_path: Path, form: str) -> None:
    evil = "\x1b]0;own\x07\x1b[2J[bold red]x[/] 模型\u202e\u2028\r\n" + "y" * 5000
    side: dict[str, Page] = {
        "/v1/models": (200, json.dumps({"data": [{"id": evil, "max_model_len": 4096}]}).encode()),
        "/version": (200, json.dumps({"version": evil}).encode()),
        "/health": (503, evil.encode()),
    }
    with PageServer([case("51-hostile-labels", "a.txt")], side) as server:
        done = once(tmp_path, server.url, "--once", *([form] if form else []))
    assert done.returncode == 1  # /health fails
    assert all(char.isprintable() or char == "\n" for char in done.stdout)
    assert len(done.stdout) < 12_000
    assert "\\u001b" not in done.stdout


@pytest.mark.parametrize(
    "answer", [b"[]", b'"x"', b"null", b'{"data":{}}', b'{"data":[3]}', b"[" * 100_000, b"\xff", b'{"data":[{"id":7}]}']
)
def test_odd_side_doors_cost_only_themselves(tmp_path: Path, answer: bytes) -> None:
    side: dict[str, Page] = {"/v1/models": (200, answer), "/version": (200, answer), "/health": (200, answer)}
    with PageServer([Engine().page], side) as server:
        done = once(tmp_path, server.url, "--once", "--json", "-d", "0.2")
    shown = json.loads(done.stdout)["servers"][0]
    assert (shown["state"], shown["model"], shown["version"], shown["max_model_len"]) == ("SERVING", "m", None, None)


@pytest.mark.parametrize(
    ("page", "path", "answer", "wanted"),
    [
        (
            b"llamacpp:requests_processing 0\n",
            "/props",
            {
                "model_path": "/models/qwen3.gguf",
                "build_info": "b11434-1a2b3c",
                "default_generation_settings": {"n_ctx": 8192},
                "total_slots": 4,
            },
            ("qwen3.gguf", "b11434-1a2b3c", 8192, 4),
        ),
        (
            b"tgi_batch_current_size 0\n",
            "/info",
            {"model_id": "meta/llama", "version": "3.3.6", "max_total_tokens": 4096},
            ("meta/llama", "3.3.6", 4096, None),
        ),
        (
            b'sglang:num_running_reqs{model_name="m"} 0\n',
            "/server_info",
            {"version": "0.5.23", "context_length": 32768, "max_running_requests": 64},
            ("m", "0.5.23", 32768, 64),
        ),
        (
            b"llamacpp:requests_processing 0\n",
            "/props",
            {"build_info": 7, "total_slots": "4"},
            (None, None, None, None),
        ),
        (b"llamacpp:requests_processing 0\n", "/props", ["x"], (None, None, None, None)),
        (b"llamacpp:requests_processing 0\n", "/props", {"model_path": "/a/b/"}, (None, None, None, None)),
        (b"llamacpp:requests_processing 0\n", "/props", {"model_path": r"C:\me\m.gguf"}, ("m.gguf", None, None, None)),
        (b"llamacpp:requests_processing 0\n", "/props", {"model_path": "../me/m.gguf"}, ("m.gguf", None, None, None)),
        (b"sglang:num_running_reqs 0\n", "/server_info", {"context_length": 10**400}, (None, None, None, None)),
        (
            b"sglang:num_running_reqs 0\n",
            "/v1/models",
            {"data": [{"id": "m", "max_model_len": True}]},
            ("m", None, None, None),
        ),
    ],
)
def test_other_engines_say_at_their_own_doors_what_they_are(
    tmp_path: Path, page: bytes, path: str, answer: object, wanted: tuple[object, ...]
) -> None:
    with PageServer([page], {path: (200, json.dumps(answer).encode())}) as server:
        done = once(tmp_path, server.url, "--once", "--json", "-d", "0.2")
    shown = json.loads(done.stdout)["servers"][0]
    assert tuple(shown[name] for name in ("model", "version", "max_model_len", "max_num_seqs")) == wanted


def test_a_list_of_iterations_beside_its_prometheus_page(tmp_path: Path) -> None:
    name = "34-trtllm-json"
    side: dict[str, Page] = {"/prometheus/metrics": (200, case(name, "prometheus_metrics.txt"))}
    with PageServer([case(name, "metrics.json")], side) as server:
        shown = json.loads(once(tmp_path, server.url, "--once", "--json").stdout)["servers"][0]
    assert (shown["engine"], shown["state"]) == (expected(name)["dialect"], "SERVING")
    assert shown["kv_usage"] == pytest.approx(expected(name)["kv_usage"], abs=5e-7)
    assert (shown["running"], shown["waiting"], shown["kv_capacity_tokens"]) == (1, 0, 22955 * 32)


def test_an_empty_list_is_an_idle_engine_only_after_a_full_one(tmp_path: Path) -> None:
    name = "34-trtllm-json"
    busy, idle = case(name, "metrics.json"), case(name, "metrics_idle.json")
    with PageServer([busy, idle]) as server, PageServer([idle]) as unknown:
        done = once(tmp_path, server.url, unknown.url, "--once", "--json")
    shown = json.loads(done.stdout)["servers"]
    assert [row["state"] for row in shown] == ["IDLE", "NO_ENGINE_METRICS"]
    assert (shown[0]["running"], shown[0]["kv_usage"]) == (0, None)


def test_the_list_is_left_to_others_where_the_prometheus_page_says_it_all(tmp_path: Path) -> None:
    gauges = b"trtllm_num_requests_running 3\ntrtllm_num_requests_waiting 1\ntrtllm_kv_cache_utilization 0.25\n"
    side: dict[str, Page] = {"/prometheus/metrics": (200, gauges)}
    with PageServer([case("34-trtllm-json", "metrics.json")], side) as server:
        shown = json.loads(once(tmp_path, server.url, "--once", "--json").stdout)["servers"][0]
        assert [path for _, path, _ in server.requests].count("/metrics") == 1
    assert (shown["running"], shown["waiting"], shown["kv_usage"]) == (3, 1, 0.25)


def test_a_401_from_v1_leaves_the_name_to_the_labels(tmp_path: Path) -> None:
    side: dict[str, Page] = {"/v1/models": (401, b'{"error":"Unauthorized"}')}
    with PageServer([Engine().page], side) as server:
        shown = json.loads(once(tmp_path, server.url, "--once", "--json").stdout)["servers"][0]
    assert (shown["state"], shown["model"]) == ("SERVING", "m")


def test_a_failing_health_check_is_a_reason_and_not_healthy(tmp_path: Path) -> None:
    with PageServer([Engine().page], {"/health": (503, b"")}) as server:
        done = once(tmp_path, server.url, "--once", "--json")
    shown = json.loads(done.stdout)["servers"][0]
    assert (done.returncode, shown["state"]) == (1, "SERVING")
    assert "/health says 503" in shown["reason"]


# --- keys, redirects, proxies -----------------------------------------------------------------------------------------


def asked_with(server: PageServer) -> set[str | None]:
    return {headers.get("Authorization") for _, _, headers in server.requests}


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as there:
        moved: Page = (302, b"", {"Location": f"http://user:hunter2@127.0.0.1:{there.port}/metrics?token=hunter2"})
        with PageServer([moved]) as here:
            done = once(tmp_path, here.url, "--once", "--json", env={"VLLM_API_KEY": "sesame"})
        shown = json.loads(done.stdout)["servers"][0]
        assert (done.returncode, shown["state"]) == (1, "DOWN")
        assert "redirects to" in shown["reason"]
        assert "hunter2" not in done.stdout
        assert there.requests == []


def test_a_key_goes_to_its_origin_alone(tmp_path: Path) -> None:
    folder = tmp_path / "llmtop"
    folder.mkdir()
    with PageServer([Engine().page]) as first, PageServer([Engine().page]) as second:
        (folder / "config.toml").write_text(
            f'watch = ["a", "b"]\n[servers.a]\nurl = "{first.url}"\napi_key_env = "KEY_A"\n'
            f'[servers.b]\nurl = "{second.url}"\n'
        )
        done = once(tmp_path, "--once", "--json", env={"KEY_A": "sesame", "VLLM_API_KEY": "other"})
        assert done.returncode == 0
        assert [server["name"] for server in json.loads(done.stdout)["servers"]] == ["a", "b"]
        assert asked_with(first) == {"Bearer sesame"}
        assert asked_with(second) == {None}
        assert "sesame" not in done.stdout + done.stderr


def test_the_environments_key_goes_to_the_only_server(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as server:
        assert once(tmp_path, server.url, "--once", env={"VLLM_API_KEY": "sesame"}).returncode == 0
        assert asked_with(server) == {"Bearer sesame"}


def test_user_and_password_are_sent_and_never_shown(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as server:
        url = server.url.replace("http://", "http://me:hunter2@") + "/?token=hunter2"
        for form in ("--json", "--plain"):
            done = once(tmp_path, url, "--once", form)
            assert done.returncode == 0
            assert "hunter2" not in done.stdout + done.stderr
            assert "me:" not in done.stdout
        assert asked_with(server) == {"Basic bWU6aHVudGVyMg=="}


def test_proxies_have_no_business_on_loopback(tmp_path: Path) -> None:
    with PageServer([Engine().page]) as server, PageServer([b""]) as proxy:
        names = ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY")
        done = once(tmp_path, server.url, "--once", env=dict.fromkeys(names, proxy.url))
        assert done.returncode == 0
        assert proxy.requests == []


@pytest.mark.parametrize(
    ("flags", "code", "state"),
    [([], 1, "DOWN"), (["--ca", str(FIXTURES / "tls" / "cert.pem")], 0, "SERVING"), (["--insecure"], 0, "SERVING")],
)
def test_https_with_a_certificate_of_its_own(tmp_path: Path, flags: list[str], code: int, state: str) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(FIXTURES / "tls" / "cert.pem", FIXTURES / "tls" / "key.pem")
    with PageServer([Engine().page], tls=tls) as server:
        done = once(tmp_path, server.url, "--once", "--json", *flags)
    shown = json.loads(done.stdout)["servers"][0]
    assert (done.returncode, shown["state"]) == (code, state)
    assert ("TLS" in (shown["reason"] or "")) == (state == "DOWN")


# --- processes of this host -------------------------------------------------------------------------------------------

SERVE = """#!{python}
import http.server, pathlib, sys, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.05)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(pathlib.Path({page!r}).read_bytes())
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process whose command line is that of `vllm serve`; it listens once the file `go` is there."""
    go, page, port = tmp_path / "go", tmp_path / "page.txt", free_port()
    page.write_bytes(vllm_page(running=2, generation=100))
    script = tmp_path / "vllm"
    script.write_text(SERVE.format(python=sys.executable, go=str(go), page=str(page)))
    script.chmod(0o755)
    process = subprocess.Popen([str(script), "serve", "tiny", "--max-num-seqs", "32", "--port", str(port)])
    yield port, go
    process.kill()
    process.wait(15)


def test_a_local_process_that_does_not_listen_yet_is_starting(tmp_path: Path, vllm: tuple[int, Path]) -> None:
    port, go = vllm
    with Program(tmp_path, f"localhost:{port}", *FAST, machine=True) as program:
        starting = program.wait_state("STARTING")
        assert f"port {port} is not open yet" in starting["reason"]
        nothing_known(starting)
        go.touch()
        serving = program.wait_state("SERVING")
        assert (serving["running"], serving["restarts"]) == (2, 0)
        full = program.wait(lambda line: line["servers"][0]["max_num_seqs"] == 32, "the cap from the command line")
        assert full["servers"][0]["local"]


def test_servers_of_this_host_are_found_by_their_processes(tmp_path: Path, vllm: tuple[int, Path]) -> None:
    port, go = vllm
    go.touch()
    with Program(tmp_path, *FAST, machine=True) as program:
        url = f"http://127.0.0.1:{port}"
        line = program.wait(lambda line: url in [server["url"] for server in line["servers"]], "the server")
        assert len({server["url"] for server in line["servers"]}) == len(line["servers"])


# --- exit codes and ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [["--json"], ["--plain"], []])
def test_exit_codes_of_once(tmp_path: Path, form: list[str]) -> None:
    with PageServer([Engine().page]) as well, PageServer([vllm_page()]) as idle:
        assert once(tmp_path, well.url, idle.url, "--once", *form).returncode == 0
        down = once(tmp_path, well.url, f"127.0.0.1:{free_port()}", "--once", *form)
    assert down.returncode == 1
    assert "DOWN" in down.stdout
    assert down.stderr == ""


def test_no_server_on_this_host(tmp_path: Path) -> None:
    probe = subprocess.run(
        ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000"], capture_output=True, timeout=10, check=False
    )
    if probe.returncode == 0:
        pytest.skip("something listens on the default port of this machine")
    done = once(tmp_path, "--once", "--json")
    line = json.loads(done.stdout)
    validator().validate(line)
    assert (done.returncode, line["servers"]) == (1, [])


@pytest.mark.parametrize("form", ["--json", "--plain"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)])
def test_signals_end_a_stream(tmp_path: Path, form: str, number: int, code: int) -> None:
    with PageServer([Engine().page]) as server:
        process = stream(tmp_path, server.url, form)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=15)
    assert (process.returncode, err) == (code, b"")
    assert out == b"" or out.endswith(b"\n")


def stream(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [COMMAND, *args, *FAST, *bare(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(folder),
    )


@pytest.mark.parametrize("form", ["--json", "--plain"])
def test_a_closed_pipe_ends_quietly(tmp_path: Path, form: str) -> None:
    with PageServer([Engine().page]) as server:
        process = stream(tmp_path, server.url, form)
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(15) == 0
        assert process.stderr.read() == b""
        process.stderr.close()


def test_a_reader_that_has_stopped_reading_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with PageServer([case("24-dp-four-engines", "a.txt")]) as server:
        process = stream(tmp_path, *(f"{server.url}/{n}" for n in range(30)), "--json")
        assert process.stdout is not None
        assert process.stdout.readline()
        wait_until_full(process.stdout)
        process.terminate()
        assert process.wait(PATIENCE_S) == 143
        process.communicate()


def wait_until_full(pipe: Any) -> None:
    """Wait until the pipe holds so much that its writer must be waiting."""
    import fcntl
    import termios

    deadline, before, still = time.monotonic() + 20, -1, 0
    while time.monotonic() < deadline:
        waiting = int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), "little")
        still = still + 1 if waiting == before else 0
        if waiting >= 32_768 and still >= 5:
            return
        before = waiting
        time.sleep(0.2)  # polls the kernel's count until it stands still
    raise AssertionError(f"only {before} bytes in the pipe")


@pytest.mark.parametrize("form", ["--json", "--plain"])
def test_no_terminal_and_no_flag_means_lines(tmp_path: Path, form: str) -> None:
    with PageServer([Engine().page]) as server:
        process = stream(tmp_path, server.url, *([form] if form == "--json" else []))
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    assert line.startswith(b"{") == (form == "--json")
    assert process.returncode == 0
