"""Heads and bodies of HTTP/1.1 messages that are passed on: where each ends, and what of a head is for the next hop.

A body is followed, never changed: its bytes go on as they came, whatever the reads cut them into.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

HEAD_LIMIT = 2**16
_LINE_LIMIT = 2**12
_TRAILER_LIMIT = 2**14
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
_HOP = frozenset({b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"})
_HOP_ALSO = frozenset({b"te", b"upgrade"})
_FRAMING = frozenset({b"transfer-encoding", b"content-length"})


class BadMessage(ValueError):
    """Not a message that can be passed on without a doubt about where it ends; the words say why."""


@dataclass(frozen=True, slots=True)
class Head:
    """The three words of the first line, and the headers in their order."""

    first: tuple[bytes, bytes, bytes]
    headers: tuple[tuple[bytes, bytes], ...]

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a header; `name` in lower case."""
        return [value for key, value in self.headers if key.lower() == name]

    def words(self, name: bytes) -> set[bytes]:
        """The comma-separated words of a header, in lower case."""
        return {word.strip().lower() for value in self.all(name) for word in value.split(b",")} - {b""}

    def bytes(self, drop: Iterable[bytes] = (), more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
        """The head as it is sent on: without what is for one hop, without `drop`, with `more`."""
        gone = {*_HOP, *_HOP_ALSO, *(self.words(b"connection") - _FRAMING), *drop}
        kept = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0].lower() not in gone]
        return b"".join(
            [b" ".join(self.first).rstrip(b" "), b"\r\n", *kept, *(b"%b: %b\r\n" % p for p in more), b"\r\n"]
        )


def parse_head(data: bytes) -> Head:
    """The head of a message, without its empty line; raises BadMessage."""
    lines = data.split(b"\r\n")
    words = lines[0].split(b" ", 2)
    if len(words) < 2 or set(b"\r\n\0") & set(data.replace(b"\r\n", b"")):
        raise BadMessage("its head is no HTTP")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            raise BadMessage("its head has a line that is no header")
        headers.append((name, value.strip(b" \t")))
    return Head((words[0], words[1], words[2] if len(words) > 2 else b""), tuple(headers))


class Body(Protocol):
    """Follows the bytes of a body."""

    @property
    def done(self) -> bool:
        """Whether its end has come."""

    def feed(self, data: bytes, start: int) -> tuple[int, list[bytes]]:
        """Where in `data` it ends, at most its length, and the pieces of content from `start` on."""


class Sized:
    """A body of a known length."""

    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def done(self) -> bool:
        return not self._left

    def feed(self, data: bytes, start: int) -> tuple[int, list[bytes]]:
        end = min(len(data), start + self._left)
        self._left -= end - start
        return end, [data[start:end]] if end > start else []


class UntilClosed:
    """A body that ends with its connection."""

    done = False

    def feed(self, data: bytes, start: int) -> tuple[int, list[bytes]]:
        return len(data), [data[start:]]


class Chunked:
    """A body in chunks, with whatever trailers follow."""

    def __init__(self) -> None:
        self.done = False
        self._left = 0
        self._line = b""
        self._after = self._trailers = False
        self._trailed = 0

    def feed(self, data: bytes, start: int) -> tuple[int, list[bytes]]:
        at, pieces = start, []
        while at < len(data) and not self.done:
            if self._left:
                end = min(len(data), at + self._left)
                pieces.append(data[at:end])
                self._left -= end - at
                self._after = not self._left
            else:
                newline = data.find(b"\n", at)
                end = len(data) if newline < 0 else newline + 1
                self._line += data[at:end]
                if len(self._line) > _LINE_LIMIT:
                    raise BadMessage("a chunk's line has no end")
                if newline >= 0:
                    self._take_line()
            at = end
        return at, pieces

    def _take_line(self) -> None:
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n"):
            raise BadMessage("a chunk's line ends wrongly")
        line = line[:-2]
        if self._trailers:
            self._trailed += len(line)
            if self._trailed > _TRAILER_LIMIT:
                raise BadMessage("its trailers have no end")
            self.done = not line
        elif self._after:
            if line:
                raise BadMessage("a chunk is longer than it says")
            self._after = False
        else:
            size = line.partition(b";")[0].strip(b" \t")
            if not _SIZE.fullmatch(size):
                raise BadMessage("a chunk has no size")
            self._left = int(size, 16)
            self._trailers = not self._left


def request_body(head: Head) -> Body:
    """How the body of a request is framed; raises BadMessage for two ways at once, or one that is not known."""
    encoding, length = head.words(b"transfer-encoding"), _length(head)
    if not encoding:
        return Sized(length or 0)
    if length is not None or encoding != {b"chunked"} or head.first[2] == b"HTTP/1.0":
        raise BadMessage("its body is framed in a way that is not passed on")
    return Chunked()


def response_body(head: Head, method: bytes) -> Body:
    """How the body of the response to a request is framed; raises BadMessage."""
    status = int(head.first[1])
    if method == b"HEAD" or status < 200 or status in (204, 304):
        return Sized(0)
    encoding = head.words(b"transfer-encoding")
    if encoding:
        return Chunked() if b"chunked" in encoding else UntilClosed()
    length = _length(head)
    return UntilClosed() if length is None else Sized(length)


def _length(head: Head) -> int | None:
    found = {word for value in head.all(b"content-length") for word in value.replace(b" ", b"").split(b",")}
    if not found:
        return None
    length = found.pop()
    if found or not length.isdigit() or len(length) > 15:
        raise BadMessage("its length is not one number")
    return int(length)
