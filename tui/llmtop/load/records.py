"""One request as it went, in raw numbers: what workers send, statistics read and files keep."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from llmtop.load.completion import Outcome


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request; times are seconds, `start_s` on the monotonic clock that all workers of a host share.

    In an open loop `start_s` is the scheduled time, so that waiting for a free slot counts (no coordinated
    omission), and `late_s` says how long that was. `ttft_s` and `latency_s` (to the last token chunk) count
    from `start_s`; `ttft_s` is None when no token came. `itls_s` are the gaps between token chunks.
    """

    index: int
    slot: int
    start_s: float
    end_s: float
    outcome: Outcome
    ttft_s: float | None = None
    latency_s: float = 0.0
    itls_s: Sequence[float] = ()
    asked_prompt: int = 0
    asked_output: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    output_estimated: bool = False
    first_tokens: int | None = None  # that were there with the first chunk
    hidden_tokens: int = 0  # reasoning that was made and not sent
    content_s: float | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    message: str = ""
    late_s: float = 0.0
    connect_s: float | None = None
    retried: bool = False
    first_wave: bool = False
    server_ttft_s: float | None = None
    server_queue_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether its answer came to an end: as long as asked, or as long as the model wished."""
        return self.outcome in (Outcome.OK, Outcome.SHORT)

    @property
    def chunks(self) -> int:
        """Token chunks received."""
        return 0 if self.ttft_s is None else 1 + len(self.itls_s)

    @property
    def output(self) -> int:
        """Output tokens: the server's count, or as many as there were chunks."""
        return self.chunks if self.output_tokens is None else self.output_tokens

    @property
    def words(self) -> str:
        """What the server said of a failure, with its status."""
        status = f"HTTP {self.http_status}" if (self.http_status or 0) >= 300 else ""
        return ": ".join(filter(None, (status, self.message if self.message != status else "")))

    def to_json(self) -> dict[str, Any]:
        """A JSON object with one key per field."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RequestRecord:
        """The record of an object made by `to_json`."""
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        known["outcome"] = Outcome(known["outcome"])
        known["itls_s"] = array("d", known.get("itls_s", ()))  # a soak keeps millions of them
        return cls(**known)
