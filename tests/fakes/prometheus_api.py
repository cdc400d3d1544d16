"""A Prometheus made of scrapes that a test hands in: just the questions that a fleet asks, over real HTTP."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from fakes.served import Served

LOOKBACK_S = 300.0
Key = frozenset[tuple[str, str]]
_SELECTOR = re.compile(r"\{((?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*)\}(?:\[(\d+)s\])?")
_MATCHER = re.compile(r"\s*(\w+)\s*(=~|!~|!=|=)\s*(\"(?:[^\"\\]|\\.)*\")\s*(?:,|$)")
_COMPARE: Mapping[str, Callable[[str, str], bool]] = {
    "=": str.__eq__,
    "!=": str.__ne__,
    "=~": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "!~": lambda value, pattern: re.fullmatch(pattern, value) is None,
}


class BadQuery(ValueError):
    """What Prometheus would not understand."""


class FakePrometheus(Served):
    """`now` is its clock; `trouble` is answered in place of everything."""

    def __init__(self, now: float | None = None, key: str | None = None) -> None:
        self.now = time.time() if now is None else now
        self.trouble: tuple[int, bytes] | None = None
        self.whole_seconds = False  # tells its time as VictoriaMetrics does
        self.errors: dict[Key, str] | None = {}  # of the last scrapes; None: targets are not told
        self.queries: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self._key = key
        self._series: dict[Key, list[tuple[float, float]]] = {}
        self._ended: set[Key] = set()  # with a staleness marker
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._answer(self, parse_qs(urlsplit(self.path).query))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer._answer(self, parse_qs(body.decode()))

            def log_message(self, *args: object) -> None:
                pass

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._httpd.server_address[1]}"

    # what it scrapes

    def scrape(self, text: str | None, labels: Mapping[str, str], at: float, *, up: bool = True) -> None:
        """One scrape of a target; None is one that failed. Without `up` its series come from elsewhere."""
        with self._lock:
            if up:
                self._add({"__name__": "up", **labels}, at, float(text is not None))
            if text is None:
                own = set(labels.items())
                self._ended |= {key for key in self._series if own <= key and ("__name__", "up") not in key}
                return
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    self._add({"__name__": sample.name, **sample.labels, **labels}, at, sample.value)

    def _add(self, labels: Mapping[str, str], at: float, value: float) -> None:
        key = frozenset(labels.items())
        self._series.setdefault(key, []).append((at, value))
        self._ended.discard(key)

    # what it answers

    def _answer(self, handler: BaseHTTPRequestHandler, form: Mapping[str, list[str]]) -> None:
        with self._lock:
            status, body = self._content(urlsplit(handler.path).path, form, handler.headers.get("Authorization"))
            self.headers.append(dict(handler.headers))
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _content(self, path: str, form: Mapping[str, list[str]], key: str | None) -> tuple[int, bytes]:
        if self.trouble is not None:
            return self.trouble
        if self._key is not None and key != f"Bearer {self._key}":
            return 401, b"no key"
        if path == "/api/v1/label/__name__/values":
            chosen = self._match(form.get("match[]", ["{}"])[0])[0]
            names = sorted({dict(key)["__name__"] for key in chosen})
            return 200, json.dumps({"status": "success", "data": names}).encode()
        if path == "/api/v1/targets" and self.errors is not None:
            targets = [{"labels": dict(labels), "lastError": error} for labels, error in self.errors.items()]
            return 200, json.dumps({"status": "success", "data": {"activeTargets": targets}}).encode()
        if path != "/api/v1/query":
            return 404, b"404 page not found"
        query = form["query"][0]
        self.queries.append(query)
        try:
            return 200, json.dumps({"status": "success", "data": self._query(query)}).encode()
        except BadQuery as error:
            return 400, json.dumps({"status": "error", "errorType": "bad_data", "error": str(error)}).encode()

    def _query(self, query: str) -> dict[str, Any]:
        if query == "time()" and self.whole_seconds:
            return {"resultType": "vector", "result": [{"metric": {}, "value": [int(self.now), str(self.now - 30)]}]}
        if query == "time()":
            return {"resultType": "scalar", "result": [self.now, str(self.now)]}
        found: dict[Key, dict[str, Any]] = {}
        for part in query.split(" or "):
            keys, reach = self._match(part)
            for key in keys:
                points = [point for point in self._series[key] if point[0] <= self.now]
                if reach is not None:
                    inside = [[t, str(value)] for t, value in points if t > self.now - reach]
                    if inside:
                        found.setdefault(key, {"metric": dict(key), "values": inside})
                elif points and key not in self._ended and points[-1][0] > self.now - LOOKBACK_S:
                    found.setdefault(key, {"metric": dict(key), "value": [self.now, str(points[-1][1])]})
        return {"resultType": "matrix", "result": [*found.values()]}

    def _match(self, selector: str) -> tuple[list[Key], float | None]:
        parsed = _SELECTOR.fullmatch(selector.strip())
        if parsed is None:
            raise BadQuery(f"parse error: {selector}")
        inner, place = parsed[1], 0
        matchers: list[tuple[str, str, str]] = []
        while place < len(inner):
            one = _MATCHER.match(inner, place)
            if one is None:
                raise BadQuery(f"parse error: unexpected {inner[place:]!r}")
            matchers.append((one[1], one[2], json.loads(one[3])))
            place = one.end()
        keys = [key for key in self._series if _fits(dict(key), matchers)]
        return keys, float(parsed[2]) if parsed[2] else None


def _fits(labels: Mapping[str, str], matchers: list[tuple[str, str, str]]) -> bool:
    return all(_COMPARE[how](labels.get(name, ""), value) for name, how, value in matchers)
