"""Log lines with their arrival times, from a file, a pipe, a container or a journal unit.

Every reader runs in a daemon thread and fills a bounded queue; a reader whose queue is full waits, so nothing is lost.
Commands are started without a shell.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llmtop.contract.secrets import tool_environment
from llmtop.warmup.log_line import MAX_LINE

POLL_S = 0.1
_END_S = 2.0
TAIL_LINES = 50_000  # of a container or unit that has been running for long; a start-up is far shorter
_CHUNK = 65_536
_QUEUE = 4096
_NAME = re.compile(r"^[A-Za-z0-9_][\w.@:+\\-]*$")


class LogError(Exception):
    """A log source that cannot be read, in words for the user."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end; `at` is the Unix time it came, None for a line that was there before."""

    text: str
    at: float | None


class LineSource(Protocol):
    """Hands out the lines that have come since the last call."""

    def start(self) -> None:
        """Begin reading."""

    def take(self, limit: int = 1000) -> list[Line]:
        """The next lines, at most `limit`; an empty list when there are none."""

    @property
    def ended(self) -> bool:
        """Whether the source has ended and every line was taken."""

    @property
    def exit_code(self) -> int | None:
        """How the process behind the log ended, where that is known."""

    @property
    def told(self) -> bool:
        """Whether whoever watches has asked that process to end."""

    @property
    def launched(self) -> tuple[int, float] | None:
        """Process id and Unix time of the launch, where the source has started the process itself."""

    @property
    def error(self) -> str | None:
        """Why the source cannot be read, None while it can."""

    def stop(self) -> None:
        """Stop reading; never waits for the source."""


class Splitter:
    """Bytes to lines: ends are LF, CR (progress bars) and CRLF; what is beyond 64 KiB of one line is dropped.

    A piece is looked at once, however small the pieces are that a line comes in.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skipping = False  # the tail of a line whose first 64 KiB were handed out already

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        first, *others = re.split(rb"[\r\n]", data)
        lines = self._add(first)
        for piece in others:
            lines += self.flush()
            self._skipping = False
            lines += self._add(piece)
        return lines

    def _add(self, piece: bytes) -> list[str]:
        if self._skipping:
            return []
        self._rest += piece[: MAX_LINE + 1 - len(self._rest)]
        if len(self._rest) <= MAX_LINE:
            return []
        lines = self.flush()
        self._skipping = True
        return lines

    def flush(self) -> list[str]:
        """The last line, when the source ended without a line end."""
        rest, self._rest = self._rest, bytearray()
        return [rest[:MAX_LINE].decode("utf-8", "replace")] if rest else []


def file_lines(path: Path) -> Iterator[str]:
    """The lines of a finished log; raises LogError."""
    splitter = Splitter()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield from splitter.feed(chunk)
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from error
    yield from splitter.flush()


class Reader:
    """Runs a generator of (bytes, live) chunks in a daemon thread and queues their lines."""

    def __init__(self, chunks: Callable[[threading.Event], Iterator[tuple[bytes, bool]]], name: str) -> None:
        self._chunks = chunks
        self._name = name
        self._queue: queue.Queue[Line] = queue.Queue(_QUEUE)
        self._stop = threading.Event()
        self._finished = threading.Event()
        self._error: str | None = None
        self.code: int | None = None
        self._told = False

    def start(self) -> None:
        """Begin reading."""
        threading.Thread(target=self._run, name=f"llmtop-log-{self._name}", daemon=True).start()

    def take(self, limit: int = 1000) -> list[Line]:
        """The next lines, at most `limit`."""
        lines: list[Line] = []
        while len(lines) < limit:
            try:
                lines.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return lines

    @property
    def ended(self) -> bool:
        """Whether the source has ended and every line was taken."""
        return self._finished.is_set() and self._queue.empty()

    @property
    def exit_code(self) -> int | None:
        """How the process behind the log ended, where that is known."""
        return self.code

    @property
    def told(self) -> bool:
        """Whether whoever watches has asked that process to end."""
        return self._told

    @property
    def launched(self) -> tuple[int, float] | None:
        """Process id and Unix time of the launch; None: a source only reads."""
        return None

    @property
    def error(self) -> str | None:
        """Why the source cannot be read."""
        return self._error

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()

    def _run(self) -> None:
        splitter = Splitter()
        try:
            for chunk, live in self._chunks(self._stop):
                self._put(splitter.feed(chunk), time.time() if live else None)
            self._put(splitter.flush(), time.time())
        except (OSError, LogError) as error:
            self._error = str(error)
        finally:
            self._finished.set()

    def _put(self, lines: list[str], at: float | None) -> None:
        for text in lines:
            while not self._stop.is_set():
                try:
                    self._queue.put(Line(text, at), timeout=0.2)
                    break
                except queue.Full:
                    continue


def follow_file(path: Path, tail: int | None = None) -> Reader:
    """Follow a file like `tail -F`: it may not exist yet, be truncated, or be replaced by a new one.

    `tail`: of what it holds already read no more than so many bytes from its end.
    """
    live = not path.exists()  # what a file holds already was written before anyone watched
    return Reader(lambda stop: _follow(path, live, stop, tail), path.name)


def existing_file(path: Path) -> Path:
    """A log that is there to be followed; raises LogError."""
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from error


def _follow(path: Path, live: bool, stop: threading.Event, tail: int | None) -> Iterator[tuple[bytes, bool]]:
    while not stop.is_set():
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            live = True
            stop.wait(POLL_S)
            continue
        with file:
            if tail is not None and (size := os.fstat(file.fileno()).st_size) > tail:
                file.seek(size - tail)
            tail = None
            for chunk in _until_replaced(file.fileno(), path, stop):
                if chunk:
                    yield chunk, live
                live = live or not chunk
        live = True


def _until_replaced(fd: int, path: Path, stop: threading.Event) -> Iterator[bytes]:
    """Chunks as they are written, an empty one whenever the end is reached; ends when another file has the name."""
    while not stop.is_set():
        chunk = os.read(fd, _CHUNK)
        yield chunk
        if chunk:
            continue
        mine = os.fstat(fd)
        try:
            there = path.stat()
        except FileNotFoundError:
            there = None
        if there is not None and (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            if not (chunk := os.read(fd, _CHUNK)):
                return
            yield chunk
        elif mine.st_size < os.lseek(fd, 0, os.SEEK_CUR):
            os.lseek(fd, 0, os.SEEK_SET)
        else:
            stop.wait(POLL_S)


def read_descriptor(fd: int, name: str = "stdin") -> Reader:
    """Read a pipe until it closes."""
    return Reader(lambda stop: _read(fd, stop), name)


def _read(fd: int, stop: threading.Event) -> Iterator[tuple[bytes, bool]]:
    while not stop.is_set():
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            return
        yield chunk, True


def _run_command(argv: list[str], stop: threading.Event) -> Iterator[tuple[bytes, bool]]:
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=tool_environment(os.environ),
    )
    assert process.stdout is not None
    threading.Thread(target=_end_with, args=(process, stop), name="llmtop-log-end", daemon=True).start()
    try:
        yield from _read(process.stdout.fileno(), stop)
    finally:
        _end(process)
        process.stdout.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command; one that is frozen, or does not heed the signal, is killed."""
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with(process: subprocess.Popen[bytes], stop: threading.Event) -> None:
    """A reader blocked on a silent command is freed by ending the command."""
    while process.poll() is None:
        if stop.wait(POLL_S):
            _end(process)
            return


