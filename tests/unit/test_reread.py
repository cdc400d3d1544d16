"""Raw pages of a recording read anew: the figures follow from the pages, whatever was recorded of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crank import EPOCH, Crank, captured, vllm_page
from llmtop.contract.codec import to_json
from llmtop.contract.settings import UsageError
from llmtop.contract.snapshot import Rates, ServerView, Snapshot, State
from llmtop.engines.tracker import Failure, Identity
from llmtop.recording.read import open_recording
from llmtop.recording.reread import reread
from llmtop.recording.write import Recorder

URL = "http://server:8000"
FIRST = {"schema": 1, "kind": "llmtop-recording"}
REFUSED, TIMEOUT = Failure("refused", "nobody listens"), Failure("timeout", "no answer within 2 s")
AUTH = Failure("auth", "a key is needed")
Line = dict[str, Any]


def lived(
    answers: Sequence[tuple[float, bytes | Failure]], *, with_t: bool = True
) -> tuple[list[Line], list[ServerView]]:
    """The lines of a recording by a version that got figures wrong, and the servers as they should have been."""
    crank, lines, right = Crank(), [FIRST], []
    crank.tracker.identity = Identity(None, "0.32.0", 8192, 256, local=True)
    for t, answer in answers:
        if isinstance(answer, bytes):
            page = {"event": "page", "time": EPOCH + t, "url": URL, "t": t, "text": answer.decode()}
            lines.append(page if with_t else {name: page[name] for name in page if name != "t"})
        view = (crank.feed(answer, t) if isinstance(answer, bytes) else crank.take(answer, t)).view()
        beside = replace(view, url=URL, name="spark", node="spark-a", joules_per_token=0.4, scrape_s=0.01)
        right.append(beside)
        live = view.state.live
        wrong = replace(beside, rates=Rates(generation_tok_s=1e9), kv_usage=None, restarts=7) if live else beside
        lines.append(json.loads(to_json(Snapshot(EPOCH + t, (wrong,)))))
    return lines, right


def read_again(path: Path, lines: Sequence[Line]) -> list[ServerView]:
    """The servers of a recording of these lines, read anew."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return [snapshot.servers[0] for snapshot in open_recording(path, reread)]


def steady(seconds: int, start: int = 0) -> list[tuple[float, bytes | Failure]]:
    """100 tokens a second, from nothing."""
    pages = (vllm_page(running=2, waiting=1, kv=0.25, generation=100.0 * n, prompt=7.0) for n in range(seconds))
    return [(float(start + n), page) for n, page in enumerate(pages)]


def silent(failure: Failure, times: range) -> list[tuple[float, bytes | Failure]]:
    return [(float(t), failure) for t in times]


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_the_figures_follow_from_the_pages(name: str, tmp_path: Path) -> None:
    lines, right = lived(steady(30))
    shown = read_again(tmp_path / name, lines)
    assert shown == right
    last = shown[-1]
    assert last.rates.generation_tok_s == pytest.approx(100.0)
    assert (last.kv_usage, last.running, last.waiting, last.state, last.restarts) == (0.25, 2, 1, State.SERVING, 0)


def test_latencies_and_all_else_of_real_pages(tmp_path: Path) -> None:
    lines, right = lived([(t, page) for t, page, _ in captured("0.32.0")])
    shown = read_again(tmp_path / "run.jsonl", lines)
    assert shown == right
    assert any(server.latency.ttft.p95 for server in shown)


def test_what_no_page_says_is_as_recorded(tmp_path: Path) -> None:
    shown = read_again(tmp_path / "run.jsonl", lived(steady(5))[0])[-1]
    assert (shown.name, shown.version, shown.joules_per_token, shown.scrape_s) == ("spark", "0.32.0", 0.4, 0.01)
    assert (shown.max_model_len, shown.max_num_seqs, shown.local) == (8192, 256, True)


def test_rates_are_over_the_times_of_the_first_bytes(tmp_path: Path) -> None:
    lines, _ = lived(steady(9))
    for line in lines:
        if line.get("event") == "page" and line["t"] == 8.0:
            line["time"] += 0.5  # it lay there for a while before it was written
    assert read_again(tmp_path / "run.jsonl", lines)[-1].rates.generation_tok_s == pytest.approx(100.0)
    old = [{name: value for name, value in line.items() if name != "t"} for line in lines]
    assert read_again(tmp_path / "old.jsonl", old)[-1].rates.generation_tok_s == pytest.approx(800 / 8.5)


