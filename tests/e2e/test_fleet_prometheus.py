"""A real Prometheus that scrapes fifty replicas, beside the same replicas asked directly."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fakes.pages import free_port
from fakes.replicas import Replicas, requests_s
from program import Program, once

STORES = ("prometheus", "victoria-metrics")
NUMBER, SCRAPE_S, DEAD = 50, 1, 7
PATIENCE_S = 90.0


def instance(number: int) -> str:
    return f"10.0.0.{number}:8000"


@contextmanager
def store(name: str, replicas: Replicas, folder: Path) -> Iterator[str]:
    """Debian's Prometheus or VictoriaMetrics on a free port, once it has scraped everything for a window."""
    targets = [
        {
            "targets": [f"127.0.0.1:{replicas.port}"],
            "labels": {"__metrics_path__": f"/r/{number}/metrics", "instance": instance(number)},
        }
        for number in range(NUMBER)
    ]
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
        "scrape_configs": [{"job_name": "vllm", "static_configs": targets}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    place = f"127.0.0.1:{free_port()}"
    url = f"http://{place}"
    flags = {
        "prometheus": [
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={place}",
        ],
        "victoria-metrics": [
            f"-promscrape.config={folder}/prometheus.yml",
            f"-storageDataPath={folder}/data",
            f"-httpListenAddr={place}",
        ],
    }
    process = subprocess.Popen([name, *flags[name]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while _scraped(url) < NUMBER:
            assert time.monotonic() < deadline, f"{name} did not scrape"
            with suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"{name} ended with {process.wait(0.2)}")
        yield url
    finally:
        process.kill()
        process.wait(30)


def _scraped(url: str) -> int:
    """How many targets have been scraped for longer than a window of rates."""
    query = urllib.parse.urlencode({"query": "count(count_over_time(up[5m]) >= 14)"})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=5) as answer:
            result = json.load(answer)["data"]["result"]
    except OSError:
        return 0
    return int(result[0]["value"][1]) if result else 0


def by_instance(line: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {server["url"].removeprefix("http://"): server for server in line["servers"]}


@pytest.mark.parametrize("name", STORES)
def test_fifty_replicas_read_as_if_each_was_asked_and_a_dead_one_has_no_rates(tmp_path: Path, name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    with Replicas() as replicas, store(name, replicas, tmp_path) as url:
        flags = ["--from-prometheus", url, "--select", 'job="vllm"']
        fleet = by_instance(json.loads(once(tmp_path, *flags, "--once", "--json").stdout))
        assert len(fleet) == NUMBER
        with Program(tmp_path, *map(replicas.url, range(0, NUMBER, 10)), "-d", "0.5") as asking:
            direct = asking.wait(lambda line: (line["servers"][0]["rates"]["window_s"] or 0) > 7, "a window")
        for number, asked in zip(range(0, NUMBER, 10), direct["servers"], strict=True):
            read = fleet[instance(number)]
            for name in ("state", "engine", "model", "running", "waiting", "kv_usage", "kv_capacity_tokens"):
                assert read[name] == asked[name], name
            assert read["rates"]["window_s"] >= 4 * SCRAPE_S
            tokens = read["rates"]["generation_tok_s"]
            assert tokens == pytest.approx(requests_s(number) * 100, rel=0.02)
            assert tokens == pytest.approx(asked["rates"]["generation_tok_s"], rel=0.03)
            assert read["latency"]["ttft"]["mean_s"] == pytest.approx(0.257, rel=1e-6)
            edges = [read["latency"]["ttft"]["p50"][edge] for edge in ("low_s", "high_s")]
            assert edges == [0.06, 0.08]
            assert read["latency"]["queue"]["p95"]["bound"] == "<"
        with Program(tmp_path, *flags, "-d", "0.5") as program:
            program.wait(lambda line: len(line["servers"]) == NUMBER, "all replicas")
            replicas.killed.add(DEAD)
            program.wait(lambda line: by_instance(line)[instance(DEAD)]["state"] == "DOWN", "the death seen")
            seen = len(program.lines)
            program.wait_lines(seen + 4)
            for line in program.lines[seen:]:
                servers = by_instance(line)
                dead = servers.pop(instance(DEAD))
                assert dead["state"] == "DOWN"
                assert dead["rates"]["generation_tok_s"] is None
                assert dead["age_s"] > 0
                assert all(server["rates"]["generation_tok_s"] for server in servers.values())
                assert line["fleet"]["requests"] <= 10
            replicas.killed.clear()
            program.wait(lambda line: by_instance(line)[instance(DEAD)]["state"] == "SERVING", "it back", seen)
