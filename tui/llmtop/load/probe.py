"""Preflight: finds out what a server is called and which parts of a request it accepts.

At most a few requests: `/v1/models`, `/version`, one or two `/tokenize`, one short completion, repeated with
less when the server refuses something. What was dropped is named in the profile.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urljoin

from llmtop.contract.units import clean
from llmtop.engines.models import ListedModel, listed
from llmtop.load.completion import REFUSED, Outcome, Reply
from llmtop.load.exchange import Exchange, Meter
from llmtop.load.models import NoModel, candidates, choice, names, unlisted
from llmtop.load.pace import SHORT_LEN
from llmtop.load.plan import ROUTES, Level, Plan, Route
from llmtop.load.prompts import PAGE, Profile, Prompts, single_token_words
from llmtop.load.results import Totals
from llmtop.net.connection import Connector, fetch

_OUTPUT_LEN = 8
_MIN_IDS = 100
_SAMPLE_WORDS = 400
_ANSWER_S = 5.0
_TRIED_MODELS = 3
_SHORT = 64  # tokens: a prompt so short is not worth a calibration
_WORDS = 120
_WAIT_S = 30.0  # at most, for a server that says when to come again
_SEVERAL = 1.1  # tokens per chunk


class PreflightError(RuntimeError):
    """The server cannot be loaded at all; the message says why."""


class Refused(PreflightError):
    """A model or a route that takes no request, in the server's words; `no_route`: the route is not there."""

    def __init__(self, words: str, model: str | None, no_route: bool) -> None:
        super().__init__(words)
        self.model, self.no_route = model, no_route


