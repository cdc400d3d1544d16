"""Records `llmtop demo` as an asciinema cast (version 2), or checks the one of this folder.

python screenshots/cast.py                 make demo.cast (about a minute); play it with `asciinema play demo.cast`
python screenshots/cast.py --check         whether demo.cast is whole and shows every page that this version has
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
CAST = HERE / "demo.cast"
COLUMNS, ROWS = 120, 36
LLMTOP = Path(sys.executable).with_name("llmtop")
SYNC_QUERY, SYNC_ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
# seconds after the start, what is pressed, and the words of the page that it opens
SCRIPT = (
    (0.0, "", ("KV cache", "Memory", "Queue", "Throughput", "Latency", "HEADROOM", "TOK/S")),
    (25.0, "e", ("server", "engine", "TTFT p95")),
    (30.0, "g", ("NVIDIA GB10", "throttled by")),
    (35.0, "v", ("tokens per second", "users served")),
    (42.0, "l", ("Load test", "vllm bench serve")),
    (49.0, "\x1b", ()),
    (55.0, "q", ()),
)
LONGEST_S = 70.0
Event = tuple[float, bytes]


def play() -> Iterator[Event]:
    """What the terminal of a demo gets, and when, while the script presses keys."""
    with tempfile.TemporaryDirectory() as home:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environ = {"PATH": os.environ["PATH"], "HOME": home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        command = [str(LLMTOP), "demo", "gb10"]
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environ | {"LANG": "C.UTF-8"})
        os.close(slave)
        try:
            yield from _events(master)
        finally:
            process.terminate()
            process.wait(10)
            os.close(master)


def _events(master: int) -> Iterator[Event]:
    began, keys = time.monotonic(), [(at, key) for at, key, _ in SCRIPT if key]
    while (now := time.monotonic() - began) < LONGEST_S:
        if keys and now >= keys[0][0]:
            os.write(master, keys.pop(0)[1].encode())
        if not select.select([master], [], [], 0.05)[0]:
            continue
        try:
            data = os.read(master, 65536)
        except OSError:  # the program has ended
            return
        if SYNC_QUERY in data:
            os.write(master, SYNC_ANSWER)
        yield now, data


def make(path: Path) -> None:
    """Write the cast: a header, then a line per piece of output, no character cut in two."""
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "llmtop demo", "env": {"TERM": "xterm-256color"}}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with path.open("w", encoding="utf-8") as cast:
        cast.write(json.dumps(header) + "\n")
        for at, data in play():
            cast.write(json.dumps([round(at, 3), "o", decoder.decode(data)], ensure_ascii=False) + "\n")


def problems(path: Path) -> list[str]:
    """What is wrong with a cast; nothing when it is whole and current."""
    try:
        header, *events = map(json.loads, path.read_text("utf-8").splitlines())
    except (OSError, ValueError) as error:
        return [f"{path.name}: {error}"]
    found = [] if (header["version"], header["width"], header["height"]) == (2, COLUMNS, ROWS) else ["another size"]
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", " ", "".join(text for _, _, text in events))
    words = " ".join(shown.split())
    found += [f"does not show {word!r}" for _, _, page in SCRIPT for word in page if word not in words]
    return [f"{path.name}: {problem}" for problem in found]


def main() -> int:
    """Make or check the cast; the exit code."""
    if "--check" not in sys.argv[1:]:
        make(CAST)
    found = problems(CAST)
    print("\n".join(found) or f"{CAST.name} is current")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
