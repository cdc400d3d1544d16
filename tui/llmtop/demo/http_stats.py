"""The http_* families that vLLM's web framework adds to the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmtop.demo.counters import BucketCounter

Labels = tuple[tuple[str, str], ...]
Row = tuple[str, Labels, float]

UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
_HANDLERS = frozenset({"/v1/models", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"})
_FINE = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5,
    3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
_COARSE = (0.1, 0.5, 1.0)


@dataclass(slots=True)
class _Handler:
    method: str
    durations: BucketCounter = field(default_factory=lambda: BucketCounter(_COARSE))
    request_bytes: int = 0
    response_bytes: int = 0
    by_status: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.durations.count


@dataclass(slots=True)
class HttpStats:
    """Requests by handler, status class, size and duration (seconds, to the end of a stream)."""

    fine: BucketCounter = field(default_factory=lambda: BucketCounter(_FINE))
    handlers: dict[tuple[str, str], _Handler] = field(default_factory=dict)

    def count(
        self, path: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """Counts one finished request; pages that monitors poll are left out, as the framework does."""
        if path in UNCOUNTED:
            return
        name = path if path in _HANDLERS else "none"
        handler = self.handlers.setdefault((name, method), _Handler(method))
        handler.durations.observe(seconds)
        handler.request_bytes += request_bytes
        handler.response_bytes += response_bytes
        status_class = f"{status // 100}xx"
        handler.by_status[status_class] = handler.by_status.get(status_class, 0) + 1
        self.fine.observe(seconds)

    def rows(self, family: str) -> list[Row]:
        """The rows of one http_* family: (suffix, labels, value)."""
        if family == "http_requests":
            return [
                ("", (("handler", name), ("method", method), ("status", status)), float(count))
                for (name, method), handler in self.handlers.items()
                for status, count in handler.by_status.items()
            ]
        if family == "http_request_duration_highr_seconds":
            return bucket_rows((), self.fine)
        if family == "http_request_duration_seconds":
            return [
                row
                for (name, method), handler in self.handlers.items()
                for row in bucket_rows((("handler", name), ("method", method)), handler.durations)
            ]
        return self._sizes("request_bytes" if "request" in family else "response_bytes")

    def _sizes(self, attribute: str) -> list[Row]:
        return [
            row
            for (name, _), handler in self.handlers.items()
            for row in (
                ("_count", (("handler", name),), float(handler.count)),
                ("_sum", (("handler", name),), float(getattr(handler, attribute))),
            )
        ]


def bucket_rows(labels: Labels, histogram: BucketCounter) -> list[Row]:
    """The rows of a histogram: every bucket, count and sum."""
    counts = histogram.cumulative()
    rows: list[Row] = [
        ("_bucket", (*labels, ("le", edge)), float(count))
        for edge, count in zip([*map(str, histogram.bounds), "+Inf"], counts, strict=True)
    ]
    return [*rows, ("_count", labels, float(counts[-1])), ("_sum", labels, histogram.sum)]
