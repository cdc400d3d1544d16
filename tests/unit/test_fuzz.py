"""Whatever comes in: pages, streams, logs, configuration, command lines, time; `LLMTOP_FUZZ=5000` makes it long."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from contradictions import contradictions
from crank import EPOCH, vllm_page
from hypo import fuzz, strategies
from llmtop import cli
from llmtop.commands import config as configs
from llmtop.commands import text
from llmtop.contract.codec import plain, to_json
from llmtop.contract.settings import UsageError
from llmtop.engines.exposition import Exposition
from llmtop.engines.tracker import Failure
from llmtop.load.completion import Reply
from llmtop.warmup.evidence import evidence
from llmtop.warmup.report import make_report, to_line, to_markdown
from llmtop.warmup.tracker import Tracker
from unit.test_contradictions import Session
from unit.test_exposition import readings
from unit.test_load_sse import VECTORS, load, pieces

LOGS = sorted((Path(__file__).parents[1] / "fixtures/startup").glob("*.log"))
NUMBERS = strategies.one_of(
    strategies.sampled_from(
        ["0", "-0", "1", "NaN", "+Inf", "-Inf", "1e308", "1e-320", "-1", "9" * 400, "1_0", "0x1", ""]
    ),
    strategies.floats(allow_nan=False).map(repr),
    strategies.integers(-(2**70), 2**70).map(str),
)


# --- pages, against the official parser ------------------------------------------------------------------------------

BLANKS = strategies.sampled_from(["", " ", "\t", "  "])
TEXTS = strategies.text(strategies.characters(codec="utf-8", exclude_characters="\n\r"), max_size=12)
NAMES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total")


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def sample(name: str, model: str, engine: str, blank: str, number: str, stamp: str) -> str:
    labels = f'{blank}engine="{escaped(engine)}"{blank},{blank}model_name="{escaped(model)}"{blank}'
    return f"vllm:{name}{{{labels}}} {number}{stamp}"


def official(line: str) -> list[float] | None:
    """The values of a line by the parser of prometheus_client; None where it refuses the line."""
    try:
        return [
            float(found.value) for family in text_string_to_metric_families(line + "\n") for found in family.samples
        ]
    except (ValueError, IndexError, KeyError, TypeError, OverflowError):
        return None


def test_a_sample_says_what_the_official_parser_says() -> None:
    def check(parts: tuple[str, ...]) -> None:
        line = sample(*parts)
        wanted, exposition = official(line), Exposition()
        for _ in range(2):  # as something new, and from the cache
            found = list(readings(exposition.parse(line.encode() + b"\n")).values())
            assert [repr(value + 0.0) for value in found] == [repr(value + 0.0) for value in (wanted or [])][-1:], line

    stamps = strategies.sampled_from(["", " 1712345678901", ' # {trace_id="a"} 1 2', "\r"])
    parts = strategies.tuples(strategies.sampled_from(NAMES), TEXTS, TEXTS, BLANKS, NUMBERS, stamps)
    fuzz(check, parts.filter(lambda parts: "#" not in parts[5]), examples=150)


def test_no_bytes_break_the_reader() -> None:
    good = vllm_page(running=3.0, start=5.0, generation=10.0)

    def check(place: int, junk: bytes, cut: int) -> None:
        exposition = Exposition()
        exposition.parse(good)
        exposition.parse((good[:place] + junk + good[place:])[:cut])
        assert readings(exposition.parse(good))["vllm:num_requests_running"] == 3.0

    sizes = strategies.integers(0, len(good) + 20)
    fuzz(check, sizes, strategies.binary(max_size=20), sizes, examples=150)


# --- figures over time -----------------------------------------------------------------------------------------------


def figures(value: Any) -> Iterator[float]:
    """Every number inside a value."""
    if isinstance(value, dict):
        for item in value.values():
            yield from figures(item)
    elif isinstance(value, list):
        for item in value:
            yield from figures(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


COUNTS = strategies.one_of(strategies.integers(-5, 50), strategies.sampled_from([-(10**9), 10**9, 0, 0, 0]))
STEP = strategies.fixed_dictionaries(
    {
        "what": strategies.sampled_from(["page"] * 8 + ["refused", "timeout", "bad", "restart", "reorder"]),
        "wait_s": strategies.sampled_from([0.0, 0.001, 0.2, 1.0, 1.0, 1.0, 5.0, 60.0, 90000.0]),
        "clock_s": strategies.sampled_from([0.0] * 8 + [-3600.0, 3600.0, -1e9, 1e9]),
        "tokens": COUNTS,
        "prompt": COUNTS,
        "running": strategies.integers(0, 40),
        "waiting": strategies.sampled_from([0, 0, 1, 30]),
        "kv": strategies.sampled_from([0.0, 0.2, 0.97, 1.0, 1.5, -0.1]),
        "start": strategies.sampled_from([True, True, False]),
    }
)


def test_counters_and_clocks_that_jump_give_no_wild_rate() -> None:
    def check(steps: list[dict[str, Any]]) -> None:
        session, t, clock, started = Session(), 100.0, EPOCH, EPOCH
        tokens = prompt = 1000.0
        for step in steps:
            t, clock = t + step["wait_s"], clock + step["wait_s"] + step["clock_s"]
            tokens, prompt = max(0.0, tokens + step["tokens"]), max(0.0, prompt + step["prompt"])
            if step["what"] == "restart":
                tokens, prompt, started = 0.0, 0.0, clock
            page = vllm_page(
                start=started if step["start"] else None,
                generation=tokens,
                prompt=prompt,
                running=float(step["running"]),
                waiting=float(step["waiting"]),
                kv=step["kv"],
            )
            if step["what"] == "reorder":
                page = b"\n".join([*page.split(b"\n")[-2::-1], b""])
            answer = Failure(step["what"], "words") if step["what"] in ("refused", "timeout", "bad") else page
            snapshot = replace(session.after(answer, t), time=clock)
            server = snapshot.servers[0]
            values = plain(server.rates)
            assert all(math.isfinite(rate) and rate >= 0 for rate in figures(values)), values
            assert all(map(math.isfinite, figures(json.loads(to_json(snapshot))))), to_json(snapshot)
            assert contradictions(snapshot) == []
            assert text.table(snapshot) + text.line(snapshot)

    fuzz(check, strategies.lists(STEP, min_size=2, max_size=25), examples=60)


# --- streams ---------------------------------------------------------------------------------------------------------


def test_no_stream_breaks_the_reading_of_an_answer() -> None:
    streams = [b"".join(data for _, data in pieces(load(path))) for path in VECTORS]
    values = (b"null", b"1e999", b"9" * 5000, b"[" * 3000, b'{"a":' * 2000, b"\xff", b'""', b"-1", b"true", b"{}")

    def check(stream: bytes, place: int, value: bytes, cut: int, chat: bool, status: int) -> None:
        at = place % (len(stream) + 1)
        data = stream[:at] + value + stream[at + (len(value) if place % 2 else 0) :]
        for parts in ((data,), (data[: cut % len(data)], data[cut % len(data) :])):
            reply = Reply(chat=chat, asked_tokens=4)
            reply.head(status)
            for now, part in enumerate(parts):
                reply.body(part, float(now))
            for end in ("cut", "complete"):
                assert reply.verdict(end, 9.0)
            json.dumps([reply.message, reply.finish_reason], allow_nan=False)
            assert len(reply.message) < 1000

    sizes = strategies.integers(0, 10_000)
    statuses = strategies.sampled_from([200, 200, 200, 400, 500, 302])
    fuzz(
        check,
        strategies.sampled_from(streams),
        sizes,
        strategies.sampled_from(values),
        sizes,
        strategies.booleans(),
        statuses,
        examples=150,
    )


# --- logs ------------------------------------------------------------------------------------------------------------


def test_no_log_breaks_the_reading_of_a_start_up() -> None:
    logs = [path.read_text("utf-8").splitlines()[:120] for path in LOGS]

    def check(lines: list[str], changes: list[tuple[int, int, str]], order: int) -> None:
        changed = list(lines)
        for number, place, value in changes:
            line = changed[number % len(changed)]
            at = place % (len(line) + 1)
            changed[number % len(changed)] = line[:at] + value + line[at + place % 3 :]
        tracker = Tracker()
        for number in range(len(changed)):
            tracker.feed(changed[(number * order) % len(changed)])
        tracker.finish(1)
        startup = tracker.startup()
        report = make_report(startup, evidence(startup, None))
        json.loads(to_line(report), parse_constant=pytest.fail)
        assert to_markdown(report)

    odd = strategies.one_of(
        NUMBERS, strategies.text(max_size=8), strategies.sampled_from(["%", ":", "GiB", "[", "\x1b["])
    )
    change = strategies.tuples(strategies.integers(0, 500), strategies.integers(0, 500), odd)
    orders = strategies.sampled_from([1, 1, 1, 7])
    fuzz(check, strategies.sampled_from(logs), strategies.lists(change, max_size=20), orders, examples=40)


# --- configuration and command line ----------------------------------------------------------------------------------

TOML = strategies.sampled_from(
    (
        *('""', '"x"', "1", "-1", "0", "1.5", "nan", "inf", "true", "[]", "[1]", '["a"]', "{}", "{a=1}", "1979-05-27"),
        *(
            "9" * 30,
            "9" * 5000,
            '"\\u0000"',
            '"~nobody/x"',
            '"h:1"',
            '"http://[::1"',
            '["h:99999"]',
            '"' + "x" * 5000 + '"',
        ),
        "[" * 2000 + "]" * 2000,
    )
)
SETTINGS = ("interval", "theme", "ascii", "mouse", "memory", "watch", "servers", "unknown")
OF_A_SERVER = ("url", "api_key_env", "ca", "insecure", "max_num_seqs", "unknown")


def said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """(the exit code, what was said on stderr) of a command; a mistake is one line."""
    code = cli.run(argv)
    err = capsys.readouterr().err
    assert "Traceback" not in err, (argv, err)
    assert code in (0, 1, 2, 3), argv
    if code == 2:
        assert err.startswith("llmtop: ")
        assert len(err.splitlines()) == 1, (argv, err)
        assert len(err) < 2000, (argv, err)
    return code, err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llmtop").mkdir()
    return tmp_path


def test_no_configuration_is_more_than_one_line_of_trouble(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "llmtop/config.toml"

    def check(top: dict[str, str], server: dict[str, str], junk: bytes, place: int) -> None:
        lines = [f"{name} = {value}" for name, value in top.items()]
        lines += ["[servers.a]", *(f"{name} = {value}" for name, value in server.items())]
        data = "\n".join(lines).encode()
        words = ""
        path.write_bytes(data[: place % (len(data) + 1)] + junk + data[place % (len(data) + 1) :])
        try:
            loaded = configs.load_config(path)
            configs.resolve_targets(["a", *loaded.get("watch", [])], loaded, {})
        except UsageError as error:
            words = str(error)
        assert "\n" not in words
        assert len(words) < 1000
        said(["load", "a", "--dry-run", "--json"], capsys)

    tops = strategies.dictionaries(strategies.sampled_from(SETTINGS), TOML, max_size=3)
    servers = strategies.dictionaries(strategies.sampled_from(OF_A_SERVER), TOML, max_size=4)
    junk = strategies.one_of(strategies.just(b""), strategies.just(b""), strategies.binary(max_size=6))
    fuzz(check, tops, servers, junk, strategies.integers(0, 500), examples=60)


FLAGS = (
    *(
        "--interval",
        "-d",
        "--theme",
        "--memory",
        "--procfs",
        "--record",
        "--once",
        "--json",
        "--plain",
        "--at",
        "--speed",
    ),
    *("--reserve", "--log", "--check", "--url", "--compare", "--report", "--max-concurrency", "--num-prompts", "--slo"),
    *(
        "--random-input-len",
        "--random-output-len",
        "--request-rate",
        "--burstiness",
        "--duration",
        "--seed",
        "--goodput",
    ),
    *(
        "--extra-body",
        "--metadata",
        "--timeout-ttft",
        "--cap-concurrency",
        "--scenario",
        "--prompts",
        "--api",
        "--model",
    ),
    *(
        "--csv",
        "--html",
        "--prometheus",
        "-o",
        "--reread",
        "--ca",
        "--api-key-env",
        "--yes",
        "--tabs",
        "--port",
        "--dp",
    ),
)
WORDS = (
    *(
        "",
        "0",
        "-1",
        "1e999",
        "nan",
        "inf",
        "9" * 400,
        "²",
        "٣",
        "1,2",
        ",",
        "=",
        "a=b",
        "{}",
        "[]",
        "{",
        "ttft:1",
        "--",
    ),
    *(
        "http://[",
        "http://h:99999",
        "unix:/",
        "\udcff",
        "x" * 3000,
        "file.jsonl",
        ".",
        "/dev/null",
        "nowhere/x",
    ),
    *("sh -c 'x", "--port=²", "--gpu-memory-utilization=nan", "127.0.0.1:9", "http://u:p@h/@", "\u202e", "%s", "{0}"),
)
# commands that end by themselves; what would watch or serve gets a word that forbids it
STEMS = (
    ["load", "127.0.0.1:9", "--dry-run"],
    ["replay", "--once", "--json"],
    ["replay", "file.jsonl", "--once"],
    ["export", "file.jsonl", "--csv"],
    ["export"],
    ["warmup", "--once", "--log", "file.log"],
    ["warmup", "--check", "--procfs", "x", "--sysfs", "x"],
    ["warmup", "--compare"],
    ["schema"],
    ["web", "--port", "x"],
    ["--interval", "x"],
    ["demo", "--interval", "x"],
)


def test_no_command_line_ends_in_a_traceback(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "file.log").write_text("\n".join(LOGS[0].read_text("utf-8").splitlines()[:60]))
    old = Path(__file__).parents[1] / "fixtures/recordings/first-format.jsonl"

    def check(stem: list[str], words: list[str]) -> None:
        (home / "file.jsonl").write_bytes(old.read_bytes())
        if "-h" not in words:
            said([*stem, *words], capsys)

    flags = strategies.tuples(strategies.sampled_from(FLAGS), strategies.sampled_from(WORDS))
    pairs = strategies.lists(flags, max_size=3).map(lambda pairs: [word for pair in pairs for word in pair])
    loose = strategies.lists(strategies.sampled_from((*FLAGS, *WORDS)), max_size=3)
    fuzz(check, strategies.sampled_from(STEMS), strategies.one_of(pairs, loose), examples=150)
