"""The result of one watched start: JSON, Markdown, two starts side by side, and the verdict in one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmtop.contract import codec
from llmtop.warmup.advice import Advice, advise, advise_failure
from llmtop.warmup.evidence import GIB, Evidence
from llmtop.warmup.failure import StartFailure
from llmtop.warmup.ledger import LedgerLine, ledger
from llmtop.warmup.startup import Phase, Startup

SCHEMA = 1

WORDS: Mapping[str, str] = {
    "start": "process start",
    "weights": "reading weights",
    "compile": "compilation",
    "profile": "the profile run",
    "kv": "KV cache allocation",
    "warmup": "kernel warm-up",
    "graphs": "graph capture",
    "ready": "server start",
}


@dataclass(frozen=True, slots=True)
class Report:
    """One start with what follows from it."""

    startup: Startup
    evidence: Evidence
    ledger: tuple[LedgerLine, ...]
    advice: Advice
    verdict: str
    pools: Mapping[str, str] = field(default_factory=dict)  # pool key -> name


def make_report(
    startup: Startup, evidence: Evidence, reserve_gib: float | None = None, pools: Mapping[str, str] | None = None
) -> Report:
    """Put the ledger, the advice and the verdict beside the record."""
    if startup.failure is not None:
        advice = advise_failure(startup.failure, evidence, reserve_gib)
    else:
        advice = advise(evidence, reserve_gib)
    return Report(startup, evidence, ledger(evidence), advice, verdict(startup), pools or {})


def verdict(s: Startup) -> str:
    """The start in one sentence."""
    tight = tightest(s.phases)
    moment = (
        "" if tight is None else f"; the tightest moment was {WORDS[tight.name]}: {_gib(tight.min_headroom_bytes)} left"
    )
    where = "" if s.phase is None else f" in {WORDS[s.phase]}"
    if s.failure is not None:
        at = s.failure.margin_bytes
        left = moment if at is None else f"; {_gib(at)} left at that moment"
        if s.state == "stopped":
            return f"{_first_sentence(s.failure.cause)}{where}{moment}"
        return f"failed{where}: {_why(s.failure)}{left}"
    longest = max((p for p in s.phases if p.seconds), key=lambda p: p.seconds or 0.0, default=None)
    share = "" if longest is None else f", {_seconds(longest.seconds)} of it {WORDS[longest.name]}"
    if s.state in ("ready", "stopped"):
        total = "" if s.ready_seconds is None else f" in {_seconds(s.ready_seconds)}"
        by = "" if s.ended_by is None else f" ({s.ended_by})"
        when = "" if s.served_s is None else f" {_seconds(s.served_s)}"
        down = f", ended{when} after that{by}" if s.state == "stopped" else ""
        whose = "" if s.foreign is None else f"; {_unread(s)}"
        return f"ready{total}{down}{share if total else ''}{moment}{whose}"
    if s.phase is None:
        return _unread(s)
    return f"still{where}{f': {s.waits}' if s.waits else ''}{moment}"


def _why(failure: StartFailure) -> str:
    """The cause in one sentence; of a failed allocation how much it wanted, and how much there was."""
    said = failure.said or _first_sentence(failure.cause)
    tried, free = failure.numbers.get("tried_gib"), failure.numbers.get("free_gib")
    if tried is None or failure.said:
        return said
    have = "" if free is None else f", {free:.2f} GiB free"
    return f"{said.rpartition('Error: ')[2]}: {tried:.2f} GiB wanted{have}"


def _unread(s: Startup) -> str:
    """What is said where no phase is known."""
    if s.foreign is not None:
        return f"this is a log of {s.foreign}: only start-ups of vLLM and SGLang are read"
    if s.phases or s.lines:
        return "nothing in this log is of a start-up of vLLM or SGLang"
    return "still starting; no log of it is read (--log, --container, --journal), so no phase is known"


def tightest(phases: tuple[Phase, ...]) -> Phase | None:
    """The phase with the least headroom."""
    measured = [p for p in phases if p.min_headroom_bytes is not None]
    return min(measured, key=lambda p: p.min_headroom_bytes or 0, default=None)


def read_rate(s: Startup) -> float | None:
    """How fast the checkpoint is or was read, GiB/s: its size over the time of the progress bar."""
    size, took = s.figure("checkpoint_gib"), s.figure("read_seconds")
    if size is None:
        return None
    if took:
        return size / took
    if s.progress is None or s.progress.phase != "weights" or not s.progress.took_s:
        return None
    return size * s.progress.percent / 100 / s.progress.took_s


def _first_sentence(text: str) -> str:
    head = text.split(". ", 1)[0]
    return head.rstrip(".")


def _gib(value: float | None) -> str:
    return "–" if value is None else f"{value / GIB:.1f} GiB"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def _num(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


# ------------------------------------------------------------------------------------------------------ JSON


def to_json(report: Report) -> dict[str, Any]:
    """The object `--json` prints and `--report FILE.json` writes; unknown values are null."""
    out: dict[str, Any] = {"schema": SCHEMA, "verdict": report.verdict} | codec.plain(report.startup)
    out["weights_gib_s"] = read_rate(report.startup)
    out["concurrency_tokens"] = _whole(report.startup.figure("concurrency_tokens"))
    out["figures"] = {name: _whole(value) for name, value in out["figures"].items()}
    out |= codec.plain({"ledger": report.ledger, "advice": report.advice, "pools": report.pools})
    return out


def _whole(value: float | None) -> float | None:
    return int(value) if value is not None and value == int(value) else value


def to_line(report: Report) -> str:
    """The object as one compact line; NaN and infinity become null."""
    return codec.to_json(to_json(report))


# -------------------------------------------------------------------------------------------------- Markdown


def to_markdown(report: Report) -> str:
    """The report for a person: phases, minima, ledger, advice."""
    data = to_json(report)
    lines = [f"# Start-up: {report.verdict}", ""]
    lines += [f"vLLM {data['version'] or '–'}, model {_cell(data['model'] or '–')}", ""]
    lines += ["| phase | starts | takes | least headroom |", "|---|---:|---:|---:|"]
    for p in report.startup.phases:
        name = p.name + (" (inferred)" if p.inferred else "")
        lines.append(f"| {name} | {_seconds(p.start_s)} | {_seconds(p.seconds)} | {_gib(p.min_headroom_bytes)} |")
    lines += ["", "| figure | value |", "|---|---:|", *(f"| {name} | {value} |" for name, value in _figures(data))]
    lines += ["", "## Ledger", "", "| | GiB | from |", "|---|---:|---|"]
    for line in report.ledger:
        indent = "" if line.group == "total" else "– "
        lines.append(f"| {indent}{line.label} | {_num(line.gib)} | {line.origin or '–'} |")
    advice = report.advice
    lines += ["", "## Advice", "", f"{advice.text} (sure: {advice.confidence}; {advice.why})", ""]
    lines += [f"- {line}" for line in (*advice.arithmetic, *advice.changes)]
    if report.startup.failure is not None:
        lines += ["", "## Failure", "", _cell(report.startup.failure.cause)]
    return "\n".join(lines) + "\n"


def _figures(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    tokens, length = data["kv_cache_tokens"], data["concurrency_tokens"]
    seats = "–" if data["max_concurrency"] is None else f"{data['max_concurrency']:.2f} x {length or 0:,}"
    return [
        ("ready after, s", _num(data["ready_seconds"], 1)),
        ("weights, GiB", _num(data["weights_gib"])),
        ("weights, s", _num(data["weights_seconds"], 1)),
        ("KV cache, GiB", _num(data["kv_cache_gib"])),
        ("KV cache, tokens", "–" if tokens is None else f"{tokens:,}"),
        ("requests at full length", seats),
        ("CUDA graphs, GiB", _num(data["graph_gib"])),
        ("CUDA graphs, s", _num(data["graph_seconds"], 0)),
        ("engine init, s", _num(data["init_seconds"], 1)),
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


# --------------------------------------------------------------------------------------------------- compare


def load(path: Path) -> dict[str, Any]:
    """Read a JSON report; raises ValueError when the file is none."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or "phases" not in data:
        raise ValueError(f"{path}: not a start-up report")
    return data


