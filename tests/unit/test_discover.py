"""Servers of a host found by their processes: fake /proc trees, a fake docker, command lines as people type them."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from llmtop.engines.discover import ServerProcess, is_here, process_of, server_processes
from llmtop.machine import containers
from llmtop.machine.containers import Inspector

BOX = "c0ffee" * 10 + "beef"
OTHER = "deadbe" * 10 + "cafe"


@pytest.fixture(autouse=True)
def _nobody_to_ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(containers, "INSPECTOR", Inspector())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def listens(port: int, inode: int, address: str = "00000000") -> str:
    return f"   0: {address}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 {inode} 1\n"


class Proc:
    """A /proc tree under construction."""

    def __init__(self, root: Path) -> None:
        self.root = root / "proc"
        self._inode = 100
        self.network("self", 1, "192.168.1.9")

    def network(self, process: str, number: int, *addresses: str) -> None:
        """The network a process is in, with its addresses."""
        (self.root / process / "ns").mkdir(parents=True, exist_ok=True)
        (self.root / process / "ns/net").symlink_to(f"net:[{number}]")
        (self.root / process / "net").mkdir(exist_ok=True)
        lines = "".join(f"        |-- {address}\n           /32 host LOCAL\n" for address in (*addresses, "127.0.0.1"))
        (self.root / process / "net/fib_trie").write_text("Main:\n" + lines)
        table = self.root / f"sockets-{number}"
        if not table.exists():
            table.write_text("  sl  local_address rem_address   st\n")
        (self.root / process / "net/tcp").unlink(missing_ok=True)
        (self.root / process / "net/tcp").symlink_to(table)

    def add(self, pid: int, line: str, *ports: int, parent: int = 1, bound: str = "00000000") -> Path:
        """A process in this machine's network; words of its command line are split at blanks."""
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in line.split()) + b"\0")
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} 0 0")
        self.network(str(pid), 1, "192.168.1.9")
        self.open(folder, *ports, bound=bound)
        return folder

    def open(self, folder: Path, *ports: int, bound: str = "00000000") -> None:
        """Listening sockets of a process."""
        with (folder / "net/tcp").open("a") as table:
            for port in ports:
                self._inode += 1
                (folder / f"fd/{port}").symlink_to(f"socket:[{self._inode}]")
                table.write(listens(port, self._inode, bound))

    def contain(self, pid: int, line: str, container: str, address: str, *ports: int) -> Path:
        """A process in a container with a network of its own."""
        folder = self.add(pid, line)
        (folder / "ns/net").unlink()
        self.network(str(pid), 1000 + pid, address)
        self.open(folder, *ports)
        (folder / "cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n")
        return folder

    def found(self) -> list[ServerProcess]:
        return server_processes(self.root)

    def urls(self) -> list[str]:
        return [server.url for server in self.found()]


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


STARTS = [
    ("vllm serve m", "vllm", 8000),
    ("/opt/venv/bin/python3.12 /opt/venv/bin/vllm serve m --port 9000", "vllm", 9000),
    ("python -u -X faulthandler -m vllm.entrypoints.openai.api_server --port=9001", "vllm", 9001),
    ("python3 -m vllm.entrypoints.cli.main serve m", "vllm", 8000),
    ("python3 /src/vllm/entrypoints/openai/api_server.py --model m", "vllm", 8000),
    ("sglang serve --model-path m", "sglang", 30000),
    ("python3 -m sglang.launch_server --model-path m --port 31000", "sglang", 31000),
    ("/usr/local/bin/llama-server -m a.gguf", "llamacpp", 8080),
    ("./llama-server --port 8090", "llamacpp", 8090),
    ("/usr/local/bin/ollama serve", "ollama", 11434),
    ("python -m mlx_lm.server --model m", "mlx-lm", 8080),
    ("/venv/bin/python /venv/bin/mlx_lm.server --port 8082", "mlx-lm", 8082),
    ("python -m mlx_lm server", "mlx-lm", 8080),
    ("omlx serve --model-dir models", "omlx", 8000),
    ("vllm-mlx serve m --port 8003", "vllm-mlx", 8003),
    ("text-generation-launcher --model-id m", "tgi", 3000),
    ("text-generation-router -p 8085", "tgi", 8085),
    ("python3 /usr/local/bin/trtllm-serve m --port 8004", "trtllm-serve", 8004),
    ("trtllm-serve serve m", "trtllm-serve", 8000),
    ("lmdeploy serve api_server m", "lmdeploy", 23333),
    ("lmdeploy serve api_server m --server-port 23400", "lmdeploy", 23400),
    ("/opt/tritonserver/bin/tritonserver --model-repository=r --metrics-port=8102", "triton", 8102),
    ("python3 -m vllm_nvext.entrypoints.openai.api_server", "nim", 8000),
    ("python3 -m dynamo.frontend --http-port 8181", "dynamo", 8181),
    ("python3 -m vllm_router.app --static-backends http://a", "production-stack-router", 8001),
    ("vllm-router --port 8801", "production-stack-router", 8801),
    ("llama-swap --config c.yaml --listen :8899", "llama-swap", 8899),
    ("/v/bin/python /v/bin/llmtop demo gb10 --serve --port 8123", "demo", 8123),
]


