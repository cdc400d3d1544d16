"""No key of any shape comes out again, wherever a server or a log repeats it."""

from __future__ import annotations

import asyncio
import html
import json
import shlex
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

import pytest

from fakes.pages import Page, PageServer
from hypo import fuzz, strategies
from llmtop.commands import text
from llmtop.contract.codec import to_json
from llmtop.contract.secrets import KNOWN, LEAST_CHARS, MASK, Known, mask
from llmtop.contract.settings import Target, UsageError, parse_target
from llmtop.contract.snapshot import Snapshot
from llmtop.load.completion import Reply
from llmtop.session.history import History
from llmtop.ui.panels.frame import header, page
from llmtop.ui.panels.view import Scales, View
from unit.test_server_source import watched

# `*` is what the mask is made of
ASCII = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "*")
KEYS = strategies.one_of(
    strategies.text(ASCII, min_size=LEAST_CHARS, max_size=80),
    strategies.binary(min_size=8, max_size=48).map(lambda data: b64encode(data).decode()),
    strategies.text(ASCII, min_size=LEAST_CHARS, max_size=40).map(quote_plus),
    strategies.text("\"'\\%&<>+/=", min_size=LEAST_CHARS, max_size=20),
    strategies.text("0123456789", min_size=LEAST_CHARS, max_size=20),
)


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KNOWN, "_secrets", set())
    monkeypatch.setattr(KNOWN, "_ways", [])


def told(key: str) -> Iterator[str]:
    """Texts that repeat a key, each with the words in which it stands there."""
    inner = json.dumps({"api_key": key})
    yield f"Incorrect API key provided: {key}."
    yield json.dumps({"error": {"message": f"bad key {key}"}})
    yield json.dumps({"log": inner})
    yield f"non-default args: {{'api_key': [{key!r}], 'port': 8000}}"
    yield f"GET /v1/models?k={quote(key, safe='')}&x={quote_plus(key)} {quote(key)}"
    yield f"<b>{html.escape(key)}</b><i>{html.escape(key, quote=False)}</i>"
    yield f"Authorization: Basic {b64encode(key.encode()).decode()}"
    yield f"+ vllm serve m {shlex.quote(key)}"
    yield key


def ways(key: str) -> set[str]:
    """How it may be read back from an output."""
    return {key, json.dumps(key)[1:-1], repr(key)[1:-1], quote(key, safe=""), html.escape(key)}


def hidden(key: str, output: str) -> None:
    """Whether an output has no such key; a number that is part of a longer one is a figure."""
    output = output.replace("0" * 8, "") if key.isdecimal() else output
    for way in ways(key):
        assert way not in output, (way, output)


def test_a_known_key_is_hidden_however_it_is_written() -> None:
    def check(key: str) -> None:
        known = Known()
        known.add(key)
        for said in told(key):
            shown = known.hide(said)
            assert MASK in shown, said
            hidden(key, shown)
            assert known.hide(shown) == shown
            assert known.hide_bytes(said.encode() + b"\xff") == shown.encode() + b"\xff"

    fuzz(check, KEYS, examples=150)


def test_one_that_is_no_utf_8_is_hidden_too() -> None:
    known, key = Known(), b"\xff\xfekey-of-bytes"
    known.add(key.decode("utf-8", "surrogateescape"))
    assert known.hide_bytes(b"key: " + key) == b"key: ***"
    assert known.begun(b"key: " + key[:4]) == 4


def test_a_short_one_is_no_secret_and_a_figure_stays_one() -> None:
    known = Known()
    known.add("EMPTY", "x" * (LEAST_CHARS - 1), "12345678", None, "")
    assert known.hide("EMPTY xxxxxxx") == "EMPTY xxxxxxx"
    assert known.hide("tokens_total 912345678.5 12345678 12345678.0") == f"tokens_total 912345678.5 {MASK} 12345678.0"