def compare(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str] = ("A", "B")) -> str:
    """Two starts side by side: figures, then every phase with its time and least headroom."""
    rows: list[tuple[str, str, str]] = [("", *names), ("verdict", str(a.get("verdict")), str(b.get("verdict")))]
    util = [_num((d.get("figures") or {}).get("utilization"), 2) for d in (a, b)]
    rows.append(("gpu-memory-utilization", util[0], util[1]))
    rows += [(name, left, right) for (name, left), (_, right) in zip(_figures(a), _figures(b), strict=True)]
    left_phases, right_phases = ({p["name"]: p for p in d["phases"]} for d in (a, b))
    for name in WORDS:
        if name in left_phases or name in right_phases:
            rows.append((name, _phase_cell(left_phases.get(name)), _phase_cell(right_phases.get(name))))
    head, verdicts, *body = rows
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(3)]
    table = [f"{r[0]:<{widths[0]}}  {r[1]:>{widths[1]}}  {r[2]:>{widths[2]}}".rstrip() for r in (head, *body)]
    return "\n".join([f"{names[0]}: {verdicts[1]}", f"{names[1]}: {verdicts[2]}", "", *table]) + "\n"


def _phase_cell(phase: Mapping[str, Any] | None) -> str:
    if phase is None:
        return "–"
    left = phase.get("min_headroom_bytes")
    return _seconds(phase.get("seconds")) + ("" if left is None else f", {_gib(left)} left")
