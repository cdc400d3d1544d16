"""From a line of a log to the engine's own line: what launchers, collectors and loggers put around it is taken off.

Nobody can list everything that forwards logs, so the wrapping is learnt from the lines themselves: where the engine's
own head, or words it is known to begin with, stand behind something else, that something has a shape (digits, times,
levels and names may differ), and the same shape is then taken off lines that have no head of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

MAX_LINE = 65_536
MAX_TEXT = 8192  # of a line that is no JSON: no message of a start-up is longer, and patterns cost time
_HEAD_WITHIN = 600
_MOST_SHAPES = 16
_LONGEST_WRAP = 300

_ANSI = re.compile(
    r"(?:\x1b|#033|\\x1b|\\u001b|\\033)\[[0-?]*[ -/]*[@-~]|\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
    r"|\^?\[\d{1,2}(?:;\d{1,3})*m"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log line without its wrapping; `process` and `pid` are those of the innermost prefix.

    `stamp` is the time the engine wrote, `outer` the one that whoever forwarded the line added.
    """

    text: str
    process: str | None = None
    pid: int | None = None
    level: str | None = None
    stamp: Stamp | None = None
    outer: Stamp | None = None


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-6]\d(?:[.,]\d+)?)"
_DATE = r"(?P<y>\d{4})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)"
_TIME = re.compile(
    rf"{_DATE}[T ]{_CLOCK}|\b(?P<name>{'|'.join(_MONTHS)}) +(?P<day>\d\d?) {_CLOCK.replace('?P<', '?P<b_')}"
)
_PROCESS = re.compile(
    r"\((?P<name>[A-Za-z][\w:.-]*)?(?:,? ?rank=\d+)?(?:,? ?pid=(?P<pid>\d+))?(?:, ip=[\w.:]+)?\)(?:\s+|$)"
)
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_HEADER = re.compile(
    rf"(?<!\w)(?P<level>{_LEVELS}) (?:(?P<y>\d{{4}})-)?(?P<mo>\d\d)-(?P<d>\d\d) {_CLOCK} \[?[\w./-]+\.py:\d+\] ?"
)
_SGLANG = re.compile(rf"(?<!\w)\[{_DATE} {_CLOCK}(?P<process>(?: [A-Z]{{2,4}}\d+)*)\] ?")
_ISO = re.compile(rf"^{_DATE}[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\s+(?:- )?")
_GLOG = re.compile(rf"^(?:\[rank\d+\]:)?\[?[IWEF](?P<mo>\d\d)(?P<d>\d\d) {_CLOCK}\s+(?:\d+\s+)?")
# Wrappings that every one of some tool's lines has, also those before the first line that says more.
_WRAPS = tuple(
    re.compile(p)
    for p in (
        r"\[?[A-Za-z][\w.-]*\]?\s*\|\s?",  # docker compose
        r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)\s+(?:std(?:out|err) [FP] )?",  # docker -t, the kubelet's files
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w.@/-]+(?:\[\d+\])?: ",  # syslog, the journal
        r"\[(?:pod|container)/[^\]\s]+\]\s*",  # kubectl logs --prefix
        r"\[(?:rank|default|local_rank)\d+\]:\s*(?![\[IWEF]*\d{4} )",  # torchrun
        r"\[\d+,\d+\]<std\w+>:\s*",  # mpirun
    )
)
# Words an engine begins a message with: what stands before them on their line is a wrapping.
_BEGINNINGS = re.compile(
    r"(?<![\w'\"(])(?:vLLM API server version \d|non-default args: \{|Initializing an? (?:V\d )?LLM engine \(v|"
    r"Starting to load model |Loading (?:safetensors|pt|bin) checkpoint shards:|Loading weights took |"
    r"Model loading took |Dynamo bytecode transform time|(?:GPU |CPU )?KV cache size: |Available KV cache memory: |"
    r"Capturing CUDA graphs?[ (:]|Graph capturing finished in |init engine \(profile|Starting vLLM (?:API )?server |"
    r"INFO:     (?:Started server|Waiting for application|Application startup)|Traceback \(most recent call last\):|"
    r"server_args=ServerArgs\(|Load weight (?:begin|end)\.|KV Cache is allocated\.|Capture cuda graph )"
)
_TOKEN = re.compile(
    rf"(?P<time>{re.sub(r'[?]P<[a-z]+>', '?:', _DATE)}[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?)"
    rf"|(?P<month>\b(?:{'|'.join(_MONTHS)})\b)|(?P<level>(?i:\b(?:{_LEVELS}|WARN|ERR|FATAL|TRACE)\b))"
    r"|(?P<name>[A-Za-z_]\w*(?:[./]\w+)+)|(?P<number>\d+(?:[.,]\d+)?)|(?P<space>\s+)|(?P<other>.)"
)
_SHAPES = {
    "time": r"\d{4}[-/]\d\d[-/]\d\d[T ][\d:.,]++(?:Z|[+-]\d\d:?\d\d)?",
    "month": r"[A-Z][a-z]{2}",
    "level": r"[A-Za-z]++",
    "name": r"[\w./]++",
    "number": r"\d++(?:[.,]\d++)?",
    "space": r"\s*+",
}


def clean(raw: str) -> str:
    """Remove terminal escapes and control characters, keep what follows the last carriage return, cut at 64 KiB."""
    text = _ANSI.sub("", raw[:MAX_LINE]).rstrip("\r\n")
    return _CONTROL.sub("", text.rsplit("\r", 1)[-1])