def test_what_a_command_is_given() -> None:
    def check(key: str) -> None:
        flags = (["--api-key", key], [f"--api_key={key}"], ["--hf-token", "short", key], ["env", f"HF_TOKEN={key}"])
        for words in flags:
            known = Known()
            known.add_command(["vllm", "serve", "m", *words, "--port", "8000000000"], {"PATH": "/usr/local/bin"})
            hidden(key, known.hide(f"args: {key!r}"))
            assert known.hide("8000000000 /usr/local/bin") == "8000000000 /usr/local/bin"
        known = Known()
        known.add_command(["sh", "-c", f"vllm serve m --api-key {key}"], {"X_API_KEY": "of the environment"})
        hidden(key, known.hide(f"args: {key}"))
        assert known.hide("of the environment") == MASK

    keys = KEYS.filter(lambda key: not key.startswith("-") and not {"'", '"'} & {key[0], key[-1]})
    fuzz(check, keys, examples=40)


def test_pieces_of_an_output_are_held_back_until_they_are_no_key() -> None:
    def check(key: str, cuts: list[int]) -> None:
        known, data = Known(), f"loading {key} done\r\n".encode()
        known.add(key)
        shown, kept = b"", b""
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
            kept = known.hide_bytes(kept + data[begin:end])
            size = known.begun(kept)
            shown, kept = shown + kept[: len(kept) - size], kept[len(kept) - size :]
        assert kept == b""
        assert shown.decode() == f"loading {MASK} done\r\n"

    fuzz(check, KEYS, strategies.lists(strategies.integers(0, 100), max_size=8))


def label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def repeating(key: str) -> PageServer:
    """A server that puts the key of its caller into everything it says."""
    labels = f'{{engine="0",model_name="m-{label(key)}"}}'
    page = f"vllm:num_requests_running{labels} 1\nvllm:generation_tokens_total{labels} 5\n".encode()
    refusal = (401, json.dumps({"error": {"message": f"no {key}"}}).encode())
    gone = (404, f"what is {key}?".encode(), {"location": f"http://x/{key}"})
    side: dict[str, Page] = {
        "/v1/models": json.dumps({"data": [{"id": key, "owned_by": "vllm"}]}).encode(),
        "/version": json.dumps({"version": key}).encode(),
        "/health": refusal,
    }
    return PageServer([page, page, gone, (301, b"", {"location": f"http://x/{quote(key)}"}), refusal], side)


def test_a_server_that_repeats_its_caller_s_key() -> None:
    def check(key: str, as_login: bool) -> None:
        with repeating(key) as server:
            url = server.url.replace("//", f"//user:{quote(key, safe='')}@") if as_login else server.url
            target = parse_target(url) if as_login else Target(server.url, key=key)
            views = [asyncio.run(watched(server, target, polls)) for polls in (2, 1, 1, 1)]
        assert views[0].model
        for view in views:
            snapshot = Snapshot(1.8e9, (view,))
            drawn = View(snapshot, view, History(), 1.0, Scales(), 1.0)
            shown = [to_json(snapshot), text.table(snapshot), text.line(snapshot), str(page(drawn, 160, 48).lines)]
            for output in (*shown, str(header(drawn, 160))):
                hidden(key, output)

    fuzz(check, KEYS, strategies.booleans(), examples=4)


def test_answers_under_load_that_repeat_the_key() -> None:
    def check(key: str, cut: int) -> None:
        KNOWN.add(key)
        for said in told(key):
            whole = said.encode()
            stream = f'data: {{"choices":[{{"text":"a","finish_reason":{json.dumps(key)}}}]}}\n\n'
            stream += f"event: error\ndata: {said}\n\n"
            for status, data in ((401, whole), (200, whole), (503, whole), (200, stream.encode())):
                reply = Reply(chat=False)
                reply.head(status, retry_after=key)
                reply.body(data[:cut], 1.0)
                reply.body(data[cut:], 1.1)
                reply.verdict("complete", 2.0)
                for output in (reply.message, reply.finish_reason or ""):
                    hidden(key, output)

    fuzz(check, KEYS, strategies.integers(0, 60), examples=60)


def test_a_mistyped_server_does_not_show_its_password() -> None:
    def check(key: str) -> None:
        for url in (
            f"http://user:{key}@host:8000",
            f"http://{key}@host",
            f"ftp://u:{key}@host",
            f"host:8000/?key={key}",
        ):
            try:
                target = parse_target(url)
            except UsageError as error:
                said = str(error)
            else:
                said = repr(target)
            hidden(key, mask(said))

    fuzz(check, KEYS, examples=150)
