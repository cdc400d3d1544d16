"""Load against servers that are not vLLM: the figures by their own logs, the reasons in words everywhere."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from fakes.stranger import Answered, Stranger, stranger
from llmtop import cli
from llmtop.commands.load_output import result_text
from llmtop.load.plan import Plan
from llmtop.load.results import run_from
from llmtop.net.connection import tls_words
from llmtop.session.history import History
from llmtop.ui.load_state import LoadState
from llmtop.ui.panels.load_answer import result_page
from llmtop.ui.panels.view import Scales, View
from llmtop_widgets.text import plain

SIZE = ("--random-input-len", "100", "--random-output-len", "64", "--num-prompts", "8", "--no-warm-up")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


CHAT = ("--api", "chat", "--max-concurrency", "2")
SLOW = {"itl_s": 0.01}


class Loaded:
    """What a run said in every form."""

    def __init__(self, server: Stranger, capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> None:
        asked = args or ("--max-concurrency", "2")
        assert cli.run(["load", server.url, "--yes", "--json", *SIZE, *asked]) == code
        printed = capsys.readouterr().out
        lines: list[dict[str, Any]] = [json.loads(line) for line in printed.splitlines()]
        self.events, self.result = lines[:-1], lines[-1]
        directory = self.result["directory"]
        self.report = (Path(directory) / "report.md").read_text() if directory else ""
        result = run_from(self.result)
        self.text = result_text(result)
        state = LoadState(Plan(server.url, ()), phase="finished", result=result)
        state.warnings += [event["text"] for event in self.events if event["event"] == "warning"]
        view = View(None, None, History(), 1.0, Scales(), 1.0)
        self.screen = "\n".join(map(plain, result_page(state, view, 400, 100)))

    def says(self, words: str) -> None:
        """Everywhere: text, JSON, report and screen."""
        assert words in self.text
        assert words in json.dumps(self.result)
        assert words in self.report
        assert words in self.screen

    @property
    def level(self) -> dict[str, Any]:
        level: dict[str, Any] = self.result["levels"][0]
        return level

    @property
    def warnings(self) -> str:
        return " ".join(event["text"] for event in self.events if event["event"] == "warning")


def decode_tok_s(log: list[Answered]) -> float:
    """Tokens per second after the first chunk, by the server's log."""
    spent = [(one.last_s - one.first_s) / (one.tokens - one.first_tokens) for one in log]
    return len(spent) / sum(spent)


def test_chat_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(completions=False) as server:
        run = Loaded(server, capsys)
    assert (run.level["completed"], run.result["api"], run.result["model"]) == (8, "chat", "odd-one")
    assert "/v1/chat/completions is used: HTTP 404 from /v1/completions: Not Found" in run.warnings
    run.says("odd-one")
    assert run.level["decode_tok_s"] == pytest.approx(decode_tok_s(server.log[-8:]), rel=0.02)


def test_chat_asked_for_the_other_route_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(completions=False) as server:
        run = Loaded(server, capsys, "--api", "completions", code=3)
    assert "--api chat" in run.result["error"]
    assert server.asked == 1


ODD_LENGTHS: list[dict[str, Any]] = [{"tokens_per_word": 2}, {}, {"completions": False, "template": 20}]