@pytest.mark.parametrize(("line", "engine", "port"), STARTS, ids=[line for line, _, _ in STARTS])
def test_a_server_is_found_by_what_its_process_executes(proc: Proc, line: str, engine: str, port: int) -> None:
    proc.add(7, line)
    (server,) = proc.found()
    assert (server.pid, server.engine, server.host, server.port) == (7, engine, "127.0.0.1", port)
    assert not server.listening


@pytest.mark.parametrize(
    "line",
    [
        "ssh spark-b vllm serve m",
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai vllm serve m",
        "docker exec -it box vllm serve m",
        "podman run image vllm serve m",
        "kubectl exec pod -- vllm serve m",
        "srun -N 2 vllm serve m",
        "tmux new -d vllm serve m",
        "bash -c vllm\u00a0serve\u00a0m",
        "uv run vllm serve m",
        "vim /opt/vllm serve",
        "vllm bench serve --model m",
        "vllm chat",
        "ollama run m",
        "ollama runner --model m --port 40000",
        "python -c import\u00a0vllm vllm serve",
        "grep -r sglang.launch_server .",
        "vllm serve m --headless",
        "vllm serve m --nnodes 2 --node-rank 1",
        "vllm serve m --node-rank=1",
        "python -m sglang.launch_server --nnodes 2 --node_rank 1",
        "vllm serve m --uds /run/v.sock",
        "llmtop demo gb10",
        "llmtop demo --serve",
        "python -m llmtop.demo gb10 --port 8123 --with-parent",
        "/opt/lm-studio/lm-studio --type=renderer",
        "python /site-packages/ray/dashboard/agent.py --metrics-export-port=50000",
    ],
)
def test_clients_workers_and_launchers_are_no_servers(proc: Proc, line: str) -> None:
    proc.add(7, line.replace("\u00a0", "_"))
    assert proc.found() == []


def test_the_first_node_serves(proc: Proc) -> None:
    proc.add(7, "vllm serve m --nnodes 2 --node-rank 0")
    assert proc.urls() == ["http://127.0.0.1:8000"]


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("vllm serve m --max-num-seqs=32", 32),
        ("vllm serve m --max-num-seqs 32", 32),
        ("vllm serve m --max_num_seqs 32", 32),
        ("vllm serve m --max_num_seqs=32", 32),
        ("vllm serve m --max-num-seqs 16 --max-num-seqs=64", 64),
        ("vllm serve m --max-num-seqs many", None),
        ("vllm serve m --max-num-seqs", None),
        ("vllm serve m", None),
        ("python -m sglang.launch_server --max-running-requests 48", 48),
        ("llama-server -np 4", 4),
        ("trtllm-serve m --max_batch_size 96", 96),
    ],
)
def test_how_many_requests_run_at_once(proc: Proc, line: str, limit: int | None) -> None:
    proc.add(7, line)
    assert proc.found()[0].max_num_seqs == limit


def test_the_settings_file_counts_where_the_command_line_is_silent(proc: Proc, tmp_path: Path) -> None:
    folder = proc.add(7, "vllm serve --config c.yaml --port 9100")
    (folder / "cwd").symlink_to(tmp_path)
    (tmp_path / "c.yaml").write_text("model: m\nport: 9000\nmax-num-seqs: 24  # few\nnested:\n  max-num-seqs: 1\n")
    (server,) = proc.found()
    assert (server.port, server.max_num_seqs) == (9100, 24)
    inside = proc.add(8, "vllm serve --config /etc/v.yaml")
    (inside / "root/etc").mkdir(parents=True)
    (inside / "root/etc/v.yaml").write_text('port: "9200"\nmax_num_seqs: 8\n')
    assert [(server.port, server.max_num_seqs) for server in proc.found()] == [(9100, 24), (9200, 8)]


def test_a_settings_file_that_never_ends_a_read_is_left_alone(proc: Proc, tmp_path: Path) -> None:
    folder = proc.add(7, "vllm serve --config pipe")
    (folder / "cwd").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert proc.urls() == ["http://127.0.0.1:8000"]


def test_a_server_listens_by_itself_or_by_a_child(proc: Proc) -> None:
    proc.add(7, "vllm serve m --api-server-count 2")
    proc.add(8, "VLLM::ApiServer_0", 8000, parent=7)
    assert proc.found()[0].listening


