"""The page of --export-port, and the dashboard and rules that are made for it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fakes.snapshots as fakes
from fakes.pages import PageServer
from llmtop import cli
from llmtop.contract.snapshot import Finding, Snapshot
from llmtop.load import recorded
from llmtop.load.events import Finished, Warned
from llmtop.load.results import LevelResult, RunResult, Spread
from llmtop.machine.sample import MachineSample
from llmtop.recording.exporter import Exporter
from program import Program

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
LEVEL = LevelResult("c=8", 8, completed=64, tok_s=93.5, requests_s=0.7, ttft=Spread(410, 380, 3, 380, 1, 1900, 3900))
RUN = RunResult("sweep", "8 users", levels=(LEVEL,), sweet_spot=8.0, met=True, url="http://spark-a:8000", model="m")
FULL = replace(
    fakes.busy(),
    servers=(replace(fakes.BUSY_SERVER, limited_by="KV_PRESSURE", kv_full_in_s=42.0),),
    pools=(replace(fakes.UNIFIED_POOL, state="low", empty_in_s=30.0),),
    findings=(Finding("kv:http://spark-a:8000", "critical", "the cache is full"),),
)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter("127.0.0.1", 0)
    yield exporter
    exporter.close()


def page(exporter: Exporter) -> str:
    with urlopen(exporter.url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def values(text: str) -> dict[str, float]:
    """Values by family and what tells its series apart."""
    telling = ("state", "limit", "level", "kind", "stat")
    return {
        " ".join([sample.name, *(sample.labels[label] for label in telling if label in sample.labels)]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def shown(exporter: Exporter, snapshot: Snapshot) -> dict[str, float]:
    exporter.write(snapshot)
    return values(page(exporter))


def test_the_page_has_what_only_llmtop_knows(exporter: Exporter) -> None:
    known = shown(exporter, FULL)
    assert known["llmtop_pool_headroom_bytes unified"] == fakes.UNIFIED_POOL.headroom_bytes
    assert known["llmtop_pool_low_water_bytes unified"] == fakes.UNIFIED_POOL.low_water_bytes
    assert known["llmtop_pool_low_water_timestamp_seconds unified"] == fakes.UNIFIED_POOL.low_water_time
    assert [known[f"llmtop_pool_state {state} unified"] for state in ("ok", "low", "critical")] == [0.0, 1.0, 0.0]
    assert known["llmtop_pool_empty_seconds unified"] == 30.0
    assert (known["llmtop_limited_by KV_PRESSURE"], known["llmtop_limited_by SEQ_CAP"]) == (1.0, 0.0)
    assert known["llmtop_kv_full_seconds"] == 42.0
    assert known["llmtop_server_state SERVING"] == 1.0
    assert known["llmtop_finding critical"] == 1.0


def test_what_is_not_known_has_no_series(exporter: Exporter) -> None:
    assert values(page(exporter)) == {}  # nothing was seen yet
    known = shown(exporter, fakes.down())
    assert known["llmtop_server_state DOWN"] == 1.0
    assert not [name for name in known if name.startswith(("llmtop_limited_by", "llmtop_load", "llmtop_kv"))]


def test_the_last_load_test_stays_on_the_page(exporter: Exporter) -> None:
    for item in (Warned("odd"), Finished(RUN)):
        told = recorded.to_values(item)
        assert told is not None
        exporter.event(recorded.KIND, told)
    known = shown(exporter, fakes.busy())
    assert known["llmtop_load_sweet_spot"] == 8.0
    assert known["llmtop_load_met"] == 1.0
    assert known["llmtop_load_level_tokens_per_second c=8"] == 93.5
    assert known["llmtop_load_level_latency_seconds c=8 ttft p99"] == 3.9
    assert "llmtop_load_knee" not in known


def test_a_load_test_of_the_screen_comes_to_the_page_also_where_nothing_is_recorded() -> None:
    from llmtop.contract.settings import Settings
    from llmtop.session.poller import Poller
    from llmtop.ui.load_state import recording_to

    class NoMachine:
        def start(self) -> None: ...
        def stop(self) -> None: ...
        def ready(self) -> bool:
            return True

        def sample(self) -> MachineSample:
            raise AssertionError

    poller = Poller(Settings(export=("127.0.0.1", 0)), NoMachine(), lambda _: None)
    assert poller._exporter is not None
    recording_to(poller)(Finished(RUN))
    assert values(page(poller._exporter))["llmtop_load_sweet_spot"] == 8.0
    poller._exporter.close()


@pytest.mark.parametrize("more", [["--json"], ["--plain"], []])
def test_a_port_in_use_is_one_line(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.run(["127.0.0.1:1", "--export-port", port, *more]) == 2
    error = capsys.readouterr().err
    assert error == f"llmtop: --export-port: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("flags", [["--export-port", "70000"], ["--export-port", "1", "--once"]])
def test_a_page_that_nobody_could_read_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["127.0.0.1:1", *flags]) == 2
    assert capsys.readouterr().err.startswith("llmtop: --export-port ")


def test_beside_json_the_page_says_the_same_and_holds_no_key(tmp_path: Path) -> None:
    with PageServer([b"vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.25\n"]) as server:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        args = (server.url, "-d", "0.2", "--export-port", port, "--api-key-env", "KEY_OF_IT")
        with Program(tmp_path, *args, env={"KEY_OF_IT": "secret-key-of-the-server"}) as program:
            program.wait_state("SERVING")
            program.wait_lines(len(program.lines) + 1)
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
    known = values(text)
    assert (known["llmtop_requests_running"], known["llmtop_kv_usage_ratio"]) == (3.0, 0.25)
    assert "secret-key" not in text


# the dashboard and the rules


def printed(what: str, capfdbinary: pytest.CaptureFixture[bytes]) -> str:
    assert cli.run(["monitoring", what]) == 0
    return capfdbinary.readouterr().out.decode()


def test_dashboard_and_rules_ask_for_what_there_is(
    exporter: Exporter, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from llmtop.recording.exporter import _KINDS

    dashboard = json.loads(printed("grafana", capfdbinary))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = printed("rules", capfdbinary)
    names = set(re.findall(r"llmtop_\w+", " ".join(asked) + rules))
    assert names <= {f"llmtop_{name}" for name in _KINDS}
    assert {"llmtop_pool_headroom_bytes", "llmtop_limited_by", "llmtop_server_state"} <= names


def test_the_resource_of_the_operator_holds_the_same_rules(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    rules = printed("rules", capfdbinary)
    resource = printed("prometheusrule", capfdbinary)
    head, _, spec = resource.partition("spec:\n")
    assert "kind: PrometheusRule" in head
    assert "".join(line[2:] for line in spec.splitlines(keepends=True)) == rules


@promtool
def test_promtool_finds_the_rules_valid(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "rules.yml").write_text(printed("rules", capfdbinary))
    subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yml")], check=True, timeout=60)


@promtool
def test_promtool_finds_the_page_valid(exporter: Exporter) -> None:
    told = recorded.to_values(Finished(RUN))
    assert told is not None
    exporter.event(recorded.KIND, told)
    exporter.write(FULL)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page(exporter), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