@pytest.mark.parametrize("odd", ODD_LENGTHS)
def test_prompts_have_the_asked_length_by_their_count(odd: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(**odd) as server:
        run = Loaded(server, capsys)
    assert sum(one.prompt for one in server.log[-8:]) / 8 == pytest.approx(100, rel=0.02)
    assert run.level["total_input_tokens"] == sum(one.prompt for one in server.log[-8:])
    assert "prompt length" not in run.level["flags"]


def test_a_500_on_token_ids_falls_back_to_text(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(tokenizer=True) as server:
        run = Loaded(server, capsys)
    assert (run.level["completed"], run.result["prompts"], run.result["refused"]) == (8, "text", ["token ids"])
    assert "refuses token ids" in run.warnings


def test_blocks_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(block=24) as server:
        run = Loaded(server, capsys)
    assert run.level["decode_tok_s"] == pytest.approx(decode_tok_s(server.log[-8:]), rel=0.02)


@pytest.mark.parametrize("odd", [{"block": 64}, {"natural": 1}])
def test_what_comes_at_once_has_no_decode_rate_and_keeps_no_limit(
    odd: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with stranger(**odd) as server:
        run = Loaded(server, capsys, "--slo", "tpot_mean=1s", code=1)
    assert (run.level["completed"], run.level["decode_tok_s"], run.level["mean_tpot_ms"]) == (8, None, None)
    assert run.result["first_fail"]["criterion"] == "tpot_mean"


def test_answers_that_end_where_the_model_ends_them_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(natural=20) as server:
        run = Loaded(server, capsys)
    assert (run.level["completed"], run.level["failed"], run.level["total_output_tokens"]) == (8, 0, 160)
    run.says("20 of 64 tokens on average")
    assert run.level["decode_tok_s"] == pytest.approx(decode_tok_s(server.log[-8:]), rel=0.02)


def test_a_quota_ends_the_run_with_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(most=6) as server:
        run = Loaded(server, capsys, "--max-concurrency", "2,4", code=3)
    words = "the server refuses load (HTTP 429: quota used up (Retry-After: 7))"
    assert words in run.result["ended"]
    run.says(words)
    run.says("of 8 requests of c=2")
    assert (run.result["sweet_spot"], run.result["first_fail"], run.result["knee"]) == (None, None, None)
    assert [level["level"] for level in run.result["levels"]] == ["c=2"]


def test_a_server_that_says_when_to_come_again_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(late=2) as server:
        run = Loaded(server, capsys)
    assert run.level["completed"] == 8
    assert run.warnings.count("the model is being loaded (Retry-After: 0); asked again after 0 s") == 2
    assert run.result["outside"]["preflight"]["requests"] == server.asked - 8 - 2  # two got 503


@pytest.mark.parametrize("again", ["3600", "Wed, 21 Oct 2026 07:28:00 GMT", "nan"])
def test_who_wants_to_be_asked_much_later_is_told_of(again: str, capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(late=99, again=again) as server:
        run = Loaded(server, capsys, code=3)
    assert f"HTTP 503 from /v1/completions: the model is being loaded (Retry-After: {again})" in run.result["error"]
    assert server.asked == 1


@pytest.mark.parametrize(
    ("moved", "base"),
    [
        ("https://gpu.example/api/v1/completions", "https://gpu.example/api"),
        ("/llm/v1/completions?x=1", "{url}/llm"),
    ],
)
def test_a_redirect_is_not_followed_and_says_what_to_name(
    moved: str, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with stranger(moved=moved) as server:
        run = Loaded(server, capsys, code=3)
    assert "HTTP 307 from /v1/completions: moved to " in run.result["error"]
    assert run.result["error"].endswith(f"; name {base.format(url=server.url)}")
    assert server.asked == 1


def test_a_rate_that_the_server_does_not_keep_up_with(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(per_s=40.0) as server:
        args = ("--scenario", "rate", "--request-rate", "10,60", "--burstiness", "100")
        run = Loaded(server, capsys, *args, "--random-output-len", "4", "--num-prompts", "60")
    slow, fast = run.result["levels"]
    assert (slow["saturated"], fast["saturated"]) == (False, True)
    ends = sorted(one.ended_s for one in server.log[-60:])
    assert fast["achieved_req_s"] == pytest.approx(59 / (ends[-1] - ends[0]), rel=0.02)
    assert (run.result["sweet_spot"], run.result["first_fail"]["criterion"]) == (10, "req_s")
    run.says("requests done per second")
    run.says("it falls behind")


def test_more_users_than_requests(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger() as server:
        run = Loaded(server, capsys, "--max-concurrency", "32")
    assert (run.level["users"], run.result["sweet_spot"], run.result["at_least"]) == (8, 8, True)
    assert run.level["user_tok_s"] == pytest.approx(run.level["output_throughput"] / 8)
    run.says("8 at once, not 32")


def ttft_ms(log: list[Answered]) -> float:
    """Mean time to the first visible token, by the server's log."""
    return 1000 * sum(one.first_s - one.read_s for one in log) / len(log)


ODD_STREAMS: list[dict[str, Any]] = [
    {"comments": True},
    {"data": b"data:"},
    {"data": b"id: 7\ndata: ", "comments": True},
    {"done": b""},
    {"done": b"data:[DONE]\r\n\r\n"},
    {"first_s": 0.4},
    {"block": 8, "comments": True},
]


@pytest.mark.parametrize("odd", ODD_STREAMS)
def test_odd_streams_are_measured(odd: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(**odd, itl_s=0.006) as server:
        run = Loaded(server, capsys)
    assert (run.level["completed"], run.level["failed"], run.level["total_output_tokens"]) == (8, 0, 8 * 64)
    assert run.level["decode_tok_s"] == pytest.approx(decode_tok_s(server.log[-8:]), rel=0.02)
    assert run.level["mean_ttft_ms"] == pytest.approx(ttft_ms(server.log[-8:]), rel=0.02, abs=5.0)
    spent = max(one.ended_s for one in server.log[-8:]) - min(one.read_s for one in server.log[-8:])
    assert run.level["output_throughput"] == pytest.approx(8 * 64 / spent, rel=0.02)


def test_without_usage_chunks_are_counted_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(usage=False) as server:
        run = Loaded(server, capsys)
    assert run.level["total_output_tokens"] == 8 * 64
    assert run.level["decode_tok_s"] == pytest.approx(decode_tok_s(server.log[-8:]), rel=0.02)
    run.says("no usage from the server: each chunk counts as one token")
    run.says("the server counts no prompt tokens: about 100 were sent")


REASONING: list[dict[str, Any]] = [{"hidden": 60}, {"bundled": 60}, {"hidden": 5, "block": 4}]


@pytest.mark.parametrize("odd", REASONING)
def test_reasoning_before_the_first_visible_token(odd: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(**odd, **SLOW) as server:
        run = Loaded(server, capsys, *CHAT)
    thought = odd.get("hidden", 0) + odd.get("bundled", 0)
    assert run.level["total_output_tokens"] == 8 * (64 + thought)
    assert run.level["decode_tok_s"] == pytest.approx(decode_tok_s(server.log[-8:]), rel=0.02)
    assert run.level["mean_ttft_ms"] == pytest.approx(ttft_ms(server.log[-8:]), rel=0.02, abs=5.0)
    if "hidden" in odd:
        run.says(f"{8 * thought:,} of {8 * (64 + thought):,} output tokens were reasoning that was not sent")


@pytest.mark.parametrize("refuses", [("max_tokens",), ("max_tokens", "ignore_eos", "min_tokens"), ("temperature",)])
def test_what_a_gateway_refuses_is_left_out_and_named(
    refuses: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with stranger(refuses=refuses, natural=40) as server:
        run = Loaded(server, capsys, *CHAT)
    assert (run.level["completed"], run.level["total_output_tokens"]) == (8, 320)
    assert set(refuses) <= {*run.result["refused"], "min_tokens"}
    run.says(f"the server refuses {', '.join(run.result['refused'])}: left out")


def test_the_model_that_makes_text_is_found_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(models=("first", "second", "third"), able="second") as server:
        run = Loaded(server, capsys)
    assert (run.level["completed"], run.result["model"]) == (8, "second")
    assert "second is taken of 3 models here" in run.warnings
    assert '"first" does not support generate' in run.warnings


def test_no_model_makes_text(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(models=("first", "second"), able="none") as server:
        run = Loaded(server, capsys, code=3)
    assert '"first" does not support generate' in run.result["error"]
    assert "other models here: second (--model)" in run.result["error"]
    assert server.log == []


def test_a_model_in_the_url_is_the_one(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(models=("first", "second"), able="second") as server:
        server.url += "?model=second"
        run = Loaded(server, capsys)
    assert (run.level["completed"], run.result["model"]) == (8, "second")
    run.says("second")


def test_a_model_that_is_not_listed_is_asked_for_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(models=("first", "second")) as server:
        run = Loaded(server, capsys, "--model", "scond", "--max-concurrency", "2")
        assert cli.run(["load", server.url, "--dry-run", "--model", "scond"]) == 0
        assert cli.run(["load", server.url, "--dry-run"]) == 0
    words = "scond is none of the 2 models listed here (first, second)"
    run.says(words)
    one, other = capsys.readouterr().out.split("Concurrency sweep of ")[1:]
    assert f"model: {words}" in one
    assert "first is taken of 2 models here" in other
    assert "--model first " in other


def test_a_closed_connection_hints_at_the_other_scheme(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls = Path(__file__).parent.parent / "fixtures" / "tls"
    context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
    with stranger(tls=context) as server:
        assert cli.run(["load", server.url, "--yes", "--json"]) == 3
        assert "--ca FILE trusts the authority" in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
        assert cli.run(["load", server.url, "--yes", "--json", "--insecure", *SIZE, "--max-concurrency", "2"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["levels"][0]["completed"] == 8
        server.url = server.url.replace("https", "http")
        run = Loaded(server, capsys, "--max-concurrency", "2", code=3)
        assert "https:// instead of http://?" in run.warnings


def test_a_server_without_tls_is_said() -> None:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    error.reason = "WRONG_VERSION_NUMBER"
    assert tls_words(error) == "TLS: the server does not speak it (wrong version number): http:// instead of https://?"


def test_a_server_that_does_not_answer_in_time_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(first_s=60.0) as server:
        run = Loaded(server, capsys, "--timeout-ttft", "0.5", code=3)
    assert run.result["error"].endswith("timeout_ttft from /v1/completions: no answer within 0.5 s")
    assert (run.result["levels"], run.report) == ([], "")
