"""A fake HTTP server as a context: it serves in a thread of its own until it is left."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Self


class Served:
    """Whoever has a server `_httpd`."""

    _httpd: ThreadingHTTPServer

    def __enter__(self) -> Self:
        threading.Thread(target=self._httpd.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()
