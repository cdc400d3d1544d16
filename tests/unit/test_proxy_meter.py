"""What the proxy counts of answers, by their keys and numbers."""

from __future__ import annotations

import gzip
import random

import pytest

from llmtop.engines.exposition import Exposition
from llmtop.engines.page import read_page
from llmtop.engines.page_record import RowSample
from llmtop.proxy.answers import AnswerReader
from llmtop.proxy.meter import MOST_MODELS, SILENT_S, Passage, TrafficMeter, generates
from llmtop.proxy.page import page

EVENTS, LINES, JSON = b"text/event-stream", b"application/x-ndjson", b"application/json"


def rows(meter: TrafficMeter, now: float) -> dict[str, RowSample]:
    """The rows of the page by model."""
    found = read_page(Exposition().parse(page(meter, now)), now)
    assert found is not None
    return {row.key[0]: row for row in found.rows if row.is_engine}


@pytest.mark.parametrize(
    ("kind", "lines", "pieces", "generated", "prompt"),
    [
        (EVENTS, [b'data: {"choices":[{"text":"a"}]}', b'data: {"choices":[{"text":" b"}]}'], 2, None, None),
        (EVENTS, [b'data: {"choices":[{"delta":{"content":null,"reasoning_content":"a"}}]}'], 1, None, None),
        (EVENTS, [b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}'], 1, None, None),
        (
            EVENTS,
            [b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}', b": ping", b"data: [DONE]"],
            0,
            None,
            None,
        ),
        (EVENTS, [b'data: {"choices":[{"text":"a b"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}'], 1, 2, 9),
        (LINES, [b'{"message":{"role":"assistant","content":"a"},"done":false}'] * 3, 3, None, None),
        (
            LINES,
            [b'{"response":"a"}', b'{"response":"","done":true,"prompt_eval_count":26,"eval_count":298}'],
            1,
            298,
            26,
        ),
        (
            EVENTS,
            [
                b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}',
                b'data: {"type":"message_delta","usage":{"output_tokens":15}}',
            ],
            1,
            15,
            None,
        ),
        (
            EVENTS,
            [
                b'data: {"type":"response.output_text.delta","delta":"Hi"}',
                b'data: {"type":"response.output_text.done","text":"Hi"}',
            ],
            1,
            None,
            None,
        ),
        (
            JSON,
            [b'{"choices":[{"text":"a b \\"completion_tokens\\": 99"}],"usage":{"completion_tokens":2}}'],
            0,
            2,
            None,
        ),
    ],
)
def test_pieces_and_counts_of_each_route(
    kind: bytes, lines: list[bytes], pieces: int, generated: int | None, prompt: int | None
) -> None:
    content = b"\n\n".join(lines)
    chance = random.Random(11)
    for packed in (content, gzip.compress(content)):
        answer = AnswerReader(kind, b"" if packed is content else b"gzip")
        cuts = sorted(chance.sample(range(1, len(packed)), 5))
        found = sum(answer.feed([packed[a:b]]) for a, b in zip([0, *cuts], [*cuts, len(packed)], strict=True))
        assert found + answer.end() == pieces
        assert (answer.counts.generated, answer.counts.prompt) == (generated, prompt)


def test_an_answer_that_cannot_be_read_has_no_tokens() -> None:
    answer = AnswerReader(EVENTS, b"br")
    assert answer.feed([b'data: {"content":"a"}\n']) == answer.end() == 0
    broken = AnswerReader(EVENTS, b"gzip")
    assert broken.feed([b"no gzip"]) == broken.feed([b"more"]) == 0


def test_a_line_without_end_is_not_kept() -> None:
    answer = AnswerReader(EVENTS, b"")
    for _ in range(40):
        assert answer.feed([b"x" * 2**17]) == 0
    assert answer.feed([b'"content":"a"\ndata: {"content":"b"}\n']) == 1


