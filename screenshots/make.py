"""Makes every picture of this folder from `llmtop demo`, or checks that the pictures are current.

    python screenshots/make.py                 all pictures, at the real speed of the machines (about 7 minutes)
    python screenshots/make.py --only gpus     one of them
    python screenshots/make.py --check         makes them quickly beside and compares what they say, not the numbers

Pictures are SVG without fonts or links from elsewhere. `--check` ends with 1 and one line per difference.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from textual.pilot import Pilot  # noqa: TID251
from textual.widgets import Input  # noqa: TID251

from llmtop.contract.settings import Settings, Target
from llmtop.demo import profile
from llmtop.demo.child import launch
from llmtop.demo.machine import SimulatedMachine
from llmtop.ui.app import LlmtopApp
from llmtop.ui.picture import CELL_X, CELL_Y, MARGIN, picture
from llmtop.ui.source import Live
from llmtop.warmup.log_source import follow_file

HERE = Path(__file__).parent
DARK, LIGHT = "llmtop", "llmtop-light"
PORT = 8000
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture: its file name without `.svg`, size in cells, and the words that it must show."""

    name: str
    size: tuple[int, int]
    says: tuple[str, ...]


PANELS = ("KV CACHE", "HEADROOM", "QUEUE", "TOK/S", "Memory", "Throughput", "Latency", "GPU 0", "TTFT", "Quit")
FIGURES = ("tokens per second", "users served", "KV cache", "headroom, GiB", "now")
SHOTS = (
    Shot("dashboard-dark", (120, 36), PANELS),
    Shot("dashboard-light", (120, 36), PANELS),
    Shot("dashboard-80x24", (80, 24), PANELS),
    Shot("dashboard-200x50", (200, 50), PANELS),
    Shot("gpus", (120, 14), ("GPU", "NVIDIA GB10", "util", "power")),
    Shot("stage", (120, 36), FIGURES),
    Shot("stage-light", (80, 24), FIGURES),
    Shot("engines", (120, 18), ("server", "engine", "all 4", "SERVING", "KV tokens", "TTFT p95")),
    Shot("load-plan", (120, 36), ("Load test", "Scenario", "Users", "Requests", "vllm bench serve", "F5")),
    Shot("load-running", (120, 36), ("level", "Slots", "F8")),
    Shot("load-result", (120, 36), ("tok/s", "F7")),
    Shot("warmup", (120, 40), ("Phases", "Headroom", "STARTING")),
    Shot("warmup-ready", (120, 40), ("Phases", "Ledger", "Advice", "READY")),
)
BY_NAME = {shot.name: shot for shot in SHOTS}


@dataclass(slots=True)
class Studio:
    """A demo on the screen, and where its pictures go."""

    app: LlmtopApp
    pilot: Pilot[None]
    folder: Path

    async def shoot(self, name: str, theme: str = DARK) -> None:
        """Take a picture at its size."""
        shot = BY_NAME[name]
        self.app.theme = theme
        await self.pilot.resize_terminal(*shot.size)
        self.app.note("")
        await self.pilot.pause(0.2)
        drawn = at_home(picture(self.app, f"llmtop: {name}"), os.environ["XDG_STATE_HOME"])
        (self.folder / f"{name}.svg").write_text(drawn, "utf-8")
        print(f"  {name}.svg", flush=True)

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"never {what}")
            await self.pilot.pause(0.1)

    async def watch(self, seconds: float) -> None:
        """Let the demo run for so long after its first snapshot."""
        await self.until(lambda: self.app.history.now > 0, "a snapshot")
        began = self.app.history.now
        await self.until(lambda: self.app.history.now - began >= seconds, f"{seconds:g} s")


def at_home(drawn: str, state: str) -> str:
    """The picture with the place of results as its reader has it."""

    def shorter(found: re.Match[str]) -> str:
        words = found[2].replace(state, "~/.local/state")
        return f'textLength="{len(unescape(words)) * CELL_X}"{found[1]}>{words}</text>'

    return re.sub(rf'textLength="\d+"([^>]*)>([^<]*{re.escape(state)}[^<]*)</text>', shorter, drawn)


@asynccontextmanager
async def studio(folder: Path, *, log: Path | None = None, **options: Any) -> AsyncIterator[Studio]:
    """A simulated GB10 on the screen."""
    with launch("gb10", port=_port(), seed=7, log=log, **options) as demo:
        machine = profile.load("gb10")
        target = Target(demo.url, max_num_seqs=machine.engine.max_num_seqs)
        settings = Settings((target,), theme=DARK, startup=log is not None)
        lines = follow_file(log) if log else None
        app = LlmtopApp(settings, Live(settings, SimulatedMachine(machine, demo.control), lines))
        app.step_s = 1.0
        async with app.run_test(size=(120, 36)) as pilot:
            yield Studio(app, pilot, folder)


