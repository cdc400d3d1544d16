"""What a streamed answer of the OpenAI routes means: token chunks, usage, errors, the verdict.

Pure: it is fed with a status, body bytes and how the stream ended, each with the time of the read. A
token chunk is what `vllm bench serve` takes for one: a completion chunk with non-empty `choices`, or a
chat chunk with content, reasoning or tool calls, or with empty content and no role.
"""

from __future__ import annotations

import json
import re
from array import array
from enum import StrEnum
from typing import Any, Literal

from llmtop.contract.secrets import KNOWN
from llmtop.load.sse import SseError, SseEvent, SseParser

_KEPT_BODY = 4096
_MESSAGE_CHARS = 400
_REASONING = ("reasoning", "reasoning_content")
_STREAM_START = re.compile(rb"\s*(:|data|event|id|retry)")
_CONTENT = ("content", "refusal", "tool_calls", "function_call")


REFUSED = (429, 503)  # the server takes no more load


class Outcome(StrEnum):
    """How a request ended: `ok`, or the class of its failure."""

    OK = "ok"
    CONNECT = "connect"
    TIMEOUT_TTFT = "timeout_ttft"
    TIMEOUT_IDLE = "timeout_idle"
    HTTP_4XX = "http_4xx"
    HTTP_429 = "http_429"
    HTTP_5XX = "http_5xx"
    STREAM_ERROR = "stream_error"
    CUT = "cut"
    TRUNCATED = "truncated"
    SHORT = "short"
    NO_TOKEN = "no_token"
    BAD_STREAM = "bad_stream"
    CANCELLED = "cancelled"


def http_outcome(status: int) -> Outcome | None:
    """The failure that an HTTP status means; None for 2xx. Redirects are not followed: 3xx is a 4xx."""
    if 200 <= status < 300:
        return None
    if status == 429:
        return Outcome.HTTP_429
    return Outcome.HTTP_5XX if status >= 500 else Outcome.HTTP_4XX


def _count(value: Any) -> int | None:
    """A token count of a usage object, or None for what is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _error_text(chunk: dict[str, Any]) -> str | None:
    """The words of an error object: OpenAI's nested one, vLLM's old flat one, FastAPI's detail, or a bare string."""
    error = chunk.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    if error:
        return str(error)
    if chunk.get("object") == "error":
        return str(chunk.get("message") or "error")
    return _detail(chunk.get("detail"))


def _detail(detail: Any) -> str | None:
    """FastAPI's words: a text, or what is wrong with each part of the body."""
    if not isinstance(detail, list):
        return str(detail) if detail else None
    parts = [part for part in detail if isinstance(part, dict)]
    return "; ".join(f"{'.'.join(map(str, part.get('loc') or ()))}: {part.get('msg')}" for part in parts) or None


