"""Asks /health of the target port until it answers with 200, and never again."""

from __future__ import annotations

import http.client
import threading
import time
from urllib.parse import urlsplit

INTERVAL_S = 0.25
_TIMEOUT_S = 1.0


class HealthProbe:
    """A daemon thread that polls /health; `answered_at` is the Unix time of the first 200.

    A port that answers before it was ever refused belongs to a server that was there before: `was_up` says so, and its
    answers count only once it has gone away.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if parts.scheme == "https" else 8000)
        self._secure = parts.scheme == "https"
        self._stop = threading.Event()
        self._refused = False
        self.was_up = False
        self.answered_at: float | None = None

    def start(self) -> None:
        """Begin polling."""
        threading.Thread(target=self._run, name="llmtop-health", daemon=True).start()

    def stop(self) -> None:
        """Stop polling."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            healthy = self._ask()
            if healthy and self._refused:
                self.answered_at = time.time()
                return
            self.was_up = self.was_up or bool(healthy)
            self._refused = self._refused or healthy is None
            self._stop.wait(INTERVAL_S)

    def _ask(self) -> bool | None:
        """True for a 200, False for another answer, None when nobody listens."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except ConnectionRefusedError:
            return None
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
