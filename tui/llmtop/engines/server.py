"""Polls one server over HTTP: its metrics page, and now and then the side doors that tell what it is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmtop.contract.settings import Target
from llmtop.contract.units import clean
from llmtop.engines.doors import VERSION_CHARS, complete
from llmtop.engines.exposition import Exposition
from llmtop.engines.numbers import is_limit
from llmtop.engines.page import read_page
from llmtop.engines.page_record import Page
from llmtop.engines.registry import BY_NAME
from llmtop.engines.registry.entry import Beside
from llmtop.engines.registry.tensorrt import PROMETHEUS, as_page, has_gauges, read_iterations
from llmtop.engines.tracker import Failure, Identity
from llmtop.net.client import Client
from llmtop.net.connection import BrokenOff, CannotConnect, TooLarge

PAGE_LIMIT, SIDE_LIMIT = 32 * 2**20, 2**20
DEADLINE_S = 5.0
SIDE_DEADLINE_S = 2.0
HEALTH_EVERY_S = 5.0
IDENTITY_RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class Poll:
    """The outcome of one poll: a page or why there is none, when it ended (monotonic) and what it cost."""

    result: Page | Failure
    t: float
    seconds: float
    body: bytes | None = None


class ServerSource:
    """One server. All requests go out one after the other: there is never more than one in flight."""

    def __init__(self, target: Target, *, keep_body: bool = False) -> None:
        self.target = target
        self.identity = Identity(max_num_seqs=target.max_num_seqs)
        self._keep_body = keep_body
        self._exposition = Exposition()
        self._beside: Beside | None = None
        self._path = "/metrics"
        self._iterates = False
        self._engine = ""
        self._client: Client | None = None
        self._next_identity = 0.0
        self._next_health = 0.0

    def prepare(self) -> None:
        """Build the client before the first poll, so that this does not count as the server's time."""
        self._http()

    async def poll(self) -> Poll:
        """Read the metrics page once; never raises for anything the other side does."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                answer = await self._http().get(self._path, PAGE_LIMIT)
        except TimeoutError:
            return self._failed(began, "timeout", f"no answer within {time.monotonic() - began:.0f} s")
        except CannotConnect as error:
            return self._failed(began, "refused", str(error))
        except TooLarge:
            return self._failed(began, "bad", f"the page is larger than {PAGE_LIMIT >> 20} MiB")
        except (BrokenOff, OSError) as error:
            return self._failed(began, "bad", f"the answer broke off: {clean(str(error)) or type(error).__name__}")
        took = time.monotonic() - began  # what it cost the server; reading the page is our own affair
        result = self._judge(answer.status, answer.t, answer.body, answer.headers)
        gauges = read_iterations(answer.body) if answer.status == 200 else None
        if gauges is not None:
            result = await self._beside_iterations(gauges, answer.t) or result
        self._engine = result.dialect if isinstance(result, Page) else self._engine
        if isinstance(result, Page):
            result = await self._with_beside(result)
        return Poll(result, time.monotonic(), took, answer.body if self._keep_body else None)

    async def _with_beside(self, page: Page) -> Page:
        """The page with what its engine tells beside it."""
        beside = BY_NAME[page.dialect].beside
        if beside is None:
            return page
        self._beside = self._beside or beside()
        return self._beside.fill(page, await self._json(self._beside.path))

    def _failed(self, began: float, kind: Any, text: str) -> Poll:
        return Poll(Failure(kind, text), time.monotonic(), time.monotonic() - began)

    def _judge(self, status: int, t: float, body: bytes, headers: Mapping[str, str]) -> Page | Failure:
        if status in (401, 403):
            return Failure("auth", f"HTTP {status} from /metrics: a key is needed")
        if 300 <= status < 400:
            where = clean(headers.get("location", "elsewhere").partition("?")[0].rpartition("@")[2])
            return Failure("bad", f"HTTP {status}: redirects to {where}, not followed")
        if status in (404, 405, 501):
            return Failure("empty", f"HTTP {status} from /metrics: wrong port or path? {_first_words(body)}".rstrip())
        if status != 200:
            return Failure("bad", f"HTTP {status} from /metrics: {_first_words(body)}".rstrip(": "))
        page = read_page(self._exposition.parse(body), t)
        if page is None:
            return Failure("empty", _no_engine(body))
        started = headers.get("process-start-time-unix")  # llama.cpp
        if page.start_time is None and started and started.replace(".", "", 1).isdecimal():
            page = replace(page, start_time=float(started))
        return replace(page, clock=time.time())

    async def identify(self, *, again: bool = False) -> None:
        """Ask /v1/models and /version until they have answered, and /health every few seconds."""
        now = time.monotonic()
        if again or now >= self._next_identity:
            await self._ask_models()
            await self._ask_version()
            await self._ask_the_engine()
            known = self.identity.model and self.identity.version
            self._next_identity = float("inf") if known else now + IDENTITY_RETRY_S
        if again or now >= self._next_health:
            self._next_health = now + HEALTH_EVERY_S
            await self._ask_health()

    async def _ask_models(self) -> None:
        answer = await self._json("/v1/models")
        models = answer.get("data") if isinstance(answer, dict) else None
        first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
        name, length = first.get("id"), first.get("max_model_len")
        meta = first.get("meta")
        if length is None and isinstance(meta, dict):
            length = meta.get("n_ctx")  # llama.cpp
        self.identity = replace(
            self.identity,
            model=clean(name) if isinstance(name, str) else None,
            max_model_len=length if is_limit(length) else None,
        )

    async def _ask_version(self) -> None:
        answer = await self._json("/version")
        version = answer.get("version") if isinstance(answer, dict) else None
        self.identity = replace(
            self.identity, version=clean(version, VERSION_CHARS) if isinstance(version, str) else None
        )

    async def _ask_the_engine(self) -> None:
        door = BY_NAME[self._engine].door if self._engine else None
        if door is not None:
            self.identity = complete(self.identity, door, await self._json(door.path))

    async def _ask_health(self) -> None:
        try:
            async with asyncio.timeout(SIDE_DEADLINE_S):
                status = (await self._http().get("/health", SIDE_LIMIT)).status
            bad = None if status < 500 else f"/health says {status}"
        except TimeoutError:
            bad = "/health does not answer"
        except (CannotConnect, BrokenOff, TooLarge, OSError):
            bad = "/health fails"
        self.identity = replace(self.identity, health=bad)

    async def _beside_iterations(self, gauges: dict[str, float], t: float) -> Page | None:
        """TensorRT-LLM's page; None for an empty list of a server that has not shown yet that it is one."""
        body = await self._side(PROMETHEUS)
        page = None if body is None else read_page(self._exposition.parse(body), t)
        if has_gauges(page):
            self._path = PROMETHEUS
        self._iterates = self._iterates or bool(gauges) or page is not None
        return as_page(page, gauges, t) if self._iterates else None

    async def _json(self, path: str) -> Any:
        """The JSON of a side door; None when it has none to give."""
        body = await self._side(path)
        try:
            return None if body is None else json.loads(body)
        except (ValueError, RecursionError):
            return None

    async def _side(self, path: str) -> bytes | None:
        """What a side door says; None when it has nothing to give."""
        try:
            async with asyncio.timeout(SIDE_DEADLINE_S):
                answer = await self._http().get(path, SIDE_LIMIT)
            return answer.body if answer.status == 200 else None
        except (TimeoutError, CannotConnect, BrokenOff, TooLarge, OSError):
            return None

    def _http(self) -> Client:
        if self._client is None:
            self._client = Client(self.target, {"Accept": "text/plain; version=0.0.4, */*; q=0.1"})
        return self._client

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.close()


def _no_engine(body: bytes) -> str:
    if not body.strip():
        return "an empty page: no engine metrics"
    if body.lstrip()[:1] in (b"<", b"{", b"["):
        return f"not a metrics page: {_first_words(body)}"
    return "no engine metrics: started with --disable-log-stats? wrong port?"


def _first_words(body: bytes) -> str:
    return clean(" ".join(body[:400].decode("utf-8", "replace").split()), 60)
