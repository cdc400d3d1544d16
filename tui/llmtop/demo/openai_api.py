"""The OpenAI requests of a vLLM server: what is accepted, what is refused and in which words, and the JSON
that comes back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from llmtop.demo import tokens

FINGERPRINT = "vllm-0.32.0-4260951b"
_DEFAULT_COMPLETION = 16


class ApiError(Exception):
    """A refused request: HTTP status, words, vLLM's error type and the parameter at fault."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, object]:
        """The JSON that vLLM answers."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


@dataclass(frozen=True, slots=True)
class Call:
    """A checked generation request."""

    chat: bool
    prompt: Sequence[int]
    max_tokens: int
    stop_after: int | None
    seed: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    salt: str | None


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body; raises ApiError 400."""
    try:
        data = json.loads(body)
    except ValueError as error:
        detail = {"type": "json_invalid", "loc": "body.1", "msg": "JSON decode error", "ctx": {"error": str(error)}}
        raise ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", "body.1") from None
    if not isinstance(data, dict):
        raise ApiError(400, "1 validation error:\n  Input should be a valid dictionary", "Bad Request", "body")
    return data


def check_model(data: Mapping[str, Any], model: str) -> None:
    """Raises ApiError 404 when the request names another model; naming none is accepted."""
    asked = data.get("model")
    if asked is not None and asked != model:
        message = f"The model `{asked}` does not exist. Valid aliases: {model}."
        raise ApiError(404, message, "NotFoundError", "model")


def parse_call(data: Mapping[str, Any], model: str, chat: bool, max_model_len: int) -> Call:
    """Checks a completion or chat request as vLLM does; raises ApiError."""
    check_model(data, model)
    prompt = chat_tokens(data) if chat else prompt_tokens(data.get("prompt"))
    limit = _max_tokens(data, chat, len(prompt), max_model_len)
    least = _integer(data, "min_tokens", 0)
    if least > limit:
        raise ApiError(400, f"min_tokens must be less than or equal to max_tokens={limit}, got {least}.")
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _invalid("stream_options", "Input should be a valid dictionary")
    seed = _integer(data, "seed", crc32(str(prompt[-64:]).encode()))
    return Call(
        chat=chat,
        prompt=prompt,
        max_tokens=limit,
        stop_after=None if data.get("ignore_eos") else max(least, natural_length(seed)),
        seed=seed,
        stream=bool(data.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        salt=data.get("cache_salt") if isinstance(data.get("cache_salt"), str) else None,
    )


def natural_length(seed: int) -> int:
    """Where the model would end by itself: 24 to 535 tokens, by the seed."""
    return 24 + crc32(str(seed).encode()) % 512


def prompt_tokens(prompt: object) -> Sequence[int]:
    """Token ids of a text or token-id prompt (the first of a batch of one); raises ApiError."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return tokens.encode(prompt)
    if isinstance(prompt, list) and prompt:
        if all(type(token) is int and token >= 0 for token in prompt):
            return prompt
        raise _invalid("prompt", "Input should be a string or a list of token ids")
    message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
    raise ApiError(400, message, param="prompt")


def chat_tokens(data: Mapping[str, Any]) -> Sequence[int]:
    """Token ids of a chat's messages with a toy template; raises ApiError."""
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise _invalid("messages", "Field required")
    ids: list[int] = []
    for message in messages:
        ids += tokens.encode(f"<|{message.get('role', 'user')}|>{_content(message.get('content'))}")
    return ids


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _max_tokens(data: Mapping[str, Any], chat: bool, prompt: int, longest: int) -> int:
    """Tokens it may get; raises ApiError when they do not fit beside the prompt."""
    if prompt >= longest:
        message = (
            f"This model's maximum context length is {longest} tokens. However, your prompt contains at least "
            f"{longest + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
            f"length of the input prompt. (parameter=input_tokens, value={longest + 1})"
        )
        raise ApiError(400, message, param="input_tokens")
    name = "max_completion_tokens" if chat and data.get("max_completion_tokens") is not None else "max_tokens"
    default = longest - prompt if chat else min(_DEFAULT_COMPLETION, longest - prompt)
    asked = _integer(data, name, default)
    if asked < 1:
        message = f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})"
        raise ApiError(400, message, param="max_tokens")
    if asked > longest:
        message = (
            f"max_tokens={asked} cannot be greater than max_model_len={longest}. Please request fewer output tokens. "
            f"(parameter=max_tokens, value={asked})"
        )
        raise ApiError(400, message, param="max_tokens")
    if prompt + asked > longest:
        message = (
            f"This model's maximum context length is {longest} tokens. However, you requested {asked} output tokens "
            f"and your prompt contains {prompt} input tokens, for a total of {prompt + asked} tokens. Please reduce "
            f"the length of the input prompt or the number of requested output tokens. "
            f"(parameter=input_tokens, value={prompt})"
        )
        raise ApiError(400, message, param="input_tokens")
    return asked


