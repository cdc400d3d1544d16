"""The budgets: one run of every measurement, and the gates they have to pass."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from bench.measure import FLOOR, Bench, Size, Usage, Watched, bench
from bench.pages import BusyPage
from llmtop.engines.exposition import Exposition

WIDE, NARROW = (200, 50), (80, 24)
MANY = 32
CPU_MOST = {WIDE: 5.5, NARROW: 4.0}  # 200x50 has five times the cells, and a chart of every figure in them
SETTLE_S, WINDOW_S = 6.0, 20.0
# The charts of a page that stands still are full after so many seconds at 80x24 and two seconds per column.
STILL_S = 80.0
STARTS = 4


@dataclass(frozen=True, slots=True)
class Gate:
    """What must not be exceeded (`most`) or fallen short of (`least`), in a unit."""

    name: str
    value: float
    most: float | None = None
    least: float | None = None
    unit: str = ""

    @property
    def passed(self) -> bool:
        """Whether the budget is kept."""
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    def __str__(self) -> str:
        bound = f"≤ {self.most:g}" if self.most is not None else f"≥ {self.least:g}"
        return f"{self.name}: {self.value:.2f} {self.unit} ({bound})"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of everything."""

    wide: Usage
    narrow: Usage
    floor: Usage  # beside `wide`, of its size
    narrow_floor: Usage
    still: Usage
    many: Usage
    one: Usage
    starts: tuple[float, float]  # CPU seconds to the first frame: llmtop, the floor
    parse: tuple[float, float]  # ms per page: llmtop, prometheus_client alone

    def gates(self) -> list[Gate]:
        """Every budget of the run."""
        return [
            *byte_gates(self),
            cpu_gate(self.narrow, self.narrow_floor, NARROW),
            cpu_gate(self.wide, self.floor, WIDE),
            start_gate(*self.starts),
            Gate("resident", max(self.wide.rss, self.narrow.rss) / 2**20, most=70, unit="MiB"),
            parse_gate(*self.parse),
            many_gate(self.many, self.one),
        ]


def byte_gates(measured: Measured) -> list[Gate]:
    """Bytes per second to the terminal; on a machine too busy for a frame a second, per frame."""
    wide, narrow = (usage.bytes_s / min(1.0, usage.frames_s) for usage in (measured.wide, measured.narrow))
    return [
        Gate("bytes at 200x50", wide, most=1500, unit="B/s"),
        Gate("bytes at 80x24", narrow, most=800, unit="B/s"),
        Gate("bytes when nothing changes", measured.still.bytes_s, most=64, unit="B/s"),
    ]


def cpu_gate(ours: Usage, floor: Usage, size: Size) -> Gate:
    """CPU beside a one-line-a-second Textual app of the same size in the same seconds."""
    name = "CPU at {}x{} beside the floor".format(*size)
    return Gate(name, ours.cpu_percent / floor.cpu_percent, most=CPU_MOST[size], unit="x")


def start_gate(ours: float, floor: float) -> Gate:
    """CPU to the first frame beside that of a Textual app with one line."""
    return Gate("CPU to the first frame beside the floor", ours / floor, most=2.0, unit="x")


def parse_gate(ours: float, official: float) -> Gate:
    """How much faster a page is read than by the official parser alone."""
    return Gate("parsing beside prometheus_client", official / ours, least=20, unit="x")


def many_gate(many: Usage, one: Usage) -> Gate:
    """CPU of many servers beside that of one."""
    return Gate(f"CPU of {MANY} servers beside one", many.cpu_percent / one.cpu_percent, most=12, unit="x")


def together(runs: Sequence[tuple[Sequence[str], Size, str]], served: Bench, window_s: float) -> list[Usage]:
    """Measure programs in the same seconds."""
    with ExitStack() as stack:
        watched = [
            stack.enter_context(Watched(command, size, marker, served.environ)) for command, size, marker in runs
        ]
        for program in watched:
            program.wait_shown()
        with ThreadPoolExecutor(len(watched)) as pool:
            return list(pool.map(lambda program: program.usage(SETTLE_S, window_s), watched))


def busy(served: Bench, size: Size, window_s: float = WINDOW_S) -> tuple[Usage, Usage]:
    """llmtop and the floor, in the same seconds."""
    ours, floor = together([(served.llmtop(), size, "llmtop"), (FLOOR, size, "tick 0")], served, window_s)
    return ours, floor


def servers(served: Bench, window_s: float = WINDOW_S) -> tuple[Usage, Usage]:
    """llmtop with many servers and with one, at 80x24 in the same seconds."""
    many, one = together(
        [(served.llmtop(MANY), NARROW, "llmtop"), (served.llmtop(), NARROW, "llmtop")], served, window_s
    )
    return many, one


def standing_still(window_s: float = 12.0) -> Usage:
    """llmtop on a page and a machine that do not change, its charts full."""
    with bench(still=True) as served, Watched(served.llmtop(), NARROW, "llmtop", served.environ) as program:
        return program.usage(STILL_S, window_s)


def starts(served: Bench, times: int = STARTS) -> tuple[float, float]:
    """The least CPU time to the first frame of several starts: llmtop, the floor; taken in turns."""

    def once(command: Sequence[str], marker: str) -> float:
        with Watched(command, NARROW, marker, served.environ) as program:
            program.wait_shown()
            return program.first_frame_cpu_s or 0.0

    pairs = [(once(served.llmtop(), "llmtop"), once(FLOOR, "tick 0")) for _ in range(times + 1)]
    ours, floor = zip(*pairs[1:], strict=True)  # the first compiles the modules
    return min(ours), min(floor)


def parsing(pages: int = 12) -> tuple[float, float]:
    """Milliseconds of CPU per page that is read: llmtop in the steady state, prometheus_client alone."""
    busy_page = BusyPage()
    bodies = [busy_page.advance() for _ in range(pages)]
    parser = Exposition()
    parser.parse(busy_page.advance())

    def official(body: bytes) -> object:
        return list(text_string_to_metric_families(body.decode()))

    return _least_ms(parser.parse, bodies, 5), _least_ms(official, bodies, 2)


def _least_ms(parse: Callable[[bytes], object], bodies: Sequence[bytes], times: int) -> float:
    def once() -> float:
        began = time.process_time()
        for body in bodies:
            parse(body)
        return (time.process_time() - began) / len(bodies) * 1000

    return min(once() for _ in range(times))


def measure() -> Measured:
    """Everything once; the page that stands still is watched beside the others, because it takes longest."""
    with ThreadPoolExecutor(1) as pool, bench() as served:
        first = starts(served)
        still = pool.submit(standing_still)
        wide, floor = busy(served, WIDE)
        narrow, narrow_floor = busy(served, NARROW)
        many, one = servers(served)
        return Measured(wide, narrow, floor, narrow_floor, still.result(), many, one, first, parsing())


RIVALS = {
    "vllmstat": ("vllmstat", "--interval", "1", "--url", "{url}"),
    "vllmpytop": ("vllmtop", "--interval", "1", "--url", "{url}"),
    "vllm-htop": ("vllm-htop", "--interval", "1", "--url", "{url}"),
}


def rivals(served: Bench) -> Iterator[tuple[str, Usage | None]]:
    """The same for other monitors where they are installed; None for one that shows nothing."""
    from shutil import which

    for name, command in RIVALS.items():
        if which(command[0]) is None:
            continue
        words = [word.format(url=f"http://127.0.0.1:{served.port}/s0") for word in command]
        try:
            (usage,) = together([(words, WIDE, "")], served, WINDOW_S)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            yield name, None
        else:
            yield name, usage
