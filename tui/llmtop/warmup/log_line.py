"""From a line of a log to the engine's own line: what launchers, collectors and loggers put around it is taken off.

Nobody can list everything that forwards logs, so the wrapping is learnt from the lines themselves: where the engine's
own head, or words it is known to begin with, stand behind something else, that something has a shape (digits, times,
levels and names may differ), and the same shape is then taken off lines that have no head of their own. What is put
behind a line is learnt in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from llmtop.warmup.log_fields import fields_in
from llmtop.warmup.stamp import CLOCK, DATE, MONTHS, Stamp, stamp_in, stamp_of

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


_PROCESS = re.compile(
    r"\((?P<name>[A-Za-z][\w:.-]*)?(?:,? ?rank=\d+)?(?:,? ?pid=(?P<pid>\d+))?(?:, ip=[\w.:]+)?\)(?:\s+|$)"
)
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_HEADER = re.compile(
    rf"(?<!\w)(?P<level>{_LEVELS}) (?:(?P<y>\d{{4}})-)?(?P<mo>\d\d)-(?P<d>\d\d) {CLOCK} \[?[\w./-]+\.py:\d+\] ?"
)
_SGLANG = re.compile(rf"(?<!\w)\[{DATE} {CLOCK}(?P<process>(?: [A-Z]{{2,4}}\d+)*)\] ?")
_ISO = re.compile(rf"^{DATE}[T ]{CLOCK}(?:Z|[+-]\d\d:?\d\d)?\s+(?:- )?")
_GLOG = re.compile(rf"^(?:\[rank\d+\]:)?\[?[IWEF](?P<mo>\d\d)(?P<d>\d\d) {CLOCK}\s+(?:\d+\s+)?")
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
# Words an engine ends a message with: what stands behind them is of whoever forwarded the line.
_ENDINGS = re.compile(
    r"\bversion \d+\.\d[\w.+-]*|Starting to load model \S+?\.\.\.|Loading weights took [\d.]+ seconds|"
    r"Model loading took [\d.]+ (?:GiB|GB)(?: memory)? and [\d.]+ seconds|Using max model len \d+|"
    r"EngineCore failed to start\.|Application startup complete\.|Waiting for application startup\.|"
    r"Init torch distributed begin\.|Load weight begin\. avail mem=[\d.]+ GB"
)
_TAIL = re.compile(r"[\"'}\]]|\s+(?:[{\[(<]|[\w.]+=)")
_TOKEN = re.compile(
    rf"(?P<time>{re.sub(r'[?]P<[a-z]+>', '?:', DATE)}[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?)"
    rf"|(?P<month>\b(?:{'|'.join(MONTHS)})\b)|(?P<level>(?i:\b(?:{_LEVELS}|WARN|ERR|FATAL|TRACE)\b))"
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


class Unwrapper:
    """Takes the wrapping off the lines of one log, and remembers the shapes it has seen."""

    def __init__(self) -> None:
        self._shapes: dict[str, re.Pattern[str]] = {}
        self._tails: dict[str, re.Pattern[str]] = {}
        self._key: str | None = None  # of a JSON logger: where its messages are

    def lines(self, raw: str) -> tuple[LogLine, ...]:
        """The engine's lines in a raw one: usually one; more where a logger puts a whole traceback into one line."""
        text = clean(raw)
        if "{" in text or ('="' in text and "l=" in text):
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
        match = _HEADER.search(head) or _last_of(_SGLANG, head)
        if match is not None:
            outside, inside = text[: match.start()], text[match.end() :]
            groups = match.groupdict()
            wrap, process, pid = self._processes(outside)
            _learn(self._shapes, wrap, _SHAPES)
            process = process or (groups.get("process") or "").strip().replace(" ", "_") or None
            outer = stamp_in(wrap) if wrap else None
            return LogLine(self._tailless(inside), process, pid, groups.get("level"), stamp_of(groups), outer)
        return self._headless(text)

    def _headless(self, text: str) -> LogLine:
        outside, inside = self._split(text)
        inside = self._tailless(inside)
        begun = _BEGINNINGS.search(inside[:_HEAD_WITHIN])
        if begun is not None and begun.start():
            more = inside[: begun.start()]
            wrap, _, _ = self._processes(more)
            if not (_ISO.match(wrap) and _ISO.sub("", wrap, count=1) == "") and not _GLOG.match(wrap):
                _learn(self._shapes, outside + wrap, _SHAPES)
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
                return LogLine(inside[match.end() :], process, pid, None, stamp_of(match.groupdict()), outer)
        return LogLine(inside, process, pid, None, None, outer)

    def _tailless(self, text: str) -> str:
        """The text without what a forwarder puts behind it: quotes, braces, labels."""
        ended = _ENDINGS.search(text[:_HEAD_WITHIN])
        if ended is not None and _TAIL.match(tail := text[ended.end() :]):
            _learn(self._tails, tail, _SHAPES | {"name": None}, "$")
        end = text[-_LONGEST_WRAP:]
        cut = max((len(match[0]) for shape in self._tails.values() if (match := shape.search(end))), default=0)
        return text[: len(text) - cut]

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


def _learn(shapes: dict[str, re.Pattern[str]], wrap: str, parts: Mapping[str, str | None], end: str = "") -> None:
    """Remember the shape of a wrapping: of the kinds of word in `parts` any may stand there, the rest stays."""
    if not wrap.strip() or len(wrap) > _LONGEST_WRAP:
        return
    tokens = _TOKEN.finditer(wrap)
    shape = "".join(parts.get(token.lastgroup or "") or re.escape(token.group()) for token in tokens) + end
    if shape not in shapes:
        if len(shapes) >= _MOST_SHAPES:
            del shapes[next(iter(shapes))]
        shapes[shape] = re.compile(shape)


def _last_of(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last of the matches that follow one another: a forwarder's head may look like the engine's."""
    found = pattern.search(text)
    while found is not None and (after := pattern.match(text, found.end())) is not None:
        found = after
    return found


def _names_process(match: re.Match[str]) -> bool:
    """Under Ray an engine prints its workers' lines with both prefixes; other brackets are text."""
    return match["pid"] is not None or match["name"] == "raylet"