def _integer(data: Mapping[str, Any], name: str, default: int) -> int:
    value = data.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise _invalid(name, "Input should be a valid integer")
    return value


def _invalid(name: str, message: str) -> ApiError:
    detail = {"loc": f"body.{name}", "msg": message}
    return ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", f"body.{name}")


def usage(prompt: int, completion: int) -> dict[str, object]:
    """The usage object of a stream."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


class Chunks:
    """Writes the server-sent events of one stream."""

    __slots__ = ("_call", "_head")

    def __init__(self, call: Call, request_id: str, created: int, model: str) -> None:
        kind = "chat.completion.chunk" if call.chat else "text_completion"
        common = {"id": request_id, "object": kind, "created": created, "model": model}
        self._call = call
        self._head = f"data: {_dumps(common)[:-1]},"

    def role(self) -> str:
        """The first event of a chat: the role, no content."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return self._event([choice], self._continuous(0)) if self._call.chat else ""

    def text(self, text: str, finish: str | None, completion: int) -> str:
        """The event of one output; `completion` counts the tokens so far."""
        content = _dumps(text)
        reason = f'"{finish}"' if finish else "null"
        if self._call.chat:
            stop = '"stop_reason":null,' if finish else ""
            choice = (
                f'{{"index":0,"delta":{{"content":{content}}},"logprobs":null,"finish_reason":{reason},'
                f'{stop}"token_ids":null}}'
            )
        else:
            choice = (
                f'{{"index":0,"text":{content},"logprobs":null,"finish_reason":{reason},"stop_reason":null,'
                f'"prompt_token_ids":null,"token_ids":null}}'
            )
        extra = self._continuous(completion)
        if finish and not self._call.include_usage:
            extra["system_fingerprint"] = FINGERPRINT
        more = f",{_dumps(extra)[1:-1]}" if extra else ""
        return f'{self._head}"choices":[{choice}]{more}}}\n\n'

    def last(self, completion: int) -> str:
        """The events after the last token: usage when asked for, and the end mark."""
        if not self._call.include_usage:
            return "data: [DONE]\n\n"
        extra: dict[str, object] = {
            "usage": usage(len(self._call.prompt), completion),
            "system_fingerprint": FINGERPRINT,
        }
        return f"{self._event([], extra)}data: [DONE]\n\n"

    def _continuous(self, completion: int) -> dict[str, object]:
        if not self._call.continuous_usage:
            return {}
        return {"usage": usage(len(self._call.prompt), completion)}

    def _event(self, choices: list[dict[str, object]], extra: dict[str, object]) -> str:
        return f"{self._head}{_dumps({'choices': choices, **extra})[1:]}\n\n"


def whole_answer(call: Call, request_id: str, created: int, model: str, text: str, done: tuple[int, str]) -> object:
    """The JSON of an answer that is not streamed; `done` is (tokens, finish reason)."""
    completion, finish = done
    choice: dict[str, object] = {"index": 0}
    if call.chat:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None, "reasoning": None}
    else:
        choice["text"] = text
    choice |= {"logprobs": None, "finish_reason": finish, "stop_reason": None, "token_ids": None}
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return {
        "id": request_id,
        "object": "chat.completion" if call.chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage(len(call.prompt), completion) | details,
        "kv_transfer_params": None,
    }


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