def test_without_it_a_recording_is_shown_as_it_was(tmp_path: Path) -> None:
    read_again(tmp_path / "run.jsonl", lived(steady(5))[0])
    assert open_recording(tmp_path / "run.jsonl").snapshot(4).servers[0].rates.generation_tok_s == 1e9


@pytest.mark.parametrize("with_t", [True, False])
@pytest.mark.parametrize("failure", [REFUSED, AUTH, TIMEOUT])
def test_a_server_without_a_page_is_shown_as_recorded(failure: Failure, with_t: bool, tmp_path: Path) -> None:
    lines, right = lived([*steady(12), *silent(failure, range(12, 20)), *steady(12, 20)], with_t=with_t)
    shown = read_again(tmp_path / "run.jsonl", lines)
    quiet = [n for n in range(12, 20) if not right[n].state.live]
    assert len(quiet) >= 5  # only then is a server stale
    assert [shown[n] for n in quiet] == [right[n] for n in quiet]
    assert [(server.state, server.reason) for server in shown] == [(server.state, server.reason) for server in right]
    assert [server.restarts for server in shown if server.state.live] == [s.restarts for s in right if s.state.live]
    assert shown[20].restarts == 1  # its counters fell
    assert shown[20].rates.generation_tok_s is None
    assert shown[-1].rates.generation_tok_s == pytest.approx(100.0)


@pytest.mark.parametrize("with_t", [True, False])
def test_the_last_page_again_and_again_is_no_page_of_a_silent_server(with_t: bool, tmp_path: Path) -> None:
    lines, right = lived([*steady(3), *silent(REFUSED, range(3, 9)), *steady(12, 9)], with_t=with_t)
    last = next(line for line in reversed(lines[:7]) if "text" in line)
    repeated: list[Line] = []
    for line in lines:
        repeated += [last | {"time": line["time"]}, line] if _is_down(line) else [line]
    assert len(repeated) == len(lines) + 6
    shown = read_again(tmp_path / "run.jsonl", repeated)
    assert [(s.state, s.restarts) for s in shown] == [(s.state, s.restarts) for s in right]
    assert shown[-1].restarts == 1


def _is_down(line: Line) -> bool:
    return "servers" in line and line["servers"][0]["state"] == "DOWN"


def test_a_start_in_between_is_a_restart_although_no_counter_fell(tmp_path: Path) -> None:
    idle = vllm_page(generation=0.0)
    lines, _ = lived([(0.0, idle), (1.0, idle), (2.0, REFUSED), (3.0, idle)])
    assert _is_down(lines[5])
    lines[5]["servers"][0]["state"] = "STARTING"
    assert read_again(tmp_path / "run.jsonl", lines)[-1].restarts == 1


def test_another_run_that_goes_on_with_the_file_starts_anew(tmp_path: Path) -> None:
    first, right = lived(steady(12))
    second, right_too = lived(steady(12, 1000))
    assert read_again(tmp_path / "run.jsonl", [*first, *second]) == [*right, *right_too]
    assert right_too[-1].restarts == 0


def test_a_run_that_lost_lines_goes_on(tmp_path: Path) -> None:
    lines, right = lived(steady(20))
    lost = [*lines[:21], FIRST, {"event": "gap", "time": EPOCH + 15, "lost": 5}, *lines[31:]]
    shown = read_again(tmp_path / "run.jsonl", lost)
    assert (shown[-1].rates, shown[-1].latency) == (right[-1].rates, right[-1].latency)
    assert (shown[10].rates.window_s, shown[10].rates.generation_tok_s) == (10.0, 100.0)  # across the gap


def test_words_that_no_page_says_stay(tmp_path: Path) -> None:
    lines, _ = lived(steady(3))
    lines[-1]["servers"][0]["reason"] = "/health says 503"
    assert read_again(tmp_path / "run.jsonl", lines)[-1].reason == "/health says 503"


def test_without_raw_pages_there_is_nothing_to_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl")
    recorder.write(Snapshot(1.0, (ServerView(URL),)))
    recorder.close()
    with pytest.raises(UsageError, match="record with --record-raw"):
        open_recording(tmp_path / "run.jsonl", reread)


