"""An HTTP server that answers /metrics with given pages, one after the other, and counts what it is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

Answer = tuple[int, bytes]
Page = bytes | Answer | Callable[[], bytes]


class PageServer:
    """Serves `pages` in order, the last one for ever; `side` holds the answers of other paths."""

    def __init__(self, pages: Sequence[Page], side: dict[str, Answer] | None = None, port: int = 0) -> None:
        self.pages = list(pages)
        self.side = side or {}
        self.requests: list[tuple[float, str, dict[str, str]]] = []
        self.in_flight = self.most_in_flight = 0
        self._served = 0
        self._lock = threading.Lock()
        self._httpd = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._httpd.daemon_threads = True
        self.port = self._httpd.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.requests.append((time.monotonic(), handler.path, dict(handler.headers)))
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            status, body = self._content(handler.path)
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except OSError:
            pass
        finally:
            with self._lock:
                self.in_flight -= 1

    def _content(self, path: str) -> Answer:
        if path != "/metrics":
            return self.side.get(path, (404, b'{"detail":"Not Found"}'))
        with self._lock:
            page = self.pages[min(self._served, len(self.pages) - 1)]
            self._served += 1
        if callable(page):
            page = page()
        return page if isinstance(page, tuple) else (200, page)

    def scrapes(self) -> list[float]:
        """When /metrics was asked for (monotonic)."""
        return [t for t, path, _ in self.requests if path == "/metrics"]

    def __enter__(self) -> PageServer:
        threading.Thread(target=self._httpd.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()
