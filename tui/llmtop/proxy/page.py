"""The proxy's own metrics page."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.proxy.meter import WINDOW_S, Figures, Observations, TrafficMeter

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
PREFIX = "llmtop_proxy_"


def page(meter: TrafficMeter, now: float) -> bytes:
    """What passed so far, in the text format; `now` is of the meter's clock."""
    lines = [f"process_start_time_seconds {meter.started:.3f}"]
    lines += [f"{PREFIX}requests_running 0"] if not meter.models else []
    lines += [f'http_requests_total{{status="{status}"}} {count}' for status, count in sorted(meter.statuses.items())]
    for name, figures in meter.models.items():
        lines += _model(_label("model_name", name) if name else "", figures, now)
    return "\n".join([*lines, ""]).encode()


def _model(labels: str, figures: Figures, now: float) -> Iterator[str]:
    of_all = _braced(labels)
    yield f"{PREFIX}requests_running{of_all} {figures.running}"
    yield f"{PREFIX}alive_seconds{of_all} {figures.alive(now):.3f}"
    # the same total under another name, so that a reader knows that it moves in steps
    steps = _lately(figures.whole_at, now)
    yield f"{PREFIX}generation_tokens{'_at_end' if steps else ''}_total{of_all} {figures.generation}"
    told = () if _lately(figures.untold_at, now) else (("", figures.prompt), ("_cached", figures.cached))
    for what, value in told:
        if value is not None:
            yield f"{PREFIX}prompt_tokens{what}_total{of_all} {value}"
    for reason in ("stop", "abort", "error"):
        yield f"{PREFIX}requests_total{_braced(labels, _label('finished_reason', reason))} {figures.ended[reason]}"
    yield from _histogram("time_to_first_token_seconds", labels, figures.ttft)
    yield from _histogram("inter_token_latency_seconds", labels, figures.itl)
    yield from _histogram("time_per_output_token_seconds", labels, figures.tpot)
    yield from _histogram("request_duration_seconds", labels, figures.e2e)


def _lately(moment: float | None, now: float) -> bool:
    return moment is not None and now - moment < WINDOW_S


def _histogram(name: str, labels: str, histogram: Observations) -> Iterator[str]:
    total = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        total += count
        yield f"{PREFIX}{name}_bucket{_braced(labels, _label('le', bound))} {total}"
    yield f"{PREFIX}{name}_sum{_braced(labels)} {histogram.sum:.9f}"
    yield f"{PREFIX}{name}_count{_braced(labels)} {total}"


def _braced(*labels: str) -> str:
    listed = ",".join(label for label in labels if label)
    return f"{{{listed}}}" if listed else ""


def _label(name: str, value: object) -> str:
    text = str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{text}"'
