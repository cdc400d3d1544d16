"""A start-up as lines of text: one when a phase ends, one when memory gets low, the verdict at the end."""

from __future__ import annotations

from typing import TextIO

from llmtop.warmup.evidence import GIB
from llmtop.warmup.report import WORDS, Report, to_line
from llmtop.warmup.startup import Phase
from llmtop.warmup.watch import Watch


class PlainView:
    """Writes what has changed since the last call; with `as_json` whole objects, one a line."""

    def __init__(self, stream: TextIO, as_json: bool = False, prefix: str = "") -> None:
        self._stream, self._json, self._prefix = stream, as_json, prefix
        self._phase: str | None = ""
        self._states: dict[str, str] = {}

    def say(self, text: str) -> None:
        """Write one line for a person."""
        if not self._json:
            self._write(f"{self._prefix}{text}")

    def show(self, watch: Watch) -> None:
        """Write what is new."""
        self._alarms(watch)
        if watch.phase == self._phase:
            return
        report = watch.report()
        if self._json:
            self._write(to_line(report))
        else:
            done = [p for p in report.startup.phases if p.name == self._phase]
            for phase in done:
                self.say(_ended(phase))
            self.say(f"{WORDS[watch.phase]} ..." if watch.phase else report.verdict)
        self._phase = watch.phase

    def end(self, report: Report) -> None:
        """Write the result."""
        if self._json:
            self._write(to_line(report))
            return
        for phase in report.startup.phases:
            self.say(_ended(phase))
        self.say(report.verdict)
        self.say(f"advice: {report.advice.text}")
        for line in report.advice.arithmetic:
            self.say(f"  {line}")

    def _alarms(self, watch: Watch) -> None:
        for pool in watch.pools:
            state = pool.state or "ok"
            if state != self._states.get(pool.name, "ok"):
                left = "" if pool.headroom_bytes is None else f", {pool.headroom_bytes / GIB:.1f} GiB left"
                self.say(f"memory of {pool.name} {state.upper()}{left}{f': {pool.reason}' if pool.reason else ''}")
            self._states[pool.name] = state

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more
            return


def _ended(phase: Phase) -> str:
    took = "–" if phase.seconds is None else f"{phase.seconds:.1f} s"
    left = "–" if phase.min_headroom_bytes is None else f"{phase.min_headroom_bytes / GIB:.2f} GiB"
    inferred = " (inferred)" if phase.inferred else ""
    return f"{phase.name + inferred:<18} {took:>9}   least headroom {left}"
