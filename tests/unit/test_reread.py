"""Raw pages of a recording read anew: the figures follow from the pages, whatever was recorded of them."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from crank import Crank, vllm_page
from llmtop.config import UsageError
from llmtop.model.snapshot import Rates, ServerView, Snapshot, State
from llmtop.playback import open_recording
from llmtop.record import Recorder
from llmtop.reread import reread

URL = "http://server:8000"


def recorded(path: Path, pages: Iterator[bytes | None]) -> list[ServerView]:
    """Record a page a second, beside snapshots of a version that got every rate wrong; what would be right."""
    crank, recorder, right = Crank(), Recorder(path, raw=True), []
    for t, page in enumerate(pages):
        if page is None:
            view = ServerView(URL, State.DOWN, "refused")
        else:
            view = crank.feed(page, t).view()
            recorder.page(URL, page, float(t))
        right.append(replace(view, url=URL, joules_per_token=0.4, version="0.32.0", model="m"))
        wrong = replace(right[-1], rates=Rates(generation_tok_s=1e9), kv_usage=None)
        recorder.write(Snapshot(time.time(), (wrong,)))
    recorder.close()
    return right


def steady(seconds: int) -> Iterator[bytes]:
    """100 tokens a second."""
    return (vllm_page(running=2, waiting=1, kv=0.25, generation=100.0 * t, prompt=7.0) for t in range(seconds))


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_the_figures_follow_from_the_pages(name: str, tmp_path: Path) -> None:
    right = recorded(tmp_path / name, steady(30))
    past = open_recording(tmp_path / name, reread)
    shown = [snapshot.servers[0] for snapshot in past]
    assert [server.rates for server in shown] == [server.rates for server in right]
    assert shown[-1].rates.generation_tok_s == pytest.approx(100.0)
    last = shown[-1]
    assert (last.kv_usage, last.running, last.waiting, last.state) == (0.25, 2, 1, State.SERVING)
    assert (last.joules_per_token, last.version, last.model) == (0.4, "0.32.0", "m")  # no page says these


def test_without_it_a_recording_is_shown_as_it_was(tmp_path: Path) -> None:
    recorded(tmp_path / "run.jsonl", steady(5))
    assert open_recording(tmp_path / "run.jsonl").snapshot(4).servers[0].rates.generation_tok_s == 1e9


def test_a_server_that_was_down_is_shown_as_recorded_and_restarts(tmp_path: Path) -> None:
    right = recorded(tmp_path / "run.jsonl", iter([*steady(12), None, None, *steady(12)]))
    shown = [snapshot.servers[0] for snapshot in open_recording(tmp_path / "run.jsonl", reread)]
    assert [server.state for server in shown[11:15]] == [State.SERVING, State.DOWN, State.DOWN, State.SERVING]
    assert shown[-1].restarts == right[-1].restarts == 1
    assert shown[14].rates.generation_tok_s is None
    assert shown[-1].rates.generation_tok_s == pytest.approx(100.0)


def test_without_raw_pages_there_is_nothing_to_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl")
    recorder.write(Snapshot(1.0, (ServerView(URL),)))
    recorder.close()
    with pytest.raises(UsageError, match="record with --record-raw"):
        open_recording(tmp_path / "run.jsonl", reread)


def test_a_page_that_cannot_be_read_alone_leaves_the_recorded_server(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    recorder = Recorder(path, raw=True)
    recorder.page(URL, b"llamacpp:tokens_predicted_total 5\nllamacpp:requests_processing 1\n", 1.0)
    recorder.write(Snapshot(time.time(), (ServerView(URL, State.SERVING, running=3),)))
    recorder.close()
    assert gzip.decompress(path.read_bytes()).count(b"\n") == 3
    assert open_recording(path, reread).snapshot(0).servers[0].running == 3
