"""One poller for all tabs: its snapshots go to every tab's process as JSON lines over a private socket.

To a tab: `{"hello": …}`, then `{"snapshot": …}` for each of the recent past, `{"live": true}`, then the same as they
come; `{"startup": …}` in between is a start-up as it is seen now. From a tab: `{"mark": true}`, and with the load
button `{"note": "text"}`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from llmtop.contract.codec import to_json
from llmtop.contract.snapshot import Snapshot
from llmtop.contract.units import clean
from llmtop.warmup import recorded
from llmtop.warmup.recorded import StartupView

PAST_LINES, PAST_BYTES = 300, 8 * 2**20
BEHIND_BYTES = 2**20  # a tab that reads slower than this misses snapshots instead of filling memory
NOTE_LIMIT = 80


class Marks(Protocol):
    """Where marks go: the poller."""

    def mark(self, text: str) -> None:
        """Begin a new epoch."""

    def note(self, text: str) -> None:
        """Put a mark into the next snapshot."""


class Hub:
    """Serves snapshots to the processes of the tabs; everything happens in its event loop."""

    def __init__(self, hello: Mapping[str, Any], marks: Callable[[], Marks], *, notes: bool = False) -> None:
        self._hello = json.dumps({"hello": hello})
        self._marks = marks
        self._notes = notes
        self._past: deque[str] = deque()
        self._past_bytes = 0
        self._startup = b""
        self._tabs: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen on a socket in a folder that only this user can enter."""
        self._server = await asyncio.start_unix_server(self._serve, path)

    def close(self) -> None:
        """End all tabs' connections."""
        if self._server is not None:
            self._server.close()
        for tab in self._tabs:
            tab.close()

    def publish(self, snapshot: Snapshot) -> None:
        """Hand a snapshot to every tab that keeps up, and remember it for those to come."""
        line = to_json(snapshot)
        self._past.append(line)
        self._past_bytes += len(line)
        while len(self._past) > PAST_LINES or (self._past_bytes > PAST_BYTES and len(self._past) > 1):
            self._past_bytes -= len(self._past.popleft())
        self._send(_line("snapshot", line))

    def startup(self, view: StartupView) -> None:
        """Hand every tab a start-up as it is seen now, and remember it for those to come."""
        self._startup = _line("startup", json.dumps(recorded.to_values(view, log=True)))
        self._send(self._startup)

    def _send(self, data: bytes) -> None:
        for tab in self._tabs:
            if tab.transport.get_write_buffer_size() < BEHIND_BYTES:
                tab.write(data)

    async def _serve(self, reader: asyncio.StreamReader, tab: asyncio.StreamWriter) -> None:
        tab.write(self._hello.encode() + b"\n")
        for line in self._past:
            tab.write(_line("snapshot", line))
        tab.write(self._startup + b'{"live":true}\n')
        self._tabs.add(tab)
        try:
            async for said in reader:
                self._take(said)
        except (ValueError, OSError):  # no line, or nobody there
            pass
        finally:
            self._tabs.discard(tab)
            tab.close()

    def _take(self, said: bytes) -> None:
        """What a tab asks for."""
        wish = json.loads(said)
        if wish.get("mark") is True:
            self._marks().mark("mark")
        elif self._notes and isinstance(wish.get("note"), str):
            self._marks().note(clean(wish["note"], NOTE_LIMIT))


def _line(kind: str, values: str) -> bytes:
    return f'{{"{kind}":{values}}}\n'.encode("utf-8", "replace")
