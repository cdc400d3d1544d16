"""The arguments of `llmtop load`, and the plan they make."""

from __future__ import annotations

import argparse
import json
import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmtop.commands.common import add_connection, add_machine
from llmtop.contract.settings import Target, UsageError
from llmtop.load.plan import DEFAULT_SLO, Caps, Plan, Timeouts
from llmtop.load.scenarios import SCENARIOS, Options, build
from llmtop.load.verdict import BadLimit, parse_goodput, parse_slo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `llmtop load`."""
    parser.add_argument("url", nargs="?", metavar="URL", help="the server: HOST:PORT, a URL, or a configured name")
    what = parser.add_argument_group("what to send")
    names = "; ".join(f"{s.name}: {s.shows}" for s in SCENARIOS.values())
    what.add_argument("--scenario", choices=SCENARIOS, metavar="NAME", help=f"{names} (sweep)")
    what.add_argument("--max-concurrency", type=_whole_list, metavar="N[,N]", help="users at once, one level each")
    what.add_argument("--num-prompts", type=_whole, metavar="N", help="requests per level")
    what.add_argument("--random-input-len", type=_whole, metavar="N", help="prompt tokens per request")
    what.add_argument("--random-output-len", type=_whole, metavar="N", help="output tokens per request")
    what.add_argument(
        "--request-rate",
        type=_rates,
        metavar="R[,R]",
        help="requests/s; inf: all at once",
    )
    what.add_argument("--burstiness", type=_positive, default=1.0, metavar="B", help="of the arrivals; 1: Poisson")
    what.add_argument("--duration", type=_positive, metavar="S", help="ends each level after so many seconds")
    what.add_argument("--model", help="the served model name (the server's first)")
    what.add_argument(
        "--api", choices=("auto", "completions", "chat"), default="auto", help="the route (what is there)"
    )
    what.add_argument("--prompts", choices=("ids", "text"), default="ids", help="token ids, or text")
    what.add_argument("--seed", type=int, help="of the prompts; the same seed twice meets a warm prefix cache")
    what.add_argument("--extra-body", type=_json_object, default={}, metavar="JSON", help="more body fields")
    what.add_argument("--no-ignore-eos", action="store_true", help="let the model end its answers")
    what.add_argument("--no-warm-up", action="store_true", help="no warm-up request before each level")
    _judging(parser.add_argument_group("judging"))
    _permitting(parser.add_argument_group("permission and connection"))
    _printing(parser.add_argument_group("output"))


def _judging(group: Any) -> None:
    default = ",".join(f"{name}={limit:g}" for name, limit in DEFAULT_SLO.items())
    group.add_argument("--slo", metavar="LIMITS", help=f"such as ttft_p99=4s,user_tok_s=6 (shown against {default})")
    group.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="ttft:MS tpot:MS e2el:MS")
    group.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="two finished runs, or servers to load, side by side"
    )


def _permitting(group: Any) -> None:
    group.add_argument("--yes", action="store_true", help="start without asking")
    group.add_argument("--allow-remote-load", action="store_true", help="permit a public host")
    add_connection(group)
    add_machine(group)
    caps, limits = Caps(), Timeouts()
    group.add_argument("--cap-concurrency", type=_whole, default=caps.concurrency, help="(%(default)s)")
    group.add_argument("--timeout-connect", type=_positive, default=limits.connect_s, metavar="S", help="(%(default)g)")
    group.add_argument("--timeout-ttft", type=_positive, default=limits.ttft_s, metavar="S", help="(%(default)g)")
    group.add_argument("--timeout-idle", type=_positive, default=limits.idle_s, metavar="S", help="(%(default)g)")


def _printing(group: Any) -> None:
    group.add_argument("--json", action="store_true", help="progress objects, and the result as last line")
    group.add_argument("--markdown", action="store_true", help="the table of --compare in Markdown")
    group.add_argument(
        "--dry-run", action="store_true", help="print the plan and the equal vLLM commands; load nothing"
    )
    group.add_argument("--output-dir", type=Path, metavar="DIR", help="where the run's directory is made")
    group.add_argument("--no-files", action="store_true", help="write nothing to disk")
    group.add_argument("--metadata", nargs="*", default=[], metavar="K=V", help="kept with the results")


def make_plan(args: argparse.Namespace, target: Target) -> Plan:
    """The plan that the arguments ask for; raises `UsageError` for one that cannot run."""
    try:
        slo = parse_slo(args.slo) if args.slo else dict(DEFAULT_SLO)
        goodput_ms = parse_goodput(args.goodput)
    except BadLimit as error:
        raise UsageError(str(error)) from None
    base = Plan(
        url=target.url,
        levels=(),
        model=args.model or target.model,
        api=args.api,
        prompt_mode=args.prompts,
        seed=secrets.randbelow(2**31) if args.seed is None else args.seed,
        slo=slo,
        goodput_ms=goodput_ms,
        metadata=_metadata(args.metadata),
        extra_body=args.extra_body,
        ignore_eos=not args.no_ignore_eos,
        warm_up=not args.no_warm_up,
        timeouts=Timeouts(args.timeout_connect, args.timeout_ttft, args.timeout_idle),
        caps=Caps(concurrency=args.cap_concurrency),
    )
    options = _options(args)
    plan = build(args.scenario or _scenario(options), base, options)
    problems = plan.problems()
    if problems:
        raise UsageError("; ".join(problems))
    return plan


def _scenario(options: Options) -> str:
    """The scenario of a rate where one was given; an infinite one is a closed loop."""
    return "rate" if any(map(math.isfinite, options.request_rates or ())) else "sweep"


def _options(args: argparse.Namespace) -> Options:
    return Options(
        concurrencies=args.max_concurrency,
        num_prompts=args.num_prompts,
        input_len=args.random_input_len,
        output_len=args.random_output_len,
        request_rates=args.request_rate,
        burstiness=args.burstiness,
        duration_s=args.duration,
    )


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _whole_list(text: str) -> tuple[int, ...]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers like 1,4,8")
    return tuple(_whole(part) for part in text.split(","))


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _rates(text: str) -> tuple[float, ...]:
    return tuple(math.inf if part.strip() == "inf" else _positive(part) for part in text.split(","))


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def _metadata(pairs: Sequence[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"--metadata {pair!r}: write KEY=VALUE")
        out[name] = value
    return out
