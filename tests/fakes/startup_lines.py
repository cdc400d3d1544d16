"""The first lines of a start-up, as far as a test needs them."""

from __future__ import annotations

PREFIX = "(EngineCore pid=311) "
STARTED = [
    "(APIServer pid=1) INFO 06-08 00:08:25 [api_server.py:1] vLLM API server version 0.24.0",
    PREFIX + "INFO 06-08 00:08:30 [gpu_model_runner.py:1] Starting to load model org/m...",
]
LOADED = [*STARTED, PREFIX + "INFO 06-08 00:09:00 [r.py:1] Model loading took 20.0 GiB memory and 29.0 seconds"]
KV = [
    *LOADED,
    PREFIX + "INFO 06-08 00:09:20 [w.py:1] Available KV cache memory: 12.48 GiB",
    PREFIX + "INFO 06-08 00:09:20 [k.py:1] GPU KV cache size: 204,000 tokens, "
    "Maximum concurrency for 4,096 tokens per request: 49.80x",
]
CAPTURING = [*KV, "Capturing CUDA graphs (decode, FULL):  10%|█         | 4/35 [00:00<00:02, 15.38it/s]"]
