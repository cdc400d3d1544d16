"""Serves the busy page (or one that stands still) at every prefix, and moves the machine's files once a second.

Prints its port. `serve.py FOLDER [--still]`; ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.pages import BusyMachine, BusyPage

SIDE = {"/version": {"version": "0.32.0"}, "/v1/models": {"data": [{"id": "busy-model-120b", "max_model_len": 32768}]}}
FIRST = "/s0/metrics"


class Server:
    """One page for all prefixes; a request for the first of them moves it on."""

    def __init__(self, still: bool) -> None:
        self._page, self._still = BusyPage(), still
        self._body = self._page.at_rest() if still else self._page.advance()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        while True:
            try:
                request = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            path = request.split(b" ", 2)[1].decode()
            body = self._answer(path)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            if path == FIRST and not self._still:  # now, so that the next answer is there at once
                self._body = self._page.advance()
        writer.close()

    def _answer(self, path: str) -> bytes:
        _, _, rest = path[1:].partition("/")
        if rest != "metrics":
            return json.dumps(SIDE.get("/" + rest, {})).encode()
        return self._body


async def main(folder: Path, still: bool) -> None:
    """Serve until stdin ends."""
    server = await asyncio.start_server(Server(still).handle, "127.0.0.1", 0)
    machine = BusyMachine(folder)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True).start()
    while not ended.is_set():
        if not still:
            machine.advance()
        try:
            await asyncio.wait_for(ended.wait(), 1.0)
        except TimeoutError:
            continue


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), "--still" in sys.argv))