@dataclass(frozen=True, slots=True)
class Probe:
    """A server under examination: its connector and the headers of every request."""

    plan: Plan
    connector: Connector
    headers: Mapping[str, str]
    exchanges: list[Exchange] = field(default_factory=list)  # all that were sent

    @property
    def spent(self) -> Totals:
        """The requests that were answered and their tokens."""
        answered = [exchange.reply for exchange in self.exchanges if exchange.reply.times]
        prompts = [reply.prompt_tokens for reply in answered if reply.prompt_tokens is not None]
        return Totals(
            generation=sum(reply.completion_tokens or len(reply.times) for reply in answered),
            prompt=sum(prompts) if len(prompts) == len(answered) else None,
            requests=len(answered),
        )

    async def run(self) -> Profile:
        """The profile of the server; raises `PreflightError`, or `OSError` or `TimeoutError` when none is there."""
        (await self.connector.open()).abort()
        version = (await self._json("GET", "/version")).get("version")
        models = listed(await self._json("GET", "/v1/models"))
        profile = Profile(version=str(version) if version else None, models=models)
        try:
            tried: list[ListedModel | None] = [*candidates(models, self.plan.model)] or [None]
        except NoModel as error:
            raise PreflightError(str(error)) from None
        refusals: list[Refused] = []
        for model in tried[:_TRIED_MODELS]:
            try:
                found = await self._of_model(profile, model)
            except Refused as error:
                refusals.append(error)
                continue
            asked = self.plan.model
            note = choice(models, found.model) if asked is None else unlisted(models, asked)
            said = [f"{refusal.model}: {refusal}" for refusal in refusals]
            return replace(found, notes=(*found.notes, *said, *([note] if note else [])))
        raise PreflightError(self._no_way(refusals[0], models))

    def _no_way(self, refusal: Refused, models: Sequence[ListedModel]) -> str:
        """Why nothing is sent, with what a person could try."""
        other = [model for model in models if model.name != refusal.model]
        hints = [f"other models here: {names(other)} (--model)"] if other else []
        if self.plan.api != "auto" and refusal.no_route:
            hints.append(
                f"--api {'chat' if self.plan.api == 'completions' else 'completions'} or auto takes another route"
            )
        return "; ".join([str(refusal), *hints])

    async def _of_model(self, profile: Profile, model: ListedModel | None) -> Profile:
        """The profile with a model and the first route that answers; raises `Refused` when none does."""
        if model is not None:
            profile = replace(profile, model=model.name, max_model_len=model.max_model_len)
        profile = await self._tokens(profile)
        routes: tuple[Route, ...] = ("completions", "chat") if self.plan.api == "auto" else (self.plan.api,)
        refusals: list[Refused] = []
        for api in routes:
            ids = self.plan.prompt_mode == "ids" and api == "completions" and len(profile.ids) >= _MIN_IDS
            try:
                found = await self._accepted(replace(profile, api=api, use_ids=ids))
            except Refused as error:
                refusals.append(error)
                continue
            notes = [f"{ROUTES[api]} is used: {refusal}" for refusal in refusals]
            return await self._calibrated(replace(found, notes=(*notes, *found.notes)))
        raise min(refusals, key=lambda refusal: refusal.no_route)  # the one that says more

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

    async def _tokens(self, profile: Profile) -> Profile:
        """The token pool, and words of one token where the server gives the tokens' texts."""
        ids, strings = await self._tokenize(profile, PAGE)
        found = replace(profile, ids=tuple(sorted(set(ids))), words=single_token_words(strings))
        prompts = Prompts(self.plan, found)
        if not ids or prompts.has_words:
            return replace(found, tokens_per_word=1.0) if prompts.has_words else found
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
        """Sends a small request, with less each time the server refuses it, until it answers; raises `Refused`.

        A server that answers with a broken stream is loaded all the same: the levels then say how it fails.
        """
        attempt, waited_s = profile, 0.0
        while True:
            exchange = await self.complete(attempt)
            outcome, status = exchange.outcome, exchange.reply.status
            if outcome in (Outcome.OK, Outcome.SHORT):
                return self._learned(attempt, exchange)
            why = exchange.reply.message or self._silence(outcome)
            words = f"{_kind(outcome, status)} from {ROUTES[profile.api]}: {why}"
            wait_s = _seconds(exchange.reply.retry_after) if status == 503 else None  # it starts, or is full just now
            if wait_s is not None and waited_s + wait_s <= _WAIT_S:
                note = f"{words}; asked again after {wait_s:g} s"
                attempt, waited_s = replace(attempt, notes=(*attempt.notes, note)), waited_s + wait_s
                await asyncio.sleep(wait_s)
                continue
            if exchange.reply.location and status is not None and 300 <= status < 400:
                moved = self._moved(exchange.reply.location)
                raise PreflightError(f"HTTP {status} from {ROUTES[profile.api]}: {moved}")
            if status in (401, 403, *REFUSED) or outcome in (Outcome.TIMEOUT_TTFT, Outcome.TIMEOUT_IDLE):
                raise PreflightError(words)
            if status is None or status < 300:
                return replace(profile, trouble=words)
            less = self._with_less(attempt, exchange.reply.message.lower(), status)
            if less is None:
                raise Refused(words, profile.model, _no_route(profile.api, status, exchange.reply.message.lower()))
            attempt = less

    def _moved(self, location: str) -> str:
        """Where a redirect leads, and what to name then: it is not followed, a key is for one origin."""
        there = urljoin(f"{self.plan.url}/", location)
        base = there.partition("?")[0].removesuffix("/")
        for route in ROUTES.values():
            base = base.removesuffix(route)
        return f"moved to {clean(there, _WORDS)}; name {clean(base, _WORDS)}"

    def _silence(self, outcome: Outcome | None) -> str:
        """What may be behind a connection without a word."""
        if outcome is Outcome.TIMEOUT_TTFT:
            return f"no answer within {self.plan.timeouts.ttft_s:g} s"
        other = outcome is Outcome.CUT and self.connector.origin.scheme == "http"
        return "no answer" + (" (https:// instead of http://?)" if other else "")

    async def _calibrated(self, profile: Profile) -> Profile:
        """With the tokens that a word and the template take, by the server's own count of two texts."""
        longest = max((level.input_len for level in self.plan.levels), default=0)
        if profile.use_ids or profile.trouble or not profile.stream_usage or longest <= _SHORT:
            return profile
        prompts = Prompts(self.plan, profile)
        words = prompts.count_of(SHORT_LEN), len(prompts.vocabulary)
        counts = [(await self.complete(profile, prompts.sample(count))).reply.prompt_tokens for count in words]
        few, many = counts
        if few is None or many is None or many <= few:
            return profile
        per_word = (many - few) / (words[1] - words[0])
        return replace(profile, tokens_per_word=per_word, prompt_overhead=max(0.0, many - words[1] * per_word))

    def _level(self) -> Level:
        """A request no longer than the shortest answer of the plan, so that it is answered alike."""
        output_len = min((level.output_len for level in self.plan.levels), default=_OUTPUT_LEN)
        return Level("preflight", 1, 1, SHORT_LEN, min(output_len, _OUTPUT_LEN))

    async def complete(
        self, profile: Profile, text: str | None = None, level: Level | None = None, number: int = 0
    ) -> Exchange:
        """One small request, with `text` for its prompt or of the size of `level`."""
        prompts, level = Prompts(self.plan, profile), level or self._level()
        body = json.loads(prompts.body(level, -1, number)) | (prompts.prompt_of(text) if text is not None else {})
        if profile.stream_usage:
            body["stream_options"]["continuous_usage_stats"] = True
        connection = await self.connector.open()
        reply = Reply(profile.api == "chat", level.output_len if prompts.exact_output else None)
        data = json.dumps(body).encode()
        request = self.connector.origin.request("POST", ROUTES[profile.api], self.headers, data)
        exchange = Exchange(reply, Meter(), 0.0)
        self.exchanges.append(exchange)
        try:
            exchange.start_s = connection.send(request, exchange)
            await asyncio.wait({exchange.finished}, timeout=self.plan.timeouts.ttft_s)
            exchange.give_up(Outcome.TIMEOUT_IDLE if reply.times else Outcome.TIMEOUT_TTFT, connection.last_read)
        finally:
            connection.abort()
        return exchange

    def _learned(self, profile: Profile, exchange: Exchange) -> Profile:
        reply, times = exchange.reply, exchange.reply.times
        tokens, first = reply.completion_tokens, reply.tokens_at_first() or 1
        later = (tokens or len(times)) - first
        early = "answers end before the asked length, though ignore_eos was accepted"
        sent = max(1, Prompts(self.plan, profile).count_of(SHORT_LEN))
        measured = not profile.use_ids and reply.prompt_tokens is not None
        several = tokens is not None and tokens > _SEVERAL * len(times)
        return replace(
            profile,
            tokens_per_word=(reply.prompt_tokens or sent) / sent if measured else profile.tokens_per_word,
            tokens_per_chunk=tokens / len(times) if tokens else None,
            chunk_usage=several and reply.first_tokens is not None,
            ttft_s=times[0] - exchange.start_s,
            tpot_s=(times[-1] - times[0]) / later if later > 0 and len(times) > 1 else None,
            trouble=early if exchange.outcome is Outcome.SHORT else None,
        )

    def _with_less(self, profile: Profile, words: str, status: int) -> Profile | None:
        """The profile without what the server's words name, else without the next most exotic part."""
        if profile.use_ids and status >= 500:
            return replace(profile, refused=(*profile.refused, "token ids"), use_ids=False)
        if status >= 500 or _no_route(profile.api, status, words):
            return None
        if profile.length_field == "max_tokens" and _wants_other_length(words):
            return replace(profile, refused=(*profile.refused, "max_tokens"), length_field="max_completion_tokens")
        parts = [
            ("min_tokens", profile.min_tokens, {"min_tokens": False}),
            ("ignore_eos", profile.ignore_eos, {"ignore_eos": False, "min_tokens": False}),
            ("token ids", profile.use_ids, {"use_ids": False}),
            ("stream_options", profile.stream_usage, {"stream_usage": False}),
            ("temperature", profile.temperature, {"temperature": False}),
        ]
        used = [(name, change) for name, in_use, change in parts if in_use]
        named = [part for part in used if part[0] in words or (part[0] == "token ids" and "prompt" in words)]
        for name, change in (named or used)[:1]:
            return replace(profile, refused=(*profile.refused, name), **change)  # type: ignore[arg-type]
        return None


def _seconds(retry_after: str) -> float | None:
    """Seconds of a Retry-After; None for none, and for a date."""
    return float(retry_after) if retry_after.isdecimal() and retry_after.isascii() and len(retry_after) < 6 else None


def _kind(outcome: Outcome | None, status: int | None) -> str:
    return f"HTTP {status}" if status is not None and status >= 300 else str(outcome)


def _wants_other_length(words: str) -> bool:
    """Whether a server refuses the name `max_tokens`, and not its value."""
    unknown = re.search(r"unsupported|unknown|unrecogni[sz]ed|not (supported|permitted|allowed)|extra", words)
    return "max_tokens" in words and ("max_completion_tokens" in words or unknown is not None)


def _no_route(api: Route, status: int, words: str) -> bool:
    """Whether an answer means that there is no such route, or one that wants the other one's body."""
    other = "messages" if api == "completions" else "prompt"
    return status in (404, 405, 501) or other in words
