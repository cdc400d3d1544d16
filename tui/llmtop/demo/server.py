"""The simulated vLLM server: routes over real HTTP, engines in real time, faults switched while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from llmtop.demo import llamacpp, tokens
from llmtop.demo import openai_api as api
from llmtop.demo.exposition import PageOptions, only_families, page
from llmtop.demo.families import EngineView
from llmtop.demo.faults import HOSTILE_MODEL, TEXT, FaultError, Faults
from llmtop.demo.generate import Stream, Whole
from llmtop.demo.http import Handler, Listener, ServedExchange
from llmtop.demo.http_stats import HttpStats
from llmtop.demo.profile import MachineProfile
from llmtop.demo.runtime import Runtime

VERSION = "0.32.0"
Routes = dict[str, Handler]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the simulated server runs; `model` replaces the profile's name, `api_key` guards /v1 only."""

    port: int = 0
    speed: float = 1.0
    engines: int = 1
    model: str | None = None
    seed: int = 0
    api_key: str | None = None


class DemoServer:
    """Serves a profile on a loopback port, with a second, control port for faults and the machine's state."""

    def __init__(self, profile: MachineProfile, options: ServerOptions) -> None:
        self.profile = profile
        self.options = options
        self.runtime = Runtime(profile, options.speed, options.engines)
        self.faults = Faults(options.seed)
        self.model = options.model or profile.model.name
        self.started = self.created = time.time()
        self.phase = "start"
        self.engine_bytes = 0
        self.cache_bytes = 0
        self._clock = True
        self._http = HttpStats()
        self._serial = 0
        self._listener = Listener(self._handle)
        self._control = Listener(self._handle_control)
        self._held: list[ServedExchange] = []
        self._visitors = 0
        self._last_visit = float("-inf")
        self.on_visit: Callable[[], None] = lambda: None
        """Called when a client asks for tokens."""

    def visited_within(self, seconds: float) -> bool:
        """Whether a client is being answered, or was so recently."""
        return self._visitors > 0 or time.monotonic() - self._last_visit < seconds

    @property
    def port(self) -> int:
        """The port of the served API."""
        return self._listener.port

    async def open_control(self) -> int:
        """Opens the control port."""
        return await self._control.open()

    def reserve(self) -> int:
        """Takes the port of the API without listening on it; raises OSError when another has it."""
        return self._listener.reserve(self.options.port)

    async def open(self) -> int:
        """Starts the engines and listens; the memory of a ready engine is in use from here on."""
        self.created = time.time()
        self.runtime.start()
        self.phase = "ready"
        self.engine_bytes = self.profile.engine_bytes
        return await self._listener.open()

    def close(self) -> None:
        """Stops serving."""
        self.runtime.stop()
        self._listener.close()
        self._control.close()

    # faults

    def fault(self, name: str, value: float | None = None) -> None:
        """Switches a fault on and does what it needs at once; "clear" switches all off. Raises FaultError."""
        if name == "clear":
            self._clear()
            return
        if self.phase != "ready" and name not in ("kill", "hog"):
            raise FaultError("the server is still starting")
        self.faults.set(name, value)
        value = self.faults.active[name]
        if name == "kill":
            asyncio.get_running_loop().call_later(0.02, os.kill, os.getpid(), signal.SIGKILL)
        elif name == "down":
            self._listener.close()
        elif name == "stall":
            self.runtime.freeze(True)
        elif name == "sleep":
            self.runtime.freeze(True)
            self.engine_bytes = self.profile.engine_bytes - self.profile.machine.weights
        elif name in ("restart", "restart-noclock", "other-model", "hostile", "dp"):
            self._restart_with(name, value)
        elif name == "engine-vanish":
            self._drop_engine()

    def _drop_engine(self) -> None:
        if len(self.runtime.slots) < 2:
            self.faults.clear("engine-vanish")
            raise FaultError("engine-vanish needs several engines (fault dp, or --dp)")
        self.runtime.drop_engine(self.runtime.slots[-1].rank)

    def _restart_with(self, name: str, value: float) -> None:
        if name == "restart-noclock":
            self._clock = False
        elif name == "other-model":
            self.model = "other/model-7b"
        elif name == "hostile":
            self.model = HOSTILE_MODEL
        if name != "hostile":
            self.faults.clear(name)
        self._restart(int(value) if name == "dp" else None)
        if name.startswith("restart") and value > 0:
            self._listener.close()
            asyncio.get_running_loop().call_later(value, self._reopen)

    def _restart(self, engines: int | None) -> None:
        self._listener.drop()
        self.runtime.restart(engines)
        self._http = HttpStats()
        self.started = self.created = time.time()

    def _clear(self) -> None:
        self.faults.clear()
        if self.phase != "ready":
            return
        self.model = self.options.model or self.profile.model.name
        self.runtime.freeze(False)
        self.engine_bytes = self.profile.engine_bytes
        held, self._held = self._held, []
        for exchange in held:
            exchange.abandon()
        self._reopen()

    def _reopen(self) -> None:
        if not self._listener.is_open and "down" not in self.faults:
            task = asyncio.get_running_loop().create_task(self._listener.open())
            task.add_done_callback(lambda t: t.exception())

    # routes

    def _handle(self, exchange: ServedExchange) -> None:
        if "hang" in self.faults:
            self._held.append(exchange)
            return
        exchange.on_done = self._count
        try:
            self._route(exchange)
        except api.ApiError as error:
            exchange.json(error.body(), error.status)

    def _count(self, exchange: ServedExchange, seconds: float) -> None:
        size = len(exchange.body)
        self._http.count(exchange.path, exchange.method, exchange.status, seconds, size, exchange.sent)

    def _route(self, exchange: ServedExchange) -> None:
        path = exchange.path
        if self._guarded(path) and not self._authorised(exchange):
            exchange.json({"error": "Unauthorized"}, 401)
            return
        get: Routes = {
            "/metrics": self._metrics,
            "/metrics/": self._metrics_slash,
            "/health": self._health,
            "/ping": self._health,
            "/load": lambda e: e.json({"server_load": 0}),
            "/v1/models": self._models,
        }
        post: Routes = {
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/__fault": self._fault,
        }
        if not self._llamacpp:
            get["/version"] = lambda e: e.json({"version": VERSION})
        else:
            get |= {"/slots": self._slots, "/props": lambda e: e.json(llamacpp.props(self.profile, self.model))}
        routes = {"GET": get, "HEAD": get, "POST": post}
        handler = routes.get(exchange.method, {}).get(path)
        if handler is not None:
            handler(exchange)
        elif path in get or path in post:
            exchange.json({"detail": "Method Not Allowed"}, 405)
        else:
            exchange.json({"detail": "Not Found"}, 404)

    def _handle_control(self, exchange: ServedExchange) -> None:
        try:
            if exchange.path == "/__machine":
                exchange.json(self.machine_state())
            elif exchange.path == "/__fault" and exchange.method == "POST":
                self._fault(exchange)
            else:
                exchange.json({"detail": "Not Found"}, 404)
        except api.ApiError as error:
            exchange.json(error.body(), error.status)

    @property
    def _llamacpp(self) -> bool:
        return self.profile.engine.kind == "llama.cpp"

    def _guarded(self, path: str) -> bool:
        """vLLM's key guards /v1 only, llama.cpp's also what a monitor reads."""
        return path.startswith("/v1/") or (self._llamacpp and path in ("/metrics", "/slots", "/props"))

    def _authorised(self, exchange: ServedExchange) -> bool:
        key = self.options.api_key
        return key is None or exchange.headers.get("authorization") == f"Bearer {key}"

    def _fault(self, exchange: ServedExchange) -> None:
        data = api.parse_body(exchange.body)
        value = data.get("value")
        try:
            name = str(data.get("name"))
            self.fault(name, float(value) if isinstance(value, int | float) else None)
        except ValueError as error:
            raise api.ApiError(400, str(error)) from None
        exchange.json({"active": self.faults.active})

    def machine_state(self) -> dict[str, object]:
        """What the simulated machine follows: each engine's effort in seconds, memory held in bytes, the
        phase.
        """
        now = time.monotonic()
        efforts = [slot.effort(now) for slot in self.runtime.slots]
        return {
            "pid": os.getpid(),
            "phase": self.phase,
            "monotonic": now,
            "busy_s": [busy for busy, _ in efforts],
            "prefill_s": [prefill for _, prefill in efforts],
            "engine_bytes": self.engine_bytes,
            "cache_bytes": self.cache_bytes,
            "process": "llama-server" if self._llamacpp else "VLLM::EngineCore",
            "hog_bytes": int(self.faults.active.get("hog", 0.0) * 2**30),
        }

    # pages

    def _metrics(self, exchange: ServedExchange) -> None:
        delay = self.faults.delay()
        if delay > 0:
            asyncio.get_running_loop().call_later(delay, self._send_page, exchange)
        else:
            self._send_page(exchange)

    def _send_page(self, exchange: ServedExchange) -> None:
        answer = self.faults.answer(self._page)
        extra = (f"process-start-time-unix: {self.started:.0f}",) if self._llamacpp else ()
        exchange.reply(answer.status, answer.body, answer.content_type, extra)

    def _slots(self, exchange: ServedExchange) -> None:
        exchange.json(llamacpp.slots(self.runtime.slots[0].engine))

    def _metrics_slash(self, exchange: ServedExchange) -> None:
        wanted = exchange.query.get("name[]")
        text = self._page() if wanted is None else only_families(self._page(), wanted)
        if wanted is not None and len(self.runtime.slots) > 1:
            text = ""  # the multiprocess collector cannot filter
        exchange.stream(TEXT.replace("1.0.0", "0.0.4"))
        exchange.end(text.encode())

    def _page(self) -> str:
        if self._llamacpp:
            return llamacpp.page(self.runtime.slots[0].engine)
        asleep = "sleep" in self.faults
        views = [EngineView(slot.rank, slot.engine, asleep) for slot in self.runtime.slots]
        options = PageOptions(
            model=self.model,
            started=self.started,
            created=self.created,
            cpu_seconds=time.process_time(),
            multiprocess=len(views) > 1,
            log_stats="disable-log-stats" not in self.faults,
            clock=self._clock,
            http=self._http,
        )
        return page(self.profile, views, options)

    def _health(self, exchange: ServedExchange) -> None:
        exchange.reply(503 if "unhealthy" in self.faults else 200)

    def _models(self, exchange: ServedExchange) -> None:
        model = {
            "id": self.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": self.model,
            "parent": None,
            "max_model_len": self.profile.model.max_model_len,
        }
        exchange.json({"object": "list", "data": [model]})

    def _tokenize(self, exchange: ServedExchange) -> None:
        data = api.parse_body(exchange.body)
        api.check_model(data, self.model)
        ids = api.chat_tokens(data) if "messages" in data else tokens.encode(str(data.get("prompt", "")))
        longest = self.profile.model.max_model_len
        exchange.json({"count": len(ids), "max_model_len": longest, "tokens": list(ids), "token_strs": None})

    def _detokenize(self, exchange: ServedExchange) -> None:
        data = api.parse_body(exchange.body)
        api.check_model(data, self.model)
        ids = data.get("tokens")
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise api.ApiError(400, "1 validation error:\n  tokens: a list of integers", "Bad Request", "body.tokens")
        exchange.json({"prompt": tokens.decode(ids)})

    # generation

    def _leave(self) -> None:
        self._visitors -= 1
        self._last_visit = time.monotonic()

    def _completions(self, exchange: ServedExchange) -> None:
        self._generate(exchange, chat=False)

    def _chat(self, exchange: ServedExchange) -> None:
        self._generate(exchange, chat=True)

    def _generate(self, exchange: ServedExchange, chat: bool) -> None:
        data = api.parse_body(exchange.body)
        call = api.parse_call(data, self.model, chat, self.profile.model.max_model_len)
        self._serial += 1
        prefix = "chatcmpl" if chat else "cmpl"
        request_id = f"{prefix}-{crc32(str(self._serial).encode()):08x}{self._serial:08x}"
        kind = Stream if call.stream else Whole
        answer = kind(exchange, call, request_id, self.model)
        self._visitors += 1
        self.on_visit()
        ticket = self.runtime.submit(call.prompt, call.max_tokens, call.stop_after, call.salt, answer.output)
        exchange.on_close = ticket.abort
        exchange.on_gone = self._leave
