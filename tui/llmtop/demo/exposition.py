"""Write the /metrics page of a vLLM 0.32 server for simulated engines: a captured page with their values in it.

One API server process writes `process_*`, `python_*` and a `_created` gauge beside every counter and
histogram; with several engines vLLM runs several API servers, and such a multiprocess page has none of
these and no gauges before the first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from prometheus_client import Metric

from llmtop.demo.blocks import NULL_BLOCKS
from llmtop.demo.families import HISTOGRAMS, EngineView, Labels, captured, value_of
from llmtop.demo.http_stats import HttpStats, bucket_rows
from llmtop.demo.profile import MachineProfile

Row = tuple[str, Labels, float]  # suffix of the name, labels, value


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

    @property
    def one_process(self) -> bool:
        """Whether the page has a process of its own, and with it times of birth."""
        return self.clock and not self.multiprocess


def page(profile: MachineProfile, engines: Sequence[EngineView], options: PageOptions) -> str:
    """The whole page; engines not in `engines` are not on it."""
    lines: list[str] = []
    for family in captured():
        if _told(family.name, profile, options):
            lines += _family(family, list(_rows(family, profile, engines, options)), options)
    return "\n".join(lines) + "\n"


def _told(name: str, profile: MachineProfile, options: PageOptions) -> bool:
    if name.startswith("vllm:diffusion_"):
        return options.log_stats and profile.canvas is not None
    if name.startswith("vllm:"):
        return options.log_stats
    return name.startswith("http_") or options.one_process


def _family(family: Metric, rows: Sequence[Row], options: PageOptions) -> Iterator[str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    yield from _head(name, family.type, family.documentation)
    for suffix, labels, value in rows:
        yield f"{name}{suffix}{_inner(labels)} {number(value)}"
    if options.one_process and family.type != "gauge" and family.name.startswith(("vllm:", "http_")):
        yield from _head(f"{family.name}_created", "gauge", family.documentation)
        children = dict.fromkeys(tuple(pair for pair in labels if pair[0] != "le") for _, labels, _ in rows)
        for labels in children:
            yield f"{family.name}_created{_inner(labels)} {number(options.created)}"


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _rows(
    family: Metric, profile: MachineProfile, engines: Sequence[EngineView], options: PageOptions
) -> Iterable[Row]:
    if family.name.startswith("http_"):
        return options.http.rows(family.name)
    if not family.name.startswith("vllm:"):
        own = {"process_start_time_seconds": options.started, "process_cpu_seconds": options.cpu_seconds}
        return [("", tuple(s.labels.items()), own.get(family.name, s.value)) for s in family.samples]
    if family.name in HISTOGRAMS:
        return [row for view in engines for row in _histogram(family.name, view, options)]
    return _scalars(family, profile, engines, options)


def _histogram(name: str, view: EngineView, options: PageOptions) -> Iterable[Row]:
    labels = (("engine", view.rank), ("model_name", options.model))
    return bucket_rows(labels, getattr(view.engine.counters, HISTOGRAMS[name]))


def _scalars(
    family: Metric, profile: MachineProfile, engines: Sequence[EngineView], options: PageOptions
) -> Iterator[Row]:
    """The rows of a family for every engine that has them; one row for all where no engine is named."""
    of_engine = any("engine" in sample.labels for sample in family.samples)
    config = family.name == "vllm:cache_config_info"
    waits = options.multiprocess and family.type == "gauge" and not config and "sleep" not in family.name
    for view in engines if of_engine else engines[:1]:
        if waits and not view.engine.stepped:
            continue
        for sample in family.samples:
            labels = sample.labels | ({"engine": view.rank} if of_engine else {})
            if config:
                yield "", tuple((labels | _cache_config(profile, len(engines))).items()), 1.0
                continue
            own = next((v for k, v in labels.items() if k not in ("engine", "model_name")), None)
            yield "", tuple((labels | {"model_name": options.model}).items()), value_of(family.name, own, view)


def _cache_config(profile: MachineProfile, engines: int) -> dict[str, str]:
    """What of vLLM's CacheConfig is this engine's own; `num_gpu_blocks` is the sum over all, the tokens are one's."""
    config = profile.engine
    return {
        "block_size": str(config.block_size),
        "effective_attention_block_size": str(config.block_size),
        "gpu_memory_utilization": str(config.gpu_memory_utilization),
        "kv_cache_size_tokens": str(config.kv_tokens),
        "kv_cache_max_concurrency": str(config.kv_tokens / profile.model.max_model_len),
        "num_gpu_blocks": str((config.kv_tokens // config.block_size + NULL_BLOCKS) * engines),
    }


def escape(text: str) -> str:
    """A label value as the text format wants it."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@lru_cache(maxsize=4096)
def _inner(labels: Labels) -> str:
    """Labels in the client library's order: by name."""
    return "{" + ",".join(f'{key}="{escape(text)}"' for key, text in sorted(labels)) + "}" if labels else ""


def number(value: float) -> str:
    """A number as the client library prints it: always a float, exponents from 1e+06 on."""
    text = repr(float(value))
    if "e" in text or "." not in text or value < 1e6:
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)
    mantissa = text.replace(".", "").rstrip("0")
    exponent = text.index(".") - 1
    return f"{mantissa[0]}.{mantissa[1:]}e+{exponent:02d}" if mantissa[1:] else f"{mantissa}e+{exponent:02d}"


def only_families(text: str, names: Sequence[str]) -> str:
    """The families of a page that hold one of the sample names, as `?name[]=` filters."""
    kept = []
    for family in text.split("# HELP ")[1:]:
        samples = (line for line in family.split("\n")[2:] if line)
        if any(line.partition("{")[0].partition(" ")[0] in names for line in samples):
            kept.append("# HELP " + family)
    return "".join(kept)
