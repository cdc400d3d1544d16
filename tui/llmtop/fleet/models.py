"""A row per model: its replicas added up, and the fullest of them named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llmtop.contract.snapshot import Latency, ModelView, ServerView, State

_WORST_FIRST = (State.DOWN, State.STALLED, State.STALE, State.AUTH, State.NO_ENGINE_METRICS, State.STARTING)


def hurt(server: ServerView) -> tuple[int, int, float, float]:
    """How much a server hurts, to sort by: what does not serve, then who lets requests wait, is full, is slow."""
    badness = len(_WORST_FIRST) - _WORST_FIRST.index(server.state) if server.state in _WORST_FIRST else 0
    return badness, server.waiting or 0, server.kv_usage or 0.0, server.latency.ttft.mean_s or 0.0


def models(servers: Iterable[ServerView], source: str) -> tuple[ModelView, ...]:
    """The models of a fleet by name; what is down counts as a replica and adds nothing.

    A row that stands for the whole source, since there is no replica, is none.
    """
    by_model: dict[str, list[ServerView]] = {}
    for server in servers:
        if server.url == source:
            continue
        by_model.setdefault(server.model or "", []).append(server)
    return tuple(_model(name, by_model[name]) for name in sorted(by_model))


def _model(name: str, servers: Sequence[ServerView]) -> ModelView:
    live = [server for server in servers if server.state.live]
    fullest = max(
        (server for server in live if server.kv_usage is not None), key=lambda s: s.kv_usage or 0.0, default=None
    )
    running, waiting = (_sum(live, lambda s: s.running), _sum(live, lambda s: s.waiting))
    preemptions = _sum(live, lambda s: s.preemptions_total)
    return ModelView(
        name or None,
        len(servers),
        sum(server.healthy for server in servers),
        None if running is None else int(running),
        None if waiting is None else int(waiting),
        fullest.kv_usage if fullest is not None else None,
        fullest.url if fullest is not None else None,
        _sum(live, lambda s: s.rates.generation_tok_s),
        _sum(live, lambda s: s.rates.prompt_tok_s),
        _sum(live, lambda s: s.rates.requests_s),
        None if preemptions is None else int(preemptions),
        _mean([server.latency.ttft for server in live]),
        _mean([server.latency.itl for server in live]),
    )


def _sum(servers: Iterable[ServerView], read: Callable[[ServerView], float | None]) -> float | None:
    known = [value for server in servers if (value := read(server)) is not None]
    return sum(known) if known else None


def _mean(parts: Iterable[Latency]) -> float | None:
    """The exact mean over all observations."""
    known = [(part.n, part.mean_s) for part in parts if part.n and part.mean_s is not None]
    count = sum(n for n, _ in known)
    return sum(n * mean for n, mean in known) / count if count else None
