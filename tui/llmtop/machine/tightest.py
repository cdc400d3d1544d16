"""Which pools of memory count, and which of them runs out first."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.contract.snapshot import Pool, Snapshot


def device_pools(snapshot: Snapshot | None) -> list[Pool]:
    """The pools that models live in; host RAM only where there is nothing else."""
    return _of_models(snapshot.pools) if snapshot is not None else []


def tightest_pool(snapshot: Snapshot | None) -> Pool | None:
    """The pool that will run out first."""
    return min(device_pools(snapshot), key=tightness, default=None)


def tightest_of(snapshot: Snapshot, node: str | None) -> Pool | None:
    """The pool of one machine that will run out first."""
    return min(_of_models([pool for pool in snapshot.pools if pool.node == node]), key=tightness, default=None)


def _of_models(pools: Sequence[Pool]) -> list[Pool]:
    return [pool for pool in pools if pool.kind != "ram"] or list(pools)


def tightness(pool: Pool) -> tuple[int, float]:
    """The less, the sooner it runs out: its state, then the share that is left."""
    order = {"critical": 0, "low": 1, "ok": 2, None: 3}[pool.state]
    share = 1.0 if not pool.total_bytes or pool.headroom_bytes is None else pool.headroom_bytes / pool.total_bytes
    return (order if order < 2 else 2, share + (1.0 if pool.kind == "lpddr" else 0.0))
