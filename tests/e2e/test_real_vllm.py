"""The installed command beside a real vLLM on the CPU: its numbers against the client's and the page's own.

The server is warmed up first, and nothing is said about absolute speeds: the machine may be busy.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes.pages import free_port
from program import Line, Program
from proxied import proxied

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmtop-tests"
NAMED = os.environ.get("LLMTOP_REAL_VLLM_VENV")
VENV = Path(NAMED) if NAMED else CACHE / "vllm-0.32.0"
READY_S = 480.0
INSTALLED = (VENV / "bin" / "vllm").exists()

pytestmark = pytest.mark.skipif(
    NAMED == "" or (NAMED is None and not INSTALLED),
    reason=f"no vLLM in {VENV}: run tests/e2e/real_vllm/install.sh {VENV}, or name one in LLMTOP_REAL_VLLM_VENV",
)


@dataclass
class Vllm:
    """A real `vllm serve` of the tiny model, in this session (another one would be starved on a busy machine)."""

    log: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start unless it runs, and wait until it is ready and warm."""
        if self.process is not None and self.process.poll() is None:
            return
        environment = os.environ | {"VENV": str(VENV), "MODEL": str(CACHE / "tiny-model")}
        with self.log.open("ab") as log:
            command = [str(HERE / "real_vllm" / "serve_tiny.sh"), str(self.port)]
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, process_group=0
            )
        wait(self._ready, "a ready vLLM", READY_S)
        for streams in (1, 4):
            burst(self, streams, 16)

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def engines(self) -> list[psutil.Process]:
        """The processes behind the API server."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def page(self) -> dict[str, float]:
        """The page by the official parser: the sum of each name, and `name{label}` for the labels tests ask for."""
        values: dict[str, float] = {}
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                for key in (
                    sample.name,
                    *(f"{sample.name}{{{sample.labels[k]}}}" for k in ("le", "source") if k in sample.labels),
                ):
                    values[key] = values.get(key, 0.0) + sample.value
        return values

    def settled(self) -> dict[str, float]:
        """The page once nothing runs and two readings are the same."""
        pages = [self.page()]

        def still() -> bool:
            pages.append(self.page())
            name = "vllm:generation_tokens_total"
            return pages[-1]["vllm:num_requests_running"] == 0 and pages[-1][name] == pages[-2][name]

        wait(still, "an idle server", 60)
        return pages[-1]

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            for process in [*self.engines(), psutil.Process(self.process.pid)]:
                process.kill()
            self.process.wait(30)


def wait(holds: Callable[[], bool], what: str, seconds: float) -> None:
    """Look every fifth of a second until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.2)


