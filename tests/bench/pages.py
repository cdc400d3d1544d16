"""A vLLM page on which every number moves, and a machine that moves with it; the worst second a screen can meet."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures"
PAGE = FIXTURES / "pages" / "vllm-0.32.0-c16.txt"
SCENARIO = FIXTURES / "nvml" / "gb10.txt"
CAPACITY = 849_942
UP_S = 11_520.0
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z0-9_:]+)(?P<labels>\{.*\})? (?P<value>\S+)$")


@dataclass(slots=True)
class Walk:
    """A value that wanders between two bounds and never stands still."""

    low: float
    high: float
    value: float

    def step(self, pick: random.Random) -> float:
        """The next value."""
        room = self.high - self.low
        self.value += pick.choice((-1, 1)) * room * pick.uniform(0.02, 0.08)
        if not self.low < self.value < self.high:
            self.value = pick.uniform(self.low + 0.2 * room, self.high - 0.2 * room)
        return self.value


@dataclass(slots=True)
class Histogram:
    """The lines of one histogram in the order of the page."""

    bounds: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    total: float = 0.0
    centre: Walk = field(default_factory=lambda: Walk(3.0, 9.0, 6.0))

    def observe(self, pick: random.Random) -> None:
        """Some requests more, in a few buckets around a centre that wanders."""
        if not self.bounds:
            return
        centre = self.centre.step(pick)
        for _ in range(pick.randint(20, 60)):
            place = min(max(int(pick.gauss(centre, 1.2)), 0), len(self.bounds) - 2)
            for higher in range(place, len(self.bounds)):
                self.counts[higher] += 1
            self.total += self.bounds[place] * pick.uniform(0.7, 1.0)


class BusyPage:
    """The captured page of vLLM 0.32, one second further at each `advance`."""

    def __init__(self, seed: int = 1) -> None:
        self._pick = random.Random(seed)
        text = PAGE.read_text().replace('kv_cache_size_tokens="3072"', f'kv_cache_size_tokens="{CAPACITY}"')
        self._lines = text.splitlines()
        self._counters: dict[int, float] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges = {
            "vllm:num_requests_running": Walk(2, 61, 30),
            "vllm:num_requests_waiting": Walk(0, 40, 12),
            "vllm:kv_cache_usage_perc": Walk(0.2, 0.93, 0.5),
        }
        self._speeds = {
            "vllm:generation_tokens_total": 900.0,
            "vllm:prompt_tokens_total": 5200.0,
            "vllm:admission_rejections_total": 0.0,
        }
        self._start = time.time() - UP_S
        for place, sample in self._samples():
            self._learn(place, sample["name"], sample["labels"] or "", float(sample["value"]))

    def _samples(self) -> Iterator[tuple[int, re.Match[str]]]:
        for place, line in enumerate(self._lines):
            if not line.startswith("#") and (sample := _SAMPLE.match(line)) is not None:
                yield place, sample

    def _learn(self, place: int, name: str, labels: str, value: float) -> None:
        if name.endswith("_bucket"):
            histogram = self._histograms.setdefault(name.removesuffix("_bucket"), Histogram())
            bound = re.search(r'le="([^"]*)"', labels)
            assert bound is not None
            histogram.bounds.append(float(bound[1]))
            histogram.counts.append(value)
        elif name.endswith("_total"):
            self._counters[place] = value

    def at_rest(self) -> bytes:
        """The page of a server without a request."""
        for walk in self._gauges.values():
            walk.value = 0.0
        return self._render()

    def advance(self) -> bytes:
        """The page of the next second."""
        for walk in self._gauges.values():
            walk.step(self._pick)
        for place, value in self._counters.items():
            speed = self._speeds.get(self._lines[place].partition("{")[0], 40.0)
            self._counters[place] = value + speed * self._pick.uniform(0.5, 1.5)
        for histogram in self._histograms.values():
            histogram.observe(self._pick)
        return self._render()

    def _render(self) -> bytes:
        seen: dict[str, int] = {}
        lines = list(self._lines)
        for place, sample in self._samples():
            lines[place] = lines[place][: sample.start("value")] + self._value(place, sample, seen)
        return ("\n".join(lines) + "\n").encode()

    def _value(self, place: int, sample: re.Match[str], seen: dict[str, int]) -> str:
        name = sample["name"]
        if name in self._gauges:
            value = self._gauges[name].value
            return f"{value:.6f}" if name.endswith("perc") else f"{value:.0f}.0"
        if name == "process_start_time_seconds" or name.endswith("_created"):
            return f"{self._start:.2f}"
        if place in self._counters:
            return f"{self._counters[place]:.0f}.0"
        return self._histogram_value(name, seen) or sample["value"]

    def _histogram_value(self, name: str, seen: dict[str, int]) -> str | None:
        family, _, part = name.rpartition("_")
        histogram = self._histograms.get(family)
        if histogram is None:
            return None
        if part == "bucket":
            seen[family] = seen.get(family, -1) + 1
            return f"{histogram.counts[seen[family]]:.0f}.0"
        return f"{histogram.counts[-1]:.0f}.0" if part == "count" else f"{histogram.total:.6f}"


class BusyMachine:
    """A GB10 in files: a scenario of the fake NVML and a /proc tree, one second further at each `advance`."""

    def __init__(self, folder: Path, seed: int = 2) -> None:
        self.scenario, self.procfs = folder / "scenario.txt", folder / "proc"
        self._pick = random.Random(seed)
        self._available, self._power = Walk(8e6, 60e6, 24e6), Walk(20e3, 90e3, 46e3)
        self._util, self._temperature = Walk(60, 100, 90), Walk(50, 90, 70)
        self._clock, self._busy = Walk(1800, 3000, 2400), Walk(0.05, 0.9, 0.3)
        self._jiffies, self._energy_mj = [1000.0, 9000.0], 5e8
        (self.procfs / "pressure").mkdir(parents=True)
        self.advance()

    def advance(self) -> None:
        """Write the next second."""
        pick = self._pick
        available, busy = self._available.step(pick), self._busy.step(pick)
        self._jiffies = [self._jiffies[0] + 2000 * busy, self._jiffies[1] + 2000 * (1 - busy)]
        user, rest = (int(value) for value in self._jiffies)
        total = 127_600_000
        meminfo = {"MemTotal": total, "MemFree": available * 0.4, "MemAvailable": available, "Cached": available * 0.6}
        meminfo |= {"SwapTotal": 16_000_000, "SwapFree": 16_000_000 - available / 20}
        _put(self.procfs / "meminfo", "".join(f"{name}: {int(value)} kB\n" for name, value in meminfo.items()))
        _put(self.procfs / "stat", f"cpu  {user} 0 0 {rest} 0 0 0 0 0 0\n")
        _put(self.procfs / "pressure" / "memory", f"full avg10={busy:.2f} avg60=0.00 avg300=0.00 total=0\n")
        power = self._power.step(pick)
        self._energy_mj += power
        moved = {
            "power": power,
            "energy": self._energy_mj,
            "util": self._util.step(pick),
            "temp": self._temperature.step(pick),
            "clock.sm": self._clock.step(pick),
        }
        text = SCENARIO.read_text()
        for name, value in moved.items():
            text = re.sub(rf"(?m)^gpu0\.{re.escape(name)} = .*$", f"gpu0.{name} = {value:.0f}", text)
        _put(self.scenario, text)


def _put(path: Path, text: str) -> None:
    """Replace a file in one step."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.replace(path)
