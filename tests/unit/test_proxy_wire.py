"""Where messages end, and what of a head is for the next hop."""

from __future__ import annotations

import random

import pytest

from llmtop.proxy.wire import BadMessage, Body, Chunked, Sized, UntilClosed, parse_head, request_body, response_body

CHUNKED = b"5;x=1\r\nhello\r\n1\r\n \r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"


def fed(body: Body, data: bytes, cuts: list[int]) -> tuple[bytes, int]:
    """The content of a body that comes in pieces, and how many bytes were its own."""
    content, own = b"", 0
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        used, pieces = body.feed(data[start:end], 0)
        content, own = content + b"".join(pieces), own + used
        if body.done:
            break
    return content, own


def test_chunks_end_where_they_end_however_they_are_cut() -> None:
    chance = random.Random(1)
    data = CHUNKED + b"HTTP/1.1 200 OK\r\n"
    for _ in range(2000):
        cuts = sorted(chance.sample(range(1, len(data)), chance.randrange(0, 12)))
        body = Chunked()
        assert fed(body, data, cuts) == (b"hello 0123456789", len(CHUNKED))
        assert body.done


@pytest.mark.parametrize(
    "data",
    [b"5\r\nhello!\r\n", b"5\nhello\r\n", b"-1\r\n", b"x\r\n", b"\r\n", b"1" * 5000, b"0\r\n" + b"a: b\r\n" * 9999],
)
def test_what_are_no_chunks(data: bytes) -> None:
    with pytest.raises(BadMessage):
        Chunked().feed(data, 0)


def test_a_body_of_a_length_and_one_without_end() -> None:
    assert fed(Sized(3), b"abcdef", [1, 2]) == (b"abc", 3)
    assert fed(UntilClosed(), b"abcdef", [1, 2]) == (b"abcdef", 6)
    assert Sized(0).done


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4",
        b"POST / HTTP/1.1\r\nContent-Length: +3",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_request_whose_end_is_in_doubt_is_not_passed_on(head: bytes) -> None:
    with pytest.raises(BadMessage):
        request_body(parse_head(head))


@pytest.mark.parametrize(
    "head", [b"GET", b"GET / HTTP/1.1\r\nno colon", b"GET / HTTP/1.1\r\n folded: x", b"GET / HTTP/1.1\nA: b", b"\0 / x"]
)
def test_what_is_no_head(head: bytes) -> None:
    with pytest.raises(BadMessage):
        parse_head(head)


@pytest.mark.parametrize(
    ("head", "method", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5", b"HEAD", "none"),
        (b"HTTP/1.1 204 No Content", b"POST", "none"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5", b"GET", "none"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5", b"GET", "sized"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5", b"GET", "chunked"),
        (b"HTTP/1.0 200", b"GET", "closed"),
    ],
)
def test_how_an_answer_is_framed(head: bytes, method: bytes, kind: str) -> None:
    body = response_body(parse_head(head), method)
    kinds = {"none": Sized, "sized": Sized, "chunked": Chunked, "closed": UntilClosed}
    assert isinstance(body, kinds[kind])
    assert body.done == (kind == "none")


def test_a_head_loses_what_is_for_one_hop_and_nothing_else() -> None:
    head = parse_head(
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine, Content-Length\r\nX-Mine: 1\r\n"
        b"TE: trailers\r\nKeep-Alive: timeout=5\r\nProxy-Authorization: Basic x\r\nUpgrade: h2c\r\n"
        b"Authorization: Bearer k\r\n"
        b"Content-Length: 3\r\nX-A: 1\r\nx-a: 2"
    )
    assert head.bytes(drop=(b"host",), more=((b"Host", b"b:1"),)) == (
        b"POST /v1/x HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Length: 3\r\nX-A: 1\r\nx-a: 2\r\nHost: b:1\r\n\r\n"
    )
