"""What a node's reader sends is data: blocks, rows of nvidia-smi, words of ssh; and pools of several machines."""

from __future__ import annotations

import ast
import runpy
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.snapshots import BUSY_SERVER, GB10, GIB, HOST, NOON
from llmtop.commands import text
from llmtop.commands.config import resolve_nodes
from llmtop.contract.settings import NodeAddress, Settings, Target, UsageError, named_apart, parse_node
from llmtop.contract.snapshot import Device, Host, Snapshot, State
from llmtop.engines.discover import server_processes
from llmtop.machine.live import LiveMachine
from llmtop.machine.sample import MachineSample, MemInfo
from llmtop.machine.source import MachineTee
from llmtop.nodes import ssh
from llmtop.nodes.blocks import LIMIT, Block, BlockReader, TooMuchError
from llmtop.nodes.mirror import Mirror
from llmtop.nodes.reading import NodeReading
from llmtop.nodes.remote import FIELDS
from llmtop.nodes.smi import Gpus
from llmtop.nodes.tree import StreamedTree
from llmtop.recording.prometheus import samples
from llmtop.session.assemble import Assembler
from llmtop.session.poller import Poller
from llmtop.warmup.control import WarmupControl

NODES = Path(ssh.__file__).parent


# blocks


def test_blocks_come_whole_however_the_stream_is_cut() -> None:
    data = b"Welcome!\n\n@m hello \n{}\n@m file proc/a b\nx\n@other file y\n\n@m end \n\n@m file c\n\0\n@m end \n"
    for size in (1, 2, 7, len(data)):
        reader = BlockReader("m")
        found = [reading for at in range(0, len(data), size) for reading in reader.feed(data[at : at + size])]
        assert found == [
            [Block("hello", "", b"{}"), Block("file", "proc/a b", b"x\n@other file y\n")],
            [Block("file", "c", b"\0")],
        ]


def test_a_stream_without_an_end_is_given_up() -> None:
    reader = BlockReader("m")
    reader.feed(b"x" * (LIMIT - 1))
    with pytest.raises(TooMuchError):
        reader.feed(b"x")


# rows of nvidia-smi


def test_what_nvidia_smi_does_not_know_is_unknown() -> None:
    gpus = Gpus()
    gpus.take(FIELDS, b"0, GPU-1, NVIDIA GB10, 0, 13.46, [N/A], 55, 2405, 0x0, [N/A], [N/A], [N/A], 3003\n", 1.0)
    (device,) = gpus.devices(int(119.6 * GIB), 1.0)
    assert (device.util, device.power_w, device.power_limit_w, device.memory) == (0.0, 13.46, None, None)
    assert (device.unified, device.throttle, device.throttle_known) == (True, (), True)
    assert device.sm_clock_max_mhz == 3003.0
    gpus.take(FIELDS, b"0" + b", [N/A]" * 12, 2.0)
    nothing = next(known for known in gpus.devices(GIB, 2.0) if known.uuid is None)
    assert nothing == replace(Device(0), uuid=None, unified=nothing.unified, age_s=0.0)


def test_memory_that_cannot_be_read_is_no_sign_of_unified_memory() -> None:
    gpus = Gpus()
    row = b"0, GPU-1, NVIDIA GB10, [Unknown Error], nan, inf, 999, -1, [N/A], [Unknown Error], [N/A], [N/A], [N/A]\n"
    gpus.take(FIELDS, row, 1.0)
    (device,) = gpus.devices(GIB, 1.0)
    assert (device.unified, device.util, device.power_w, device.power_limit_w) == (False, None, None, None)
    assert (device.temperature_c, device.sm_clock_mhz, device.throttle_known) == (None, None, False)


def test_a_gpu_that_is_in_no_row_any_more_is_lost_and_says_what_it_was() -> None:
    gpus = Gpus()
    row = b"%d, GPU-%d, NVIDIA H100, 50, 300, 700, 60, 1980, 0x8, 81559, 70000, 551, 1980\n"
    gpus.take(FIELDS, row % (0, 0) + row % (1, 1), 1.0)
    gpus.take(FIELDS, row % (0, 0), 20.0)
    here, gone = gpus.devices(GIB, 20.0)
    assert (here.state, here.throttle, gone.state, gone.name, gone.util) == (
        *("OK", ("hw slowdown",), "LOST", "NVIDIA H100", None),
    )
    assert here.memory is not None
    assert here.memory.free == (81559 - 70000 - 551) * 2**20