def container(name: str, follow: bool = True) -> Reader:
    """The log of a container by `docker logs` or `podman logs`, whichever knows the name; raises LogError."""
    tool = _container_tool(_checked(name, "container"))
    argv = [tool, "logs", "--tail", str(TAIL_LINES), *(["--follow"] if follow else []), name]

    def chunks(stop: threading.Event) -> Iterator[tuple[bytes, bool]]:
        yield from _run_command(argv, stop)
        reader.code = _container_exit(tool, name)

    reader = Reader(chunks, name)
    return reader


def _container_tool(name: str) -> str:
    tools = [tool for tool in ("docker", "podman") if shutil.which(tool)]
    if not tools:
        raise LogError("neither docker nor podman is installed here")
    answers = {tool: _asked([tool, "container", "inspect", name]) for tool in tools}
    for tool, answer in answers.items():
        if answer is not None and answer.returncode == 0:
            return tool
    for tool, answer in answers.items():
        refusal = None if answer is None else refused(tool, answer.stderr)
        if refusal is not None:
            raise LogError(refusal)
    raise LogError(f"no container named {name} ({' and '.join(tools)} asked)")


def refused(tool: str, stderr: bytes) -> str | None:
    """Why a container tool did not answer, in words; None where it did."""
    words = stderr[:4096].decode("utf-8", "replace").lower()
    if "permission denied" in words or "a password is required" in words:
        return f"not allowed to ask {tool}: be in the {tool} group or use sudo"
    if "cannot connect to the docker daemon" in words or "is the docker daemon running" in words:
        return f"{tool} does not answer: its daemon is not running"
    return None


def _container_exit(tool: str, name: str) -> int | None:
    done = _asked([tool, "container", "inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", name])
    out = "" if done is None or done.returncode else done.stdout.decode("utf-8", "replace")
    running, _, code = (out or "true").strip().partition(" ")
    return int(code) if running == "false" and re.fullmatch(r"-?\d+", code) else None


def _asked(argv: list[str]) -> subprocess.CompletedProcess[bytes] | None:
    try:
        environ = tool_environment(os.environ)
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, env=environ, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def journal(unit: str, follow: bool = True) -> Reader:
    """The log of a systemd unit by `journalctl`; raises LogError."""
    _checked(unit, "unit")
    if shutil.which("journalctl") is None:
        raise LogError("journalctl is not installed here")
    asked = _asked(["journalctl", f"--unit={unit}", "--lines=0", "--no-pager"])
    if asked is not None and b"insufficient permissions" in asked.stdout[:4096] + asked.stderr[:4096]:
        raise LogError("not allowed to read the journal: be in the systemd-journal group or use sudo")
    argv = ["journalctl", f"--unit={unit}", "--output=cat", "--no-pager", f"--lines={TAIL_LINES}"]
    return Reader(lambda stop: _run_command([*argv, *(["--follow"] if follow else [])], stop), unit)


def _checked(name: str, what: str) -> str:
    # A name from the command line must not be read as an option by the tool it is given to.
    if not _NAME.match(name):
        raise LogError(f"not a {what} name: {name!r}")
    return name
