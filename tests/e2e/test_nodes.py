"""`llmtop ssh://NODE` against a real sshd on loopback: what is there is read, what goes wrong is said."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.node_root import GB10, H100, NodeRoot, nvidia_smi
from fakes.pages import Engine, PageServer, free_port
from fakes.sshd import MISSING, PATIENCE_S, Sshd
from fakes.truth import truth_server
from llmtop.contract.settings import parse_node
from llmtop.load import safety
from llmtop.load.events import Event, Warned
from llmtop.load.plan import Level, Plan
from llmtop.load.runner import LoadRun, RunOptions
from llmtop.nodes.node import RemoteNode
from program import Line, Program, once, validator

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


@pytest.fixture
def server(root: NodeRoot) -> Iterator[PageServer]:
    with PageServer([Engine().page]) as pages:
        root.serve(4242, pages.port)
        yield pages


def seen(tmp_path: Path, node: Sshd, *more: str) -> tuple[int, Line]:
    """The exit code and the line of `--once --json`."""
    done = once(tmp_path, "--once", "--json", *more, node.url, env=node.env)
    line: Line = json.loads(done.stdout)
    validator().validate(line)
    return done.returncode, line


def state_of(line: Line, name: str = "spark-b") -> str:
    state: str = next(node["state"] for node in line["nodes"] if node["name"] == name)
    return state


def serves(line: Line) -> bool:
    return [server["state"] for server in line["servers"]] == ["SERVING"]


def test_a_node_shows_its_servers_its_memory_and_its_gpu(tmp_path: Path, node: Sshd, server: PageServer) -> None:
    node.tool("nvidia-smi", nvidia_smi(GB10.format(util=96), app="GPU-4e84, 4242, VLLM::EngineCore, 4096"))
    code, line = seen(tmp_path, node)
    assert code == 0
    (shown,) = line["servers"]
    assert (shown["url"], shown["state"]) == (f"http://spark-b:{server.port}", "SERVING")
    assert (shown["node"], shown["via"], shown["local"]) == ("spark-b", "ssh", False)
    assert shown["rates"]["generation_tok_s"] == pytest.approx(1000, rel=0.1)
    (pool,) = line["pools"]
    assert (pool["name"], pool["node"], pool["basis"]) == ("GB10 unified", "spark-b", "MemAvailable")
    expected = {entry.split(":")[0]: int(entry.split()[1]) for entry in _meminfo(node.root)}
    assert pool["headroom_bytes"] == expected["MemAvailable"] * 1024
    assert pool["cuda_free_bytes"] == expected["MemFree"] * 1024
    (gpu,) = line["devices"]
    assert (gpu["name"], gpu["node"], gpu["util"], gpu["memory"], gpu["power_limit_w"], gpu["unified"]) == (
        *("NVIDIA GB10", "spark-b", 96.0, None, None, True),
    )
    assert gpu["processes"] == [{"pid": 4242, "name": "VLLM::EngineCore", "memory_bytes": 4096 * 2**20}]
    assert [(n["name"], n["local"], n["state"], n["host"]["name"]) for n in line["nodes"]] == [
        ("spark-b", False, "ok", "gx10-b")
    ]
    assert line["host"] == line["nodes"][0]["host"]
    node.wait_for_the_end()  # nothing stays behind


@pytest.mark.parametrize("python", [True, False], ids=["python", "shell"])
def test_two_models_on_one_gb10_share_a_pool_and_each_has_its_row(
    tmp_path: Path, root: NodeRoot, server: PageServer, *, python: bool
) -> None:
    box = "0123456789abcdef" * 4
    rows = ("4300, VLLM::Worker, 20480", "4400, VLLM::Worker, 10240", "77, python3, 2048", "78, steam, [N/A]")
    for pid, parent, container in ((4300, 4242, ""), (4400, 4343, box), (77, 1, box)):
        root.worker(pid, parent, container)
    root.meminfo(MemAvailable=85 * 2**20)
    node = Sshd(tmp_path / "node", root=root.root, python=python)
    node.tool("nvidia-smi", nvidia_smi(GB10.format(util=96), app="\n".join(f"GPU-4e84, {row}" for row in rows)))
    with PageServer([Engine().page]) as other:
        root.serve(4343, other.port)
        try:
            with Program(tmp_path, node.url, "-d", "0.5", env=node.env) as program:
                line = program.wait(_held_by_servers, "holders")
        finally:
            node.stop()
    (pool,) = line["pools"]
    first, second = f"http://spark-b:{server.port}", f"http://spark-b:{other.port}"
    told = [(held["server"], held["container"], held["pids"], held["bytes"]) for held in pool["holders"]]
    assert told == [
        (first, None, [4300], 20 * 2**30),
        (second, box[:12], [4400], 10 * 2**30),
        (None, box[:12], [77], 2 * 2**30),
        (None, None, [78], None),
    ]
    assert pool["used_bytes"] == 32 * 2**30 + pool["other_bytes"]
    assert pool["holders_note"] == "the driver does not say what 1 of 4 processes hold: it is in other"


@pytest.mark.parametrize("python", [True, False], ids=["python", "shell"])
def test_what_a_gb10_keeps_quiet_about_is_found(
    tmp_path: Path, root: NodeRoot, server: PageServer, *, python: bool
) -> None:
    slow = GB10.format(util=96).replace("2405", "513")
    root.board({"sys_total": 61.5, "soc_pkg": 40.0, "pl1": 140.0}, prochot=1)
    node = Sshd(tmp_path / "node", root=root.root, python=python)
    node.tool("nvidia-smi", nvidia_smi(slow))
    try:
        with Program(tmp_path, node.url, "-d", "0.5", env=node.env) as program:
            line = program.wait(lambda seen: _found(seen) >= {"prochot", "slow-clock"}, "both findings")
            assert line["host"]["power_rails_w"] == {"sys_total": 61.5, "soc_pkg": 40.0, "pl1": 140.0}
            assert (line["host"]["power_w"], line["devices"][0]["sm_clock_max_mhz"]) == (61.5, 3003.0)
            node.tool("nvidia-smi", nvidia_smi(GB10.format(util=96)))
            root.board({"sys_total": 61.5}, prochot=0)
            program.wait(lambda seen: "prochot" not in _found(seen), "an end of it", len(program.lines))
    finally:
        node.stop()


def _found(line: Line) -> set[str]:
    return {finding["id"].partition(":")[0] for finding in line["findings"]}


def _held_by_servers(line: Line) -> bool:
    told = [held for pool in line["pools"] for held in pool["holders"]]
    return len([held for held in told if held["server"]]) == 2 and any(held["container"] for held in told)


def _meminfo(root: Path) -> list[str]:
    return (root / "proc/meminfo").read_text().splitlines()


def test_a_shell_is_enough_on_a_node_without_python(tmp_path: Path, root: NodeRoot, server: PageServer) -> None:
    node = Sshd(tmp_path / "node", root=root.root, python=False)
    try:
        node.tool("nvidia-smi", nvidia_smi(GB10.format(util=96), app="GPU-4e84, 4242, python3, 1024"))
        code, line = seen(tmp_path, node)
    finally:
        node.stop()
    assert (code, line["servers"][0]["node"], line["servers"][0]["state"]) == (0, "spark-b", "SERVING")
    assert (line["pools"][0]["name"], line["devices"][0]["util"]) == ("GB10 unified", 96.0)
    assert line["devices"][0]["processes"][0]["memory_bytes"] == 2**30


@pytest.mark.parametrize("python", [True, False])
def test_memory_of_a_container_is_not_that_of_its_machine(tmp_path: Path, root: NodeRoot, python: bool) -> None:
    mounts = "21 1 0:5 / /proc rw - proc proc rw\n22 1 0:6 / /proc/meminfo rw - fuse.lxcfs lxcfs rw\n"
    (root.root / "proc/self/mountinfo").write_text(mounts)
    node = Sshd(tmp_path / "node", root=root.root, python=python)
    try:
        node.tool("nvidia-smi", nvidia_smi(GB10.format(util=96), app="GPU-4e84, 4242, python3, 1024"))
        _, line = seen(tmp_path, node)
    finally:
        node.stop()
    (pool,) = line["pools"]
    assert (pool["headroom_bytes"], pool["state"]) == (None, None)
    assert pool["reason"] == "fuse.lxcfs is mounted over /proc/meminfo"


def test_memory_of_its_own_and_an_old_nvidia_smi(tmp_path: Path, node: Sshd, server: PageServer) -> None:
    node.tool("nvidia-smi", nvidia_smi(H100, more=None))
    _, line = seen(tmp_path, node)
    hbm, ram = line["pools"]
    assert (hbm["kind"], hbm["headroom_bytes"], ram["kind"]) == ("hbm", (81559 - 70000) * 2**20, "ram")
    assert line["devices"][0]["throttle"] == ["sw power cap"]


def test_without_nvidia_smi_and_without_servers_memory_is_still_shown(tmp_path: Path, node: Sshd) -> None:
    code, line = seen(tmp_path, node)
    assert (code, line["servers"], line["devices"]) == (1, [], [])
    assert line["pools"][0]["node"] == "spark-b"
    assert line["findings"] == []


def test_a_node_stands_beside_a_server_that_was_named(tmp_path: Path, node: Sshd, server: PageServer) -> None:
    with PageServer([Engine().page]) as near:
        code, line = seen(tmp_path, node, near.url)
    assert code == 0
    assert {shown["url"]: shown["node"] == "spark-b" for shown in line["servers"]} == {
        near.url: False,
        f"http://spark-b:{server.port}": True,
    }
    assert [shown["local"] for shown in line["nodes"]] == [True, False]


def test_a_connection_that_is_killed_comes_back(tmp_path: Path, node: Sshd, server: PageServer) -> None:
    with Program(tmp_path, node.url, "-d", "0.5", env=node.env) as program:
        program.wait(serves, "serving")
        node.signal(signal.SIGKILL, listener=False)
        stale = program.wait(lambda line: state_of(line) == "stale", "stale", len(program.lines))
        assert stale["nodes"][0]["age_s"] > 0
        assert stale["pools"][0]["headroom_bytes"] is not None
        assert stale["pools"][0]["state"] is None
        assert [shown["state"] for shown in stale["servers"]] in (["SERVING"], ["STALE"])
        back = program.wait(lambda line: state_of(line) == "ok" and serves(line), "back", program.lines.index(stale))
        assert back["servers"][0]["restarts"] == 0
        assert program.stop() == 0
    assert not [line for line in program.lines if line["servers"] and line["servers"][0]["state"] == "DOWN"]


def test_nothing_stays_behind_on_either_side(tmp_path: Path, node: Sshd, server: PageServer) -> None:
    with tempfile.TemporaryDirectory(prefix="n") as runtime:
        env = {**node.env, "XDG_RUNTIME_DIR": runtime}
        with Program(tmp_path, node.url, "-d", "0.5", env=env) as program:
            program.wait(serves, "serving")
            (folder,) = Path(runtime).iterdir()
            assert (folder.stat().st_mode & 0o777, len(node.sessions()) > 0) == (0o700, True)
            assert program.stop(signal.SIGINT) == 0
        assert list(Path(runtime).iterdir()) == []
        with Program(tmp_path, node.url, "-d", "0.5", env=env) as program:
            program.wait(serves, "serving")
            program.process.kill()  # even so the reader over there ends: its input does
            node.wait_for_the_end()


def test_a_server_that_ends_is_down_and_not_its_node(tmp_path: Path, node: Sshd, root: NodeRoot) -> None:
    port = free_port()
    with PageServer([Engine().page], port=port):
        root.serve(4242, port)
        program = Program(tmp_path, node.url, "-d", "0.5", env=node.env)
        program.wait(serves, "serving")
    with program:
        down = program.wait(lambda line: line["servers"][0]["state"] != "SERVING", "down", len(program.lines))
        assert (down["servers"][0]["state"], state_of(down)) == ("DOWN", "ok")
        with PageServer([Engine().page], port=port):
            program.wait(serves, "serving again", program.lines.index(down))
        assert program.stop() == 0


def test_an_sshd_that_hangs_holds_up_nobody(tmp_path: Path, node: Sshd, server: PageServer) -> None:
    with (
        PageServer([Engine().page]) as near,
        Program(tmp_path, near.url, node.url, "-d", "0.5", env=node.env) as program,
    ):
        program.wait(
            lambda line: len(line["servers"]) == 2 and all(s["state"] == "SERVING" for s in line["servers"]), "both"
        )
        node.signal(signal.SIGSTOP)
        stale = program.wait(lambda line: state_of(line) == "stale", "stale", len(program.lines))
        since = program.lines.index(stale)
        program.wait_lines(since + 10)
        assert {line["servers"][0]["state"] for line in program.lines[since:]} == {"SERVING"}
        node.signal(signal.SIGCONT)
        program.wait(lambda line: state_of(line) == "ok" and line["servers"][1]["state"] == "SERVING", "back", since)
        assert program.stop() == 0


def test_a_banner_that_never_comes_is_told_as_such(tmp_path: Path, node: Sshd) -> None:
    node.signal(signal.SIGSTOP)
    code, line = seen(tmp_path, node)
    node.signal(signal.SIGCONT)
    assert (code, state_of(line), line["pools"]) == (1, "down", [])
    assert line["nodes"][0]["reason"] == "its port is open and ssh does not answer: is it out of memory?"


def test_a_host_key_that_changed_is_never_taken(tmp_path: Path, node: Sshd, server: PageServer) -> None:
    node.new_host_key()
    code, line = seen(tmp_path, node)
    assert (code, state_of(line), line["servers"], line["pools"]) == (1, "down", [], [])
    assert line["nodes"][0]["reason"].startswith("its host key has changed")
    assert [finding["text"] for finding in line["findings"]] == [f"spark-b: {line['nodes'][0]['reason']}"]
    assert "Accepted" not in node.log()


def test_an_sshd_that_forbids_forwarding_is_told_apart_from_a_server_that_is_down(
    tmp_path: Path, node: Sshd, server: PageServer
) -> None:
    node.configure("AllowTcpForwarding no")
    code, line = seen(tmp_path, node)
    assert (code, state_of(line), line["servers"][0]["state"], server.requests) == (1, "ok", "DOWN", [])
    assert line["pools"][0]["node"] == "spark-b"
    assert "spark-b: sshd there forbids forwarding" in " ".join(finding["text"] for finding in line["findings"])


def test_a_login_that_leads_nowhere_says_how_long_it_takes(tmp_path: Path, node: Sshd) -> None:
    node.configure("ForceCommand exec sleep 1000")
    with Program(tmp_path, node.url, "-d", "0.5", env=node.env) as program:
        line = program.wait(lambda line: "no answer for" in (line["nodes"][0]["reason"] or ""), "no answer")
        assert (state_of(line), line["servers"], line["pools"]) == ("down", [], [])
        assert program.stop() == 0


def test_a_host_nobody_knows_and_a_key_that_is_refused(tmp_path: Path, node: Sshd) -> None:
    (node.folder / "known").write_text("")
    assert seen(tmp_path, node)[1]["nodes"][0]["reason"].startswith("its host key is not known here")
    node.know()
    (node.folder / "authorized").write_text("")
    assert seen(tmp_path, node)[1]["nodes"][0]["reason"].startswith("no key of yours lets you in")


def test_the_table_says_why_a_node_is_not_read(tmp_path: Path, node: Sshd) -> None:
    node.stop()
    done = once(tmp_path, "--once", node.url, env=node.env)
    assert (done.returncode, done.stderr) == (1, "")
    assert "spark-b: nothing listens on its ssh port" in done.stdout


def test_keys_in_command_lines_stay_where_they_are(tmp_path: Path, node: Sshd, root: NodeRoot) -> None:
    with PageServer([Engine().page]) as pages:
        root.serve(4242, pages.port, "vllm serve m --api-key sk-hush --hf-token=hf_hush")
        spy = node.folder / "spy"
        node.tool("python3", f'{sys.executable} "$@" | tee {spy}\n')
        _, line = seen(tmp_path, node)
    assert line["servers"][0]["state"] == "SERVING"
    streamed = spy.read_bytes()
    assert b"--api-key" in streamed
    assert b"hush" not in streamed


def test_the_key_of_the_environment_reaches_the_only_server_there(
    tmp_path: Path, node: Sshd, server: PageServer, root: NodeRoot
) -> None:
    keyed = {**node.env, "VLLM_API_KEY": "hush"}
    once(tmp_path, "--once", "--json", node.url, env=keyed)
    assert {headers.get("Authorization") for _, _, headers in server.requests} == {"Bearer hush"}
    server.requests.clear()
    with PageServer([Engine().page]) as other:
        root.serve(4243, other.port)
        once(tmp_path, "--once", "--json", node.url, env=keyed)
        assert {headers.get("Authorization") for _, _, headers in server.requests + other.requests} == {None}


@pytest.mark.parametrize(
    "typed", ["ssh://", "ssh://-oProxyCommand=x", "ssh://a:pw@b", "ssh://h:0", "ssh://h/x", "ssh://-l@h", "ssh:h"]
)
def test_what_is_no_node_is_one_clear_line(tmp_path: Path, typed: str) -> None:
    done = once(tmp_path, "--once", typed)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pw" not in done.stderr


def test_a_comparison_does_not_go_through_ssh_and_says_so(tmp_path: Path) -> None:
    done = once(tmp_path, "load", "--compare", "ssh://spark-b", "ssh://spark-c")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "does not go through ssh" in done.stderr


async def test_a_load_test_of_the_screen_goes_through_the_forward(
    tmp_path: Path, node: Sshd, root: NodeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has a name that only ssh knows, so that nothing else leads to it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", node.env["PATH"])
    with truth_server() as truth:
        root.serve(4242, int(truth.url.rpartition(":")[2]))
        watched = RemoteNode(parse_node(node.url))
        watched.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not watched.targets:
                    await asyncio.sleep(0.05)
            (target,) = watched.targets
            events: list[Event] = []
            plan = Plan(url=target.url, levels=(Level("c=2", 2, 4, 16, 4),))
            result = await LoadRun(plan, RunOptions.of_target(target, write=False), events.append).run()
        finally:
            await watched.stop()
    assert (target.host, target.node, result.levels[0].completed) == ("spark-b", "spark-b", 4)
    assert [event.text for event in events if isinstance(event, Warned) and event.text.startswith("through ssh: ")]


def test_a_node_whose_name_no_resolver_knows_may_be_loaded_by_who_types_it() -> None:
    granted = safety.ask("http://no-such-host.invalid:8000", has_key=True, allow_remote=False, node="no-such-host")
    assert granted.confirm is safety.Confirm.NAME


def test_a_model_on_this_machine_and_a_headless_rank_over_there_are_one_server(
    tmp_path: Path, node: Sshd, root: NodeRoot
) -> None:
    near = NodeRoot(tmp_path / "near", name="gx10-a")
    words = "vllm serve m -tp 2 --nnodes 2 --master-addr 10.0.0.1 --node-rank"
    near.meminfo(MemAvailable=9 * 2**20)
    root.meminfo(MemAvailable=6 * 2**20)
    root.serve(4243, free_port(), f"{words} 1 --headless")
    with PageServer([Engine().page]) as pages:
        near.serve(4242, pages.port, f"{words} 0")
        trees = ("--procfs", str(near.root / "proc"), "--sysfs", str(near.root / "sys"))
        done = once(tmp_path, "--once", "--json", *trees, pages.url, node.url, env=node.env, machine=True)
    line: Line = json.loads(done.stdout)
    validator().validate(line)
    (server,) = line["servers"]
    assert [(part["node"], part["rank"], part["headless"], part["pid"]) for part in server["nodes"]] == [
        ("gx10-a", 0, False, 4242),
        ("spark-b", 1, True, 4243),
    ]
    assert (server["nodes_total"], server["tensor_parallel"]) == (2, 2)
    assert (server["headroom_node"], server["headroom_bytes"]) == ("spark-b", 6 * 2**30)