def test_processes_end_and_odd_rows_are_none() -> None:
    gpus = Gpus()
    gpus.take(FIELDS, b"0, GPU-0, NVIDIA H100, 50, 300, 700, 60, 1980, 0x8, 81559, 70000, 551, 1980\n", 1.0)
    apps = "gpu_uuid,pid,process_name,used_memory"
    rows = b"GPU-0, 7, /opt/a, b/vllm, 1024\nGPU-0, 8, [Not Found], [N/A]\nGPU-0, x, y, 1\nGPU-0, 9, z, 99999999\nno\n"
    gpus.take_processes(apps, rows, 1.0)
    shown = [(process.pid, process.name, process.memory_bytes) for process in gpus.devices(GIB, 1.0)[0].processes]
    assert shown == [(7, "vllm", GIB), (8, None, None)]
    gpus.take_processes(apps, b"", 30.0)
    assert gpus.devices(GIB, 30.0)[0].processes == ()


# the tree


def test_processes_are_found_in_a_streamed_tree_as_on_disk() -> None:
    tree = StreamedTree()
    table = b"  sl  local_address\n   0: 00000000:1F40 00000000:0000 0A 0:0 00:0 0 0 0 77 1\n"
    tree.files = {
        "proc/9/stat": b"9 (-) S 1",
        "proc/9/cmdline": b"vllm\0serve\0m\0--config\0/c.yaml\0",
        "proc/9/root/c.yaml": b"max-num-seqs: 8\n",
        "proc/9/net/tcp": table,
    }
    tree.links = {"proc/9/fd/3": "socket:[77]", "proc/9/ns/net": "net:[1]", "proc/self/ns/net": "net:[1]"}
    (server,) = server_processes(tree.procfs)
    assert (server.url, server.pid, server.listening, server.max_num_seqs) == ("http://127.0.0.1:8000", 9, True, 8)
    tree.forget_processes()
    assert server_processes(tree.procfs) == []


def test_the_least_memory_between_two_readings_is_kept_with_its_time() -> None:
    mirror = Mirror()
    meminfo = b"MemTotal: 1000 kB\nMemFree: 900 kB\nMemAvailable: %d kB\n"
    mirror.take([Block("file", "proc/meminfo", meminfo % 900), Block("dip", "0.400", meminfo % 100)], 10.0, NOON)
    sample = mirror.sample(10.0)
    assert sample.dips["ram"].headroom_bytes == 100 * 1024
    assert sample.dips["ram"].time == pytest.approx(NOON - 0.4)
    assert (sample.mem.available, mirror.sample(10.0).dips) == (900 * 1024, {})


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"page_size": -1}', b'{"page_size": true}', b'{"page_size": 1e9}', b"[" * 9999]
)
def test_nonsense_from_a_node_is_no_crash(body: bytes) -> None:
    mirror = Mirror()
    names = ("hello", "file", "link", "folder", "scan", "dip", "gpu", "apps", "smi", "what")
    blocks = [Block(kind, name, body) for kind in names for name in ("", "proc/meminfo", "proc/1/cmdline", FIELDS)]
    mirror.take(blocks, 1.0, NOON)
    assert mirror.sample(1.0).mem.total is None


# the readers


def test_the_readers_are_fit_for_what_is_there() -> None:
    ast.parse((NODES / "remote.py").read_text("utf-8"), feature_version=(3, 7))
    sent = ssh.reader("0123")
    checked = subprocess.run(["sh", "-n"], input=sent, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("vllm serve m --api-key A B --port 1", "vllm serve m --api-key *** *** --port 1"),
        ("vllm --hf-token=x --tokenizer t", "vllm --hf-token=*** --tokenizer t"),
        ("s --max-num-batched-tokens 8192", "s --max-num-batched-tokens 8192"),
        ("s HF_TOKEN=x http://a:b@c", "s HF_TOKEN=*** http://***@c"),
    ],
)
def test_command_lines_leave_a_node_without_their_keys(typed: str, told: str) -> None:
    masked = runpy.run_path(str(NODES / "remote.py"))["masked"]
    assert " ".join(masked(typed.split())) == told
    assert masked(["sh", "-c", typed]) == ["sh", "-c", told]


# ssh


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("u@h: Permission denied (publickey,password).", "no key of yours lets you in"),
        ("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed.", "its host key has changed"),
        ("Connection timed out during banner exchange\nConnection to h port 22 timed out", "is it out of memory?"),
        ("ssh: connect to host h port 22: Connection refused", "nothing listens on its ssh port"),
        ("ssh: Could not resolve hostname h: Name or service not known", "the host name is not known"),
        ("Bad owner or permissions on /home/u/.ssh/config", "Bad owner or permissions"),
    ],
)
def test_words_of_ssh_become_one_line_that_helps(said: str, words: str) -> None:
    told = ssh.trouble(said.splitlines(), "h")
    assert told is not None
    assert words in told
    assert "\n" not in told


