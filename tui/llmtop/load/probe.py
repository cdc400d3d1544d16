"""Preflight: finds out what a server is called and which parts of a request it accepts.

At most a few requests: `/v1/models`, `/version`, one or two `/tokenize`, one short completion, repeated with
less when the server refuses something. What was dropped is named in the profile.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmtop.engines.models import listed, serving
from llmtop.load.completion import Outcome, Reply
from llmtop.load.exchange import Exchange, Meter
from llmtop.load.plan import ROUTES, Level, Plan
from llmtop.load.prompts import PAGE, Profile, Prompts, single_token_words
from llmtop.net.connection import Connector, fetch

_INPUT_LEN, _OUTPUT_LEN = 16, 8
_MIN_IDS = 100
_SAMPLE_WORDS = 400
_ANSWER_S = 5.0


class PreflightError(RuntimeError):
    """The server cannot be loaded at all; the message says why."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A server under examination: its connector and the headers of every request."""

    plan: Plan
    connector: Connector
    headers: Mapping[str, str]

    async def run(self) -> Profile:
        """The profile of the server; raises `PreflightError`, or `OSError` or `TimeoutError` when none is there."""
        (await self.connector.open()).abort()
        profile = await self._names(Profile())
        profile = await self._tokens(profile)
        wants_ids = self.plan.prompt_mode == "ids" and self.plan.api == "completions"
        profile = replace(profile, use_ids=wants_ids and len(profile.ids) >= _MIN_IDS)
        return await self._accepted(profile)

    async def _json(self, method: str, route: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A JSON object, or an empty one when the server has no such route."""
        data = json.dumps(body).encode() if body is not None else b""
        try:
            status, answer = await fetch(self.connector, method, route, self.headers, data, _ANSWER_S)
            parsed = json.loads(answer) if status == 200 else {}
        except (OSError, TimeoutError, ValueError):
            return {}
        if status in (401, 403):
            raise PreflightError(f"HTTP {status} from {route}: an API key is needed (--api-key-env)")
        return parsed if isinstance(parsed, dict) else {}

    async def _names(self, profile: Profile) -> Profile:
        models = listed(await self._json("GET", "/v1/models"))
        found = serving(models)
        name = self.plan.model or (found.name if found else None)
        length = next((model.max_model_len for model in models if model.name == name), None)
        version = (await self._json("GET", "/version")).get("version")
        return replace(
            profile,
            model=name,
            max_model_len=length,
            version=str(version) if version else None,
        )

    async def _tokens(self, profile: Profile) -> Profile:
        """The token pool, and words of one token where the server gives the tokens' texts."""
        ids, strings = await self._tokenize(profile, PAGE)
        found = replace(profile, ids=tuple(sorted(set(ids))), words=single_token_words(strings))
        prompts = Prompts(self.plan, found)
        if not ids or prompts.has_words:
            return found
        sample = prompts.text(round(_SAMPLE_WORDS * found.tokens_per_word), random.Random(0))
        count = len((await self._tokenize(profile, sample))[0])
        return replace(found, tokens_per_word=count / len(sample.split())) if count else found

    async def _tokenize(self, profile: Profile, text: str) -> tuple[list[int], list[str]]:
        """Token ids and texts; vLLM and SGLang read `prompt`, llama.cpp `content`."""
        body = {"model": profile.model, "prompt": text, "content": text, "add_special_tokens": False}
        answer = await self._json("POST", "/tokenize", body | {"return_token_strs": True})
        ids = answer.get("tokens")
        numbers = [token for token in ids if isinstance(token, int)] if isinstance(ids, list) else []
        return numbers, [str(token) for token in answer.get("token_strs") or ()]

    async def _accepted(self, profile: Profile) -> Profile:
        """Sends a small completion, with less each time the server says 4xx, until it answers.

        A server that answers otherwise is loaded all the same: the levels then say how it fails.
        """
        attempt = profile
        while True:
            exchange = await self._complete(attempt)
            outcome, status = exchange.outcome, exchange.reply.status
            if outcome in (Outcome.OK, Outcome.SHORT):
                return self._learned(attempt, exchange)
            words = f"{outcome} from {ROUTES[self.plan.api]}: {exchange.reply.message or 'no answer'}"
            if status in (401, 403) or outcome in (Outcome.TIMEOUT_TTFT, Outcome.TIMEOUT_IDLE):
                raise PreflightError(words)
            less = self._with_less(attempt, exchange.reply.message.lower())
            if outcome is not Outcome.HTTP_4XX or status == 404 or less is None:
                return replace(profile, trouble=words)
            attempt = less

    def _level(self) -> Level:
        """A request no longer than the shortest answer of the plan, so that it is answered alike."""
        output_len = min((level.output_len for level in self.plan.levels), default=_OUTPUT_LEN)
        return Level("preflight", 1, 1, _INPUT_LEN, min(output_len, _OUTPUT_LEN))

    async def _complete(self, profile: Profile) -> Exchange:
        prompts, level = Prompts(self.plan, profile), self._level()
        body = json.loads(prompts.body(level, -1, 0))
        if profile.stream_usage:
            body["stream_options"]["continuous_usage_stats"] = True
        connection = await self.connector.open()
        reply = Reply(self.plan.api == "chat", level.output_len if prompts.exact_output else None)
        data = json.dumps(body).encode()
        request = self.connector.origin.request("POST", ROUTES[self.plan.api], self.headers, data)
        exchange = Exchange(reply, Meter(), 0.0)
        try:
            exchange.start_s = connection.send(request, exchange)
            await asyncio.wait_for(exchange.finished, self.plan.timeouts.ttft_s)
        except TimeoutError:
            exchange.give_up(Outcome.TIMEOUT_IDLE if reply.times else Outcome.TIMEOUT_TTFT, connection.last_read)
        finally:
            connection.abort()
        return exchange

    def _learned(self, profile: Profile, exchange: Exchange) -> Profile:
        reply, times = exchange.reply, exchange.reply.times
        tokens = reply.completion_tokens
        later = (tokens or len(times)) - (reply.first_tokens or 1)
        early = "answers end before the asked length, though ignore_eos was accepted: they count as failed"
        return replace(
            profile,
            tokens_per_chunk=tokens / len(times) if tokens else None,
            prompt_exact=reply.prompt_tokens == _INPUT_LEN if reply.prompt_tokens is not None else None,
            ttft_s=times[0] - exchange.start_s,
            tpot_s=(times[-1] - times[0]) / later if later > 0 and len(times) > 1 else None,
            trouble=early if exchange.outcome is Outcome.SHORT else None,
        )

    def _with_less(self, profile: Profile, words: str) -> Profile | None:
        """The profile without what the server's words name, else without the next most exotic part."""
        parts = [
            ("min_tokens", profile.min_tokens, {"min_tokens": False}),
            ("ignore_eos", profile.ignore_eos, {"ignore_eos": False, "min_tokens": False}),
            ("token ids", profile.use_ids, {"use_ids": False}),
            ("stream_options", profile.stream_usage, {"stream_usage": False}),
        ]
        used = [(name, change) for name, in_use, change in parts if in_use]
        named = [part for part in used if part[0] in words or (part[0] == "token ids" and "prompt" in words)]
        for name, change in (named or used)[:1]:
            return replace(profile, refused=(*profile.refused, name), **change)  # type: ignore[arg-type]
        return None