def stream(meter: TrafficMeter, started: float, model: bytes = b"m") -> Passage:
    """A request that has been sent and whose answer, a stream, begins."""
    one = Passage(meter, started)
    one.request([b'{"messages":[{"content":"\\"model\\":\\"no\\""}],"mod', b'el": "%b"}' % model])
    one.head(200, EVENTS, b"")
    return one


WORD = b'data: {"content":"a"}\n\n'


def test_times_are_of_the_request_and_of_the_pieces() -> None:
    meter = TrafficMeter()
    one = stream(meter, 100.0)
    for now in (100.25, 100.30, 100.36):
        one.body([WORD], now)
    assert rows(meter, 100.4)["m"].gauges["running"] == 1
    one.end("stop", 100.5)
    row = rows(meter, 100.6)["m"]
    assert (row.gauges["running"], row.counters["generation"]) == (0, 3)
    sums = {name: histogram.sum for name, histogram in row.histograms.items()}
    assert sums == pytest.approx({"ttft": 0.25, "itl": 0.11, "tpot": 0.055, "e2e": 0.5})
    assert "prompt" not in row.counters  # it was not said


def test_tokens_that_come_with_the_end_are_told_to_come_so() -> None:
    meter = TrafficMeter()
    one = Passage(meter, 0.0)
    one.request([b'{"model":"m"}'])
    one.head(200, JSON, b"")
    one.body([b'{"usage":{"prompt_tokens":3,"completion_tokens":40}}'], 9.0)
    assert rows(meter, 9.0)["m"].counters["generation"] == 0
    one.end("stop", 9.0)
    row = rows(meter, 9.5)["m"]
    assert (row.counters["generation"], row.counters["prompt"]) == (40, 3)
    assert "generation" in row.at_end
    assert row.histograms["ttft"].count == 0
    assert "generation" not in rows(meter, 80.0)["m"].at_end


def test_a_long_prompt_is_no_hang_and_a_silent_answer_is() -> None:
    meter = TrafficMeter()
    one = stream(meter, 0.0)
    assert rows(meter, 30.0)["m"].gauges["pulse"] == 30.0
    one.body([WORD], 40.0)
    assert rows(meter, 40.0 + SILENT_S / 2)["m"].gauges["pulse"] == 40.0 + SILENT_S / 2
    assert rows(meter, 60.0)["m"].gauges["pulse"] == rows(meter, 70.0)["m"].gauges["pulse"] == 40.0
    one.end("abort", 71.0)
    assert rows(meter, 72.0)["m"].gauges["pulse"] == 72.0


def test_models_have_rows_and_their_number_has_an_end() -> None:
    meter = TrafficMeter()
    for number in range(MOST_MODELS + 10):
        stream(meter, 0.0, b"m%d" % number).end("stop", 1.0)
    assert len(rows(meter, 2.0)) == MOST_MODELS + 1
    assert rows(meter, 2.0)["m3"].counters["requests"] == 1


def test_refusals_are_told_by_their_status() -> None:
    meter = TrafficMeter()
    for status in (404, 429, 500):
        one = Passage(meter, 0.0)
        one.request([b'{"model":"m"}'])
        one.head(status, JSON, b"")
        one.body([b'{"error":{"message":"no"}}'], 0.1)
        one.end("stop", 0.2)
    unsent = Passage(meter, 0.0)
    unsent.refused(502, 0.1)
    unsent.end("abort", 0.2)
    assert meter.statuses == {"4xx": 2, "5xx": 2}
    row = rows(meter, 1.0)["m"]
    assert (row.counters["requests"], row.gauges["running"]) == (0, 0)


def test_which_requests_ask_for_tokens() -> None:
    assert generates(b"POST", "/v1/chat/completions")
    assert generates(b"POST", "/prefix/api/generate")
    assert not generates(b"GET", "/v1/chat/completions")
    assert not generates(b"POST", "/v1/embeddings")
