"""What happened between one snapshot and the next, in words: what one reads after lunch."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.contract.snapshot import Event, EventKind, Finding, Mark, ServerView, Snapshot, State
from llmtop.session.notices import Notices

GONE_AFTER_S = 10.0  # a finding that is back sooner was never away
BURST_OVER_S = 10.0  # without a preemption
_OF_MARKS: dict[str, EventKind] = {"mark": "mark", "restart": "restart", "level": "level", "note": "mark"}
_WORK = (State.SERVING, State.IDLE)  # to and fro between these is no news


class EventLog:
    """Compares each snapshot with the one before."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._notices = Notices()
        self._preempted_at: dict[str, float] = {}
        self._raised: dict[str, tuple[Finding, float]] = {}  # and when they were seen last

    def update(self, snapshot: Snapshot) -> tuple[Event, ...]:
        """The events of a snapshot, which has its findings and marks."""
        before, self._before = self._before, snapshot
        events = [_of_mark(mark) for mark in snapshot.marks]
        if before is not None:
            events += self._of_servers(before, snapshot)
        events += self._of_findings(snapshot, told=before is not None)
        return (*events, *self._notices.push(snapshot))

    def _of_servers(self, before: Snapshot, snapshot: Snapshot) -> Iterator[Event]:
        known = {server.url: server for server in before.servers}
        for server in snapshot.servers:
            old = known.get(server.url)
            if old is None:
                continue
            if server.state is not old.state and not (server.state in _WORK and old.state in _WORK):
                why = f": {server.reason}" if server.reason else ""
                text = f"{_name(server)}: {old.state} → {server.state}{why}"
                yield Event(snapshot.time, "state", text, server.url, server.node)
            yield from self._preemptions(old, server, snapshot.time)

    def _of_findings(self, snapshot: Snapshot, *, told: bool) -> list[Event]:
        """Raised and cleared; one that comes back within moments has never been away."""
        now, events = snapshot.time, []
        for finding in snapshot.findings:
            if finding.id not in self._raised:
                events.append(Event(now, "finding", finding.text))
            self._raised[finding.id] = (finding, now)
        for finding, last in list(self._raised.values()):
            if not 0 <= now - last < GONE_AFTER_S:
                del self._raised[finding.id]
                events.append(Event(now, "cleared", f"over: {finding.text}"))
        return events if told else []

    def _preemptions(self, old: ServerView, server: ServerView, now: float) -> Iterator[Event]:
        count, base = server.preemptions_total, old.preemptions_total
        if count is None or base is None or count <= base or server.restarts != old.restarts:
            return
        last = self._preempted_at.get(server.url)
        self._preempted_at[server.url] = now
        if last is None or now - last >= BURST_OVER_S:
            kv = "" if server.kv_usage is None else f", KV {server.kv_usage * 100:.0f} %"
            text = (
                f"{_name(server)}: requests are preempted ({server.running or 0} run, {server.waiting or 0} wait{kv})"
            )
            yield Event(now, "preemptions", text, server.url, server.node)


def _of_mark(mark: Mark) -> Event:
    return Event(mark.time, _OF_MARKS[mark.kind], mark.text)


def _name(server: ServerView) -> str:
    return server.name or server.model or server.url.removeprefix("http://")
