"""Writes a recording: JSON Lines, the snapshots exactly as `--json` prints them and events between them.

Trouble with the file is a status that becomes a finding, never an exception: watching goes on, and writing is tried
again. A line that was cut by a full disk is taken back, so that every line of a recording that still grows is whole.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmtop import __version__
from llmtop.contract.codec import to_json
from llmtop.contract.snapshot import SCHEMA, Snapshot, SourceStatus

KIND = "llmtop-recording"
PAGE = "page"
GAP = "gap"
RETRY_S = 5.0
_START = b'{"schema":'  # of the first line of a recording
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"


class Recorder:
    """Writes snapshots and events to one file of mode 0600, a line each, flushed; `.gz` is compressed.

    An existing recording is continued. Once it is open, one thread writes; no method raises OSError.
    """

    def __init__(self, path: Path, *, raw: bool = False, interval_s: float | None = None) -> None:
        self.path = path
        self.raw = raw
        self.status: SourceStatus | None = None
        self._interval_s = interval_s
        self._fd: int | None = None
        self._zip: Any = None  # zlib's compressor has no public type
        self._good = 0  # bytes up to the end of the last whole line
        self._lost = 0
        self._retry_at = 0.0

    def open(self) -> None:
        """Open the file and write the first line; what goes wrong is in `status`."""
        try:
            self._open()
        except OSError as error:
            self._fail(error)

    def write(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        if not self._line(to_json(snapshot)):
            self._lost += 1

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        """Add something that is no snapshot: a load result, a phase of a start-up."""
        self._line(to_json({"event": kind, "time": time.time(), **values}))

    def page(self, url: str, body: bytes, t: float) -> None:
        """With `raw`: add a metrics page as it came, `t` being the monotonic time of its first byte."""
        if self.raw:
            self.event(PAGE, {"url": url, "t": t, "text": body.decode("utf-8", "replace")})

    def close(self) -> None:
        """End the file."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            if self._zip is not None:
                _write_all(fd, self._zip.flush(zlib.Z_FINISH))
        except OSError:
            pass  # every line is there, only the trailer is not
        finally:
            os.close(fd)

    def _line(self, text: str) -> bool:
        """Write one line; False when it is lost."""
        try:
            if self._fd is None:
                if time.monotonic() < self._retry_at:
                    return False
                self._open()
            self._put(text)
        except OSError as error:
            self._fail(error)
            return False
        return True

    def _open(self) -> None:
        # without O_NONBLOCK a pipe that nobody reads would stop the polling here
        flags = os.O_RDWR if self.path.is_file() else os.O_WRONLY
        fd = os.open(self.path, flags | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            os.set_blocking(fd, True)
            self._good, start = _prepare(fd, self._good)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        packed = start.startswith(_GZIP_MAGIC) if start else self.path.suffix == ".gz"
        self._zip = zlib.compressobj(wbits=_GZIP) if packed else None
        self._put(to_json(self._first_line()))
        if self._lost:
            self._put(to_json({"event": GAP, "time": time.time(), "lost": self._lost}))
            self._lost = 0
        self.status = None

    def _first_line(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "llmtop": __version__,
            "time": time.time(),
            "interval_s": self._interval_s,
            "raw": self.raw,
        }

    def _put(self, text: str) -> None:
        assert self._fd is not None
        data = text.encode("utf-8", "replace") + b"\n"
        if self._zip is not None:
            data = self._zip.compress(data) + self._zip.flush(zlib.Z_SYNC_FLUSH)
        _write_all(self._fd, data)
        self._good += len(data)

    def _fail(self, error: OSError) -> None:
        if self._fd is not None:
            _take_back(self._fd, self._good)
            os.close(self._fd)
        self._fd = None
        self._retry_at = time.monotonic() + RETRY_S
        self.status = SourceStatus("recording", False, f"cannot write {self.path}: {error.strerror or error}")


def _prepare(fd: int, good: int) -> tuple[int, bytes]:
    """Make an open file ready to be continued after its last whole line; its length then, and how it starts."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return 0, b""
    if status.st_uid == os.geteuid():
        os.fchmod(fd, 0o600)
    size = status.st_size
    if not size:
        return 0, b""
    start = os.pread(fd, len(_START), 0)
    if not start.startswith((_START[: len(start)], _GZIP_MAGIC)):
        raise OSError("it exists and is no recording")
    if 0 < good < size:
        _take_back(fd, good)
        size = good
    elif not start.startswith(_GZIP_MAGIC) and os.pread(fd, 1, size - 1) != b"\n":
        _write_all(fd, b"\n")  # a line that a crash has cut stays a line of its own
        size += 1
    return size, start


def _take_back(fd: int, length: int) -> None:
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.ftruncate(fd, length)
    except OSError:
        pass  # the reader skips a cut line


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
