"""The end of the private socket in a tab's process: a feed of snapshots like a poller's."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from llmtop.contract.codec import NotGiven, from_json
from llmtop.contract.settings import Target
from llmtop.contract.snapshot import Snapshot
from llmtop.warmup import recorded
from llmtop.warmup.recorded import StartupView

PATIENCE_S = 10.0
Sink = Callable[[Snapshot], None]


class Link:
    """Connects to the hub at `path`; `hello` and `past` are there at once, the rest comes after `start`."""

    recording: Path | None = None

    def __init__(self, path: str) -> None:
        self.error: BaseException | None = None
        self.on_error: Callable[[], object] = lambda: None
        self.past: list[Snapshot] = []
        self.startup: StartupView | None = None
        self._sink: Sink = lambda _: None
        self.on_end: Callable[[], object] = lambda: None  # called in a thread when there will be no more
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")
        self.hello: Mapping[str, Any] = json.loads(self._lines.readline())["hello"]
        while (said := json.loads(self._lines.readline())) != {"live": True}:
            self._hear(said, self.past.append)
        self._socket.settimeout(None)

    def connect(self, sink: Sink) -> None:
        """Where snapshots go; called in a thread."""
        self._sink = sink

    def start(self) -> None:
        """Begin to hand out snapshots."""
        threading.Thread(target=self._read, name="llmtop-link", daemon=True).start()

    def stop(self, timeout_s: float = 0.5) -> None:
        """End; waits for nothing."""
        del timeout_s
        self.on_end = lambda: None
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def _read(self) -> None:
        try:
            for line in self._lines:
                self._hear(json.loads(line), self._sink)
        except (OSError, ValueError):
            pass
        self.on_end()

    def _hear(self, said: Mapping[str, Any], sink: Sink) -> None:
        if "startup" in said:
            self.startup = recorded.from_values(said["startup"])
            return
        try:
            snapshot = from_json(said.get("snapshot"))
        except NotGiven:
            return
        sink(snapshot)

    def _say(self, **values: object) -> None:
        try:
            self._socket.sendall(json.dumps(values).encode() + b"\n")
        except OSError:
            pass  # the end is told by the reading side

    # what a poller can be asked for

    def mark(self, text: str) -> None:
        """Ask the poller for a new epoch, seen in every tab."""
        del text
        self._say(mark=True)

    def note(self, text: str) -> None:
        """Ask for a mark in the next snapshot."""
        self._say(note=text)

    def target(self, url: str) -> Target:
        """The server under a URL, with its key where this tab may load it."""
        for target in self.hello.get("targets", ()):
            if target["url"] == url:
                login, ca = target["login"], target["ca"]
                return Target(
                    url,
                    name=target["name"],
                    key=target["key"],
                    login=tuple(login) if login else None,
                    ca=Path(ca) if ca else None,
                    insecure=target["insecure"],
                    max_num_seqs=target["max_num_seqs"],
                )
        return Target(url)

    def look_at(self, urls: Collection[str]) -> None:
        """Whoever reads the servers reads them all alike."""

    def starting(self, url: str, words: str | None) -> None:
        """A tab follows no start-up."""

    def set_interval(self, seconds: float) -> None:
        """The pace is that of the one poller."""

    def record(self, path: Path | None) -> None:
        """A tab writes no files."""

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        """A tab records nothing."""