def complete(vllm: Vllm, tokens: int, words: int = 40, seed: int = 0) -> tuple[int, int]:
    """One completion; prompt and generated tokens as the server counted them for this client."""
    prompt = " ".join(str((seed * 7919 + n * 31) % 1000) for n in range(words))
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0}
    request = urllib.request.Request(
        f"{vllm.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        usage = json.load(answer)["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


_seeds = iter(range(10**9))


def burst(vllm: Vllm, streams: int, tokens: int, words: int = 40) -> tuple[int, int]:
    """So many completions at once, each with a prompt of its own; prompt and generated tokens of all."""
    with ThreadPoolExecutor(streams) as pool:
        done = list(pool.map(lambda seed: complete(vllm, tokens, words, seed), [next(_seeds) for _ in range(streams)]))
    return sum(prompt for prompt, _ in done), sum(generated for _, generated in done)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    assert INSTALLED, f"LLMTOP_REAL_VLLM_VENV is {NAMED}, and there is no bin/vllm in it"
    server = Vllm(tmp_path_factory.mktemp("vllm") / "vllm.log")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def llmtop(vllm: Vllm, tmp_path: Path) -> Iterator[Program]:
    """llmtop watching the idle server, with two pages read."""
    vllm.settled()
    with Program(tmp_path, vllm.url, "-d", "0.5", machine=True) as program:
        program.wait(lambda line: line["servers"][0]["rates"]["generation_tok_s"] == 0.0, "an idle rate")
        yield program


def counted(program: Program, name: str) -> int:
    """The largest counter delta that a window has shown: rate times window."""
    return max(round((s["rates"][name] or 0.0) * (s["rates"]["window_s"] or 0.0)) for s in program.servers)


def idle_again(program: Program) -> Line:
    """The first server once it is idle, by a page that was built well after now."""
    now = time.time() + 1.0

    def idle(line: Line) -> bool:
        server = line["servers"][0]
        return server["state"] == "IDLE" and bool(line["time"] - server["age_s"] > now)

    server: Line = program.wait(idle, "idle again")["servers"][0]
    return server


def test_what_it_is(vllm: Vllm, llmtop: Program) -> None:
    shown = llmtop.wait(lambda line: line["servers"][0]["max_num_seqs"] is not None, "the command line")["servers"][0]
    assert (shown["state"], shown["engine"], shown["model"]) == ("IDLE", "vllm", "tiny")
    assert shown["version"].startswith("0.32.0")
    assert (shown["max_model_len"], shown["max_num_seqs"]) == (1024, 32)
    assert (shown["kv_capacity_tokens"], shown["kv_capacity_approx"]) == (3072, False)
    assert (shown["running"], shown["waiting"], shown["kv_usage"], shown["kv_used_tokens"]) == (0, 0, 0.0, 0)
    assert shown["room_requests"] == 3
    assert shown["local"]


@pytest.mark.parametrize(("streams", "tokens"), [(1, 64), (4, 64), (16, 48), (64, 24)])
def test_deltas_are_the_clients_tokens(vllm: Vllm, llmtop: Program, streams: int, tokens: int) -> None:
    before = vllm.page()
    prompt, generated = burst(vllm, streams, tokens)
    assert generated == streams * tokens
    after, shown = vllm.settled(), idle_again(llmtop)
    assert counted(llmtop, "generation_tok_s") == generated
    assert counted(llmtop, "prompt_tok_s") == prompt
    assert counted(llmtop, "requests_s") == streams
    for name, source in (("prompt_computed_tok_s", "local_compute"), ("prompt_cached_tok_s", "local_cache_hit")):
        key = f"vllm:prompt_tokens_by_source_total{{{source}}}"
        assert counted(llmtop, name) == after[key] - before[key]
    check_ttft(before, after, shown["latency"]["ttft"], streams)
    assert [shown["latency"][name]["n"] for name in ("e2e", "tpot", "queue")] == [streams] * 3
    assert max(server["running"] or 0 for server in llmtop.servers) <= min(streams, 32)


def check_ttft(before: dict[str, float], after: dict[str, float], ttft: Line, streams: int) -> None:
    """n and mean exactly, the median inside the bucket that the page's own counts put it in."""
    name = "vllm:time_to_first_token_seconds"
    assert ttft["n"] == streams == after[f"{name}_count"] - before[f"{name}_count"]
    assert ttft["mean_s"] == pytest.approx((after[f"{name}_sum"] - before[f"{name}_sum"]) / streams)
    keys = [key for key in after if key.startswith(f"{name}_bucket{{")]
    bounds = sorted(float(key.partition("{")[2].rstrip("}")) for key in keys)
    changes = {float(key.partition("{")[2].rstrip("}")): after[key] - before[key] for key in keys}
    place = next(n for n, bound in enumerate(bounds) if changes[bound] >= streams / 2)
    assert (bounds[place - 1] if place else 0.0) <= ttft["p50"]["value_s"] <= bounds[place]


def test_tokens_per_second_of_a_steady_load(vllm: Vllm, llmtop: Program) -> None:
    counter, ended = Counter(vllm), threading.Event()

    def user() -> None:
        while not ended.is_set():
            complete(vllm, 100, seed=next(_seeds))

    with ThreadPoolExecutor(17) as pool:
        sampling = pool.submit(counter.run, ended)
        users = [pool.submit(user) for _ in range(16)]
        llmtop.wait(lambda line: (line["servers"][0]["rates"]["window_s"] or 0.0) >= 9.4, "a whole window")
        first = len(llmtop.lines)
        llmtop.wait_lines(first + 24)
        ended.set()
        sampling.result()
        for each in users:
            each.result()
    errors = list(counter.errors(llmtop.lines[first : first + 24]))
    print(f"tok/s against the counter: median error {median(errors):.2%} over {len(errors)} windows")
    assert len(errors) >= 10
    assert median(errors) <= 0.02, errors
    running = [line["servers"][0]["running"] for line in llmtop.lines[first : first + 24]]
    assert median(running) >= 12
    assert {line["servers"][0]["state"] for line in llmtop.lines[first : first + 24]} == {"SERVING"}


class Counter:
    """Reads the token counter of the page on its own, several times a second."""

    def __init__(self, vllm: Vllm) -> None:
        self._vllm = vllm
        self._times: list[float] = []
        self._tokens: list[float] = []

    def run(self, ended: threading.Event) -> None:
        """Read until the end."""
        name = "vllm:generation_tokens_total"
        while not ended.wait(0.2):
            with urllib.request.urlopen(f"{self._vllm.url}/metrics/?name%5B%5D={name}", timeout=10) as answer:
                first = answer.read(1)
                now = time.time()
                rest = answer.read()
            line = next(row for row in (first + rest).decode().splitlines() if row.startswith(name))
            self._times.append(now)
            self._tokens.append(float(line.rpartition(" ")[2]))

    def errors(self, lines: list[Line]) -> Iterator[float]:
        """How far the rate of each line is from this counter over the same window, as a fraction."""
        for line in lines:
            server = line["servers"][0]
            end = line["time"] - server["age_s"]
            begin = end - server["rates"]["window_s"]
            if begin >= self._times[0] and end <= self._times[-1]:
                true = (self._at(end) - self._at(begin)) / (end - begin)
                yield abs(server["rates"]["generation_tok_s"] / true - 1.0)

    def _at(self, t: float) -> float:
        """The counter at a time, between the two readings around it."""
        place = max(1, min(bisect_right(self._times, t), len(self._times) - 1))
        t0, t1 = self._times[place - 1 : place + 1]
        n0, n1 = self._tokens[place - 1 : place + 1]
        return n0 + (n1 - n0) * (t - t0) / (t1 - t0)


def test_a_stopped_engine_shows_the_pages_own_gauges_and_is_stalled(vllm: Vllm, llmtop: Program) -> None:
    engines = vllm.engines()
    with ThreadPoolExecutor(1) as pool:
        before = vllm.page()
        load = pool.submit(burst, vllm, 64, 128, 40)
        llmtop.wait(lambda line: bool(line["servers"][0]["waiting"]), "a queue")
        llmtop.wait(lambda line: bool(line["servers"][0]["preemptions_total"]), "preemptions")
        for engine in engines:
            engine.send_signal(signal.SIGSTOP)
        try:
            stalled = llmtop.wait_state("STALLED", len(llmtop.lines))
            page = vllm.page()
        finally:
            for engine in engines:
                engine.send_signal(signal.SIGCONT)
        compare(stalled, page)
        assert f"{stalled['running']} running, {stalled['waiting']} waiting, nothing moved" in stalled["reason"]
        prompt, generated = load.result()
    after, shown = vllm.settled(), idle_again(llmtop)
    assert generated == 64 * 128 == after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert shown["preemptions_total"] == after["vllm:num_preemptions_total"] > 0
    assert shown["latency"]["ttft"]["n"] == 64
    assert prompt > 0


def compare(shown: Line, page: dict[str, float]) -> None:
    """The gauges of a line against those of the page."""
    assert shown["running"] == page["vllm:num_requests_running"] > 0
    assert shown["waiting"] == page["vllm:num_requests_waiting"] > 0
    assert sum(shown["waiting_by_reason"].values()) == shown["waiting"]
    assert shown["kv_usage"] == page["vllm:kv_cache_usage_perc"] > 0.3
    assert shown["kv_used_tokens"] == round(page["vllm:kv_cache_usage_perc"] * (3072 - 32))  # vLLM leaves one block out
    assert shown["preemptions_total"] == page["vllm:num_preemptions_total"]


def test_an_aborted_request(vllm: Vllm, llmtop: Program) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", vllm.port, timeout=60)
    body = {"model": "tiny", "prompt": "1 2 3", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data:")
    connection.close()
    answer.close()
    llmtop.wait(lambda line: line["servers"][0]["latency"]["ttft"]["n"] == 1, "the first token of the request")
    shown = idle_again(llmtop)
    assert (shown["running"], shown["kv_usage"]) == (0, 0.0)
    assert (shown["latency"]["ttft"]["n"], shown["latency"]["e2e"]["n"]) == (1, 0)
    assert counted(llmtop, "requests_s") == 0
    page = vllm.settled()
    assert 0 < counted(llmtop, "generation_tok_s") < 1000
    assert page["vllm:num_requests_running"] == 0


def streamed(url: str, seed: int) -> tuple[str, int]:
    """The text of one stream, whose pieces the server cuts anew each time, and the tokens that its end tells."""
    body = {"model": "tiny", "prompt": f"{seed} 2 3", "max_tokens": 30 + seed, "ignore_eos": True, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        *lines, done = (line.removeprefix(b"data: ") for line in answer.read().split(b"\n\n") if line)
    assert done == b"[DONE]"
    events = [json.loads(line) for line in lines]
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    return text, events[-1]["usage"]["completion_tokens"]


def test_through_the_proxy_streams_are_the_same_and_counts_are_the_servers(vllm: Vllm, tmp_path: Path) -> None:
    direct = [streamed(vllm.url, seed) for seed in range(8)]
    before = vllm.settled()
    with proxied(vllm.url, tmp_path) as (url, _):
        through = [streamed(url, seed) for seed in range(8)]
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            page = answer.read().decode()
    counts = {
        line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if "bucket" not in line
    }
    after = vllm.settled()
    assert [tokens for _, tokens in through] == [30 + seed for seed in range(8)]
    assert through == direct
    made = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    prompted = after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"]
    assert counts["llmtop_proxy_generation_tokens_total"] == made
    assert counts["llmtop_proxy_prompt_tokens_total"] == prompted
    first = after["vllm:time_to_first_token_seconds_sum"] - before["vllm:time_to_first_token_seconds_sum"]
    assert counts["llmtop_proxy_time_to_first_token_seconds_count"] == 8
    assert counts["llmtop_proxy_time_to_first_token_seconds_sum"] >= 0.9 * first  # the server's clock begins later


def test_a_killed_engine_is_down_and_a_new_one_is_a_restart(vllm: Vllm, llmtop: Program) -> None:
    with ThreadPoolExecutor(8) as pool:
        users = [pool.submit(complete, vllm, 900, 40, next(_seeds)) for _ in range(8)]
        llmtop.wait(lambda line: (line["servers"][0]["running"] or 0) >= 4, "requests that run")
        killed = len(llmtop.lines)
        for engine in vllm.engines():
            engine.kill()
        for each in users:
            failed(each.exception)
    llmtop.wait_state("DOWN", killed)
    assert "IDLE" not in {server["state"] for server in llmtop.servers[killed:]}
    assert vllm.process is not None
    vllm.process.wait(60)
    down = len(llmtop.lines)
    vllm.start()
    llmtop.wait(lambda line: line["servers"][0]["restarts"] == 1, "a restart")
    assert {server["state"] for server in llmtop.servers[down:]} <= {"DOWN", "STARTING", "IDLE", "SERVING"}
    assert "STARTING" in {server["state"] for server in llmtop.servers[down:]}
    prompt, generated = burst(vllm, 4, 32)
    assert idle_again(llmtop)["restarts"] == 1
    assert generated == 128
    assert prompt > 0
    rates = [server["rates"]["generation_tok_s"] for server in llmtop.servers[down:]]
    assert max(rate for rate in rates if rate is not None) < 20_000  # a spike would be the whole old counter


def failed(exception: Callable[[], Any]) -> None:
    """Whether a request ended in an error of the transport or of HTTP."""
    error = exception()
    assert isinstance(
        error, OSError | http.client.HTTPException | urllib.error.URLError | json.JSONDecodeError | KeyError
    ), error
