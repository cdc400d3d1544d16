"""Simulated vLLM replicas behind one port, `/r/N/metrics` each: their counters run with the clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fakes.served import Served

BOUNDS: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0),
    "inter_token_latency_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    "e2e_request_latency_seconds": (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    "request_queue_time_seconds": (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0),
}
# of 100 requests: how many took how long; no percentile asked for falls on a share, where counts in whole numbers would
# decide between two buckets
TIMES: Mapping[str, Mapping[float, int]] = {
    "time_to_first_token_seconds": {0.07: 60, 0.4: 35, 1.5: 5},
    "inter_token_latency_seconds": {0.03: 90, 0.12: 10},
    "e2e_request_latency_seconds": {4.0: 80, 12.0: 20},
    "request_queue_time_seconds": {0.001: 100},
}
TOKENS = 100  # of a request
START = 1_000_000.0  # of every process


def requests_s(number: int) -> float:
    """How many requests a replica ends a second."""
    return 2.0 + number % 7


def model(number: int) -> str:
    """What a replica serves."""
    return ("llama", "qwen")[number % 2]


def page(number: int, seconds: float) -> str:
    """The page of a replica that has served for so many seconds."""
    labels = f'engine="0",model_name="{model(number)}"'
    done = int(requests_s(number) * seconds)
    values = {
        "num_requests_running": number % 5 + 1,
        "num_requests_waiting": 3 if number % 10 == 9 else 0,
        "kv_cache_usage_perc": number % 20 / 20,
        "generation_tokens_total": int(requests_s(number) * TOKENS * seconds),
        "prompt_tokens_total": int(requests_s(number) * 500 * seconds),
        "num_preemptions_total": 0,
        "prefix_cache_queries_total": done * 500,
        "prefix_cache_hits_total": done * 250,
    }
    lines = [f"vllm:{name}{{{labels}}} {value}" for name, value in values.items()]
    lines.append(f'vllm:request_success_total{{{labels},finished_reason="stop"}} {done}')
    lines.append(f'vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="{1001 + number}"}} 1')
    for name, bounds in BOUNDS.items():
        observed = done * TOKENS if name.startswith("inter_token") else done
        times = TIMES[name]
        for bound in (*bounds, float("inf")):
            within = sum(share for took, share in times.items() if took <= bound)
            le = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'vllm:{name}_bucket{{{labels},le="{le}"}} {observed * within // 100}')
        mean = sum(took * share for took, share in times.items()) / 100
        lines += [f"vllm:{name}_sum{{{labels}}} {observed * mean}", f"vllm:{name}_count{{{labels}}} {observed}"]
    lines.append(f"process_start_time_seconds {START}")
    return "\n".join([*lines, ""])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has hung up."""


class Replicas(Served):
    """The pages over HTTP; a replica that is killed hangs up."""

    def __init__(self) -> None:
        self.began = time.time() - 3600
        self.killed: set[int] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                _, _, number, *rest = [*self.path.split("/"), "", "", ""]
                if not number.isdecimal() or rest[0] != "metrics" or int(number) in outer.killed:
                    if number.isdecimal() and int(number) in outer.killed:
                        self.close_connection = True
                        return
                    self.send_error(404)
                    return
                body = page(int(number), time.time() - outer.began).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._httpd = _Server(("127.0.0.1", 0), Handler)
        self.port: int = self._httpd.server_address[1]

    def url(self, number: int) -> str:
        """Where a replica can be asked without Prometheus."""
        return f"http://127.0.0.1:{self.port}/r/{number}"
