"""The installed `llmtop` command as a child process: its JSON lines, its exit code, what it must never print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from jsonschema import Draft202012Validator

from llmtop.contract.codec import json_schema

COMMAND = str(Path(sys.executable).with_name("llmtop"))
PATIENCE_S = 60.0
Line = dict[str, Any]


@cache
def validator() -> Draft202012Validator:
    """The contract."""
    return Draft202012Validator(json_schema())


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment without the user's configuration, keys and proxies."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower() and name != "VLLM_API_KEY"}
    return kept | {"XDG_CONFIG_HOME": str(folder), "HOME": str(folder)} | dict(extra or {})


def bare(folder: Path) -> list[str]:
    """Flags that hide this machine: no processes, no memory, no devices."""
    return ["--procfs", str(folder / "no-proc"), "--sysfs", str(folder / "no-sys")]


def once(
    folder: Path, *args: str, env: Mapping[str, str] | None = None, machine: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run to the end, without a view of this machine unless asked; no trace of a crash is allowed."""
    done = subprocess.run(
        [COMMAND, *args, *([] if machine else bare(folder))],
        capture_output=True,
        text=True,
        env=environment(folder, env),
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


class Program:
    """`llmtop ... --json` in the background; every line is checked against the contract as it comes."""

    def __init__(self, folder: Path, *args: str, env: Mapping[str, str] | None = None, machine: bool = False) -> None:
        self.lines: list[Line] = []
        self._news = threading.Condition()
        self._stderr = folder / "stderr.txt"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [COMMAND, *args, "--json", *([] if machine else bare(folder))],
                stdout=subprocess.PIPE,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                env=environment(folder, env),
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = json.loads(raw)
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def wait(self, holds: Callable[[Line], bool], what: str, since: int = 0) -> Line:
        """The first line from number `since` on for which something holds."""
        deadline, place = time.monotonic() + PATIENCE_S, since
        with self._news:
            while True:
                while place < len(self.lines):
                    if holds(self.lines[place]):
                        return self.lines[place]
                    place += 1
                left = deadline - time.monotonic()
                assert left > 0, f"never {what}; last: {self.lines[-1:]}; {self._stderr.read_text()}"
                assert self.process.poll() is None, f"ended before {what}: {self._stderr.read_text()}"
                self._news.wait(min(left, 1.0))

    def wait_state(self, state: str, since: int = 0) -> Line:
        """The first server of the first line whose first server is in this state."""
        server: Line = self.wait(lambda line: line["servers"][0]["state"] == state, state, since)["servers"][0]
        return server

    def wait_lines(self, number: int) -> None:
        """Wait until so many lines have come in all."""
        with self._news:
            came = self._news.wait_for(lambda: len(self.lines) >= number, PATIENCE_S)
        assert came, f"{len(self.lines)} lines; {self._stderr.read_text()}"

    @property
    def servers(self) -> list[Line]:
        """The first server of every line so far."""
        return [line["servers"][0] for line in list(self.lines)]

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal and return the exit code as a shell shows it."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(15)
        self._reader.join(5)
        return code if code >= 0 else 128 - code

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(15)
        self._reader.join(5)
        if kind is None:
            self._check()

    def _check(self) -> None:
        """What holds of every run: the contract, no crash, no negative rate."""
        assert self._stderr.read_text() == ""
        for line in self.lines:
            validator().validate(line)
            for server in line["servers"]:
                rates = [value for name, value in server["rates"].items() if value is not None]
                assert all(rate >= 0 for rate in rates), server