def test_a_launcher_and_its_child_are_one_server(proc: Proc) -> None:
    proc.add(7, "text-generation-launcher --port 80")
    proc.add(8, "text-generation-router --port 80", 80, parent=7)
    assert [(server.port, server.listening) for server in proc.found()] == [(80, True)]


def test_what_a_router_or_ollama_starts_for_itself_is_no_server_of_its_own(proc: Proc) -> None:
    proc.add(7, "llama-server --models-dir models", 8080)
    proc.add(8, "llama-server -m a.gguf --port 41000", 41000, parent=7)
    proc.add(9, "ollama serve", 11434)
    proc.add(10, "/usr/lib/ollama/llama-server --port 42000", 42000, parent=9)
    assert proc.urls() == ["http://127.0.0.1:8080", "http://127.0.0.1:11434"]


def test_what_llama_swap_starts_is_read_beside_it(proc: Proc) -> None:
    proc.add(7, "llama-swap", 8080)
    proc.add(8, "llama-server --port 5800", 5800, parent=7)
    assert [server.engine for server in proc.found()] == ["llamacpp", "llama-swap"]


def test_a_port_from_the_environment_is_seen_by_the_socket(proc: Proc) -> None:
    proc.add(7, "ollama serve", 11500)
    assert proc.urls() == ["http://127.0.0.1:11500"]


def test_vllm_is_not_where_only_its_store_listens(proc: Proc) -> None:
    proc.add(7, "vllm serve m", 45001)
    assert [(server.port, server.listening) for server in proc.found()] == [(8000, False)]


def test_a_desktop_program_is_a_server_while_it_listens(proc: Proc) -> None:
    proc.add(7, "/opt/LM-Studio/lm-studio", 1234)
    assert [(server.engine, server.port) for server in proc.found()] == [("lm-studio", 1234)]


def test_a_server_bound_to_one_address_is_asked_there(proc: Proc) -> None:
    proc.add(7, "vllm serve m --host 192.168.1.9 --ssl-certfile c.pem", 8000, bound="0901A8C0")
    assert proc.urls() == ["https://192.168.1.9:8000"]


def test_a_prefix_belongs_to_the_address(proc: Proc) -> None:
    proc.add(7, "llama-server --api-prefix /llm/")
    assert proc.urls() == ["http://127.0.0.1:8080/llm"]


def test_ray_serve_is_read_where_ray_has_its_metrics(proc: Proc) -> None:
    proc.add(7, "python /site-packages/ray/dashboard/agent.py --metrics-export-port=50000", 50000)
    proc.add(8, "ray::ServeReplica:llm:LLMServer")
    assert [(server.engine, server.port) for server in proc.found()] == [("vllm-ray", 50000)]


def test_open_files_that_may_not_be_seen_leave_the_sockets_of_the_network(proc: Proc) -> None:
    folder = proc.add(7, "vllm serve m")
    (folder / "fd").rmdir()
    assert not proc.found()[0].listening
    (folder / "net/tcp").write_text("head\n" + listens(8000, 5))
    assert proc.found()[0].listening


def test_no_tree_and_a_broken_one_are_no_error(proc: Proc, tmp_path: Path) -> None:
    assert server_processes(tmp_path / "none") == []
    folder = proc.add(7, "vllm serve m")
    for name in ("stat", "net/tcp", "net/fib_trie", "ns/net"):
        (folder / name).unlink()
    assert proc.urls() == ["http://127.0.0.1:8000"]


# -- containers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    """A `docker` that answers from files named after containers, and counts its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "docker"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\nexec /bin/cat "{folder}/$2.json"\n')
    tool.chmod(0o755)
    return folder


def publish(docker: Path, container: str, mode: str = "bridge", **ports: str) -> None:
    told = {f"{inner[1:]}/tcp": [{"HostIp": "0.0.0.0", "HostPort": outer}] for inner, outer in ports.items()}
    answer = [{"HostConfig": {"NetworkMode": mode}, "NetworkSettings": {"Ports": {**told, "9/udp": None}}}]
    (docker / f"{container}.json").write_text(json.dumps(answer))


def two_boxes(proc: Proc) -> None:
    proc.contain(7, "vllm serve m --max-num-seqs 8", BOX, "172.17.0.2", 8000)
    proc.contain(8, "vllm serve m --max-num-seqs 9", OTHER, "172.17.0.3", 8000)


def test_containers_are_reached_at_their_published_ports_and_asked_for_once(proc: Proc, docker: Path) -> None:
    two_boxes(proc)
    publish(docker, BOX, p8000="8001")
    publish(docker, OTHER, p8000="8002")
    for _ in range(3):
        assert proc.urls() == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    assert all(server.listening for server in proc.found())
    assert sorted((docker / "calls").read_text().split("\n")) == ["", f"inspect {BOX}", f"inspect {OTHER}"]
    server = process_of(proc.root, "localhost", 8002)
    assert server is not None
    assert (server.pid, server.max_num_seqs) == (8, 9)


