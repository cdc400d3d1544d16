"""Turns the outputs of a request into its HTTP answer: a stream of server-sent events, or one piece."""

from __future__ import annotations

import time

from llmtop.demo import openai_api as api
from llmtop.demo import tokens
from llmtop.demo.engine import Output
from llmtop.demo.http import ServedExchange

_EVENT_STREAM = "text/event-stream; charset=utf-8"


class Stream:
    """Sends each output of a request as one server-sent event; the header goes out before the request
    leaves the queue.
    """

    def __init__(self, exchange: ServedExchange, call: api.Call, request_id: str, model: str) -> None:
        self._exchange = exchange
        self._call = call
        self._chunks = api.Chunks(call, request_id, int(time.time()), model)
        exchange.stream(_EVENT_STREAM)

    def output(self, output: Output) -> None:
        """Sends new tokens, and the end of the stream after the last ones."""
        text = tokens.decode(tokens.answer(self._call.seed, output.first, output.count))
        if output.first == 0 and self._call.chat:
            self._exchange.write(self._chunks.role().encode())
        total = output.first + output.count
        self._exchange.write(self._chunks.text(text, output.finish_reason, total).encode())
        if output.finish_reason is not None:
            self._exchange.end(self._chunks.last(total).encode())


class Whole:
    """Answers once, after the last token."""

    def __init__(self, exchange: ServedExchange, call: api.Call, request_id: str, model: str) -> None:
        self._exchange = exchange
        self._call = call
        self._id = request_id
        self._model = model
        self._created = int(time.time())

    def output(self, output: Output) -> None:
        """Waits for the last tokens, then answers."""
        if output.finish_reason is None:
            return
        total = output.first + output.count
        text = tokens.decode(tokens.answer(self._call.seed, 0, total))
        done = (total, output.finish_reason)
        self._exchange.json(api.whole_answer(self._call, self._id, self._created, self._model, text, done))
