"""Polls one server over HTTP: its metrics page, and now and then the side doors that tell what it is."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote

from llmtop.contract.settings import Target
from llmtop.contract.units import clean
from llmtop.engines.doors import VERSION_CHARS, complete
from llmtop.engines.exposition import Exposition
from llmtop.engines.models import is_router, listed, serving
from llmtop.engines.page import read_page
from llmtop.engines.page_record import Page
from llmtop.engines.registry import BY_NAME, ENGINES
from llmtop.engines.registry.entry import Beside, Instead
from llmtop.engines.registry.tensorrt import PROMETHEUS, as_page, has_gauges, read_iterations
from llmtop.engines.tracker import Failure, Identity
from llmtop.net.client import Client
from llmtop.net.connection import Answer, BrokenOff, CannotConnect, ForwardGone, TooLarge

PAGE_LIMIT, SIDE_LIMIT = 32 * 2**20, 2**20
DEADLINE_S = 5.0
SIDE_DEADLINE_S = 2.0
HEALTH_EVERY_S = 5.0
IDENTITY_RETRY_S = ELSEWHERE_RETRY_S = 30.0
METRICS = "/metrics"
_PATHS = tuple(dict.fromkeys(path for engine in ENGINES for path in engine.paths))
_JSON_PAGES: Mapping[str, Instead] = {e.instead.path: e.instead for e in ENGINES if e.instead is not None}


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
        self._path = METRICS
        self._next_elsewhere = 0.0
        self._router = False
        self._loaded: tuple[str, ...] = ()
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
        if (self._router or self.target.model is not None) and await self._unloaded():
            return self._failed(began, "empty", self._name_a_model())
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                answer = await self._http().get(self._asked(self._path), PAGE_LIMIT)
        except TimeoutError:
            return self._failed(began, "timeout", f"no answer within {time.monotonic() - began:.0f} s")
        except ForwardGone as error:
            return self._failed(began, "timeout", str(error))
        except CannotConnect as error:
            return self._failed(began, "refused", str(error))
        except TooLarge:
            return self._failed(began, "bad", f"the page is larger than {PAGE_LIMIT >> 20} MiB")
        except (BrokenOff, OSError) as error:
            return self._failed(began, "bad", f"the answer broke off: {clean(str(error)) or type(error).__name__}")
        took = time.monotonic() - began  # what it cost the server; reading the page is our own affair
        result = self._judge(answer)
        gauges = read_iterations(answer.body) if answer.status == 200 else None
        if gauges is not None:
            result = await self._beside_iterations(gauges, answer.t) or result
        if isinstance(result, Failure) and result.kind == "empty":
            result = await self._elsewhere(began) or result
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
        return self._beside.fill(page, await self._json(self._asked(self._beside.path)))

    def _failed(self, began: float, kind: Any, text: str) -> Poll:
        return Poll(Failure(kind, text), time.monotonic(), time.monotonic() - began)

    def _judge(self, answer: Answer) -> Page | Failure:
        status, body = answer.status, answer.body
        if status in (401, 403):
            return Failure("auth", f"HTTP {status} from /metrics: a key is needed")
        if 300 <= status < 400:
            where = clean(answer.headers.get("location", "elsewhere").partition("?")[0].rpartition("@")[2])
            return Failure("bad", f"HTTP {status}: redirects to {where}, not followed")
        if status == 503 and "loading" in _first_words(body).lower():  # llama.cpp
            return Failure("loading", f"HTTP 503: {_first_words(body)}")
        if status in (404, 405, 501):
            why = self._without_metrics() or f"wrong port or path? {_first_words(body)}"
            return Failure("empty", f"HTTP {status} from /metrics: {why}".rstrip())
        if status != 200:
            kind: Literal["empty", "bad"] = "empty" if 400 <= status < 500 else "bad"
            return Failure(kind, f"HTTP {status} from /metrics: {_first_words(body)}".rstrip(": "))
        foreign = body.lstrip()[:1] == b"<"  # of a proxy: what the engine was started with is not the matter
        return self._read(answer) or Failure(
            "empty", (None if foreign else self._without_metrics()) or _no_engine(body)
        )

    def _read(self, answer: Answer) -> Page | None:
        """The page, of text or of JSON."""
        page = self._read_body(answer.body, answer.t)
        if page is None:
            return None
        started = answer.headers.get("process-start-time-unix")  # llama.cpp
        if page.start_time is None and started and started.replace(".", "", 1).isdecimal():
            page = replace(page, start_time=float(started))
        return replace(page, clock=time.time())

    def _read_body(self, body: bytes, t: float) -> Page | None:
        if self._path in _JSON_PAGES:
            return _JSON_PAGES[self._path].read(_parsed(body), t)
        page = read_page(self._exposition.parse(body), t)
        if page is None and body.lstrip().startswith(b"{"):
            read = (engine.read_json(body, t) for engine in ENGINES if engine.read_json is not None)
            page = next((found for found in read if found is not None), None)
        return page

    async def _elsewhere(self, now: float) -> Page | None:
        """A page at another path than /metrics, which is then asked; looked for now and then."""
        if now < self._next_elsewhere:
            return None
        self._next_elsewhere = now + ELSEWHERE_RETRY_S
        try:
            async with asyncio.timeout(SIDE_DEADLINE_S):
                for path in (*_PATHS, *_JSON_PAGES):
                    body = await self._side(path)
                    self._path = path
                    page = None if body is None else self._read_body(body, time.monotonic())
                    if page is not None:
                        return page
        except TimeoutError:
            pass
        self._path = METRICS
        return None

    async def _unloaded(self) -> bool:
        """Whether a question about the model would make a router load it."""
        models = listed(await self._json("/v1/models"))
        self._router = is_router(models)
        self._loaded = tuple(model.name for model in models if model.loaded)
        return self._router and self.target.model not in self._loaded

    def _name_a_model(self) -> str:
        loaded = f"; loaded: {', '.join(self._loaded)}" if self._loaded else "; none is loaded"
        if self.target.model is None:
            return clean(f"llama.cpp router: name a model (URL?model=NAME){loaded}")
        return clean(f"llama.cpp router: {self.target.model} is not loaded, and is not loaded for this{loaded}")

    def _asked(self, path: str) -> str:
        """A path with the model that is watched; a router shall not load it for that."""
        if self.target.model is None:
            return path
        return f"{path}?model={quote(self.target.model, safe='')}" + ("&autoload=false" if self._router else "")

    def _without_metrics(self) -> str | None:
        """What the engine needs for metrics, if it is known which it is."""
        engine = BY_NAME.get(self.identity.engine or "")
        return f"{engine.title}: {engine.without_metrics}" if engine is not None and engine.without_metrics else None

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
        models = listed(await self._json("/v1/models"))
        self._router = is_router(models)
        self._loaded = tuple(model.name for model in models if model.loaded)
        named = next((model for model in models if model.name == self.target.model), None)
        model = named or serving(models)
        owners = {engine.owner: engine.name for engine in ENGINES if engine.owner is not None}
        self.identity = replace(
            self.identity,
            model=clean(self.target.model or (model.name if model else "")) or None,
            max_model_len=model.max_model_len if model else None,
            engine=owners.get(models[0].owner or "") if models else None,
            answers=bool(models),
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
            self.identity = complete(self.identity, door, await self._json(self._asked(door.path)))

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
        return None if body is None else _parsed(body)

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


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _no_engine(body: bytes) -> str:
    if not body.strip():
        return "an empty page: no engine metrics"
    if body.lstrip()[:1] in (b"<", b"{", b"["):
        return f"not a metrics page: {_first_words(body)}"
    for engine in ENGINES:
        if engine.prefix and re.search(rb"^" + engine.prefix.encode(), body, re.MULTILINE):
            return f"{engine.title}, and no engine metrics: {engine.without_metrics}"
    if re.search(rb"^ray_", body, re.MULTILINE):
        return "Ray's own page, and no engine metrics: does the deployment export them (log_engine_metrics)?"
    return "no engine metrics: started with --disable-log-stats? wrong port?"


def _first_words(body: bytes) -> str:
    """The first words of an answer; of a JSON error what it says."""
    answer = _parsed(body) if body.lstrip().startswith(b"{") else None
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    said = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    text = said if isinstance(said, str) else body[:400].decode("utf-8", "replace")
    return clean(" ".join(text.split()), 60)
