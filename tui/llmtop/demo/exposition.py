"""Writes the /metrics page of a vLLM 0.32 server for simulated engines: families, labels, bounds and order
as the real one's.

One API server process writes `process_*`, `python_*` and a `_created` gauge beside every counter and
histogram; with several engines vLLM runs several API servers, and such a multiprocess page has none of
these and no gauges before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from llmtop.demo.cache_config import cache_config
from llmtop.demo.counters import Counters, Histogram
from llmtop.demo.engine import Engine
from llmtop.demo.families import (
    COUNTERS,
    DIFFUSION,
    ESTIMATES,
    GAUGES,
    HISTOGRAMS,
    PROCESS,
    REJECTIONS,
)
from llmtop.demo.http_stats import HttpStats
from llmtop.demo.profile import Profile

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine on the page: its rank as the label says it, and whether it sleeps."""

    rank: str
    engine: Engine
    sleeping: bool = False


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What a page says beside the engines' own numbers.

    `started` is the Unix time of the process, `created` that of its counters; `multiprocess` as with
    several API servers; `log_stats` off leaves out every engine family; `clock` off leaves out start times
    though the page is a single process's.
    """

    model: str
    started: float
    created: float
    cpu_seconds: float = 0.0
    multiprocess: bool = False
    log_stats: bool = True
    clock: bool = True
    http: HttpStats = field(default_factory=HttpStats)


def escape(text: str) -> str:
    """A label value as the text format wants it."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def page(profile: Profile, engines: Sequence[EngineView], options: PageOptions) -> str:
    """The whole page; engines not in `engines` are not on it."""
    writer = _Writer(options)
    if options.clock and not options.multiprocess:
        writer.process()
    if options.log_stats:
        _engine_families(writer, profile, engines, options)
    options.http.write(writer.sample_family)
    return writer.text()


class _Writer:
    """Collects lines; knows when a family gets a `_created` twin."""

    def __init__(self, options: PageOptions) -> None:
        self._options = options
        self._lines: list[str] = []
        self._created = options.clock and not options.multiprocess

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def head(self, name: str, kind: str, text: str) -> None:
        self._lines += (f"# HELP {name} {text}", f"# TYPE {name} {kind}")

    def sample(self, name: str, labels: Labels, value: float) -> None:
        inner = ",".join(f'{key}="{escape(text)}"' for key, text in sorted(labels))
        self._lines.append(f"{name}{{{inner}}} {number(value)}" if inner else f"{name} {number(value)}")

    def created(self, name: str, text: str, children: Iterable[Labels]) -> None:
        if not self._created:
            return
        self.head(f"{name}_created", "gauge", text)
        for labels in children:
            self.sample(f"{name}_created", labels, self._options.created)

    def sample_family(
        self,
        name: str,
        kind: str,
        text: str,
        rows: Sequence[tuple[str, Labels, float]],
        children: Sequence[Labels],
    ) -> None:
        """A family of ready rows: (suffix, labels, value)."""
        self.head(name, kind, text)
        for suffix, labels, value in rows:
            self.sample(name + suffix, labels, value)
        self.created(name.removesuffix("_total"), text, children)

    def counter(self, name: str, text: str, rows: Sequence[tuple[Labels, float]]) -> None:
        self.sample_family(f"{name}_total", "counter", text, [("", *row) for row in rows], [r[0] for r in rows])

    def histogram(self, name: str, text: str, rows: Sequence[tuple[Labels, Histogram]]) -> None:
        self.head(name, "histogram", text)
        for labels, histogram in rows:
            self._buckets(name, labels, histogram)
        self.created(name, text, [r[0] for r in rows])

    def _buckets(self, name: str, labels: Labels, histogram: Histogram) -> None:
        # `le` sorts between engine and model_name, as the client library prints it
        before = "".join(f'{k}="{escape(v)}",' for k, v in sorted(labels) if k < "le")
        after = "".join(f',{k}="{escape(v)}"' for k, v in sorted(labels) if k > "le")
        edges = [*map(number, histogram.bounds), "+Inf"]
        counts = histogram.cumulative()
        self._lines += [
            f'{name}_bucket{{{before}le="{edge}"{after}}} {count}.0' for edge, count in zip(edges, counts, strict=True)
        ]
        self.sample(f"{name}_count", labels, counts[-1])
        self.sample(f"{name}_sum", labels, histogram.sum)

    def process(self) -> None:
        values = {
            "process_start_time_seconds": self._options.started,
            "process_cpu_seconds_total": self._options.cpu_seconds,
        }
        for name, kind, text, rows in PROCESS:
            self.head(name, kind, text)
            for labels, value in rows:
                self.sample(name, labels, values.get(name, value))


def number(value: float) -> str:
    """A number as the client library prints it: always a float, exponents from 1e+06 on."""
    text = repr(float(value))
    if "e" in text or "." not in text or value < 1e6:
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)
    mantissa = text.replace(".", "").rstrip("0")
    exponent = text.index(".") - 1
    return f"{mantissa[0]}.{mantissa[1:]}e+{exponent:02d}" if mantissa[1:] else f"{mantissa}e+{exponent:02d}"


def _engine_families(writer: _Writer, profile: Profile, engines: Sequence[EngineView], options: PageOptions) -> None:
    base = {view.rank: (("engine", view.rank), ("model_name", options.model)) for view in engines}

    def per_engine(read: Callable[[Counters], Iterable[tuple[Labels, float]]]) -> list[tuple[Labels, float]]:
        return [
            ((*base[view.rank], *labels), value) for view in engines for labels, value in read(view.engine.counters)
        ]

    for name, text, read in ESTIMATES:
        writer.counter(name, text, per_engine(read))
    for name, text, gauge in GAUGES:
        writer.head(name, "gauge", text)
        for view in engines:
            if options.multiprocess and name != "vllm:engine_sleep_state" and not view.engine.stepped:
                continue
            for labels, value in gauge(view.engine.gauges, view.sleeping):
                writer.sample(name, (*base[view.rank], *labels), value)
    families = COUNTERS + (DIFFUSION if profile.canvas else ())
    for name, text, read in families:
        writer.counter(name, text, per_engine(read))
    name, text, reasons = REJECTIONS
    writer.counter(name, text, [((("model_name", options.model), ("reason", r)), 0.0) for r in reasons])
    for name, text, pick in HISTOGRAMS:
        writer.histogram(name, text, [(base[v.rank], pick(v.engine.counters)) for v in engines])
    writer.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
    for view in engines:
        labels = cache_config(profile, len(engines))
        writer.sample("vllm:cache_config_info", (("engine", view.rank), *labels), 1.0)


def only_families(text: str, names: Sequence[str]) -> str:
    """The families of a page that hold one of the sample names, as `?name[]=` filters."""
    kept = []
    for family in text.split("# HELP ")[1:]:
        samples = (line for line in family.split("\n")[2:] if line)
        if any(line.partition("{")[0].partition(" ")[0] in names for line in samples):
            kept.append("# HELP " + family)
    return "".join(kept)
