"""The /proc and /sys of a node, as far as they were streamed, in place of those of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_PROCESS = re.compile(r"proc/(\d+|self)/(?!mountinfo$)|sys/class/hwmon/")  # the mounts are told once


@dataclass(slots=True)
class StreamedTree:
    """Files and links by their paths; implements `Files`, and its folders implement `Folder`."""

    page_size: int = 4096
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def forget_processes(self) -> None:
        """All processes, and drivers that come and go, will be told anew."""
        self.files = {path: text for path, text in self.files.items() if not _PROCESS.match(path)}
        self.links.clear()
        self.folders.clear()

    def read(self, path: str, *, whole: bool = True) -> bytes | None:  # noqa: ARG002
        """The file as it came last."""
        return self.files.get(path.lstrip("/"))

    def names(self, path: str) -> list[str]:
        """What is in a folder."""
        before = path.strip("/") + "/"
        known = (*self.files, *self.links, *self.folders)
        inside = (name[len(before) :].partition("/")[0] for name in known if name.startswith(before))
        return [*dict.fromkeys(inside)]

    def clock(self) -> float:
        """The node's own seconds since it started."""
        text = (self.read("proc/uptime") or b"").split()
        try:
            return float(text[0]) if text else 0.0
        except ValueError:
            return 0.0

    @property
    def procfs(self) -> StreamedFolder:
        """Its /proc."""
        return StreamedFolder(self, "proc")


@dataclass(frozen=True, slots=True)
class StreamedFolder:
    """One path in the tree; implements `Folder`."""

    tree: StreamedTree
    path: str

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    def __truediv__(self, name: str, /) -> StreamedFolder:
        return StreamedFolder(self.tree, f"{self.path}/{name}")

    def iterdir(self) -> Iterator[StreamedFolder]:
        """What is in it."""
        names = self.tree.names(self.path)
        if not names and self.path not in self.tree.folders:
            raise FileNotFoundError(self.path)
        return (self / name for name in names)

    def readlink(self) -> str:
        """Where it points to."""
        try:
            return self.tree.links[self.path]
        except KeyError:
            raise FileNotFoundError(self.path) from None

    def read_bytes(self) -> bytes:
        """All of the file."""
        try:
            return self.tree.files[self.path]
        except KeyError:
            raise FileNotFoundError(self.path) from None

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """All of the file, as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "replace")