class Reply:
    """One answer as it streams in.

    `asked_tokens` is the exact output length asked for with `ignore_eos`, None when the model may stop
    by itself. Times are seconds of one monotonic clock, taken when the bytes were read.
    """

    __slots__ = (
        "_body",
        "_failure",
        "_parser",
        "_seen_event",
        "asked_tokens",
        "chars",
        "chat",
        "completion_tokens",
        "content_s",
        "done",
        "finish_reason",
        "first_chars",
        "first_tokens",
        "keep_text",
        "location",
        "message",
        "metrics",
        "prompt_tokens",
        "reasoning_chunks",
        "reasoning_tokens",
        "retry_after",
        "status",
        "texts",
        "times",
    )

    def __init__(self, chat: bool, asked_tokens: int | None = None, keep_text: bool = False) -> None:
        self.chat = chat
        self.asked_tokens = asked_tokens
        self.keep_text = keep_text
        self.status: int | None = None
        self.times = array("d")  # one entry per token chunk
        self.content_s: float | None = None  # first chunk that is not reasoning
        self.texts: list[str] = []
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.first_tokens: int | None = None  # tokens in the first chunk, where usage comes with each
        self.reasoning_tokens: int | None = None  # by the server's usage, streamed or not
        self.reasoning_chunks = 0
        self.chars = self.first_chars = 0  # of all chunks, of the first
        self.finish_reason: str | None = None
        self.metrics: dict[str, Any] | None = None  # vLLM's per-request metrics, beside the usage
        self.done = False
        self.message = ""
        self._parser = SseParser()
        self._failure: Outcome | None = None
        self._seen_event = False
        self.retry_after = self.location = ""  # headers
        self._body = b""  # the start of a body that is no stream

    def head(self, status: int, content_encoding: str = "", retry_after: str = "", location: str = "") -> None:
        """The status line and headers came."""
        self.status = status
        self.retry_after, self.location = KNOWN.hide(retry_after), KNOWN.hide(location)
        failure = http_outcome(status)
        if failure:
            self._fail(failure, f"HTTP {status}")
        elif content_encoding not in ("", "identity"):
            self._fail(Outcome.BAD_STREAM, f"content-encoding {content_encoding!r} though identity was asked for")

    def body(self, data: bytes, now: float) -> bool:
        """Takes body bytes read at `now`; True when nothing more is needed ([DONE], or it has failed)."""
        if not self._seen_event and len(self._body) < _KEPT_BODY:
            self._body += data[:_KEPT_BODY]
        if self._failure is None:
            try:
                for event in self._parser.feed(data):
                    self._event(event, now)
            except SseError as error:
                self._fail(Outcome.BAD_STREAM, str(error))
            self.done = self.done or self._parser.ends_with_done()
        return self.done or (self._failure is not None and self.status is not None and self.status < 300)

    def verdict(self, end: Literal["complete", "cut"] | Outcome, now: float) -> Outcome:
        """The outcome, given how the stream ended: by HTTP's rules, cut, or by the client (an `Outcome`)."""
        if self._failure is None and not self.done and not isinstance(end, Outcome):
            self._leftover(now)
        if self._failure is not None:
            return self._explained(self._failure)
        if self.done:
            return self._judged()
        if isinstance(end, Outcome):
            return end
        if end == "cut":
            return Outcome.CUT
        if self._body and not self._seen_event and not _STREAM_START.match(self._body):
            return self._explained(Outcome.BAD_STREAM)
        if self.finish_reason is None and self.times:
            return Outcome.TRUNCATED
        return self._judged()

    def hidden_tokens(self) -> int:
        """Reasoning tokens that were made but not streamed."""
        return 0 if self.reasoning_chunks else self.reasoning_tokens or 0

    def tokens_at_first(self) -> int | None:
        """Tokens that were there with the first chunk; None without the server's count.

        By its usage where that comes with each chunk; else what was reasoning before it; else, where chunks hold
        several tokens, by the share of the text.
        """
        tokens, chunks = self.completion_tokens, len(self.times)
        if self.first_tokens is not None or tokens is None:
            return self.first_tokens
        if self.reasoning_chunks == 1 and chunks > 1:  # all of it in one chunk
            return self.reasoning_tokens or max(1, tokens - (chunks - 1))
        hidden = self.hidden_tokens()
        sent = tokens - hidden
        if sent > 1.1 * chunks and self.chars:
            return min(tokens, hidden + max(1, round(sent * self.first_chars / self.chars)))
        return min(tokens, hidden + 1)

    def text(self) -> str:
        """The content so far, without reasoning; empty unless `keep_text`."""
        return "".join(self.texts)

    def _leftover(self, now: float) -> None:
        """What the end of the stream left unterminated; a JSON cut in the middle is no fault of its own."""
        for event in self._parser.close():
            if event.data.strip() == b"[DONE]" or _complete_json(event.data):
                self._event(event, now)

    def _judged(self) -> Outcome:
        """The verdict on a stream that came to its end."""
        if not self.times:
            return Outcome.NO_TOKEN
        if self.asked_tokens is None:
            return Outcome.OK
        if self.completion_tokens is not None:
            return Outcome.SHORT if self.completion_tokens < self.asked_tokens else Outcome.OK
        stopped = self.finish_reason not in (None, "length") and len(self.times) < self.asked_tokens
        return Outcome.SHORT if stopped else Outcome.OK

    def _explained(self, failure: Outcome) -> Outcome:
        """`failure`, with the server's own words from a body that was no stream."""
        if self._seen_event or not self._body:
            self.message += self._again()
            return failure
        try:
            chunk = json.loads(self._body)
        except (ValueError, RecursionError):
            chunk = None
        words = _error_text(chunk) if isinstance(chunk, dict) else None
        if words and failure is Outcome.BAD_STREAM:
            failure = Outcome.STREAM_ERROR
        start = KNOWN.hide_bytes(self._body)[:200].decode("utf-8", "replace")
        self.message = KNOWN.hide(words or self.message or start)
        self.message += self._again()
        return failure

    def _again(self) -> str:
        """When a server that refuses more wants to be asked again, in its words."""
        return f" (Retry-After: {self.retry_after})" if self.retry_after and self.status in REFUSED else ""

    def _fail(self, failure: Outcome, message: str) -> None:
        if self._failure is None:
            self._failure = failure
            self.message = KNOWN.hide(message)[:_MESSAGE_CHARS]

    def _event(self, event: SseEvent, now: float) -> None:
        self._seen_event = True
        if self._failure is not None or self.done:
            return
        text = event.data.decode("utf-8", "replace")
        if text.strip() == "[DONE]":
            self.done = True
            return
        if event.kind == b"error":
            self._fail(Outcome.STREAM_ERROR, KNOWN.hide(text)[:200])
            return
        try:
            chunk = json.loads(text)
        except (ValueError, RecursionError):
            chunk = None
        if isinstance(chunk, dict):
            self._chunk(chunk, now)
        elif event.kind in (b"", b"message"):
            self._fail(Outcome.BAD_STREAM, f"not a JSON object: {KNOWN.hide(text)[:200]}")

    def _chunk(self, chunk: dict[str, Any], now: float) -> None:
        error = _error_text(chunk)
        if error is not None:
            self._fail(Outcome.STREAM_ERROR, error)
            return
        usage = chunk.get("usage")
        counted = self._usage(usage) if isinstance(usage, dict) else None
        if isinstance(chunk.get("metrics"), dict):
            self.metrics = chunk["metrics"]
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return
        marks = [self._choice(choice, now) for choice in choices if isinstance(choice, dict)]
        if any(marks):
            if not self.times:
                self.first_tokens = counted or None
                self.first_chars = self.chars
            self.times.append(now)

    def _usage(self, usage: dict[str, Any]) -> int | None:
        """Takes the counts that are there; returns the completion tokens so far."""
        prompt, total = _count(usage.get("prompt_tokens")), _count(usage.get("total_tokens"))
        completion = _count(usage.get("completion_tokens"))
        if completion is None and prompt is not None and total is not None and total >= prompt:
            completion = total - prompt
        if prompt is not None:
            self.prompt_tokens = prompt
        details = usage.get("completion_tokens_details")
        if isinstance(details, dict) and _count(details.get("reasoning_tokens")) is not None:
            self.reasoning_tokens = _count(details.get("reasoning_tokens"))
        if completion is not None:
            self.completion_tokens = completion
        return completion

    def _choice(self, choice: dict[str, Any], now: float) -> bool:
        """Whether this choice carries a token."""
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finish_reason = KNOWN.hide(str(reason))[:_MESSAGE_CHARS]
            if reason in ("error", "abort"):
                self._fail(Outcome.STREAM_ERROR, f"finish_reason {reason!r}")
        if not self.chat:
            return self._content(choice.get("text"), now)
        delta = choice.get("delta")
        return isinstance(delta, dict) and self._delta(delta, now)

    def _delta(self, delta: dict[str, Any], now: float) -> bool:
        if any(delta.get(name) for name in _CONTENT):
            return self._content(delta.get("content"), now)
        if thought := next((delta[name] for name in _REASONING if delta.get(name)), None):
            self.reasoning_chunks += 1
            self.chars += len(str(thought))
            return True
        return delta.get("content") == "" and "role" not in delta

    def _content(self, text: Any, now: float) -> bool:
        if self.content_s is None:
            self.content_s = now
        self.chars += len(text) if isinstance(text, str) else 0
        if self.keep_text and isinstance(text, str):
            self.texts.append(text)
        return True


def _complete_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
