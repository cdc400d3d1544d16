"""The SSE parser and the reading of completion chunks, on byte-exact streams cut in every way."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from llmtop.load.completion import Outcome, Reply
from llmtop.load.sse import SseEvent, SseParser

VECTORS = sorted((Path(__file__).parent.parent / "fixtures" / "sse").glob("*.json"))
CLASSES = {
    "cut_mid_stream": Outcome.CUT,
    "done_only": Outcome.NO_TOKEN,
    "eof_without_done": Outcome.TRUNCATED,
    "error_only_in_stream": Outcome.STREAM_ERROR,
    "http503_html": Outcome.HTTP_5XX,
    "json_not_stream": Outcome.BAD_STREAM,
    "short_under_ignore_eos": Outcome.SHORT,
}


def load(path: Path) -> dict[str, Any]:
    vector: dict[str, Any] = json.loads(path.read_text())
    return vector


def pieces(vector: dict[str, Any]) -> list[tuple[float, bytes]]:
    """The pieces with the time each arrives."""
    now, out = 0.0, []
    for piece in vector["pieces"]:
        if "wait_s" in piece:
            now += piece["wait_s"]
        else:
            data = base64.b64decode(piece["b64"]) if "b64" in piece else piece["text"].encode()
            out.append((now, data))
    return out


def play(vector: dict[str, Any], parts: list[tuple[float, bytes]], end: str | None = None) -> tuple[Reply, Outcome]:
    reply = Reply(chat=vector["chat"], asked_tokens=2, keep_text=True)
    reply.head(vector["status"])
    finished, now = False, 0.0
    for now, data in parts:
        finished = finished or reply.body(data, now)
    how = end or ("cut" if vector["close"] == "abort" else "complete")
    return reply, reply.verdict(how, now)  # type: ignore[arg-type]


def check(vector: dict[str, Any], name: str, reply: Reply, outcome: Outcome) -> None:
    expect = vector["expect"]
    assert outcome == CLASSES.get(name, Outcome.OK)
    if expect["ok"]:
        assert (reply.text(), len(reply.times), reply.completion_tokens) == (
            expect["text"],
            expect["events"],
            expect["tokens"],
        )
        assert reply.times[0] * 1000 <= expect.get("ttft_max", 1e9)
        assert reply.times[0] * 1000 >= expect.get("ttft_min", 0)


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vector(path: Path) -> None:
    vector = load(path)
    check(vector, path.stem, *play(vector, pieces(vector)))


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vector_cut_in_two_at_every_byte_of_every_piece(path: Path) -> None:
    vector = load(path)
    parts = pieces(vector)
    for i, (now, data) in enumerate(parts):
        for cut in range(len(data) + 1):
            again = [*parts[:i], (now, data[:cut]), (now, data[cut:]), *parts[i + 1 :]]
            check(vector, path.stem, *play(vector, again))


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vector_byte_by_byte(path: Path) -> None:
    vector = load(path)
    single = [(now, data[i : i + 1]) for now, data in pieces(vector) for i in range(len(data))]
    check(vector, path.stem, *play(vector, single))


@pytest.mark.parametrize("path", [p for p in VECTORS if p.stem not in CLASSES], ids=lambda path: path.stem)
def test_good_vector_that_stops_early_is_never_ok(path: Path) -> None:
    vector = load(path)
    whole = b"".join(data for _, data in pieces(vector))
    needed = whole.rindex(b"[DONE]") + len(b"[DONE]")
    for cut in range(needed):
        _, outcome = play(vector, [(0.0, whole[:cut])], end="cut")
        assert outcome == Outcome.CUT, whole[:cut]
    last_token = whole.index(b'finish_reason": "length"')
    for cut in range(1, last_token):
        _, outcome = play(vector, [(0.0, whole[:cut])], end="complete")
        assert outcome in (Outcome.TRUNCATED, Outcome.NO_TOKEN, Outcome.BAD_STREAM), whole[:cut]


def events(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.close()


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [(b"a", b"")]),
        (b"data:a\r\rdata:  b\r\n\r\n", [(b"a", b""), (b" b", b"")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"a", b"")]),
        (b"event: error\nid: 7\nretry: 10\ndata: x\n\n", [(b"x", b"error")]),
        (b": ping\ndata: a\n\n", [(b"a", b"")]),
        (b"data: a\n: ping\ndata: b\n\n", [(b"a\nb", b"")]),
        (b"data\n\nevent: x\n\ndata: y\n\n", [(b"y", b"")]),
        ("data: p\u2028q\u0085r\x0b\x0c\x1c\n\n".encode(), [("p\u2028q\u0085r\x0b\x0c\x1c".encode(), b"")]),
        (b"data: a\n\ndata: b", [(b"a", b""), (b"b", b"")]),
        (b"data: \n\ndata: a\n\n", [(b"a", b"")]),
        (b"\n\n\n\ndata: a\n\n\n\n", [(b"a", b"")]),
    ],
)
def test_events_of_a_stream_whole_and_in_all_cuts(stream: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    wanted = [SseEvent(*pair) for pair in expected]
    assert events(stream) == wanted
    assert events(*(stream[i : i + 1] for i in range(len(stream)))) == wanted
    assert events(*stream.splitlines(keepends=True)) == wanted
    for cut in range(len(stream)):
        assert events(stream[:cut], stream[cut:]) == wanted


def test_a_long_line_in_small_pieces_is_one_event() -> None:
    line = b"x" * (8 << 20)
    chunks = [line[i : i + 65536] for i in range(0, len(line), 65536)]
    assert events(b"data: ", *chunks, b"\n\n") == [SseEvent(line, b"")]


def reply_of(*data: str, chat: bool = False, asked: int | None = None, end: str = "complete") -> tuple[Reply, Outcome]:
    reply = Reply(chat=chat, asked_tokens=asked, keep_text=True)
    reply.head(200)
    for i, text in enumerate(data):
        reply.body(text.encode(), float(i))
    return reply, reply.verdict(end, float(len(data)))  # type: ignore[arg-type]


def chunk(text: str = "a", **more: Any) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}], **more}) + "\n\n"


def delta(finish: str | None = None, **fields: Any) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}) + "\n\n"


DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        ((chunk(), 'data: {"error": {"message": "boom"}}\n\n', DONE), Outcome.STREAM_ERROR),
        ((chunk(), 'data: {"error": "boom"}\n\n', DONE), Outcome.STREAM_ERROR),
        ((chunk(), 'event: error\ndata: {"message": "boom"}\n\n', DONE), Outcome.STREAM_ERROR),
        ((chunk(), 'data: {"object": "error", "message": "boom"}\n\n', DONE), Outcome.STREAM_ERROR),
        (('{"error": {"message": "boom"}}',), Outcome.STREAM_ERROR),
        ((chunk(error=None), DONE), Outcome.OK),
        ((chunk(), "data: {broken\n\n", DONE), Outcome.BAD_STREAM),
        ((chunk(), "data: [1]\n\n", DONE), Outcome.BAD_STREAM),
        ((chunk(), "event: ping\ndata: now\n\n", DONE), Outcome.OK),
        ((chunk(), "data: {}\n\n", DONE), Outcome.OK),
        ((), Outcome.NO_TOKEN),
        (("<html></html>",), Outcome.BAD_STREAM),
        ((chunk().replace("null", '"stop"'),), Outcome.OK),
        ((chunk().replace("null", '"abort"'), DONE), Outcome.STREAM_ERROR),
    ],
)
def test_outcome(data: tuple[str, ...], outcome: Outcome) -> None:
    reply, got = reply_of(*data)
    assert got == outcome
    if outcome is Outcome.STREAM_ERROR and "abort" not in data[0]:
        assert "boom" in reply.message


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"role": "assistant", "content": "a"}, True),
        ({"content": ""}, True),
        ({"content": None}, False),
        ({}, False),
        ({"reasoning": "r"}, True),
        ({"reasoning_content": "r", "content": None}, True),
        ({"reasoning": None, "content": "a"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
        ({"tool_calls": []}, False),
    ],
)
def test_which_chat_chunks_are_tokens(fields: dict[str, Any], token: bool) -> None:
    reply, _ = reply_of(delta(**fields), chat=True)
    assert len(reply.times) == int(token)


def test_first_token_is_reasoning_and_first_content_is_told_apart() -> None:
    reply, outcome = reply_of(
        delta(role="assistant", content=""), delta(reasoning_content="r"), delta(content="b"), DONE, chat=True
    )
    assert (outcome, reply.times[0], reply.content_s, reply.text()) == (Outcome.OK, 1.0, 2.0, "b")


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}, (5, 2)),
        ({"prompt_tokens": 5, "total_tokens": 7}, (5, 2)),
        ({"completion_tokens": 2}, (None, 2)),
        ({"prompt_tokens": None, "completion_tokens": None}, (None, None)),
        ({"prompt_tokens": 5, "completion_tokens": True}, (5, None)),
        (None, (None, None)),
        ([], (None, None)),
    ],
)
def test_usage_beside_choices_and_alone(usage: Any, tokens: tuple[int | None, int | None]) -> None:
    for stream in (
        (chunk(usage=usage), DONE),
        (chunk(), f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n", DONE),
    ):
        reply, outcome = reply_of(*stream)
        assert (outcome, reply.prompt_tokens, reply.completion_tokens) == (Outcome.OK, *tokens)


def test_tokens_of_the_first_chunk_where_usage_comes_with_each() -> None:
    first = chunk("abc", usage={"prompt_tokens": 5, "completion_tokens": 3})
    reply, _ = reply_of(first, chunk("de", usage={"prompt_tokens": 5, "completion_tokens": 5}), DONE)
    assert (reply.first_tokens, reply.completion_tokens) == (3, 5)


def test_stop_before_the_asked_length_is_short_even_without_usage() -> None:
    _, outcome = reply_of(chunk().replace("null", '"stop"'), DONE, asked=2)
    assert outcome is Outcome.SHORT


@pytest.mark.parametrize(
    ("status", "outcome"), [(302, "http_4xx"), (400, "http_4xx"), (429, "http_429"), (503, "http_5xx")]
)
def test_http_failures_keep_the_words_of_the_server(status: int, outcome: str) -> None:
    reply = Reply(chat=False)
    reply.head(status)
    assert not reply.body(b'{"error": {"message": "too ', 0.0)
    reply.body(b'long"}}', 0.0)
    assert (reply.verdict("complete", 0.0), reply.message) == (outcome, "too long")


def test_many_short_lines_take_time_in_proportion() -> None:
    def took(lines: int) -> float:
        parser, began = SseParser(), time.process_time()
        for _ in range(lines):
            parser.feed(b"data: x\n")
        return time.process_time() - began

    ratios = (took(20_000) / took(10_000) for _ in range(5))
    assert any(ratio <= 2.5 for ratio in ratios)
