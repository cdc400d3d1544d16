"""`llmtop proxy` before a server, as a process."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from program import COMMAND, PATIENCE_S, environment


@contextmanager
def proxied(upstream: str, folder: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The proxy of a server; its address and process."""
    command = [COMMAND, "proxy", ":0", upstream, "--serve", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(folder)
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found
        yield found.group(), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        process.stdout.close()
