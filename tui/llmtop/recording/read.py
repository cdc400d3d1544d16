"""Reads a recording: an index of its lines, and snapshots and events by position or time.

Lines stay in the file (a `.gz` is unpacked into a temporary one) and are decoded when they are wanted.
"""

from __future__ import annotations

import re
import tempfile
import time
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from llmtop.contract.codec import NotGiven, from_json, moment, parse, rebuild
from llmtop.contract.settings import INTERVAL_S, MAX_INTERVAL_S, MIN_INTERVAL_S, UsageError
from llmtop.contract.snapshot import SCHEMA, Mark, Snapshot
from llmtop.recording.write import KIND

_PAGE = b'{"event":"page",'
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b\x08"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_PART = zlib.compressobj(wbits=_GZIP_WINDOW).flush()[:10]  # how every part begins that the recorder has written
_CHUNK = 2**16
_TOLD = 3  # lines that cannot be read are told by number and reason, the rest counted
_PATIENCE = 20  # unreadable lines at the beginning of what may still be a recording
_SECONDS = re.compile(r"\d+(?:\.\d+)?")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d):([0-5]\d)")
_GRACE_S = 1.0  # a moment just outside the recording means its end


Tree = Mapping[str, Any] | None  # keys and what is wanted below them; None = all
# what `History` reads; a test compares the two
CHARTED: Tree = {
    "time": None,
    "marks": None,
    "events": None,
    "servers": {
        **dict.fromkeys(("url", "state", "kv_usage", "running", "waiting", "rates")),
        "latency": {"ttft": None},
    },
    "pools": dict.fromkeys(("name", "kind", "device", "headroom_bytes")),
    "devices": dict.fromkeys(("index", "uuid", "util", "power_w")),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A line that is no snapshot: when (Unix time), what, and its values."""

    time: float
    kind: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Head:
    """What counts of the first line of a run."""

    interval_s: float | None = None


@dataclass(slots=True)
class Recording:
    """A recording of at least one snapshot; `times` are theirs, made to grow only."""

    path: Path
    notes: list[str] = field(default_factory=list)
    times: array[float] = field(default_factory=lambda: array("d"))
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    events: list[Entry] = field(default_factory=list)
    interval_s: float | None = None
    _known: bool = False  # whether a line was one of a recording
    _file: IO[bytes] | None = None
    _offsets: array[int] = field(default_factory=lambda: array("q"))
    _figures: dict[int, Snapshot] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def start(self) -> float:
        """Unix time of the first snapshot."""
        return self.times[0]

    @property
    def end(self) -> float:
        """Unix time of the last snapshot."""
        return self.times[-1]

    @property
    def pace_s(self) -> float:
        """Seconds from one snapshot to the next, within what a poller allows."""
        gaps = sorted(later - earlier for earlier, later in pairwise(self.times))
        typical = self.interval_s or (gaps[len(gaps) // 2] if gaps else INTERVAL_S)
        return min(max(typical, MIN_INTERVAL_S), MAX_INTERVAL_S)

    def snapshot(self, index: int) -> Snapshot:
        """A snapshot as it was shown; one that cannot be read says nothing but its time."""
        return self._decoded(index, None)

    def figures(self, index: int) -> Snapshot:
        """What charts need of a snapshot; kept in memory, so that seeking back is quick."""
        kept = self._figures.get(index)
        if kept is None:
            kept = self._figures[index] = self._decoded(index, CHARTED)
        return kept

    def _decoded(self, index: int, wanted: Tree) -> Snapshot:
        assert self._file is not None
        self._file.seek(self._offsets[index])
        try:
            return from_json(_part(parse(self._file.readline()), wanted))
        except NotGiven:  # it was readable a while ago
            return Snapshot(time=self.times[index])

    def __iter__(self) -> Iterator[Snapshot]:
        return map(self.snapshot, range(len(self)))

    def index_at(self, when: float) -> int:
        """What was on screen at a Unix time: the last snapshot before it, or the first of all."""
        return max(0, bisect_right(self.times, when) - 1)

    def index_of(self, text: str) -> int:
        """The snapshot at `HH:MM:SS` (local time) or at seconds from the start; raises UsageError."""
        when = self.start + float(text) if _SECONDS.fullmatch(text) else self._clock(text)
        if when > self.end + _GRACE_S:
            raise UsageError(f"--at {text}: the recording is from {_clock_text(self.start)} to {_clock_text(self.end)}")
        return self.index_at(when)

    def _clock(self, text: str) -> float:
        match = _CLOCK.fullmatch(text)
        if match is None:
            raise UsageError(f"--at takes HH:MM:SS or seconds from the start, not {text!r}")
        hour, minute, second = map(int, match.groups())
        first = datetime.fromtimestamp(self.start)
        wanted = first.replace(hour=hour, minute=minute, second=second, microsecond=0)
        if wanted.timestamp() < self.start - _GRACE_S:
            wanted += timedelta(days=1)
        return wanted.timestamp()

    # reading

    def _scan(self, file: IO[bytes]) -> None:
        self._file = file
        file.seek(0)
        if file.read(len(_BOM) + 1).removeprefix(_BOM)[:1] not in (b"{", b"\n"):
            return
        file.seek(0)
        offset, broken = 0, list[str]()
        for number, line in enumerate(file, 1):
            try:
                if line.strip():
                    self._take(line, offset)
            except NotGiven as reason:
                if not line.endswith(b"\n"):
                    self.notes.append("the last line is cut and was skipped")
                    break
                broken.append(f"line {number}: {reason}")
                if not self._known and len(broken) > _PATIENCE:
                    return  # something else altogether
            offset += len(line)
        if broken:
            count = "1 line cannot be read" if len(broken) == 1 else f"{len(broken)} lines cannot be read"
            self.notes.append(f"{count} ({'; '.join(broken[:_TOLD])}{'; …' if len(broken) > _TOLD else ''})")

    def _take(self, line: bytes, offset: int) -> None:
        """Put a line into the index; raises NotGiven with the reason when it is none of a recording."""
        if line.startswith(_PAGE) and line.endswith(b"\n"):  # large, and only for reading anew
            return
        values = parse(line)
        if type(values) is not dict:
            raise NotGiven("no object")
        schema = values.get("schema")
        if type(schema) is int and schema > SCHEMA:
            self._refuse(schema)
        if values.get("kind") == KIND:
            self.interval_s = rebuild(_Head, values).interval_s or self.interval_s
        elif isinstance(values.get("event"), str):
            self.events.append(Entry(moment(values.get("time")) or 0.0, values["event"], values))
        else:
            self._take_snapshot(values, offset)
        self._known = True

    def _refuse(self, schema: int) -> None:
        if self._known:
            raise NotGiven("written by a newer llmtop")
        raise UsageError(
            f"{self.path} was recorded by a newer llmtop (schema {schema}, this one reads up to {SCHEMA}): "
            "update llmtop"
        )

    def _take_snapshot(self, values: dict[str, Any], offset: int) -> None:
        when = moment(values.get("time"))
        if when is None:
            raise NotGiven("no time")
        if type(values.get("servers")) is not list:
            raise NotGiven("no list of servers")
        if values.get("marks"):
            self.marks += [(len(self), mark) for mark in from_json(values).marks]
        self.times.append(max(when, self.times[-1]) if self.times else when)
        self._offsets.append(offset)


def open_recording(path: Path, anew: Callable[[IO[bytes]], IO[bytes]] | None = None) -> Recording:
    """Read the index of a recording (or of the output of `--json`), its lines made `anew` first; raises UsageError."""
    recording = Recording(path)
    try:
        lines = _plain_lines(path, recording.notes)
        lines.seek(0)
        recording._scan(lines if anew is None else anew(lines))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    if not len(recording):
        raise UsageError(f"{path} is not a recording, or it has no snapshot")
    return recording


def _plain_lines(path: Path, notes: list[str]) -> IO[bytes]:
    """The file, or a temporary one with its lines where it is compressed or can be read only once."""
    file = path.open("rb")
    if path.is_file() and not file.peek(len(_GZIP)).startswith(_GZIP):
        return file
    with file:
        data = file.read()
    lines = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the recording
    if data.startswith(_GZIP):
        _unpack(data, lines, notes)
    else:
        lines.write(data)
    return lines


def _unpack(data: bytes, lines: IO[bytes], notes: list[str]) -> None:
    """Unpack a compressed recording, also one that ends in the middle."""
    # where a recording was continued after a crash, a new part begins and the one before it has no end
    for number, part in enumerate(filter(None, re.split(b"(?=" + re.escape(_PART) + b")", data))):
        lines.write(b"\n" if number else b"")
        if not _inflate(part, lines):
            notes.append("a part of the file cannot be unpacked and was skipped")


def _inflate(data: bytes, out: IO[bytes]) -> bool:
    """Unpack as far as it goes, over all members of a gzip file; False when it is broken."""
    unzip = zlib.decompressobj(_GZIP_WINDOW)
    for place in range(0, len(data), _CHUNK):
        piece = data[place : place + _CHUNK]
        while piece:
            try:
                out.write(unzip.decompress(piece))
            except zlib.error:
                return False
            piece = unzip.unused_data
            if unzip.eof:
                unzip = zlib.decompressobj(_GZIP_WINDOW)
    return True


def _part(values: Any, wanted: Tree) -> Any:
    """Only the wanted keys, in lists those of every item."""
    if wanted is None:
        return values
    if isinstance(values, list):
        return [_part(value, wanted) for value in values]
    if isinstance(values, dict):
        return {key: _part(values[key], inner) for key, inner in wanted.items() if key in values}
    return values


def _clock_text(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))
