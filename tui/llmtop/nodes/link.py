"""The connection to one node: one `ssh` with the reader in it, forwards through it, and it comes back when it drops."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from llmtop.contract.settings import NodeAddress
from llmtop.contract.units import clean
from llmtop.nodes import ssh
from llmtop.nodes.blocks import Block, BlockReader, TooMuchError

FIRST_S = ssh.CONNECT_S + 7.0  # for the login and the first reading
SILENT_S = 15.0
FORWARD_S = 5.0
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
LONGEST_FOLDER = 60  # ssh adds to the names of sockets, which may have about 100 bytes
Take = Callable[[list[Block]], None]


class NodeLink:
    """Keeps the connection; `take` gets every reading."""

    def __init__(self, address: NodeAddress, take: Take) -> None:
        self._address, self._take = address, take
        self._folder = ""
        self._process: asyncio.subprocess.Process | None = None
        self._said: deque[str] = deque(maxlen=30)
        self._forwards: dict[tuple[str, int], str] = {}
        self.up = False
        self.reason: str | None = "connecting"  # why it is not up, or what is wrong although it is
        self.failures = 0  # since it was up

    async def run(self) -> None:
        """Connect, read, and connect again, until cancelled."""
        self._folder = _private_folder()
        try:
            while True:
                self.reason = await self._session() or "the connection ended"
                self.up = False
                self.failures += 1
                await asyncio.sleep(BACKOFF_S[min(self.failures, len(BACKOFF_S)) - 1])
        finally:
            self.up = False
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _session(self) -> str | None:
        """One connection from its start to its end; the words are why it ended."""
        mark = secrets.token_hex(16)
        self._said.clear()
        with suppress(OSError):
            os.unlink(self._control)
        try:
            process = await self._spawn(ssh.connect(self._address, self._control), mark)
        except FileNotFoundError:
            return "the program ssh is not installed here"
        except OSError as error:
            return f"ssh: {error.strerror}"
        self._process = process
        listening = asyncio.create_task(self._listen(process))
        try:
            why = await self._read(process, BlockReader(mark))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await process.wait()
                    await listening
            return why or ssh.trouble([*self._said], self._address.host)
        finally:
            self._process = None
            listening.cancel()
            with suppress(ProcessLookupError):
                process.terminate()  # a master that ends takes its sockets and forwards along
            with suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await process.wait()
            with suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()

    @property
    def _control(self) -> str:
        return f"{self._folder}/ssh"

    async def _spawn(self, command: list[str], mark: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        # in a session of its own: Ctrl+C is ours, and there is no terminal to ask on
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(ssh.reader(mark))  # and it stays open: its end is the reader's
        return process

    async def _read(self, process: asyncio.subprocess.Process, blocks: BlockReader) -> str | None:
        assert process.stdout is not None
        deadline, forwarding = time.monotonic() + FIRST_S, None
        try:
            while True:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    data = await process.stdout.read(2**18)
                if not data:
                    return None
                for reading in blocks.feed(data):
                    deadline = time.monotonic() + SILENT_S
                    self._take(reading)
                    if not self.up:
                        self.up, self.failures, self.reason = True, 0, None
                        forwarding = asyncio.create_task(self._forward_again())
        except TimeoutError:
            return (
                ssh.trouble([*self._said], self._address.host)
                or f"no reading for {SILENT_S:.0f} s: is it out of memory?"
            )
        except TooMuchError:
            return "what it sends is no reading"
        finally:
            if forwarding is not None:
                forwarding.cancel()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # a line without an end
                continue
            if not line:
                return
            said = clean(line.decode("utf-8", "replace").strip(), 300)
            if "open failed: " not in said:  # of a forward, which tells nothing of the connection
                self._said.append(said)
            elif "administratively prohibited" in said:
                self.reason = ssh.trouble([said], self._address.host)

    async def _forward_again(self) -> None:
        for (host, port), path in [*self._forwards.items()]:  # one may be added meanwhile
            await self._ask_forward(path, host, port)

    async def forward(self, host: str, port: int) -> str | None:
        """The Unix socket that leads to an address as the node sees it; None where there is none now."""
        known = self._forwards.get((host, port))
        if known is not None:
            return known
        path = f"{self._folder}/{len(self._forwards)}"
        if not self.up or not await self._ask_forward(path, host, port):
            return None
        return self._forwards.setdefault((host, port), path)

    async def _ask_forward(self, path: str, host: str, port: int) -> bool:
        with suppress(OSError):
            os.unlink(path)
        null = asyncio.subprocess.DEVNULL
        command = ssh.forward(self._control, path, host, port)
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null)
        except OSError:
            return False
        try:
            async with asyncio.timeout(FORWARD_S):
                return await process.wait() == 0
        except TimeoutError:
            process.kill()
            return False


def _private_folder() -> str:
    """A new folder that only its owner may enter, with a short path."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    fits = len(base) + 20 < LONGEST_FOLDER and os.path.isdir(base) and os.access(base, os.W_OK)
    return tempfile.mkdtemp(prefix="llmtop-", dir=base if fits else "/tmp")
