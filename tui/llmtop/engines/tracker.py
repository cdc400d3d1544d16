"""One watched server over time: pages and failures in, a `ServerView` out.

Pure: the caller brings the clock. All rules about states, restarts, windows and data-parallel engines are here and
in `rates`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from llmtop.contract.snapshot import EngineRow, ServerView, State
from llmtop.engines import figures, kv, traffic
from llmtop.engines.limits import EngineLoad, LimitWindow
from llmtop.engines.page_record import MOST_REQUESTS, Page, RowKey, RowSample
from llmtop.engines.rates import LIVE, RowWindow, WindowSpans
from llmtop.engines.registry import BY_NAME
from llmtop.engines.turns import Turns

STALE_AFTER_INTERVALS = 3.0
NO_ANSWER_YET = "no answer yet"
_NUMBERS = {2: "two", 3: "three"}


@dataclass(frozen=True, slots=True)
class Identity:
    """What the side doors of a server say: /v1/models, /version, /health, its command line, the configuration."""

    model: str | None = None
    version: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None  # of one engine
    health: str | None = None  # words when /health fails beside a good /metrics
    starting: str | None = None  # words when a local process for this port is still starting
    local: bool = False
    engine: str | None = None  # as its side doors tell, where it has no metrics
    answers: bool = False  # a side door has answered


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a poll brought no page: nobody listens, no answer, 401 or 403, it answers without metrics of an engine, the
    model is being loaded, anything else."""

    kind: Literal["refused", "timeout", "auth", "empty", "loading", "bad"]
    text: str


