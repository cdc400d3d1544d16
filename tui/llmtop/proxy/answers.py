"""What an answer tells of its tokens, read as its bytes pass: from keys and numbers alone, its text is not kept.

Streams of OpenAI's and Anthropic's routes are events, Ollama's are lines of JSON; an answer that comes as a whole has
its counts near its end.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

_LINE_LIMIT = 2**20
_TAIL = 2**12
# a key of new text with a value that is not empty; inside a text these quotes would be escaped
_TOKENS = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|thinking|response|arguments|partial_json|delta)"\s*:\s*"[^"]'
)
_WHOLE_TEXT = re.compile(rb'"type"\s*:\s*"response\.(?![\w.]*delta")')  # says again what came in pieces
_GENERATED = re.compile(
    rb'"(?:completion_tokens|output_tokens|eval_count|tokens_predicted|generated_tokens)"\s*:\s*(\d{1,12})'
)
_PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens|prompt_eval_count|tokens_evaluated)"\s*:\s*(\d{1,12})')
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*(\d{1,12})')
STREAMS = (b"text/event-stream", b"application/x-ndjson", b"application/stream+json", b"application/jsonl")


@dataclass(slots=True)
class Counts:
    """Tokens as an answer says them; None = it has not."""

    generated: int | None = None
    prompt: int | None = None
    cached: int | None = None

    def read(self, text: bytes) -> None:
        """Take in what a piece of JSON says; counts never fall."""
        for name, pattern in (("generated", _GENERATED), ("prompt", _PROMPT), ("cached", _CACHED)):
            for found in pattern.findall(text):
                setattr(self, name, max(int(found), getattr(self, name) or 0))


class AnswerReader:
    """One answer; `stream`: whether its tokens come one by one."""

    def __init__(self, content_type: bytes, encoding: bytes) -> None:
        self.stream = content_type.partition(b";")[0].strip().lower() in STREAMS
        self.counts = Counts()
        self._unzip = zlib.decompressobj(47) if encoding in (b"gzip", b"deflate") else None
        self._readable = encoding in (b"", b"identity", b"gzip", b"deflate")
        self._rest = b""
        self._skips = False

    def feed(self, pieces: Iterable[bytes]) -> int:
        """Take in content; how many pieces of text ended with it."""
        if not self._readable:
            return 0
        data = b"".join(pieces)
        if self._unzip is not None:
            data = self._unzipped(data)
        if not self.stream:
            self._rest = (self._rest + data)[-_TAIL:]
            return 0
        return self._lines(data)

    def _lines(self, data: bytes) -> int:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._skips:
            lines, self._skips = lines[1:], False
        if len(self._rest) > _LINE_LIMIT:
            self._rest, self._skips = b"", True
        return sum(map(self._line, lines))

    def _unzipped(self, data: bytes) -> bytes:
        assert self._unzip is not None
        try:
            text = self._unzip.decompress(data, _LINE_LIMIT)
            self._readable = self._readable and not self._unzip.unconsumed_tail
            return text
        except zlib.error:
            self._readable = False
            return b""

    def _line(self, line: bytes) -> bool:
        if b"_tokens" in line or b"eval" in line or b"predicted" in line:
            self.counts.read(line)
        return bool(_TOKENS.search(line)) and not _WHOLE_TEXT.search(line)

    def end(self) -> int:
        """The answer has ended; how many pieces of text its last, unended line has."""
        if self.stream:
            return self._lines(b"\n") if self._rest else 0
        self.counts.read(self._rest)
        self._rest = b""
        return 0
