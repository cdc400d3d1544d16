"""A key in every documented way, and a server and a log that repeat it: it is on no screen and in no file."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from fakes.pages import PageServer
from llmtop import cli
from llmtop.contract.settings import Target
from measured import Measured
from program import COMMAND, bare, environment, once
from unit.test_secrets_fuzz import label, ways

KEYS = ("""k"3y'%41+/=&<x>\\z!""", "sk-live-0123456789abcdef", "TWFuIGlzIGRpc3Rpbmd1aXNoZWQ=")
WAYS = ("environment", "named", "config", "login")
EVERY_WAY = [*((way, KEYS[0]) for way in WAYS), *(("environment", key) for key in KEYS[1:])]


class Talker(PageServer):
    """A server that puts the key of its caller into whatever it says, also into answers of the OpenAI routes."""

    def __init__(self, key: str) -> None:
        self.key, self.posts = key, 0
        labels = f'{{engine="0",model_name="m-{label(key)}"}}'
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total")
        page = "".join(f"vllm:{name}{labels} 0\n" for name in names).encode()
        side = {
            "/v1/models": json.dumps({"data": [{"id": f"m {key}", "owned_by": "vllm"}]}).encode(),
            "/version": json.dumps({"version": f"1 {key}"}).encode(),
            "/health": b"{}",
        }
        super().__init__([page], side)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer, base = self, super()._handler()

        class Handler(base):  # type: ignore[valid-type, misc]
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.posts += 1
                error = outer.posts > 2 and outer.posts % 3 == 0
                status, kind, data = outer.refusal() if error else outer.stream()
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(data)))
                    self.send_header("Retry-After", outer.key)
                    self.end_headers()
                    self.wfile.write(data)

        return Handler

    def refusal(self) -> tuple[int, str, bytes]:
        """An error that names the key."""
        return 500, "application/json", json.dumps({"error": {"message": f"no key {self.key}"}}).encode()

    def stream(self) -> tuple[int, str, bytes]:
        """An answer of four tokens that names the key as its reason to end."""
        chunks = [{"choices": [{"text": " a", "index": 0, "finish_reason": None}]} for _ in range(4)]
        chunks[-1]["choices"][0]["finish_reason"] = self.key
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return 200, "text/event-stream", text.encode()


@pytest.fixture
def talker(request: pytest.FixtureRequest) -> Iterator[Talker]:
    server = Talker(request.param)
    with server:
        yield server


def hidden(key: str, *outputs: str) -> None:
    for output in outputs:
        for way in ways(key):
            assert way not in output, (way, output)


