"""Every engine that llmtop knows, and which of them a series of a metrics page belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from llmtop.engines.command_line import process
from llmtop.engines.registry.entry import EngineEntry, Kind, MetricSource
from llmtop.engines.registry.gateways import LLM_D, SGL_ROUTER, SMG, VLLM_ROUTER
from llmtop.engines.registry.llamacpp import LLAMACPP
from llmtop.engines.registry.lmdeploy import LMDEPLOY
from llmtop.engines.registry.mlx import MLX_LM, MLX_VLM, VLLM_MLX
from llmtop.engines.registry.nvidia import DYNAMO, NIM
from llmtop.engines.registry.ollama import LLAMA_SWAP, LM_STUDIO, OLLAMA
from llmtop.engines.registry.proxy import PROXY
from llmtop.engines.registry.sglang import SGLANG
from llmtop.engines.registry.tensorrt import TRITON, TRTLLM
from llmtop.engines.registry.tgi import TGI
from llmtop.engines.registry.vllm import ROUTER, VLLM

RAY = "-ray"
# what any server's process or web framework says; it is of no engine, and of the page as a whole
PROCESS = EngineEntry(
    "",
    "",
    (
        MetricSource("start_time", "process_start_time_seconds", Kind.PAGE),
        MetricSource("http", "http_requests_total", Kind.COUNTER, by="status"),
    ),
)
# where a page has the families of two, the first of them is read: an engine before what stands in front of it
ENGINES: tuple[EngineEntry, ...] = (
    *(VLLM, SGLANG, LLAMACPP, TGI, TRTLLM, LMDEPLOY, VLLM_MLX, MLX_VLM, MLX_LM, OLLAMA, LM_STUDIO, LLAMA_SWAP),
    *(ROUTER, TRITON, DYNAMO, NIM, VLLM_ROUTER, SGL_ROUTER, SMG, LLM_D, PROXY),
)
# Ray exports an engine's metrics under `ray_` names; its replicas have caches of their own
_THROUGH_RAY = tuple(
    replace(
        engine,
        name=engine.name + RAY,
        title=f"{engine.title} on Ray",
        own_blocks=True,
        processes=(process(r"ray\.dashboard\.agent$", beside=r"^ray::ServeReplica.*(LLM|vllm)"),),
        port=0,
        port_options=("--metrics-export-port",),
    )
    for engine in (VLLM, SGLANG)
)
BY_NAME: Mapping[str, EngineEntry] = {
    engine.name: engine for engine in (*ENGINES, *_THROUGH_RAY, replace(VLLM, name="vllm-rust", title="vLLM (Rust)"))
}

Reading = tuple[EngineEntry, MetricSource]


def spelled(metric: str) -> str:
    """A metric's name as Ray and gateways spell it, which have no colon."""
    return metric.replace(":", "_")


def _entries(*engines: EngineEntry) -> Iterator[tuple[str, Reading]]:
    for engine in engines:
        for source in engine.sources:
            yield spelled(source.metric), (engine, source)


def _index(
    entries: Iterator[tuple[str, Reading]],
) -> dict[str, list[Reading]]:
    index: dict[str, list[Reading]] = {}
    for name, entry in entries:
        index.setdefault(name, []).append(entry)
    return index


_BY_METRIC = _index(_entries(*(engine for engine in ENGINES if engine is not ROUTER), PROCESS))
_BY_RAY = _index((f"ray_{name}", entry) for name, entry in _entries(*_THROUGH_RAY))
_BY_ROUTER = _index(_entries(ROUTER))


def title(engine: str) -> str:
    """What people call an engine."""
    return BY_NAME[engine].title if engine in BY_NAME else engine


def spelled_as(name: str, source: MetricSource) -> bool:
    """Whether a metric is spelled as its engine does it, or as Ray spells that."""
    return name in (source.metric, f"ray_{spelled(source.metric)}")


def engine_text(engine: str | None, version: str | None) -> str | None:
    """What people call a server's engine, with its version; None when nothing is known of it."""
    return f"{title(engine)} {version or ''}".strip() if engine is not None else None


def reads(name: str) -> bool:
    """Whether any engine has a signal on a metric of this name."""
    plain = spelled(name)
    return plain in _BY_METRIC or plain in _BY_RAY or plain in _BY_ROUTER


def sources(name: str, labels: Mapping[str, str]) -> list[Reading]:
    """The engines that have a signal on a metric, and what it is to them."""
    plain = spelled(name)
    routed = "server" in labels and "model_name" not in labels and "engine" not in labels
    if routed and name.startswith("vllm:"):
        return _BY_ROUTER.get(plain, [])
    return _BY_METRIC.get(plain) or _BY_RAY.get(plain, [])