class ServerTracker:
    """Everything remembered about one server."""

    def __init__(self, url: str, name: str | None = None, spans: WindowSpans = LIVE) -> None:
        self._spans = spans
        self._url = url
        self._name = name
        self._windows: dict[RowKey, RowWindow] = {}
        self._rows: dict[RowKey, RowSample] = {}
        self._page: Page | None = None
        self._last_good: float | None = None
        self._failure: Failure | None = None
        self._refused_since_page = False
        self._cut = False  # the newest page lacked its end
        self._whole_page_seen = False
        self._restarts = 0
        self._limits = LimitWindow()
        self._turns = Turns()
        self.identity = Identity()

    @property
    def restarts(self) -> int:
        """How often the server has been seen to start anew."""
        return self._restarts

    def feed(self, result: Page | Failure, t: float) -> None:
        """Take the outcome of one poll that ended at monotonic time `t`."""
        if isinstance(result, Failure):
            self._failure = result
            self._refused_since_page |= result.kind == "refused"
            if result.kind == "refused":
                self._turns.forget()
            return
        self._failure = None
        self._last_good = t
        # a server that never ends its page with a newline has always said all that it did before
        if result.partial and self._rows and not (self._cut and figures.covers(result, self._rows)):
            self._take_partial(result)
        else:
            self._take(result)
        self._cut = result.partial
        self._limits.push(t, self._loads())

    def _take(self, page: Page) -> None:
        if (
            self._page is not None
            and self._page.partial
            and not self._whole_page_seen
            and figures.grew(page, self._rows)
        ):
            self._windows = {}  # what a cut page lacked must not look like a jump
        self._whole_page_seen |= not page.partial
        other = self._turns.take(page)
        self._restarts = max(0, self._restarts - self._turns.false_restarts())
        anew = self._restarted(page) and not other
        restarted = anew
        if other:
            self._windows = {}
            self._limits.clear()
        windows: dict[RowKey, RowWindow] = {}
        fresh = True
        for row in page.rows:
            window = self._windows.get(row.key) or self._windows.get(("", row.key[1]))
            fresh = fresh and window is None
            windows[row.key] = window or RowWindow(page.digits, self._spans)
            restarted |= windows[row.key].push(page.t, row, anew)
        models, before = {model for model, _ in windows}, {model for model, _ in self._windows}
        replaced = fresh and bool(before) and bool(models) and not models & before
        if restarted or replaced:
            self._restarts += 1
            self._limits.clear()
        self._windows, self._page = windows, page
        self._rows = {row.key: row for row in page.rows}
        self._refused_since_page = False

    def _take_partial(self, page: Page) -> None:
        """A page cut short: what it still says is new, what is missing keeps its last value."""
        for row in page.rows:
            old = self._rows.get(row.key)
            if old is not None:
                gauges = {**old.gauges, **row.gauges}
                self._rows[row.key] = replace(old, gauges=gauges)
        if self._page is not None:
            self._page = replace(self._page, partial=True)

    def _restarted(self, page: Page) -> bool:
        """Another engine, a new process start time; or, where the page has none, a port that was dead in between."""
        if self._page is None:
            return False
        if self._page.dialect.partition("-")[0] != page.dialect.partition("-")[0]:
            return True
        before, now = self._page.start_time, page.start_time
        if before is not None and now is not None:
            return abs(now - before) > 0.5
        return self._refused_since_page

    def view(self, t: float, now: float, interval_s: float) -> ServerView:
        """The server as of monotonic time `t` and Unix time `now`."""
        state, reason = self._state(t, interval_s)
        identity = self.identity
        base = ServerView(
            url=self._url,
            name=self._name,
            state=state,
            reason=reason,
            version=identity.version,
            model=identity.model,
            max_model_len=identity.max_model_len,
            max_num_seqs=identity.max_num_seqs,
            age_s=None if self._last_good is None else max(0.0, t - self._last_good),
            restarts=self._restarts,
            local=identity.local,
            health=identity.health if state.live else None,
            interval_s=interval_s,
        )
        if self._page is None:
            return replace(base, engine=identity.engine)
        if not (state.live or state is State.STALE):
            return replace(base, engine=self._page.dialect, model=figures.model_name(self._page) or identity.model)
        return self._full(base, now)

    def _engine_rows(self) -> tuple[RowSample, ...]:
        return tuple(row for row in self._rows.values() if row.is_engine)

    def _full(self, base: ServerView, now: float) -> ServerView:
        assert self._page is not None
        page, rows, every = self._page, self._engine_rows(), tuple(self._rows.values())
        several = self._turns.several()
        cache = kv.summary(rows, self._windows, base.max_model_len)
        judged = base.state is State.SERVING and several is None
        room = self._room(page, rows, cache.room_requests)
        limit = self._limits.verdict(room=room) if judged else None
        # of servers that answer in turn two pages say nothing of one of them
        windows = tuple(self._windows.values()) if several is None else ()
        return replace(
            _moving(base, windows),
            engine=page.dialect,
            model=figures.model_name(page) or base.model,
            max_model_len=base.max_model_len or cache.max_model_len,
            max_num_seqs=figures.sum_of_all(map(self._cap, rows)) or base.max_num_seqs,
            running=figures.total(rows, "running"),
            waiting=figures.total(rows, "waiting"),
            waiting_by_reason=figures.by_reason(rows),
            kv_usage=cache.usage,
            kv_engine=cache.engine,
            kv_capacity_tokens=cache.capacity_tokens,
            kv_capacity_approx=cache.approx,
            kv_used_tokens=cache.used_tokens,
            room_requests=room,
            kv_growth_tok_s=cache.growth_tok_s,
            kv_full_in_s=cache.full_in_s,
            gpu_memory_utilization=cache.gpu_memory_utilization,
            preemptions_total=figures.counter_total(every, "preemptions"),
            admission_rejections_total=figures.counter_total(every, "rejections"),
            engines=self._engines(rows),
            lora=page.lora,
            offload_usage=figures.largest(rows, "offload_usage"),
            pool_usage=figures.pools(rows),
            kv_transfer_failures_total=figures.counter_total(every, "transfer_failures"),
            prefix_hit_rate_total=figures.share(rows, "hits", "queries"),
            spec_acceptance_rate_total=figures.share(rows, "accepted", "drafted"),
            servers_in_turn=several,
            up_s=now - page.start_time if page.start_time and now > page.start_time else None,
            limited_by=limit.code if limit else None,
            limited_by_share=limit.share if limit else None,
            limited_by_evidence=limit.evidence if limit else None,
        )

    def _room(self, page: Page, rows: tuple[RowSample, ...], room: int | None) -> int | None:
        """How many more requests fit: where each needs a slot, no more than slots are free."""
        cap, running = figures.sum_of_all(map(self._cap, rows)), figures.total(rows, "running")
        engine = BY_NAME.get(page.dialect)
        if room is None or cap is None or running is None or engine is None or not engine.has_slots:
            return room
        return min(room, max(0, cap - running))

    def _loads(self) -> list[EngineLoad]:
        """What the limit rules look at, as of the newest page."""
        rows = self._engine_rows()
        names = kv.unique_names([row.key for row in rows])
        return [
            EngineLoad(
                names[row.key],
                figures.requests(row, "running"),
                figures.requests(row, "waiting"),
                kv.usage(row),
                figures.whole(row.counters.get("preemptions")),
                self._cap(row),
                row.waiting_by_reason,
                figures.state_pool(row),
            )
            for row in rows
        ]

    def _cap(self, row: RowSample) -> int | None:
        """How many requests one engine runs at once at most."""
        said = row.gauges.get("max_num_seqs")
        return int(said) if said and 1 <= said < MOST_REQUESTS else self.identity.max_num_seqs

    def _state(self, t: float, interval_s: float) -> tuple[State, str | None]:
        failure = self._failure
        if failure is not None and failure.kind == "refused":
            if self.identity.starting:
                return State.STARTING, self.identity.starting
            return State.DOWN, failure.text
        if failure is not None and failure.kind == "auth":
            return State.AUTH, failure.text
        if failure is not None and failure.kind == "loading":
            return State.STARTING, failure.text
        if self._last_good is None:
            if failure is None:
                return (
                    (State.STARTING, self.identity.starting) if self.identity.starting else (State.DOWN, NO_ANSWER_YET)
                )
            there = failure.kind == "empty" or (failure.kind == "bad" and self.identity.answers)
            return (State.NO_ENGINE_METRICS if there else State.DOWN), failure.text
        if t - self._last_good > STALE_AFTER_INTERVALS * interval_s:
            if failure is not None and failure.kind == "empty":
                return State.NO_ENGINE_METRICS, failure.text
            return State.STALE, failure.text if failure else "no new sample"
        return self._live_state(failure)

    def _live_state(self, failure: Failure | None) -> tuple[State, str | None]:
        states = [self._row_state(row) for row in self._engine_rows()]
        awake = [state for state in states if state is not State.SLEEPING]
        words = [word for word in (failure.text if failure else None, self._words(states)) if word]
        reason = "; ".join(words) or None
        if states and not awake:
            return State.SLEEPING, reason
        busy = [state for state in awake if state is not State.IDLE]
        if not busy:
            empty = self._page is not None and self._page.words is not None  # it tells its models, and there are none
            return (State.IDLE if states or empty else State.SERVING), reason
        if all(state is State.STALLED for state in busy):
            return State.STALLED, reason
        return State.SERVING, reason

    def _words(self, states: list[State]) -> str | None:
        """The details of a live state: what is stalled or asleep, and what else is wrong with the server."""
        words = [self._page.words] if self._page is not None and self._page.words else []
        for row, state in zip(self._engine_rows(), states, strict=True):
            label = "" if len(states) == 1 else f"engine {row.key[1]}: "
            if state is State.STALLED:
                still = self._windows[row.key].still_s
                words.append(f"{label}{figures.load_words(row)}, nothing moved for {still:.0f} s")
            elif state is State.SLEEPING:
                words.append(f"{label}asleep, level {row.sleep_level}")
        if self._page is not None and self._page.partial:
            words.append("the page was cut short")
        if (several := self._turns.several()) is not None:
            words.append(f"{_NUMBERS.get(several, 'several')} servers answer in turn at this address: no rates")
        if self.identity.health:
            words.append(self.identity.health)
        return "; ".join(words) or None

    def _row_state(self, row: RowSample) -> State:
        running, waiting = figures.requests(row, "running"), figures.requests(row, "waiting")
        window = self._windows[row.key]
        if row.sleep_level:
            return State.SLEEPING
        if (running or waiting) and window.stalled:
            return State.STALLED
        if running or waiting or running is None:
            return State.SERVING
        return State.SERVING if window.moved("generation") else State.IDLE

    def _engines(self, rows: tuple[RowSample, ...]) -> tuple[EngineRow, ...]:
        names = kv.unique_names([row.key for row in rows])
        capacities, alone = kv.capacities(rows), self._turns.several() is None
        return tuple(
            EngineRow(
                names[row.key],
                row.key[0] or None,
                figures.requests(row, "running"),
                figures.requests(row, "waiting"),
                kv.usage(row),
                capacities[row.key][0],
                self._row_state(row),
                traffic.generation_rate(self._windows[row.key]) if alone else None,
                figures.whole(row.counters.get("preemptions")),
                self._cap(row),
                row.waiting_by_reason,
                row.role,
                figures.whole(row.gauges.get("memory_bytes")),
                figures.whole(row.gauges.get("gpu_memory_bytes")),
                row.gauges.get("expires"),
            )
            for row in rows
        )


def _moving(base: ServerView, windows: tuple[RowWindow, ...]) -> ServerView:
    """The server with what is known over a window: rates, hits, drafts, latency."""
    hits, drafts = traffic.prefix_hits(windows), traffic.speculation(windows)
    return replace(
        base,
        rates=traffic.rates(windows),
        prefix_hit_rate=hits.rate,
        prefix_hit_scope=hits.scope,
        external_prefix_hit_rate=hits.external,
        spec_tokens_per_step=drafts.tokens_per_step,
        spec_acceptance_rate=drafts.acceptance,
        spec_accepted_length=drafts.length,
        spec_accepted_by_position=drafts.by_position,
        finished_by_reason=traffic.per_second(windows, "finished"),
        latency=traffic.latencies(windows),
    )