def no_file_has(key: str, folder: Path) -> list[Path]:
    """The files below a folder, after a look into each."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "config.toml"]
    for path in files:
        hidden(key, path.read_text("utf-8", "replace"), str(path))
    return files


def given(way: str, talker: Talker, folder: Path) -> tuple[list[str], dict[str, str]]:
    """(arguments, environment) that give the key to the program in one of the documented ways."""
    if way == "login":
        return [talker.url.replace("//", f"//user:{quote(talker.key, safe='')}@")], {}
    if way == "environment":
        return [talker.url], {"VLLM_API_KEY": talker.key}
    if way == "named":
        return [talker.url, "--api-key-env", "MY_KEY"], {"MY_KEY": talker.key}
    (folder / "llmtop").mkdir()
    (folder / "llmtop/config.toml").write_text(f'[servers.a]\nurl = "{talker.url}"\napi_key_env = "MY_KEY"\n')
    return ["a"], {"MY_KEY": talker.key}


@pytest.mark.parametrize(("way", "talker"), EVERY_WAY, indirect=["talker"], ids=str)
def test_watching_recording_and_exporting(way: str, talker: Talker, tmp_path: Path) -> None:
    words, env = given(way, talker, tmp_path)
    recording = tmp_path / "run.jsonl"
    files = ["--record", str(recording), "--record-raw", "--prometheus-file", str(tmp_path / "node.prom")]
    seen = once(tmp_path, *words, "--once", "--json", *files, env=env)
    assert json.loads(seen.stdout)["servers"][0]["state"] == "IDLE"
    hidden(talker.key, seen.stdout, seen.stderr)
    for form in ("--csv", "--prometheus", "--html"):
        done = subprocess.run(
            [COMMAND, "export", str(recording), form], capture_output=True, text=True, timeout=60, check=True
        )
        hidden(talker.key, done.stdout, done.stderr)
    assert {"run.jsonl", "node.prom"} <= {path.name for path in no_file_has(talker.key, tmp_path)}


@pytest.mark.parametrize("talker", KEYS[:1], indirect=True, ids=str)
def test_every_page_of_the_screen_and_its_pictures(talker: Talker, tmp_path: Path) -> None:
    with Measured(tmp_path, talker.url, *bare(tmp_path), env={"VLLM_API_KEY": talker.key}, size=(160, 40)) as app:
        app.wait_all("IDLE", "Quit")
        for key in ("e", "s", "g", "s", "v", "s", "\x1b", "w", "s", "\x1b", "?", "s", "\x1b", "m", "r", "l", "s"):
            app.press(key)
            app.look(0.15)
            hidden(talker.key, app.text)
        app.press("\x1b[21~")
        app.end()
    assert {".svg", ".jsonl"} <= {path.suffix for path in no_file_has(talker.key, tmp_path)}


@pytest.mark.parametrize("talker", KEYS, indirect=True, ids=str)
def test_load_results_and_its_worker(talker: Talker, tmp_path: Path) -> None:
    words = [COMMAND, "load", talker.url, "--yes", "--json", "--max-concurrency", "1", "--num-prompts", "6"]
    words += ["--random-input-len", "8", "--random-output-len", "4", "--no-warm-up", *bare(tmp_path)]
    env = environment(tmp_path, {"VLLM_API_KEY": talker.key, "XDG_STATE_HOME": str(tmp_path / "state")})
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        family = psutil.Process(process.pid).children(recursive=True)
        hidden(talker.key, *(word for child in family for word in argv(child)))
        out, err = process.communicate(timeout=60)
    assert family
    assert '"levels"' in out, err
    hidden(talker.key, first, out, err)
    assert "no key ***" in out
    names = {path.name for path in no_file_has(talker.key, tmp_path)}
    assert {"report.md", "run.json", "requests.jsonl", "summary.json", "plan.json"} <= names


def argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


TOLD = {
    "HF_TOKEN": "hf_of another tool",
    "X_API_KEY": "a key of theirs",
    "MY_OWN": "and 1 more",
    "HTTPS_PROXY": "u:p@h",
}


@pytest.mark.parametrize("command", ["load", "proxy", "demo"])
def test_what_a_child_is_not_told(command: str, tmp_path: Path) -> None:
    talker = Talker(KEYS[1])
    load = ["--yes", "--max-concurrency", "1", "--num-prompts", "4", "--no-warm-up"]
    words = {"load": ["load", talker.url, *load], "proxy": ["proxy", ":0", talker.url], "demo": ["demo"]}
    env = environment(tmp_path, {**TOLD, "VLLM_API_KEY": talker.key, "XDG_STATE_HOME": str(tmp_path / "state")})
    args = [COMMAND, *words[command], "--json", *(bare(tmp_path) if command == "load" else ())]
    with (
        talker,
        subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            children = psutil.Process(process.pid).children(recursive=True)
            told = [child.environ() for child in children]
        finally:
            process.kill()
    assert told
    for found in told:
        assert not {*TOLD, "VLLM_API_KEY"} & found.keys()
        assert found["PATH"] == env["PATH"]
        hidden(talker.key, *found.values())


STARTS = """
import os, sys, time
key = sys.argv[-1]
print(f"INFO non-default args: {{'api_key': [{key!r}]}}", flush=True)
for part in (key[:5], key[5:], " was it, and ", os.environ["HF_TOKEN"], chr(10)):
    sys.stdout.write(part)
    sys.stdout.flush()
    time.sleep(0.01)
sys.exit(f"ValueError: the key {key} is not good")
"""


@pytest.mark.parametrize("form", ["json", "plain"])
def test_a_launched_command_that_says_its_key(form: str, tmp_path: Path) -> None:
    key, token = KEYS[0], "a token of the environment"
    report = tmp_path / f"report.{'json' if form == 'json' else 'md'}"
    words = [COMMAND, "warmup", f"--{form}", "--report", str(report), *bare(tmp_path)]
    done = subprocess.run(
        [*words, "--", sys.executable, "-c", STARTS, "--api-key", key],
        capture_output=True,
        text=True,
        env=environment(tmp_path, {"XDG_STATE_HOME": str(tmp_path / "state"), "HF_TOKEN": token}),
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "*** was it, and ***" in done.stdout + done.stderr
    for secret in (key, token):
        hidden(secret, done.stdout, done.stderr)
        files = no_file_has(secret, tmp_path)
    assert {report.suffix, ".log"} <= {path.suffix for path in files}


@pytest.mark.parametrize(
    "args",
    [
        ("--api-key", KEYS[1]),
        ("--api-key-env", KEYS[1]),
        ("load", "--header", f"Authorization: Bearer {KEYS[1]}"),
        ("http://" + f"user:{KEYS[1]}@host:port",),
    ],
)
def test_a_mistake_that_holds_a_key(args: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, *args, *bare(tmp_path)],
        capture_output=True,
        text=True,
        env=environment(tmp_path, {"XDG_STATE_HOME": str(tmp_path)}),
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, shlex.join(args)
    assert len(done.stderr.splitlines()) == 1
    hidden(KEYS[1], done.stdout, done.stderr)


def test_a_crash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    target = Target("http://127.0.0.1:1", key=KEYS[0])

    def crash(_: object) -> int:
        raise RuntimeError(f"{target} {target.authorization} {target.key!r}")

    monkeypatch.setattr(cli, "_dispatch", crash)
    assert cli.run([]) == 70
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    hidden(KEYS[0], printed)
