"""Recording, replay and export as programs: what was shown live is what comes back."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_textfile

from fakes.pages import Engine, PageServer
from program import COMMAND, Program, bare, environment, once
from terminal import LEFT, RIGHT, Terminal

FAST = ("-d", "0.2")
KEY = "sk-very-secret-0123456789"


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with PageServer([Engine(model="tiny-model").page]) as pages:
        yield pages


@pytest.fixture(scope="module")
def recorded(server: PageServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A recording of a few seconds, and the lines that were shown meanwhile."""
    folder = tmp_path_factory.mktemp("recorded")
    path = folder / "run.jsonl"
    shown = _watch(folder, server, path, 25)
    return path, shown


def _watch(folder: Path, server: PageServer, path: Path, lines: int, *args: str) -> list[str]:
    """Watch with `--json --record` until some lines have come; all lines as they were written."""
    with (
        Program(folder, server.url, *FAST, "--record", str(path), *args, env={"VLLM_API_KEY": KEY}) as program,
    ):
        program.wait_lines(lines)
        program.stop(signal.SIGTERM)
    return [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in program.lines]


def snapshot_lines(path: Path) -> list[str]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [line for line in content.decode().splitlines() if line.startswith('{"time":')]


def replay(folder: Path, *args: str) -> list[str]:
    done = once(folder, "replay", *args, machine=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_live_recording_and_replay_are_the_same_line_by_line(name: str, server: PageServer, tmp_path: Path) -> None:
    path = tmp_path / name
    shown = _watch(tmp_path, server, path, 8)
    assert len(shown) >= 8
    assert snapshot_lines(path)[: len(shown)] == shown
    assert replay(tmp_path, str(path), "--json") == snapshot_lines(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_key_and_other_labels_are_not_in_it(recorded: tuple[Path, list[str]]) -> None:
    text = recorded[0].read_text()
    assert "tiny-model" in text
    assert KEY not in text
    assert "Authorization" not in text


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_kill_9_loses_at_most_the_last_line(name: str, server: PageServer, tmp_path: Path) -> None:
    path = tmp_path / name
    with Program(tmp_path, server.url, *FAST, "--record", str(path)) as program:
        program.wait_lines(10)
        program.process.kill()
        program.process.wait(15)
        program._reader.join(5)
        shown = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in program.lines]
    back = replay(tmp_path, str(path), "--json")
    assert back[: len(shown)] == shown  # a line is recorded before it is shown


def test_once_records_all_that_it_polled(server: PageServer, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    done = once(tmp_path, server.url, *FAST, "--once", "--json", "--record", str(path))
    assert done.returncode == 0
    assert snapshot_lines(path)[-1] == done.stdout.strip()
    assert len(snapshot_lines(path)) >= 2


def test_raw_pages_are_recorded_when_asked_and_can_be_read_anew(
    server: PageServer, recorded: tuple[Path, list[str]], tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    shown = _watch(tmp_path, server, path, 5, "--record-raw")
    pages = [json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"event":"page"')]
    assert pages
    assert all("vllm:num_requests_running" in page["text"] and page["url"] == server.url for page in pages)
    assert replay(tmp_path, str(path), "--json")[: len(shown)] == shown
    anew = [json.loads(line)["servers"][0] for line in replay(tmp_path, str(path), "--json", "--reread")]
    live = [json.loads(line)["servers"][0] for line in shown]
    for name in ("state", "running", "waiting", "kv_usage", "rates", "latency", "restarts", "prefix_hit_rate"):
        assert [server[name] for server in anew[1 : len(live)]] == [server[name] for server in live[1:]], name
    done = once(tmp_path, "replay", str(recorded[0]), "--json", "--reread", machine=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--record-raw" in done.stderr


def test_a_server_that_comes_back_is_read_anew_as_it_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    with PageServer([Engine().page]) as first:
        program = Program(tmp_path, first.url, *FAST, "--record", str(path), "--record-raw")
        program.wait_lines(6)
    with program:
        program.wait(lambda _: True, "down for a while", program.lines.index(_down(program)) + 5)
        with PageServer([Engine().page], port=first.port):
            back = program.wait(lambda line: line["servers"][0]["restarts"] == 1, "back")
            program.wait_lines(program.lines.index(back) + 6)
            program.stop(signal.SIGTERM)
    live = program.servers
    anew = [json.loads(line)["servers"][0] for line in replay(tmp_path, str(path), "--json", "--reread")]
    assert anew[: len(live)] == live
    recorded = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    pages = [line for line in recorded if line.get("event") == "page"]
    answered = [line for line in recorded if "servers" in line and line["servers"][0]["state"] != "DOWN"]
    assert len({page["t"] for page in pages}) == len(pages) <= len(answered)  # none for a server that is silent
    assert _export(tmp_path, str(path), "--csv", "--reread") == _export(tmp_path, str(path), "--csv")


def _down(program: Program) -> dict[str, object]:
    return program.wait(lambda line: line["servers"][0]["state"] == "DOWN", "DOWN")


@pytest.mark.parametrize(
    ("where", "words"), [("no/such/folder/x.jsonl", "No such file"), ("/dev/full", "No space left on device")]
)
def test_a_recording_that_cannot_be_written_is_a_finding_and_watching_goes_on(
    where: str, words: str, server: PageServer, tmp_path: Path
) -> None:
    with Program(tmp_path, server.url, *FAST, "--record", str(tmp_path / where)) as program:
        program.wait_state("SERVING")
        program.wait_lines(6)
    for line in program.lines:
        (finding,) = [finding for finding in line["findings"] if finding["id"] == "source:recording"]
        assert words in finding["text"]


def test_a_newer_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    path.write_text('{"schema":99,"kind":"llmtop-recording"}\n{"time":1.0,"servers":[],"schema":99}\n')
    for args in (["--once", "--json"], ["--json"], []):
        done = once(tmp_path, "replay", str(path), *args, machine=True)
        assert done.returncode == 2
        assert done.stdout == ""
        assert "newer llmtop" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_cut_line_is_skipped_with_a_note(recorded: tuple[Path, list[str]], tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_bytes(recorded[0].read_bytes()[:-50])
    done = once(tmp_path, "replay", str(path), "--json", machine=True)
    assert done.returncode == 0
    assert done.stdout.splitlines() == snapshot_lines(recorded[0])[:-1]
    assert "the last line is cut and was skipped" in done.stderr


def test_once_is_the_last_snapshot_or_the_one_of_a_time(recorded: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, lines = str(recorded[0]), snapshot_lines(recorded[0])
    assert replay(tmp_path, path, "--once", "--json") == [lines[-1]]
    start = json.loads(lines[0])["time"]
    at = max(n for n, line in enumerate(lines) if json.loads(line)["time"] <= start + 2)
    assert replay(tmp_path, path, "--once", "--json", "--at", "2") == [lines[at]]
    assert replay(tmp_path, path, "--json", "--at", "2") == lines[at:]
    assert "tiny-model" in replay(tmp_path, path, "--once")[0]
    assert len(replay(tmp_path, path, "--plain")) == len(lines)


def test_at_outside_is_a_mistake(recorded: tuple[Path, list[str]], tmp_path: Path) -> None:
    done = once(tmp_path, "replay", str(recorded[0]), "--once", "--at", "3600", machine=True)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_speed_paces_the_lines(recorded: tuple[Path, list[str]], tmp_path: Path) -> None:
    lines = replay(tmp_path, str(recorded[0]), "--json", "--speed", "50")
    assert lines == snapshot_lines(recorded[0])
    assert once(tmp_path, "replay", str(recorded[0]), "--speed", "0.1", machine=True).returncode == 2


def test_replay_on_the_screen_seeks_and_ends(recorded: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, lines = recorded[0], snapshot_lines(recorded[0])
    command = [COMMAND, "replay", str(path), "--speed", "0.25"]
    with Terminal(command, environment(tmp_path), tmp_path) as terminal:
        terminal.wait_for("REPLAY")
        terminal.wait_for("tiny-model")
        terminal.press(" ")
        terminal.wait_for("PAUSED")
        terminal.press(RIGHT)
        length = json.loads(lines[-1])["time"] - json.loads(lines[0])["time"]
        end = f"{int(length)}s/{int(length)}s"
        terminal.wait_for(end)
        terminal.press(LEFT)
        terminal.wait(lambda text: end not in text and " 0s/" in text, "sought back")
        terminal.press("+")
        terminal.wait_for(" 0.5x")
        terminal.press("q")
        assert terminal.end() == 0


def test_the_key_r_records_what_the_screen_shows(server: PageServer, tmp_path: Path) -> None:
    command = [COMMAND, server.url, *FAST, *bare(tmp_path)]
    with Terminal(command, environment(tmp_path), tmp_path) as terminal:
        terminal.wait_for("SERVING")
        terminal.press("r")
        terminal.wait_for(" REC ")
        (path,) = tmp_path.glob("llmtop-*.jsonl")
        terminal.wait(lambda _: len(snapshot_lines(path)) >= 4, "recorded")
        terminal.press("r")
        terminal.wait(lambda text: " REC " not in text, "stopped recording")
        recorded = len(snapshot_lines(path))
        terminal.press("q")
        assert terminal.end() == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(replay(tmp_path, str(path), "--json")) == recorded


def test_a_start_up_is_recorded_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "start.jsonl"
    demo = [COMMAND, "demo", "gb10", "--warmup", "--no-traffic", "--speed", "100", *FAST, "--record", str(path)]
    with Terminal(demo, environment(tmp_path), tmp_path) as terminal:
        terminal.wait_for("READY")
        verdict = next(row for row in terminal.rows if "READY" in row).strip()
        terminal.wait_for(" IDLE ")
        terminal.press("q")
        assert terminal.end() == 0
    text = path.read_text()
    told = [json.loads(line)["report"]["startup"] for line in text.splitlines() if '{"event":"startup"' in line]
    assert [startup["state"] for startup in told][-1] == "ready"
    assert {"weights", "graphs"} <= {phase["name"] for phase in told[-1]["phases"]}
    assert "Loading safetensors" not in text  # no line of a log
    with Terminal([COMMAND, "replay", str(path), "--speed", "20"], environment(tmp_path), tmp_path) as terminal:
        terminal.wait_for(verdict)
        terminal.press("q")
        assert terminal.end() == 0


def test_a_start_up_is_followed_without_a_screen_too_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path, temp = tmp_path / "start.jsonl", tmp_path / "tmp"
    temp.mkdir()
    demo = ("demo", "gb10", "--warmup", "--speed", "100", *FAST, "--record", str(path))
    with Program(tmp_path, *demo, env={"TMPDIR": str(temp)}) as program:
        starting = program.wait_state("STARTING")
        assert starting["reason"].startswith("start-up: ")
        program.wait(lambda line: line["servers"][0]["state"] in ("SERVING", "IDLE"), "a server")
        program.stop(signal.SIGTERM)
    assert '{"event":"startup"' in path.read_text()
    assert list(temp.iterdir()) == []


def test_exports(recorded: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, lines = str(recorded[0]), snapshot_lines(recorded[0])
    table = list(csv.DictReader(io.StringIO("\n".join(_export(tmp_path, path, "--csv")))))
    assert [float(row["time"]) for row in table] == [json.loads(line)["time"] for line in lines]
    families = {
        family.name: family for family in parse_openmetrics("\n".join(_export(tmp_path, path, "--prometheus")) + "\n")
    }
    assert len(families["llmtop_snapshot_timestamp_seconds"].samples) == len(lines)
    out = tmp_path / "page.html"
    assert _export(tmp_path, path, "--html", "-o", str(out)) == []
    assert out.read_text().rstrip().endswith("</html>")
    assert "tiny-model" in out.read_text()


def _export(folder: Path, *args: str) -> list[str]:
    done = once(folder, "export", *args, machine=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("args", [[], ["--csv", "--html"]])
def test_export_needs_one_kind(args: list[str], recorded: tuple[Path, list[str]], tmp_path: Path) -> None:
    done = once(tmp_path, "export", str(recorded[0]), *args, machine=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_recording_is_not_overwritten_by_its_export(recorded: tuple[Path, list[str]], tmp_path: Path) -> None:
    before = recorded[0].read_bytes()
    done = once(tmp_path, "export", str(recorded[0]), "--csv", "-o", str(recorded[0]), machine=True)
    assert done.returncode == 2
    assert recorded[0].read_bytes() == before


def test_the_textfile_is_whole_at_any_moment(server: PageServer, tmp_path: Path) -> None:
    path = tmp_path / "llmtop.prom"
    seen: set[float] = set()
    with Program(tmp_path, server.url, *FAST, "--prometheus-file", str(path)) as program:
        program.wait_state("SERVING")
        while len(seen) < 5:
            families = {family.name: family for family in parse_textfile(path.read_text())}
            seen.add(families["llmtop_snapshot_timestamp_seconds"].samples[0].value)
            (up,) = families["llmtop_server_up"].samples
            assert up.value == 1.0
            program.wait_lines(len(program.lines) + 1)
        program.stop()
    assert seen <= {line["time"] for line in program.lines}
    assert [name for name in os.listdir(tmp_path) if name.startswith(".llmtop")] == []


def test_a_textfile_that_cannot_be_written_is_a_finding(server: PageServer, tmp_path: Path) -> None:
    done = once(tmp_path, server.url, *FAST, "--once", "--json", "--prometheus-file", "/dev/null")
    assert done.returncode == 0
    texts = [finding["text"] for finding in json.loads(done.stdout)["findings"]]
    assert any("/dev/null" in text for text in texts)
    assert not Path("/dev/null").is_file()
