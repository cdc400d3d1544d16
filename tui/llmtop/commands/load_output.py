"""What `llmtop load` prints: the plan, progress as a bar or as JSON lines, the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from llmtop.contract.codec import to_json
from llmtop.contract.settings import UsageError
from llmtop.contract.units import UNKNOWN, clean, duration, rate, seconds
from llmtop.engines.models import ListedModel
from llmtop.load import table
from llmtop.load.events import (
    Draining,
    Event,
    LevelDone,
    LevelPreparing,
    LevelStarted,
    Measuring,
    Preflighted,
    Progress,
    Warned,
)
from llmtop.load.models import NoModel, candidates, choice, unlisted
from llmtop.load.pace import measurement_words
from llmtop.load.plan import ROUTES, Plan
from llmtop.load.results import RunResult, values_of
from llmtop.load.scenarios import SCENARIOS, TooLong, bench_commands, cuts

JSON_PROGRESS_S = 1.0
_PROGRESS = ("sent", "completed", "errors", "running", "tokens", "tok_s", "server_tok_s", "fraction", "eta_s")
_LEVEL_DONE = ("level", "completed", "failed", "output_throughput", "user_tok_s", "mean_ttft_ms", "p99_ttft_ms")


def plan_text(plan: Plan, models: Sequence[ListedModel] = ()) -> str:
    """What the plan will do, in lines, with a server's `models`; ends with the equal commands of vLLM."""
    prompt, output = plan.tokens()
    size = f"{plan.requests():,} requests, {prompt:,} prompt + {output:,} output tokens"
    limits = ", ".join(f"{name}={limit:g}" for name, limit in plan.slo.items())
    levels = [
        f"  {level.name}: {level.num_prompts} x {level.input_len} in / {level.output_len} out, "
        f"{level.concurrency} at once"
        for level in plan.levels
    ]
    head = [f"{SCENARIOS[plan.scenario].title} of {plan.url}: at most {size}; limits {limits}"]
    head += _model_lines(plan, models)
    if (measured := measurement_words(plan)) is not None:
        head.append(measured)
    taken = next((model.name for model in candidates(models, plan.model)), None)
    return "\n".join([*head, *levels, "The same with vLLM's own tool:", *bench_commands(plan, taken)])


def _model_lines(plan: Plan, models: Sequence[ListedModel]) -> list[str]:
    """Which model is loaded, and whether its prompts fit; raises `UsageError` for a plan that cannot run."""
    try:
        model = next(iter(candidates(models, plan.model)), None)
        if model is None:
            return ["model: as the server names it"]
        cut = cuts(plan, model.max_model_len)
    except (NoModel, TooLong) as error:
        raise UsageError(str(error)) from None
    taken = choice(models, model.name) if plan.model is None else unlisted(models, plan.model)
    return [f"model: {clean(taken or model.name)}", *([cut] if cut else [])]


def result_text(result: RunResult) -> str:
    """The table, the answer in words, and where the files are."""
    if not result.levels:
        return "" if result.error else result.words  # an error stands on stderr
    lines = [table.text(result.levels), *table.facts(result)]
    lines += ["interrupted"] if result.interrupted else []
    lines.append(result.words)
    lines += [f"files: {result.directory}"] if result.directory else []
    return "\n".join(lines)


class Lines:
    """Events as JSON lines on stdout, progress once a second."""

    def __init__(self) -> None:
        self.on_broken_pipe: Callable[[], None] = lambda: None
        self._next = 0.0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def take(self, event: Event) -> None:
        """Prints what a program wants to know of an event."""
        if isinstance(event, Progress):
            if time.monotonic() < self._next:
                return
            self._next = time.monotonic() + JSON_PROGRESS_S
        line = _json_event(event)
        if line is None:
            return
        try:
            print(to_json(line), flush=True)
        except BrokenPipeError:
            self.on_broken_pipe()


def _json_event(event: Event) -> dict[str, Any] | None:
    match event:
        case LevelStarted(_, level, _):
            return {"event": "level", "level": level.name, "concurrency": level.concurrency}
        case Progress():
            values = {name: getattr(event, name) for name in _PROGRESS}
            return {"event": "progress", "level": event.level.name} | values
        case LevelDone(_, result):
            return {"event": "level_done"} | {name: values_of(result)[name] for name in _LEVEL_DONE}
        case Draining(running, before, drained):
            return {"event": "draining", "running": running, "before": before, "drained": drained}
        case Measuring(requests, prompt, output):
            return {"event": "measuring", "requests": requests, "prompt_tokens": prompt, "output_tokens": output}
        case Preflighted(profile, _, took):
            return {"event": "preflight", "model": profile.model, "api": profile.api, "estimate_s": took}
        case Warned(text):
            return {"event": "warning", "text": text}
        case _:
            return None


class Bar:
    """A progress bar on stderr where that is a terminal, and warnings as lines."""

    def __init__(self, plan: Plan) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self.on_broken_pipe: Callable[[], None] = lambda: None
        self._plan = plan
        self._console = Console(stderr=True, highlight=False, markup=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        self._bar = Progress(*columns, console=self._console, disable=not sys.stderr.isatty(), transient=True)
        self._task = self._bar.add_task("preflight", total=1.0)

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def take(self, event: Event) -> None:
        """Shows an event."""
        match event:
            case LevelPreparing(index, level):
                self._plan = self._plan.with_level(index, level)
            case Progress():
                self._bar.update(self._task, completed=event.fraction, description=self._words(event))
            case LevelDone(_, result):
                words = f"{result.level}: {rate(result.tok_s)} tok/s, {result.completed} ok"
                mean = result.ttft.mean_ms / 1000 if result.ttft is not None else None
                self._console.print(f"{words}, {result.failed} failed, TTFT {seconds(mean)}")
            case Preflighted(profile, _, took):
                lasts = f", about {duration(took)}" if took is not None else ""
                self._console.print(f"model {clean(profile.model or UNKNOWN)} by {ROUTES[profile.api]}{lasts}")
            case Measuring(requests, prompt, output):
                words = f"{requests} requests, {prompt:,} prompt + {output:,} output tokens time the idle server"
                self._console.print(words)
            case Warned(text):
                self._console.print(f"warning: {text}")
            case Draining(running, before, drained):
                words = "the server is back to" if drained else "waiting for the server, it runs"
                self._bar.update(self._task, description=f"{words} {running} (before: {before})")
            case _:
                pass

    def _words(self, event: Progress) -> str:
        place = f"{event.index + 1}/{len(self._plan.levels)}"
        left = f", {duration(event.eta_s)} left" if event.eta_s is not None else ""
        counts = f"{event.completed}/{event.level.num_prompts} ok, {event.errors} err"
        return f"{place} {event.level.name}: {counts}, {rate(event.tok_s)} tok/s{left}"
