"""Reads the raw pages of a recording anew, so that what was recorded years ago profits from today's reading of it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from typing import IO, Any

from llmtop.contract.codec import NotGiven, from_json, moment, parse, to_json
from llmtop.contract.settings import UsageError
from llmtop.contract.snapshot import ServerView, Snapshot, State
from llmtop.engines.exposition import Exposition
from llmtop.engines.limits import of_all
from llmtop.engines.page import read_page
from llmtop.engines.page_record import Page
from llmtop.engines.registry import BY_NAME
from llmtop.engines.tracker import Failure, Identity, ServerTracker
from llmtop.recording.write import GAP, KIND, PAGE

# what no page says: side doors, the poller, the devices
_RECORDED = ("age_s", "name", "node", "scrape_s", "interval_wanted_s", "joules_per_token", "joules_scope")
# the states of a server that sends no page; only a port that is closed may hide a restart
_REFUSED = (State.DOWN, State.STARTING)
_SILENT = (*_REFUSED, State.AUTH, State.NO_ENGINE_METRICS, State.STALE)


@dataclass(slots=True)
class _Server:
    """One server of the recording; `offset` is Unix time less the clock of its pages."""

    tracker: ServerTracker
    exposition: Exposition = field(default_factory=Exposition)
    offset: float = 0.0
    last: tuple[str, float] = ("", 0.0)
    silent: bool = False
    readable: bool = False
    fresh: list[Page] = field(default_factory=list)  # that wait for the limits that were recorded with them

    def take(self, text: str, t: float | None, when: float) -> None:
        """Read a page; the first recordings have no `t`, and repeat the last page while the server is silent."""
        before, self.last = self.last, (text, when if t is None else t)
        if self.last == before or (t is None and self.silent and text == before[0]):
            return
        t = self.last[1]
        self.offset = when - t
        page = read_page(self.exposition.parse(text.encode("utf-8", "surrogatepass")), t)
        # what is read beside the page was not recorded
        self.readable = page is not None and BY_NAME[page.dialect].beside is None
        if page is not None and self.readable:
            self.fresh.append(page)

    def view(self, recorded: ServerView, when: float) -> ServerView:
        """The server as its pages show it; as recorded where there is no page to go by."""
        t = when - self.offset
        self.silent = recorded.state in _SILENT
        if not self.silent:
            each = next((row.max_num_seqs for row in recorded.engines if row.max_num_seqs), recorded.max_num_seqs)
            self.tracker.identity = Identity(
                recorded.model, recorded.version, recorded.max_model_len, each, local=recorded.local
            )
        for page in self.fresh:
            self.tracker.feed(page, page.t)
        self.fresh.clear()
        if self.silent:
            self.tracker.feed(Failure("refused" if recorded.state in _REFUSED else "bad", recorded.reason or ""), t)
        if self.silent or not self.readable:
            return recorded
        view = self.tracker.view(t, when, recorded.interval_s or 1.0)
        if view.reason is None and view.state is recorded.state:  # what a failed poll or /health said
            view = replace(view, reason=recorded.reason)
        return replace(view, **{name: getattr(recorded, name) for name in _RECORDED})


class _Reader:
    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._begun = False  # a first line came, and nothing after it yet
        self.pages = 0

    def line(self, line: bytes) -> bytes:
        """The line as it is to be read now; a page is read and left out."""
        try:
            values = parse(line)
        except NotGiven:
            return line
        if type(values) is not dict:
            return line
        self._begin(values)
        if values.get("event") == PAGE:
            self._page(values)
            return b"\n"  # the lines keep their numbers
        return self._snapshot(line, values) if isinstance(values.get("servers"), list) else line

    def _begin(self, values: dict[str, Any]) -> None:
        """Forget all where another run goes on with the file; one that lost lines says so and remembers."""
        if self._begun and values.get("event") != GAP:
            self._servers.clear()
        self._begun = values.get("kind") == KIND

    def _page(self, values: dict[str, Any]) -> None:
        url, text, when = values.get("url"), values.get("text"), moment(values.get("time"))
        t = moment(values.get("t"))
        mixed = "t" in values and t is None  # Unix time among the monotonic ones would be a jump
        if isinstance(url, str) and isinstance(text, str) and when is not None and not mixed:
            self.pages += 1
            self._of(url).take(text, t, when)

    def _snapshot(self, line: bytes, values: dict[str, Any]) -> bytes:
        try:
            snapshot = self._anew(from_json(values))
        except (NotGiven, OverflowError):  # the latter: a time or an interval that no clock has
            return line
        return to_json(snapshot).encode("utf-8", "replace") + b"\n"

    def _anew(self, snapshot: Snapshot) -> Snapshot:
        servers = tuple(self._of(server.url).view(server, snapshot.time) for server in snapshot.servers)
        return replace(snapshot, servers=servers, limited_by=of_all(server.limited_by for server in servers))

    def _of(self, url: str) -> _Server:
        if url not in self._servers:
            self._servers[url] = _Server(ServerTracker(url))
        return self._servers[url]


def reread(lines: IO[bytes]) -> IO[bytes]:
    """The lines of a recording with the servers read anew from its raw pages; raises UsageError without pages."""
    anew, reader = tempfile.TemporaryFile(), _Reader()  # noqa: SIM115  # lives as long as the recording
    for line in lines:
        anew.write(reader.line(line))
    if not reader.pages:
        raise UsageError("there are no raw pages in this recording: record with --record-raw")
    return anew
