"""Starts the watched command: its output is shown and kept in a file, signals and exit code pass through."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from llmtop.contract.secrets import KNOWN, mask
from llmtop.warmup.log_source import Reader, Splitter

_CHUNK = 65_536
_DRAIN_S = 2.0  # a daemon that kept the pipe open must not hold the launcher
# A terminal sends these to its whole foreground group; the others go to one process, which can end its children.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGQUIT)
_ENDS = (*_GROUP_SIGNALS, signal.SIGTERM, signal.SIGHUP)
_SIGNALS = (*_ENDS, signal.SIGUSR1, signal.SIGUSR2)


class Launch(Reader):
    """A command in a process group of its own; as a `LineSource` it gives the lines of its output.

    `show` gets the output as the command wrote it, but for the secrets that are known. With `terminal` the command
    writes to a pseudo-terminal, so that its progress bars work; otherwise to a pipe. The log file has mode 0600 and its
    secrets are masked.
    """

    def __init__(self, argv: list[str], log: Path | None, show: Callable[[bytes], None], terminal: bool) -> None:
        super().__init__(self._output, "launch")
        self._argv, self._log, self._show, self._terminal = argv, log, show, terminal
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._read_fd = -1
        self._veiled = b""  # what may be the beginning of a secret
        self._kept = _Kept(None)
        self._over = threading.Event()

    @property
    def launched(self) -> tuple[int, float] | None:
        """The command's process id, and the Unix time at which it was started."""
        return None if self._process is None else (self._process.pid, self._began)

    def start(self) -> None:
        """Start the command; raises OSError when it or its log file cannot be opened."""
        self._kept = _Kept(self._log)
        self._read_fd, write_fd = pty.openpty() if self._terminal else os.pipe()
        try:
            if self._terminal:
                _pass_unchanged(self._read_fd)
                self._resize()
            # Standard input stays with the caller unless it is a terminal: a background group may not read from one.
            stdin = subprocess.DEVNULL if self._terminal else None
            self._began = time.time()
            self._process = subprocess.Popen(
                self._argv, stdin=stdin, stdout=write_fd, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError:
            os.close(self._read_fd)
            raise
        finally:
            os.close(write_fd)
        threading.Thread(target=self._wait, name="llmtop-launch-wait", daemon=True).start()
        super().start()

    def show(self, show: Callable[[bytes], None]) -> None:
        """Show the output that comes from now on in another way."""
        self._show = show

    def forward(self, number: int) -> None:
        """Pass a signal on."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        self._told = self._told or number in _ENDS
        try:
            if number in _GROUP_SIGNALS:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        except ProcessLookupError:
            return

    def forward_signals(self) -> None:
        """From now on signals that reach llmtop go to the command; call it in the main thread."""

        def passed(number: int, _frame: FrameType | None) -> None:
            self.forward(number)

        for number in _SIGNALS:
            signal.signal(number, passed)
        if self._terminal:
            signal.signal(signal.SIGWINCH, lambda _number, _frame: self._resize())

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code as a shell gives it (128 + signal), None while the command runs."""
        return self.code if self._over.wait(timeout) else None

    @property
    def ended(self) -> bool:
        """Whether the command is over and every line was taken; one that closed its output may still serve."""
        return self._over.is_set() and super().ended

    def _wait(self) -> None:
        assert self._process is not None
        code = self._process.wait()
        self.code = 128 - code if code < 0 else code
        self._finished.wait(_DRAIN_S)
        self._finished.set()
        self._over.set()

    def _resize(self) -> None:
        try:
            size = fcntl.ioctl(1, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self._read_fd, termios.TIOCSWINSZ, size)
        except OSError:
            return

    def _output(self, stop: threading.Event) -> Iterator[tuple[bytes, bool]]:
        try:
            while chunk := self._chunk():
                self._give(chunk)
                self._kept.write(chunk)
                if not stop.is_set():  # once nobody takes the lines, they must not hold the command up
                    yield chunk, True
        finally:
            self._show(KNOWN.hide_bytes(self._veiled))
            self._kept.close()

    def _give(self, chunk: bytes) -> None:
        """Show what came, and keep back what the next chunk could turn out to end."""
        known = KNOWN.hide_bytes(self._veiled + chunk)
        size = KNOWN.begun(known)
        self._veiled = known[len(known) - size :]
        self._show(known[: len(known) - size])

    def _chunk(self) -> bytes:
        try:
            return os.read(self._read_fd, _CHUNK)
        except OSError:  # how a pseudo-terminal says that nobody writes to it any more
            return b""


def _pass_unchanged(fd: int) -> None:
    """The terminal llmtop writes to adds the carriage returns; the one in between must not add them too."""
    attributes = termios.tcgetattr(fd)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(fd, termios.TCSANOW, attributes)


class _Kept:
    """The log file: mode 0600, one masked line at a time."""

    def __init__(self, path: Path | None) -> None:
        self._splitter = Splitter()
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            os.fchmod(fd, 0o600)
            self._file = os.fdopen(fd, "w", encoding="utf-8")

    def write(self, chunk: bytes) -> None:
        """Add what the command wrote."""
        self._lines(self._splitter.feed(chunk))

    def close(self) -> None:
        """Add an unfinished last line and close the file."""
        self._lines(self._splitter.flush())
        if self._file is not None:
            self._file.close()

    def _lines(self, lines: list[str]) -> None:
        if self._file is not None and lines:
            self._file.writelines(mask(line) + "\n" for line in lines)
            self._file.flush()