@pytest.mark.parametrize(
    "page",
    [
        b"llamacpp:tokens_predicted_total 5\nllamacpp:requests_processing 1\n",  # /slots is missing
        b'[{"iter":1,"numActiveRequests":5}]',  # TensorRT-LLM's iterations
        b"some_other_metric 1\n",
    ],
)
def test_a_page_that_cannot_be_read_alone_leaves_the_recorded_server(page: bytes, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl", raw=True)
    recorder.page(URL, page, 1.0)
    recorder.write(Snapshot(EPOCH, (ServerView(URL, State.SERVING, running=3),)))
    recorder.close()
    assert open_recording(tmp_path / "run.jsonl", reread).snapshot(0).servers[0].running == 3


def test_a_model_that_no_page_names_is_as_recorded(tmp_path: Path) -> None:
    lines, _ = lived([(0.0, b"vllm:num_requests_running 1\nvllm:generation_tokens_total 5\n")])
    lines[-1]["servers"][0]["model"] = "tiny-model"
    (shown,) = read_again(tmp_path / "run.jsonl", lines)
    assert (shown.model, shown.running, shown.restarts) == ("tiny-model", 1, 0)


def test_half_a_character_in_a_page_is_no_trouble(tmp_path: Path) -> None:
    lines, right = lived(steady(12))
    pages = [line for line in lines if "text" in line]
    pages[3]["text"] += "# \ud800\n"
    assert read_again(tmp_path / "run.jsonl", lines)[4:] == right[4:]


def test_what_limits_follows_from_the_pages(tmp_path: Path) -> None:
    full = [(float(n), vllm_page(running=8, waiting=4, kv=0.99, generation=100.0 * n)) for n in range(40)]
    lines, right = lived(full)
    for line in lines:
        for server in line.get("servers", ()):
            server["limited_by"] = line["limited_by"] = "UNDERLOADED"
    read_again(tmp_path / "run.jsonl", lines)
    last = open_recording(tmp_path / "run.jsonl", reread).snapshot(39)
    assert right[-1].limited_by not in (None, "UNDERLOADED")
    assert (last.limited_by, last.servers[0].limited_by) == (right[-1].limited_by,) * 2


def test_the_age_and_the_pace_are_those_of_the_recording(tmp_path: Path) -> None:
    lines, _ = lived([(n * 5.0, page) for n, page in steady(4)])
    slow = lines[-1]["servers"][0]
    slow |= {"interval_s": 5.0, "age_s": 0.25}
    late = lines[-1] | {"time": EPOCH + 28, "servers": [slow | {"age_s": 13.0}]}  # a poll that goes on and on
    shown = read_again(tmp_path / "run.jsonl", [*lines, late])[-2:]
    assert [(s.state, s.age_s, s.interval_s) for s in shown] == [(State.SERVING, a, 5.0) for a in (0.25, 13.0)]


@pytest.mark.parametrize("name", ["time", "t"])
@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), -1.0, "1", None])
def test_a_time_that_is_none_harms_no_other_line(name: str, value: object, tmp_path: Path) -> None:
    lines, right = lived(steady(20))
    pages = [n for n, line in enumerate(lines) if "text" in line]
    lines[pages[5]][name] = value
    shown = read_again(tmp_path / "run.jsonl", lines)
    assert len(shown) == len(right)
    assert [s.rates.generation_tok_s for s in shown[1:]] == [pytest.approx(100.0)] * 19
    assert [s.restarts for s in shown] == [0] * 20


@pytest.mark.parametrize("values", [{"interval_s": 10**400}, {"name": "\ud800"}, {"reason": "\udcff"}])
def test_values_that_no_server_has_harm_no_other_line(values: Line, tmp_path: Path) -> None:
    lines, right = lived(steady(12))
    lines[4]["servers"][0] |= values
    shown = read_again(tmp_path / "run.jsonl", lines)
    assert len(shown) == len(right)
    assert shown[2:] == right[2:]


def test_lines_that_are_no_objects_are_skipped_as_ever(tmp_path: Path) -> None:
    lines, right = lived(steady(3))
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (tmp_path / "run.jsonl").write_text(text + '[1]\n{"event":"page","url":7}\n{"time":1,"ser')
    recording = open_recording(tmp_path / "run.jsonl", reread)
    assert [snapshot.servers[0] for snapshot in recording] == right
    assert recording.notes == ["the last line is cut and was skipped", "1 line cannot be read (line 8: no object)"]
