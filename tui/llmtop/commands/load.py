"""`llmtop load`: the load test without a screen."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmtop.commands.common import base_settings, named_nodes, named_targets
from llmtop.commands.load_arguments import add_arguments, make_plan
from llmtop.commands.load_output import Bar, Lines, plan_text, result_text
from llmtop.contract.codec import plain, to_json
from llmtop.contract.settings import Target, UsageError
from llmtop.contract.snapshot import Snapshot
from llmtop.load import safety
from llmtop.load.article import Measured, article, article_markdown, article_text, names, sources
from llmtop.load.beside import by_ssh, watched
from llmtop.load.compare import compare, comparison_text
from llmtop.load.files import NoRun, read_run
from llmtop.load.plan import Plan
from llmtop.load.results import RunResult, values_of
from llmtop.load.runner import LoadError, LoadRun, RunOptions, read_counters, survey

__all__ = ["add_arguments", "run"]

EXIT_OK, EXIT_NOT_MET, EXIT_REFUSED, EXIT_NOTHING = 0, 1, 2, 3


def run(args: argparse.Namespace) -> int:
    """Runs `llmtop load` with parsed arguments and returns the exit code; raises `UsageError`."""
    if args.compare:
        return _compare(args)
    nodes = named_nodes(args, [args.url])[0] if args.url else ()
    if not nodes:
        return _run(args, _target(args))
    with by_ssh(nodes[0], base_settings(args)) as (target, snapshots):
        return _run(args, target, snapshots)


def _run(args: argparse.Namespace, target: Target, snapshots: Callable[[], Snapshot | None] | None = None) -> int:
    plan = make_plan(args, target)
    options = RunOptions.of_target(target, root=args.output_dir, write=not args.no_files, snapshots=snapshots)
    if args.dry_run:
        print(_shown(plan, options))
        return EXIT_OK
    try:
        _permit(args, plan, target, options)
        result = _played(args, plan, target, options)
    except LoadError as error:
        print(f"llmtop load: {error}", file=sys.stderr)
        result = RunResult(plan.scenario, str(error), slo=plan.slo, url=plan.url, error=str(error))
    with contextlib.suppress(BrokenPipeError):
        if said := to_json(values_of(result)) if args.json else result_text(result):
            print(said, flush=True)
    return exit_code(result, asked=args.slo is not None)


def _target(args: argparse.Namespace) -> Target:
    if not args.url:
        raise UsageError("name the server to load: llmtop load URL")
    return named_targets(args, [args.url])[0]


# permission


def _permit(args: argparse.Namespace, plan: Plan, target: Target, options: RunOptions) -> None:
    """Asks what must be asked; raises `UsageError` when the run may not start."""
    try:
        has_key = options.authorization is not None
        permission = safety.ask(plan.url, has_key, args.allow_remote_load, node=target.node)
    except OSError as error:
        raise LoadError(f"{target.host}: {error.strerror or error}") from None
    if permission.confirm is safety.Confirm.REFUSED:
        raise UsageError(" ".join(permission.reasons))
    busy = _busy(plan, options)
    if args.yes:
        if busy:
            print(f"llmtop load: {busy.removesuffix(' Load it all the same?')}", file=sys.stderr)
        return
    if not sys.stdin.isatty():
        raise UsageError("a load test starts only with --yes where nobody can be asked")
    print(_shown(plan, options), file=sys.stderr)
    if permission.confirm is safety.Confirm.NAME:
        if not safety.typed_right(_answer(f"{permission.reasons[0]} "), target.host):
            raise UsageError("not the name of the host; nothing was sent")
    elif _answer("Start? [y/N] ").lower() not in ("y", "yes"):
        raise UsageError("not started; nothing was sent")
    if busy and _answer(f"{busy} [y/N] ").lower() not in ("y", "yes"):
        raise UsageError("not started; nothing was sent")


def _shown(plan: Plan, options: RunOptions) -> str:
    """The plan with the model that the server would be loaded with."""
    return plan_text(plan, asyncio.run(survey(plan.url, options)))


def _busy(plan: Plan, options: RunOptions) -> str | None:
    counters = asyncio.run(read_counters(plan.url, options))
    return safety.busy_words(counters.running, counters.waiting) if counters is not None else None


def _answer(question: str) -> str:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


# the run


def _played(args: argparse.Namespace, plan: Plan, target: Target, options: RunOptions) -> RunResult:
    if options.snapshots is not None:
        return asyncio.run(_play(args, plan, options))
    with watched(target, base_settings(args)) as snapshots:
        return asyncio.run(_play(args, plan, replace(options, snapshots=snapshots)))


async def _play(args: argparse.Namespace, plan: Plan, options: RunOptions) -> RunResult:
    show: Lines | Bar = Lines() if args.json else Bar(plan)
    load = LoadRun(plan, options, show.take)
    show.on_broken_pipe = load.stop
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, load.stop)
    with show:
        return await load.run()


def exit_code(result: RunResult, asked: bool) -> int:
    """0: limits met or none asked; 1: not met; 3: no level ran to its end with a request that succeeded."""
    if not any(level.whole for level in result.levels):
        return EXIT_NOTHING
    return EXIT_NOT_MET if asked and not result.met else EXIT_OK


# two engines


def _compare(args: argparse.Namespace) -> int:
    """Two runs side by side: finished ones, or of servers that are loaded for it one after the other."""
    a, b = (_run_of(args, word) for word in args.compare)
    compared, lines, heads = compare(a, b), article(a, b), names(a, b)
    if args.json:
        print(to_json({"a": args.compare[0], "b": args.compare[1], **plain(compared), **_engines(a, b, lines)}))
    elif not compared.figures:
        raise UsageError("; ".join(["the two runs have no level in common", *compared.differences]))
    elif args.markdown:
        print("\n".join([*(f"- {line}" for line in sources(a, b)), "", article_markdown(lines, heads)]))
    else:
        print("\n".join([*sources(a, b), "", article_text(lines, heads), "", comparison_text(compared)]))
    return EXIT_OK


def _engines(a: RunResult, b: RunResult, lines: Sequence[Measured]) -> dict[str, Any]:
    engines = {key: {"engine": run.engine, "model": run.model, "url": run.url} for key, run in (("a", a), ("b", b))}
    return {"engines": engines, "article": plain(tuple(lines))}


def _run_of(args: argparse.Namespace, word: str) -> RunResult:
    """A finished run by its path; else the runs of a server, its single user first, as one."""
    path = Path(word)
    try:
        if path.exists() or word.startswith(("/", ".")) or word.endswith(".json"):
            return read_run(path)
    except NoRun as error:
        raise UsageError(str(error)) from None
    target = named_targets(args, [word])[0]
    runs: list[RunResult] = []
    for scenario in (args.scenario,) if args.scenario else ("single", "sweep"):
        plan = make_plan(argparse.Namespace(**{**vars(args), "scenario": scenario}), target)
        options = RunOptions.of_target(target, root=args.output_dir, write=not args.no_files)
        try:
            if not runs:
                _permit(args, plan, target, options)
            runs.append(_played(args, plan, target, options))
        except LoadError as error:
            raise UsageError(f"{word}: {error}") from None
    return replace(runs[0], levels=tuple(level for run in runs for level in run.levels))
