"""Many servers in a line or two: whether they are well, and which of them hurts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from llmtop.contract.snapshot import FleetView, ServerView, Snapshot, State
from llmtop.contract.units import count, duration
from llmtop.fleet.models import hurt
from llmtop.ui.panels.headline import kv_state
from llmtop.ui.panels.verdict import VerdictWords, told
from llmtop.ui.panels.view import View
from llmtop_widgets.text import Line, Span, line, spread, text_width, width

MOST_NAMED = 3


def fleet_header(view: View, fleet: FleetView, marks: Line, cells: int) -> Line:
    """How many replicas, through which Prometheus, how often scraped, and the age of the last answer."""
    models = view.snapshot.models if view.snapshot is not None else ()
    replicas = sum(model.replicas for model in models)
    named = sum(model.model is not None for model in models)
    of = f" of {named} models" if named > 1 else ""
    age = f" {fleet.age_s + view.age_s:.0f} s ago " if fleet.age_s is not None else " "
    right = line(*marks, Span(age, "low" if fleet.reason else "label"))
    left = [Span(" llmtop  ", "accent"), Span(f"{replicas} replica{'s' if replicas != 1 else ''}{of}", "bold")]
    scraped = f"scraped every {duration(fleet.scrape_interval_s)}" if fleet.scrape_interval_s else None
    for text in (f"Prometheus {fleet.source.removeprefix('http://')}", fleet.select, scraped):
        if text and width(tuple(left)) + 2 + text_width(text) < cells - width(right):
            left += [Span("  "), Span(text, "label")]
    return spread(tuple(left), right, cells)


def fleet_line(snapshot: Snapshot, cells: int) -> Line:
    """The verdict over all servers, the worst first."""
    return told(fleet_verdict(snapshot), cells)


def fleet_verdict(snapshot: Snapshot) -> VerdictWords:
    """What a glance should tell of all servers together."""
    servers, fleet = snapshot.servers, snapshot.fleet
    if fleet is not None and all(server.url == fleet.source for server in servers):
        reason = fleet.reason or next((server.reason for server in servers if server.reason), None)
        return VerdictWords("critical" if fleet.reason else "low", "NO REPLICAS", reason or "none seen yet")
    unwell = [server for server in servers if not server.state.healthy and server.state is not State.STARTING]
    waiting = [server for server in servers if server.state.live and server.waiting]
    full = [server for server in servers if server.state.live and kv_state(server.kv_usage)[0] == "FULL"]
    wait = f"{count(sum(server.waiting or 0 for server in waiting))} wait on {len(waiting)}" if waiting else ""
    if unwell:
        states = Counter(server.state for server in unwell)
        kinds = ", ".join(f"{number} {state}" for state, number in states.most_common())
        headline = f"{len(unwell)} OF {len(servers)} NOT WELL"
        more = f"; {wait} of the others" if wait else ""
        return VerdictWords("critical", headline, f"{kinds}: {_names(unwell)}{more}")
    if waiting:
        return VerdictWords("low", f"{wait} OF {len(servers)}".upper(), _names(waiting))
    if full:
        return VerdictWords("low", f"KV CACHE FULL ON {len(full)} OF {len(servers)}", _names(full))
    starting = sum(server.state is State.STARTING for server in servers)
    live = [server for server in servers if server.state.live]
    running = [server.running for server in live if server.running is not None]
    told = [f"{count(sum(running))} run"] if running else []
    told += ["nobody waits"] if any(server.waiting is not None for server in live) else []
    told += [f"{starting} start"] if starting else []
    return VerdictWords("ok", f"ALL {len(servers) - starting} WELL", ", ".join(told))


def _names(servers: Sequence[ServerView]) -> str:
    """The first few by how much they hurt."""
    worst = sorted(servers, key=hurt, reverse=True)
    named = ", ".join(server.name or server.url.removeprefix("http://") for server in worst[:MOST_NAMED])
    return named + (f" and {len(worst) - MOST_NAMED} more" if len(worst) > MOST_NAMED else "")
