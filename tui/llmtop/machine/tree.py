"""What may stand in place of this machine's /proc and /sys: the same trees of another machine, held in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Folder(Protocol):
    """What the readers of processes ask of a folder: `pathlib.Path` has it all. Raises OSError as that does."""

    @property
    def name(self) -> str:
        """The last part of its path."""

    def __truediv__(self, name: str, /) -> Folder: ...

    def iterdir(self) -> Iterator[Folder]:
        """What is in it."""

    def readlink(self) -> object:
        """Where it points to; `str` of it says it."""

    def read_bytes(self) -> bytes:
        """All of the file."""

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """All of the file, as text."""


class Files(Protocol):
    """What `HostReader` asks of a machine: its files by their whole paths, and its clock."""

    page_size: int

    def read(self, path: str, *, whole: bool = True) -> bytes | None:
        """The file as it stands now; None where there is none. `whole`: it may come in several pieces."""

    def names(self, path: str) -> list[str]:
        """What is in a folder; empty where there is none."""

    def clock(self) -> float:
        """Seconds on a clock that never jumps, at the time of the reading."""
