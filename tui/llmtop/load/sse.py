"""Server-sent events: bytes in, events out, wherever the network cuts them.

The format is that of the WHATWG HTML standard ("server-sent events"): lines end in LF, CR or CRLF and in
nothing else, so U+2028 and U+0085 inside JSON are data. One liberty: what is left when the stream ends
counts as an event, because some servers end with `data: [DONE]` and no line end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_EVENT_BYTES = 32 * 1024 * 1024
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SseError(ValueError):
    """An event grew beyond `MAX_EVENT_BYTES`."""


class SseEvent(NamedTuple):
    """One event: its data lines joined by LF, and its `event:` name (empty when not given)."""

    data: bytes
    kind: bytes


class SseParser:
    """An incremental parser of one stream; raises `SseError` for an event without end."""

    __slots__ = ("_after_cr", "_data", "_first_line", "_held", "_kind", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # the unfinished line, in the pieces it came in
        self._data: list[bytes] = []
        self._kind = b""
        self._held = 0  # bytes in _data
        self._size = 0
        self._after_cr = False
        self._first_line = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events completed by `chunk`, in order."""
        if self._is_whole_event(chunk):
            self._first_line = False
            return [SseEvent(chunk[6:-2], b"")]
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._count(len(chunk))
        if b"\n" not in chunk and b"\r" not in chunk:
            self._parts.append(chunk)
            return []
        return self._lines(chunk)

    def close(self) -> list[SseEvent]:
        """The event that the end of the stream left without its line ends, if any."""
        return self._lines(b"\n\n")

    def ends_with_done(self) -> bool:
        """Whether the unfinished line already reads `data: [DONE]`."""
        if not self._parts or self._data or len(self._parts) > 16:
            return False
        name, _, value = b"".join(self._parts).partition(b":")
        return name == b"data" and value.strip() == b"[DONE]"

    def _is_whole_event(self, chunk: bytes) -> bool:
        """The common case, worth a short cut: one read is exactly `data: ...` and an empty line."""
        return (
            chunk.endswith(b"\n\n")
            and chunk.startswith(b"data: ")
            and len(chunk) > len(b"data: \n\n")  # one without data is no event
            and not (self._parts or self._data or self._kind or self._after_cr)
            and chunk.count(b"\n") == 2
            and b"\r" not in chunk
        )

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > MAX_EVENT_BYTES:
            raise SseError(f"an event of more than {MAX_EVENT_BYTES} bytes")

    def _lines(self, chunk: bytes) -> list[SseEvent]:
        text = b"".join((*self._parts, chunk))
        *lines, rest = _LINE_END.split(text)
        self._parts = [rest] if rest else []
        self._after_cr = text.endswith(b"\r")
        events = [event for line in lines if (event := self._line(line)) is not None]
        self._size = len(rest) + self._held
        return events

    def _line(self, line: bytes) -> SseEvent | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._held += len(value)
        elif name == b"event":
            self._kind = value.removeprefix(b" ")
        return None

    def _dispatch(self) -> SseEvent | None:
        event = SseEvent(b"\n".join(self._data), self._kind)
        self._data, self._held = [], 0
        self._kind = b""
        return event if event.data else None
