"""The stream of a node's reader as blocks. What stands in them is data: only a line with the mark ends one."""

from __future__ import annotations

from dataclasses import dataclass

LIMIT = 2**25


@dataclass(frozen=True, slots=True)
class Block:
    """One block: what it is, of what, and its bytes."""

    kind: str
    name: str = ""
    body: bytes = b""


class TooMuchError(Exception):
    """A block without an end."""


class BlockReader:
    """Cuts a stream into readings: the blocks up to an `end`. Before the first mark comes a login's greeting."""

    def __init__(self, mark: str) -> None:
        self._mark = f"\n@{mark} ".encode()
        self._buffer = bytearray(b"\n")
        self._blocks: list[Block] = []
        self._looked = 0

    def feed(self, data: bytes) -> list[list[Block]]:
        """The readings that are complete with this data; raises `TooMuchError`."""
        self._buffer += data
        readings: list[list[Block]] = []
        while (piece := self._next()) is not None:
            kind, name = _words(piece)
            if kind == "end":
                readings.append(self._blocks)
                self._blocks = []
            elif kind:
                self._blocks.append(Block(kind, name, piece.partition(b"\n")[2]))
        if len(self._buffer) > LIMIT or len(self._blocks) > LIMIT >> 8:
            raise TooMuchError
        return readings

    def _next(self) -> bytes | None:
        """The next whole block without its mark, or None."""
        start = self._buffer.find(self._mark)
        if start < 0:
            return None
        begins = start + len(self._mark)
        stop = self._buffer.find(self._mark, max(begins - 1, self._looked))
        if stop < 0 and self._buffer.startswith(b"end", begins):  # has no body, and need not wait for the next one
            stop = self._buffer.find(b"\n", begins)
        if stop < 0:
            self._looked = max(0, len(self._buffer) - len(self._mark))
            return None
        piece = bytes(self._buffer[begins:stop])
        del self._buffer[:stop]
        self._looked = 0
        return piece


def _words(piece: bytes) -> tuple[str, str]:
    line = piece.partition(b"\n")[0].decode("utf-8", "replace")
    kind, _, name = line.partition(" ")
    return kind, name.strip()
