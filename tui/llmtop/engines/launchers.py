"""How every engine is started: one line a way, the ports are the engines' defaults."""

from __future__ import annotations

from llmtop.engines.command_line import Launcher

_VLLM_LIMIT, _SGLANG_LIMIT = ("--max-num-seqs",), ("--max-running-requests",)

LAUNCHERS: tuple[Launcher, ...] = (
    Launcher("vllm", r"vllm|vllm\.entrypoints\.cli\.main", ("serve",), limit_options=_VLLM_LIMIT),
    Launcher("vllm", r"vllm\.entrypoints\.(openai\.)?api_server", limit_options=_VLLM_LIMIT),
    Launcher("sglang", r"sglang|sglang\.cli\.main", ("serve",), port=30000, limit_options=_SGLANG_LIMIT),
    Launcher("sglang", r"sglang\.launch_server", port=30000, limit_options=_SGLANG_LIMIT),
    Launcher(
        "llamacpp", r"llama-server", port=8080, limit_options=("--parallel", "-np", "--n-parallel"), port_elsewhere=True
    ),
    Launcher("ollama", r"ollama", ("serve",), port=11434, port_elsewhere=True, has_children=True),
    Launcher("ollama", r"ollama", ("start",), port=11434, port_elsewhere=True, has_children=True),
    Launcher("lmstudio", r"(?i:lm[ -]?studio|llmster)", port=1234, only_listening=True, has_children=True),
    Launcher("mlx", r"mlx_(lm|vlm)\.server", port=8080),
    Launcher("mlx", r"mlx_(lm|vlm)", ("server",), port=8080),
    Launcher("omlx", r"omlx", ("serve",)),
    Launcher("vllm-mlx", r"vllm-mlx|vllm_mlx(\.cli)?", ("serve",), limit_options=_VLLM_LIMIT),
    Launcher("vllm-mlx", r"vllm_mlx\.server", limit_options=_VLLM_LIMIT),
    Launcher(
        "tgi",
        r"text-generation-(launcher|router)",
        port=3000,
        port_options=("--port", "-p"),
        limit_options=("--max-concurrent-requests",),
        port_elsewhere=True,
    ),
    Launcher("trtllm-serve", r"trtllm-serve|tensorrt_llm\.commands\.serve", limit_options=("--max-batch-size",)),
    Launcher(
        "lmdeploy",
        r"lmdeploy",
        ("serve", "api_server"),
        port=23333,
        port_options=("--server-port",),
        limit_options=("--max-batch-size",),
    ),
    Launcher(
        "lmdeploy",
        r"lmdeploy\.serve\.openai\.api_server",
        port=23333,
        port_options=("--server-port",),
        limit_options=("--max-batch-size",),
    ),
    Launcher("triton", r"tritonserver", port=8002, port_options=("--metrics-port",)),
    Launcher(
        "nim", r"vllm_nvext\.entrypoints\.[\w.]*api_server|nim_llm\w*\.[\w.]*(launch|server)", port_elsewhere=True
    ),
    Launcher("dynamo", r"dynamo\.frontend(\.main)?", port_options=("--http-port", "--port"), port_elsewhere=True),
    # Ray Serve's own port has no metrics of the engine: those are with Ray's
    Launcher(
        "vllm-ray",
        r"ray\.dashboard\.agent",
        beside=r"^ray::ServeReplica.*(LLM|vllm)",
        port=None,
        port_options=("--metrics-export-port",),
    ),
    Launcher("production-stack-router", r"vllm-router|vllm_router\.app", port=8001),
    Launcher("vllm-router", r"sglang_router\.launch_(router|server)", port=29000, port_options=("--prometheus-port",)),
    Launcher("vllm-router", r"sglang-router|smg", port=29000, port_options=("--prometheus-port",)),
    Launcher("llama-swap", r"llama-swap", port=8080, port_options=("--listen", "-listen")),
    Launcher("demo", r"llmtop", ("demo",), needs="--serve", port=None),
)