def test_an_unpublished_port_is_reached_at_the_address_that_docker_tells(proc: Proc, docker: Path) -> None:
    folder = proc.contain(7, "vllm serve m", BOX, "172.17.0.2", 8000)
    (folder / "net/fib_trie").unlink()
    (folder / "cgroup").write_text(f"12:memory:/docker/{BOX[:12]}\n0::/\n")
    network = {"Ports": {"8000/tcp": None}, "Networks": {"ai": {"IPAddress": "172.20.0.2"}}}
    (docker / f"{BOX[:12]}.json").write_text(json.dumps([{"NetworkSettings": network}]))
    assert proc.urls() == ["http://172.20.0.2:8000"]


def test_a_pod_uses_the_network_of_another_container(proc: Proc, docker: Path) -> None:
    proc.contain(7, "vllm serve m", BOX, "172.17.0.2", 8000)
    publish(docker, BOX, mode=f"container:{OTHER}")
    publish(docker, OTHER, p8000="8005")
    assert proc.urls() == ["http://127.0.0.1:8005"]


def test_without_permission_the_forwarding_processes_tell(proc: Proc, docker: Path) -> None:
    two_boxes(proc)
    (docker / "docker").write_text("#!/bin/sh\necho permission denied >&2\nexit 1\n")
    forward = "/usr/bin/docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port {} -container-ip {} -container-port 8000"
    proc.add(20, forward.format(8001, "172.17.0.2"), 8001)
    proc.add(21, forward.format(8002, "172.17.0.3"), 8002)
    assert proc.urls() == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]


def test_without_anything_told_a_container_is_reached_at_its_own_address(proc: Proc) -> None:
    two_boxes(proc)
    assert proc.urls() == ["http://172.17.0.2:8000", "http://172.17.0.3:8000"]
    assert is_here(proc.root, "172.17.0.3")
    server = process_of(proc.root, "172.17.0.3", 8000)
    assert server is not None
    assert server.pid == 8
    assert process_of(proc.root, "localhost", 8000) is None


def test_a_container_with_no_address_of_its_own_and_nothing_told_is_not_asked_elsewhere(proc: Proc) -> None:
    proc.contain(7, "vllm serve m", BOX, "192.168.1.9", 8000)
    proc.contain(8, "vllm serve m", OTHER, "10.0.2.100", 8000)
    assert proc.urls() == []


def test_an_answer_that_is_none_is_not_known(proc: Proc, docker: Path) -> None:
    proc.contain(7, "vllm serve m", BOX, "172.17.0.2", 8000)
    (docker / f"{BOX}.json").write_text('[{"NetworkSettings": {"Ports": [1]}}]')
    assert proc.urls() == ["http://172.17.0.2:8000"]


def test_a_docker_that_hangs_holds_nothing_up(proc: Proc, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "INSPECTOR", Inspector(patience_s=0.0))
    os.mkfifo(docker / f"{BOX}.json")
    proc.contain(7, "vllm serve m", BOX, "172.17.0.2", 8000)
    proc.add(8, "llama-server")
    assert proc.urls() == ["http://127.0.0.1:8080"], "where the container is reached may still be told"
    with (docker / f"{BOX}.json").open("w"):  # lets it end, with nothing said
        pass
    deadline = time.monotonic() + 20.0
    while len(proc.urls()) < 2 and time.monotonic() < deadline:
        pass
    assert proc.urls() == ["http://172.17.0.2:8000", "http://127.0.0.1:8080"]


def test_who_asks_for_a_name_does_not_wait_for_who_waits_for_an_answer(docker: Path) -> None:
    inspector = Inspector(patience_s=30.0)
    os.mkfifo(docker / f"{BOX}.json")
    asking = threading.Thread(target=inspector.container, args=(BOX,))
    asking.start()
    while not inspector.pending():
        pass
    assert inspector.name(BOX) is None
    assert asking.is_alive()
    with (docker / f"{BOX}.json").open("w"):  # lets it end, with nothing said
        pass
    asking.join(20.0)
    assert not asking.is_alive()


def test_the_hosts_network_is_ours_also_where_namespaces_may_not_be_seen(proc: Proc) -> None:
    folder = proc.add(7, "vllm serve m", 8000)
    (folder / "ns/net").unlink()
    (folder / "cgroup").write_text(f"0::/docker/{BOX}\n")
    assert proc.urls() == ["http://127.0.0.1:8000"]
    boxed = proc.contain(8, "vllm serve m", OTHER, "172.17.0.2", 8000)
    (boxed / "ns/net").unlink()
    assert proc.urls() == ["http://127.0.0.1:8000", "http://172.17.0.2:8000"]
