"""`llmtop load` beside `vllm bench serve`: the same sizes on the same server, in turn, from one session.

`python tests/e2e/bench_agreement.py [--repeats 3] [--prompts 64] [--json FILE]` starts a real vLLM on the CPU, plays
every level with both tools in turns, and prints each tool's median, how far bench's own runs lie apart, and the ratio.
It ends with 1 when output tok/s, E2EL or TPOT differ by more than a tenth. Both tools send text: token ids would spare
the server its tokenizer. Server and clients share a session: on a crowded machine the kernel starves those of another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from e2e.test_real_vllm import CACHE, VENV, Vllm
from program import COMMAND, environment

INPUT, OUTPUT = 256, 64
LEVELS = (1, 4)
FIGURES = (
    ("output tok/s", "output_throughput", True),
    ("E2EL mean ms", "mean_e2el_ms", True),
    ("TPOT mean ms", "mean_tpot_ms", True),
    ("ITL median ms", "median_itl_ms", False),
    ("TTFT mean ms", "mean_ttft_ms", False),
)
TOLERANCE = 0.10
Result = dict[str, Any]


def bench(url: str, c: int, prompts: int, seed: int, folder: Path) -> Result:
    """One run of `vllm bench serve`."""
    words = ["bench", "serve", "--backend", "vllm", "--base-url", url, "--endpoint", "/v1/completions"]
    words += ["--model", "tiny", "--tokenizer", str(CACHE / "tiny-model"), "--dataset-name", "random"]
    words += ["--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT), "--num-prompts", str(prompts)]
    words += ["--max-concurrency", str(c), "--ignore-eos", "--temperature", "0", "--seed", str(seed)]
    words += ["--num-warmups", "1"]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--disable-tqdm", "--save-result"]
    words += ["--result-dir", str(folder), "--result-filename", "bench.json"]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu"}
    quiet = subprocess.DEVNULL
    subprocess.run([str(VENV / "bin" / "vllm"), *words], check=True, env=offline, stdout=quiet, stderr=quiet)
    result: Result = json.loads((folder / "bench.json").read_text())
    return result


def ours(url: str, c: int, prompts: int, seed: int, folder: Path) -> Result:
    """One run of `llmtop load`."""
    size = ["--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT), "--num-prompts", str(prompts)]
    words = ["load", url, "--yes", "--json", "--no-files", "--prompts", "text", "--max-concurrency", str(c)]
    done = subprocess.run(
        [COMMAND, *words, *size, "--seed", str(seed)],
        check=True,
        capture_output=True,
        text=True,
        env=environment(folder),
    )
    (level,) = json.loads(done.stdout.splitlines()[-1])["levels"]
    result: Result = level
    assert result["counters"]["client"] == result["counters"]["server"], result["counters"]
    return result


def compare(url: str, repeats: int, prompts: int, folder: Path) -> dict[int, tuple[list[Result], list[Result]]]:
    """The runs of both tools at every level, in turns: bench first, then ours, then the other way round."""
    runs: dict[int, tuple[list[Result], list[Result]]] = {c: ([], []) for c in LEVELS}
    for turn in range(repeats):
        for c in LEVELS:
            seed = 1000 * turn + 10 * c
            for place in (0, 1) if turn % 2 == 0 else (1, 0):
                tool = (bench, ours)[place]
                runs[c][place].append(tool(url, c, prompts, seed + place, folder))
                print(f"c={c} {tool.__name__} {runs[c][place][-1]['output_throughput']:.0f} tok/s", file=sys.stderr)
    return runs


def table(runs: dict[int, tuple[list[Result], list[Result]]]) -> tuple[list[str], bool]:
    """Lines of a Markdown table, and whether the figures agree."""
    lines = ["| c | figure | `vllm bench serve` | its runs | `llmtop load` | ratio |", "|---|---|---|---|---|---|"]
    agree = True
    for c, (theirs, mine) in runs.items():
        for name, key, judged in FIGURES:
            a, b = [run[key] for run in theirs], [run[key] for run in mine]
            middle, ratio = median(a), median(b) / median(a)
            spread = f"{min(a) / middle - 1:+.0%} {max(a) / middle - 1:+.0%}"
            lines.append(f"| {c} | {name} | {middle:.4g} | {spread} | {median(b):.4g} | {ratio:.3f} |")
            agree = agree and (not judged or abs(ratio - 1) <= TOLERANCE)
    return lines, agree


def main(argv: Sequence[str] | None = None) -> int:
    """Runs it; 1 when they disagree."""
    parser = argparse.ArgumentParser(description="llmtop load beside vllm bench serve")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--json", type=Path, help="where all results are kept")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = Vllm(folder / "vllm.log")
        try:
            server.start()
            runs = compare(server.url, args.repeats, args.prompts, folder)
        finally:
            server.stop()
    if args.json:
        args.json.write_text(json.dumps({str(c): pair for c, pair in runs.items()}))
    lines, agree = table(runs)
    print("\n".join(lines))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
