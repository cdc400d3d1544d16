"""`llmtop demo`: a simulated server and machine in a child process, watched like a real one."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

from llmtop.commands.common import Show, add_common, base_settings
from llmtop.commands.watch import watch
from llmtop.contract.settings import Target, UsageError

DEFAULT_MACHINE = "gb10"
MIN_SPEED, MAX_SPEED = 0.01, 1000.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmtop demo`."""
    from llmtop.demo import profile
    from llmtop.demo.faults import FAULTS

    parser.add_argument(
        "machine", nargs="?", choices=profile.names(), default=DEFAULT_MACHINE, help=f"({DEFAULT_MACHINE})"
    )
    sim = parser.add_argument_group("simulation")
    sim.add_argument("--engine", choices=("vllm", "llama.cpp", "both"), default="vllm", help="(vllm)")
    sim.add_argument("--serve", action="store_true", help="only serve: print the URL and wait")
    sim.add_argument("--port", type=int, default=0, help="port of the simulated server (a free one)")
    sim.add_argument("--speed", type=float, default=1.0, help="times faster than the machine it imitates")
    sim.add_argument("--dp", type=int, default=1, metavar="N", help="data-parallel engines")
    sim.add_argument("--seed", type=int, default=0, help="of its own traffic")
    sim.add_argument("--no-traffic", action="store_true", help="no requests of its own")
    sim.add_argument("--warmup", action="store_true", help="play the start-up first")
    sim.add_argument("--oom", action="store_true", help="a start-up that runs out of memory in graph capture")
    sim.add_argument("--fault", action="append", default=[], choices=tuple(FAULTS), help="a fault from the start")
    add_common(parser)


def run(args: argparse.Namespace, show: Show | None = None) -> int:
    """Run the demo; the exit code. `show` takes the place of the screen."""
    from llmtop.demo import profile

    _check(args)
    machines = _machines(args.machine, args.engine, profile.names())
    options = {
        name: getattr(args, name) for name in ("port", "speed", "dp", "seed", "no_traffic", "warmup", "oom", "fault")
    }
    if args.serve:
        return _serve(machines[0], options)
    from llmtop.demo.child import launch
    from llmtop.demo.machine import SimulatedMachine
    from llmtop.warmup.log_source import follow_file

    settings = base_settings(args)
    try:
        with contextlib.ExitStack() as stack:
            log = _log(args, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llmtop-demo-"))))
            demos = [stack.enter_context(launch(machines[0], log=log, **options))]
            quiet = {"speed": args.speed, "no_traffic": args.no_traffic, "seed": args.seed}
            demos += [stack.enter_context(launch(machine, **quiet)) for machine in machines[1:]]
            models = [profile.load(machine) for machine in machines]
            lines = follow_file(log) if log else None
            targets = tuple(
                Target(demo.url, max_num_seqs=model.engine.max_num_seqs, pid=demo.process.pid)
                for demo, model in zip(demos, models, strict=True)
            )
            return watch(
                args,
                replace(settings, targets=targets, startup=lines is not None),
                SimulatedMachine(models[0], *(demo.control for demo in demos), speed=args.speed),
                lines,
                show,
            )
    except (RuntimeError, profile.ProfileError) as error:
        raise UsageError(str(error)) from None


def _log(args: argparse.Namespace, folder: Path) -> Path | None:
    """Where a simulated start-up writes its log."""
    return folder / "vllm.log" if args.warmup or args.oom else None


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port must be 0 (a free one) to 65535, not {args.port}")
    if args.engine == "both" and (args.serve or args.warmup or args.oom):
        raise UsageError("--engine both shows two running servers: no --serve, --warmup or --oom")
    if not MIN_SPEED <= args.speed <= MAX_SPEED:
        raise UsageError(f"--speed must be {MIN_SPEED:g} to {MAX_SPEED:g}, not {args.speed:g}")


def _machines(machine: str, engine: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The profiles of a machine with an engine, or with both side by side; raises UsageError where there are none."""
    llamacpp = f"{machine}-llamacpp"
    names = {"vllm": (machine,), "llama.cpp": (llamacpp,), "both": (llamacpp, f"{machine}-32b")}[engine]
    if set(names) <= set(known):
        return names
    raise UsageError(f"there is no demo of {machine} with {engine}; there are {', '.join(known)}")


def _serve(machine: str, options: dict[str, object]) -> int:
    """The simulated server alone, in this process, until it is stopped."""
    from llmtop.demo.child import flags, main

    return main([machine, *flags(options)])