def test_what_ssh_is_told_cannot_be_an_option_or_a_key() -> None:
    command = ssh.connect(parse_node("ssh://me@Spark-B:2222"), "/run/x/ssh")
    assert command[-6:] == ["me", "-p", "2222", "--", "Spark-B", "exec sh -s"]
    assert "BatchMode=yes" in command


def test_nodes_of_one_name_are_told_apart_and_named_once() -> None:
    twice = [parse_node(f"ssh://localhost:{port}") for port in (22, 23, 22)]
    assert [node.name for node in named_apart(twice)] == ["localhost-22", "localhost-23"]


def test_a_key_is_for_the_only_node_and_never_for_several() -> None:
    config = {"nodes": {"b": {"ssh": "me@spark-b", "api_key_env": "B"}}}
    environ = {"B": "hush", "VLLM_API_KEY": "other"}
    assert resolve_nodes(["b"], config, environ) == ((NodeAddress("b", "spark-b", "me", None, "hush"),), ())
    nodes, servers = resolve_nodes(["ssh://c", "x:8000", "b"], config, environ)
    assert ([(node.name, node.key) for node in nodes], servers) == ([("c", None), ("b", "hush")], ("x:8000",))
    with pytest.raises(UsageError, match="for one server"):
        resolve_nodes(["ssh://c", "ssh://d"], config, environ, "B")
    assert "hush" not in repr(nodes)


# snapshots of several machines


def two(state: str = "ok", age: float = 0.2) -> Snapshot:
    """A server on spark-b, which is read by ssh, seen from spark-a, where one runs too."""
    mine = replace(BUSY_SERVER, url="http://localhost:8000", local=True)
    its = replace(BUSY_SERVER, url="http://spark-b:8000", local=False, node="spark-b")
    assembler = Assembler()
    here = MachineSample(NOON, HOST, MemInfo(int(119.6 * GIB), 50 * GIB, 60 * GIB), (GB10,))
    far = MachineSample(NOON, Host(name="gx10-b"), MemInfo(int(119.6 * GIB), GIB // 4, GIB // 2), (GB10,))
    reading = NodeReading("spark-b", state, "silent" if state == "stale" else None, age, far)  # type: ignore[arg-type]
    return assembler.build((mine, its), here, 1.0, NOON, {}, (), [reading])


def test_each_machine_has_its_own_memory_and_findings() -> None:
    seen = two()
    assert [(pool.node, pool.headroom_bytes) for pool in seen.pools] == [("spark-a", 60 * GIB), ("spark-b", GIB // 2)]
    assert [pool.low_water_bytes for pool in seen.pools] == [60 * GIB, GIB // 2]
    assert [finding.text.partition(":")[0] for finding in seen.findings if finding.id.startswith("memory")] == [
        "GB10 unified on spark-b"
    ]
    for server, node in zip(seen.servers, ("spark-a", "spark-b"), strict=True):
        beside = seen.beside(server)
        assert {pool.node for pool in beside.pools} | {device.node for device in beside.devices} == {node}
        assert beside.host.node == node
    assert seen.host == seen.nodes[0].host
    assert "  spark-b:\n  GB10 unified" in text.table(seen)


def test_of_a_machine_that_fell_silent_the_last_figures_stay_and_are_not_judged() -> None:
    seen = two("stale", 12.0)
    assert [(pool.state, pool.headroom_bytes) for pool in seen.pools] == [("ok", 60 * GIB), (None, GIB // 2)]
    assert not [finding for finding in seen.findings if finding.id.startswith("memory")]
    assert "spark-b, 12s ago (silent):" in text.table(seen)


def test_a_start_up_on_another_machine_is_not_told_by_the_memory_of_this_one(tmp_path: Path) -> None:
    begun = []
    for node in (None, "spark-b"):
        settings = Settings((Target("http://spark-b:8000", node=node),), procfs=tmp_path, sysfs=tmp_path)
        tee = MachineTee(LiveMachine(tmp_path, tmp_path))
        control = WarmupControl(tee, Poller(settings, tee.branch(), lambda _: None), settings)
        begun.append(control.notice(replace(BUSY_SERVER, url="http://spark-b:8000", state=State.STARTING)))
        control.end()
    assert begun == [True, False]


def test_files_for_other_programs_keep_the_machines_apart_and_leave_out_what_is_old() -> None:
    def headrooms(snapshot: Snapshot) -> list[tuple[str | None, float]]:
        found = [sample for sample in samples(snapshot) if sample.family == "pool_headroom_bytes"]
        return [(dict(sample.labels).get("node"), sample.value) for sample in found]

    assert headrooms(two()) == [(None, 60 * GIB), ("spark-b", GIB / 2)]
    assert headrooms(two("stale")) == [(None, 60 * GIB)]