def stamp_in(text: str) -> Stamp | None:
    """The last time with a date in a text."""
    found = None
    for match in _TIME.finditer(text):
        found = _stamp({name.removeprefix("b_"): part for name, part in match.groupdict().items() if part is not None})
    return found


def _stamp(groups: dict[str, str]) -> Stamp | None:
    text = groups["s"].replace(",", ".")
    second = int(groups["h"]) * 3600 + int(groups["m"]) * 60 + float(text)
    if "name" in groups:
        return Stamp(_MONTHS.index(groups["name"]) + 1, int(groups["day"]), second, whole="." not in text)
    year = int(groups["y"]) if groups.get("y") else None
    return Stamp(int(groups["mo"]), int(groups["d"]), second, year, "." not in text)


class Unwrapper:
    """Takes the wrapping off the lines of one log, and remembers the shapes it has seen."""

    def __init__(self) -> None:
        self._shapes: dict[str, re.Pattern[str]] = {}
        self._key: str | None = None  # of a JSON logger: where its messages are

    def lines(self, raw: str) -> tuple[LogLine, ...]:
        """The engine's lines in a raw one: usually one; more where a logger puts a whole traceback into one line."""
        text = clean(raw)
        if "{" in text or "msg=" in text or "message=" in text:
            from llmtop.warmup.log_fields import fields_in  # few logs are of this kind

            fields = fields_in(text, self._key, self._begins)
            if fields is not None:
                self._key = fields.key
                known = LogLine("", fields.process, fields.pid, outer=fields.stamp)
                return tuple(self._of_fields(fields.lines, known))
        return (self.plain(text),)

    def _of_fields(self, texts: tuple[str, ...], known: LogLine) -> Iterator[LogLine]:
        for text in texts:
            line = self.plain(clean(text))
            yield replace(
                line,
                process=line.process or known.process,
                pid=line.pid if line.process or line.pid else known.pid,
                outer=known.outer or line.outer,
            )

    def _begins(self, text: str) -> bool:
        """Whether a text is a message of an engine, wrapped or not."""
        head = text[:_HEAD_WITHIN]
        return any(pattern.search(head) for pattern in (_HEADER, _BEGINNINGS, _SGLANG))

    def plain(self, text: str) -> LogLine:
        """A cleaned line that is no JSON."""
        text = _REPEATED.sub("", text[:MAX_TEXT])
        head = text[:_HEAD_WITHIN]
        match = _HEADER.search(head) or _SGLANG.search(head)
        if match is not None:
            outside, inside = text[: match.start()], text[match.end() :]
            groups = match.groupdict()
            wrap, process, pid = self._processes(outside)
            self._learn(wrap)
            process = process or (groups.get("process") or "").strip().replace(" ", "_") or None
            return LogLine(inside, process, pid, groups.get("level"), _stamp(groups), stamp_in(wrap) if wrap else None)
        return self._headless(text)

    def _headless(self, text: str) -> LogLine:
        outside, inside = self._split(text)
        begun = _BEGINNINGS.search(inside[:_HEAD_WITHIN])
        if begun is not None and begun.start():
            more = inside[: begun.start()]
            wrap, _, _ = self._processes(more)
            if not (_ISO.match(wrap) and _ISO.sub("", wrap, count=1) == "") and not _GLOG.match(wrap):
                self._learn(outside + wrap)
                outside, inside = outside + wrap, inside[len(wrap) :]
        match = _PROCESS.match(inside)
        process, pid = None, None
        while match is not None and _names_process(match):
            process, pid = match["name"], int(match["pid"]) if match["pid"] else None
            inside = inside[match.end() :]
            match = _PROCESS.match(inside)
        outer = stamp_in(outside) if outside else None
        for pattern in (_ISO, _GLOG):
            match = pattern.match(inside)
            if match is not None:
                return LogLine(inside[match.end() :], process, pid, None, _stamp(match.groupdict()), outer)
        return LogLine(inside, process, pid, None, None, outer)

    def _split(self, text: str) -> tuple[str, str]:
        """What is known to be wrapping, and the rest."""
        end = max((match.end() for shape in self._shapes.values() if (match := shape.match(text))), default=0)
        if end:
            return text[:end], text[end:]
        for _ in range(4):
            match = next((m for wrap in _WRAPS if (m := wrap.match(text, end)) is not None and m.end() > end), None)
            if match is None:
                break
            end = match.end()
        return text[:end], text[end:]

    def _processes(self, outside: str) -> tuple[str, str | None, int | None]:
        """The wrapping before the engine's own process names, and the innermost of those."""
        process, pid, end = None, None, len(outside)
        for match in _PROCESS.finditer(outside):
            if not _names_process(match):
                continue
            if process is None and pid is None:
                end = match.start()
            process, pid = match["name"], int(match["pid"]) if match["pid"] else None
        return outside[:end], process, pid

    def _learn(self, wrap: str) -> None:
        if not wrap.strip() or len(wrap) > _LONGEST_WRAP:
            return
        shape = "".join(_SHAPES.get(token.lastgroup or "", re.escape(token.group())) for token in _TOKEN.finditer(wrap))
        if shape not in self._shapes:
            if len(self._shapes) >= _MOST_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            self._shapes[shape] = re.compile(shape)


def _names_process(match: re.Match[str]) -> bool:
    """Under Ray an engine prints its workers' lines with both prefixes; other brackets are text."""
    return match["pid"] is not None or match["name"] == "raylet"