def _port() -> int:
    """The port that a reader expects in the picture, or any where that one is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return 0
    return PORT


async def watching(folder: Path, quick: bool) -> None:
    """The dashboard at its sizes, the GPUs, the stage."""
    async with studio(folder) as s:
        await s.watch(6 if quick else 125)
        await s.shoot("dashboard-dark")
        await s.shoot("dashboard-80x24")
        await s.shoot("dashboard-200x50")
        await s.shoot("dashboard-light", LIGHT)
        await s.press("g")
        await s.shoot("gpus")
        await s.press("v")
        await s.shoot("stage")
        await s.shoot("stage-light", LIGHT)


async def engines(folder: Path, quick: bool) -> None:
    """Four data-parallel engines."""
    async with studio(folder, dp=4) as s:
        await s.watch(6 if quick else 45)
        await s.press("e")
        await s.shoot("engines")


async def loading(folder: Path, quick: bool) -> None:
    """The load test: its plan, the run in the middle of its third level, the answer."""
    async with studio(folder, no_traffic=True, speed=20.0 if quick else 1.0) as s:
        await s.watch(4)
        await s.press("l")
        fields = {"users": "1,4,8,16,32", "prompts": "8" if quick else "32"}
        for name, value in fields.items():
            s.app.screen.query_one(f"#field-{name}", Input).value = value
        await s.shoot("load-plan")
        await s.press("f5")
        await s.pilot.pause(1.0)
        if not s.app.load.running:
            await s.press("y")
        await s.until(lambda: _level(s.app) >= 2.5, "the middle of the third level")
        await s.pilot.pause(0.1 if quick else 5.0)  # a new wave has begun; let it come to speed
        await s.shoot("load-running")
        await s.until(lambda: not s.app.load.running and s.app.load.state is not None, "the end")
        await s.until(lambda: s.app.load.state is not None and s.app.load.state.result is not None, "a result")
        await s.pilot.pause(1.0)
        await s.shoot("load-result")


def _level(app: LlmtopApp) -> float:
    """How many levels are done, with the share of the running one."""
    state = app.load.state
    progress = state.progress if state is not None else None
    if progress is None:
        return 0.0
    return progress.index + progress.completed / progress.level.num_prompts


async def warming(folder: Path, quick: bool) -> None:
    """A start-up while the weights are read, and when the server is ready."""
    with tempfile.TemporaryDirectory() as place:
        async with studio(folder, log=Path(place) / "vllm.log", warmup=True, speed=40.0 if quick else 8.0) as s:
            await s.until(lambda: _read(s.app) >= 0.6, "weights")
            await s.shoot("warmup")
            await s.until(lambda: s.app.startup is not None and not s.app.startup.active, "ready")
            await s.pilot.pause(1.0)
            await s.shoot("warmup-ready")


def _read(app: LlmtopApp) -> float:
    """The share of the weights that is read."""
    progress = app.startup.report.startup.progress if app.startup is not None else None
    return progress.percent / 100 if progress is not None else 0.0


SESSIONS: tuple[tuple[Callable[[Path, bool], Coroutine[None, None, None]], tuple[str, ...]], ...] = (
    (watching, tuple(shot.name for shot in SHOTS[:7])),
    (engines, ("engines",)),
    (loading, ("load-plan", "load-running", "load-result")),
    (warming, ("warmup", "warmup-ready")),
)


def make(folder: Path, quick: bool, only: Sequence[str]) -> None:
    """Make the pictures (those of the sessions in which the wanted ones are)."""
    os.environ.setdefault("COLORTERM", "truecolor")
    for name in ("NO_COLOR", "TEXTUAL_THEME"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        for session, names in SESSIONS:
            if not only or set(only) & set(names):
                asyncio.run(session(folder, quick))


def problems(folder: Path) -> Iterator[str]:
    """What is wrong with the pictures of a folder: missing, too many, of another size, without their words."""
    there = {path.stem for path in folder.glob("*.svg")}
    for name in sorted(there - set(BY_NAME)):
        yield f"{name}.svg: no picture of this name is made"
    for shot in SHOTS:
        if shot.name not in there:
            yield f"{shot.name}.svg is missing"
        else:
            text = (folder / f"{shot.name}.svg").read_text("utf-8")
            yield from (f"{shot.name}.svg: {problem}" for problem in _problems_of(shot, text))


def _problems_of(shot: Shot, text: str) -> Iterator[str]:
    said = " ".join(unescape(words) for words in re.findall(r"<text[^>]*>([^<]*)</text>", text))
    title = re.search(r"<title>([^<]*)</title>", text)
    if title is None or title[1] != f"llmtop: {shot.name}":
        yield "another title"
    width, height = shot.size[0] * CELL_X + 2 * MARGIN, shot.size[1] * CELL_Y + 2 * MARGIN
    if f'viewBox="0 0 {width} {height}"' not in text:
        yield f"not {shot.size[0]} x {shot.size[1]} cells"
    if re.search(r"https?://(?!www\.w3\.org/2000/svg)|@font-face|@import", text.replace("http://127.0.0.1", "")):
        yield "needs something from elsewhere"
    yield from (f"does not say {words!r}" for words in shot.says if words not in said)


def check() -> int:
    """Compare the pictures of this folder with those that the program makes now."""
    with tempfile.TemporaryDirectory() as place:
        make(Path(place), True, ())
        found = [*problems(HERE), *(f"as made now: {problem}" for problem in problems(Path(place)))]
    for problem in found:
        print(problem)
    print("the pictures are current" if not found else f"{len(found)} problems: run python screenshots/make.py")
    return 1 if found else 0


def main() -> int:
    """Make or check the pictures; the exit code."""
    parser = argparse.ArgumentParser(description="Make the pictures of this folder from llmtop demo.")
    parser.add_argument("--check", action="store_true", help="only see whether they are current")
    parser.add_argument("--only", action="append", default=[], choices=sorted(BY_NAME), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="as --check makes them: fast and with short histories")
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR", help="where to (this folder)")
    args = parser.parse_args()
    if args.check:
        return check()
    args.out.mkdir(parents=True, exist_ok=True)
    make(args.out, args.quick, args.only)
    for problem in () if args.only else problems(args.out):
        print(problem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
