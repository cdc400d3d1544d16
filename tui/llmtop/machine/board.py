"""Power of the whole machine where a driver tells it: the rails of a GB10's power manager (hwmon `spbm`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmtop.contract.units import clean
from llmtop.machine.tree import Files

_DRIVER = b"spbm"
_LABEL = re.compile(r"power(\d+)_label$")
_LOOK_AGAIN = 30  # readings: a driver can be loaded later, and the folder is not listed every second
_MOST_W = 1e5
TOTAL = "sys_total"


@dataclass(frozen=True, slots=True)
class Board:
    """Watts by rail, and whether the machine signals that it is too hot (PROCHOT); None where nobody says."""

    rails: Mapping[str, float] = field(default_factory=dict)
    prochot: bool | None = None


class BoardReader:
    """Reads the folder of that driver, which it looks for now and then."""

    def __init__(self, sysfs: str, files: Files) -> None:
        self._all = sysfs + "/class/hwmon"
        self._files = files
        self._folder: str | None = None
        self._labels: dict[str, str] = {}  # of rails by their number
        self._wait = 0

    def read(self) -> Board:
        """The rails now."""
        if self._wait <= 0:
            self._find()
            self._wait = _LOOK_AGAIN
        self._wait -= 1
        if self._folder is None:
            return Board()
        watts = {label: self._watts(number) for number, label in self._labels.items()}
        if None in watts.values():
            self._wait = 0
        hot = self._number("prochot")
        rails = {label: value for label, value in watts.items() if value is not None}
        return Board(rails, None if hot is None else hot != 0)

    def _find(self) -> None:
        folders = (f"{self._all}/{name}" for name in self._files.names(self._all))
        named = (folder for folder in folders if (self._files.read(folder + "/name") or b"").startswith(_DRIVER))
        self._folder, self._labels = next(named, None), {}
        for name in self._files.names(self._folder) if self._folder else ():
            if match := _LABEL.match(name):
                label = clean(
                    (self._files.read(f"{self._folder}/{name}") or b"").decode("utf-8", "replace").strip(), 32
                )
                self._labels[match[1]] = label or f"power{match[1]}"

    def _watts(self, number: str) -> float | None:
        value = self._number(f"power{number}_input")
        return None if value is None or not 0 <= value / 1e6 < _MOST_W else value / 1e6

    def _number(self, name: str) -> int | None:
        try:
            return int(self._files.read(f"{self._folder}/{name}") or b"")
        except ValueError:
            return None
