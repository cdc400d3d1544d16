"""The time of a log line, in the forms that engines and those who forward their logs write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
CLOCK = r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-6]\d(?:[.,]\d+)?)"
DATE = r"(?P<y>\d{4})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)"
_TIME = re.compile(rf"{DATE}[T ]{CLOCK}|\b(?P<name>{'|'.join(MONTHS)}) +(?P<day>\d\d?) {CLOCK.replace('?P<', '?P<b_')}")


@dataclass(frozen=True, slots=True)
class Stamp:
    """A log time; vLLM's own has no year and a resolution of one second (`whole`)."""

    month: int
    day: int
    second: float  # of the day
    year: int | None = None
    whole: bool = True

    def unix(self, near: float) -> float | None:
        """The Unix time it means on this machine, or in UTC as containers have it: whichever is nearer to `near`."""
        base = datetime.fromtimestamp(near, UTC)
        try:
            day = datetime(self.year or base.year, self.month, self.day)
        except ValueError:
            return None
        moment = day + timedelta(seconds=self.second)
        return min((moment.timestamp(), moment.replace(tzinfo=UTC).timestamp()), key=lambda at: abs(at - near))


def stamp_in(text: str) -> Stamp | None:
    """The last time with a date in a text."""
    found = None
    for match in _TIME.finditer(text):
        found = stamp_of(
            {name.removeprefix("b_"): part for name, part in match.groupdict().items() if part is not None}
        )
    return found


def stamp_of(groups: Mapping[str, str]) -> Stamp:
    """The time in the groups of a pattern made of `DATE` and `CLOCK`."""
    text = groups["s"].replace(",", ".")
    second = int(groups["h"]) * 3600 + int(groups["m"]) * 60 + float(text)
    if "name" in groups:
        return Stamp(MONTHS.index(groups["name"]) + 1, int(groups["day"]), second, whole="." not in text)
    year = int(groups["y"]) if groups.get("y") else None
    return Stamp(int(groups["mo"]), int(groups["d"]), second, year, "." not in text)
