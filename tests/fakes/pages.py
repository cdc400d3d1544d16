"""Servers at the other end of the wire: pages in order, counters by the clock, broken answers in raw bytes."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from fakes.served import Served

Answer = tuple[int, bytes] | tuple[int, bytes, Mapping[str, str]]
Page = bytes | Answer | Callable[[], bytes | Answer]


def free_port() -> int:
    """A loopback port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class PageServer(Served):
    """Serves `pages` in order, the last one for ever; `side` holds the answers of other paths."""

    def __init__(
        self,
        pages: Sequence[Page],
        side: Mapping[str, Page] | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.pages = list(pages)
        self.side = dict(side or {})
        self.requests: list[tuple[float, str, dict[str, str]]] = []
        self.in_flight = self.most_in_flight = 0
        self._served = 0
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._httpd = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._httpd.daemon_threads = True
        if tls is not None:
            self._httpd.socket = tls.wrap_socket(self._httpd.socket, server_side=True)
        self.port = self._httpd.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer._connections.add(self.connection)

            def finish(self) -> None:
                outer._connections.discard(self.connection)
                super().finish()

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request; nobody on the other side is no mistake."""
        with self._lock:
            self.requests.append((time.monotonic(), handler.path, dict(handler.headers)))
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            status, body, headers = self._content(handler.path)
            with self._lock:
                self.in_flight -= 1  # before the last byte: the next request may come at once
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except OSError:
            pass

    def _content(self, path: str) -> tuple[int, bytes, Mapping[str, str]]:
        page: Page
        if path != "/metrics":
            page = self.side.get(path, (404, b'{"detail":"Not Found"}'))
        else:
            with self._lock:
                page = self.pages[min(self._served, len(self.pages) - 1)]
                self._served += 1
        if callable(page):
            page = page()
        if isinstance(page, bytes):
            return 200, page, {}
        return page[0], page[1], page[2] if len(page) == 3 else {}

    def scrapes(self) -> list[float]:
        """When /metrics was asked for (monotonic)."""
        return [t for t, path, _ in self.requests if path == "/metrics"]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Die as a process does: the port closes and so do the open connections."""
        super().__exit__(kind, error, trace)
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class RawServer:
    """Answers every connection with the same bytes and closes it; `None` reads and never answers."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.open = self.most_open = 0

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._held.append(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            connection.recv(65536)
            if self._answer is not None:
                connection.sendall(self._answer)
                connection.shutdown(socket.SHUT_WR)
            connection.recv(65536)  # until the other side goes
        except OSError:
            pass
        finally:
            self.open -= 1
            connection.close()

    def __enter__(self) -> RawServer:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._held:
            connection.close()


class Engine:
    """A vLLM that makes a constant number of tokens a second; every page is built when it is asked for."""

    def __init__(self, tokens_s: float = 1000.0, *, model: str = "m", running: int = 4, already: int = 0) -> None:
        self.tokens_s, self.model, self.running, self.already = tokens_s, model, running, already
        self.delay: Callable[[], float] = lambda: 0.0
        self._born = time.monotonic()
        self._frozen: float | None = None
        self.frozen_at: float | None = None

    def freeze(self) -> None:
        """Stop stepping: every number stays as it is."""
        self.frozen_at = self._frozen = time.monotonic()

    def page(self) -> bytes:
        """Wait as long as `delay` says, then say how things are now."""
        time.sleep(self.delay())
        now = self._frozen if self._frozen is not None else time.monotonic()
        tokens = self.already + int(self.tokens_s * (now - self._born))
        labels = f'{{engine="0",model_name="{self.model}"}}'
        lines = (
            f"vllm:num_requests_running{labels} {self.running}",
            f"vllm:num_requests_waiting{labels} 0",
            f"vllm:kv_cache_usage_perc{labels} 0.25",
            f"vllm:generation_tokens_total{labels} {tokens}",
            f"vllm:prompt_tokens_total{labels} {tokens // 2}",
            f"vllm:num_preemptions_total{labels} 0",
        )
        return "\n".join((*lines, "")).encode()
