"""A command that starts like a vLLM server: prints its lines, opens the port, answers /health, ends on a signal.

Usage: vllm_start.py PORT [--fail] [--die] [--scenario FILE] [--pause S] [--api-key KEY]
With --scenario it writes a fake NVML scenario whose memory follows the phases, with an activation peak of 150 ms.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        print("health asked at", time.time(), flush=True)


def say(text: str, process: str = "EngineCore", source: str = "core.py") -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"({process} pid={os.getpid()}) INFO {stamp} [{source}:1] {text}", flush=True)


class Memory:
    """Writes used memory, in MiB, into the scenario a fake NVML reads."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._text = "" if self._path is None else self._path.read_text()

    def use(self, mib: int) -> None:
        if self._path is None:
            return
        lines = [line for line in self._text.splitlines() if not line.startswith("gpu0.mem.used")]
        new = self._path.with_suffix(".new")
        new.write_text("\n".join([*lines, f"gpu0.mem.used = {mib}M"]) + "\n")
        new.replace(self._path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--scenario")
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--api-key")
    args = parser.parse_args()
    memory = Memory(args.scenario)
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    load(args, memory)
    if args.fail:
        fail()
    serve(args.port, stop, memory, args.pause)


def load(args: argparse.Namespace, memory: Memory) -> None:
    say("vLLM API server version 0.32.0", "APIServer")
    say(f"non-default args: {{'port': {args.port}, 'api_key': ['{args.api_key}'], 'max_model_len': 4096}}", "APIServer")
    memory.use(600)
    time.sleep(args.pause)
    say("Starting to load model org/tiny...")
    memory.use(30_000)
    time.sleep(args.pause)
    if args.die:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.write("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]\r")
    sys.stdout.write("Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:02<00:00]\n")
    say("Model loading took 28.5 GiB memory and 0.100000 seconds")
    time.sleep(args.pause)
    say("torch.compile took 0.10 s in total")
    time.sleep(args.pause)
    memory.use(66_000)
    time.sleep(0.15)
    memory.use(30_000)
    time.sleep(args.pause)
    say("Initial profiling/warmup run took 0.15 s")


def fail() -> None:
    say("Available KV cache memory: 1.50 GiB")
    say("Traceback (most recent call last):")
    say(
        "ValueError: To serve at least one request with the model's max seq len (4096), (2.0 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (1.50 GiB). Based on the available memory, the estimated "
        "maximum model length is 3072. Try decreasing `max_model_len`."
    )
    say("EngineCore failed to start.")
    sys.exit(7)


def serve(port: int, stop: threading.Event, memory: Memory, pause: float) -> None:
    say("Available KV cache memory: 40.00 GiB")
    say("GPU KV cache size: 100,000 tokens, Maximum concurrency for 4,096 tokens per request: 24.41x")
    memory.use(71_000)
    time.sleep(pause)
    say("Graph capturing finished in 0 secs, took 0.50 GiB")
    memory.use(72_000)
    time.sleep(pause)
    say("init engine (profile, create kv cache, warmup model) took 1.00 s")
    server = ThreadingHTTPServer(("127.0.0.1", port), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say(f"Starting vLLM server on http://127.0.0.1:{port}", "APIServer")
    print("INFO:     Application startup complete.", flush=True)
    stop.wait(60)
    print("stopped", flush=True)
    sys.exit(3)


if __name__ == "__main__":
    main()
