"""Load against servers that are not vLLM: the figures by their own logs, the reasons in words everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.stranger import Answered, Stranger, stranger
from llmtop import cli

SIZE = ("--random-input-len", "100", "--random-output-len", "64", "--num-prompts", "8", "--no-warm-up")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


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
    assert "odd-one" in run.report
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
    assert "20 of 64 tokens on average" in run.level["flag_reasons"]["short"]
    assert run.level["decode_tok_s"] == pytest.approx(decode_tok_s(server.log[-8:]), rel=0.02)
    assert "20 of 64 tokens" in run.report


def test_a_quota_ends_the_run_with_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(most=6) as server:
        run = Loaded(server, capsys, "--max-concurrency", "2,4", code=3)
    words = "the server refuses load (HTTP 429: quota used up (Retry-After: 7))"
    assert words in run.result["ended"]
    assert "of 8 requests of c=2" in run.result["words"]
    assert words in run.report
    assert (run.result["sweet_spot"], run.result["first_fail"], run.result["knee"]) == (None, None, None)
    assert [level["level"] for level in run.result["levels"]] == ["c=2"]


def test_a_rate_that_the_server_does_not_keep_up_with(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger(per_s=40.0) as server:
        args = ("--scenario", "rate", "--request-rate", "10,60", "--burstiness", "100")
        run = Loaded(server, capsys, *args, "--random-output-len", "4", "--num-prompts", "60")
    slow, fast = run.result["levels"]
    assert (slow["saturated"], fast["saturated"]) == (False, True)
    ends = sorted(one.ended_s for one in server.log[-60:])
    assert fast["achieved_req_s"] == pytest.approx(59 / (ends[-1] - ends[0]), rel=0.02)
    assert (run.result["sweet_spot"], run.result["first_fail"]["criterion"]) == (10, "req_s")
    assert "60 req/s fails: requests done per second" in run.result["words"]


def test_more_users_than_requests(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger() as server:
        run = Loaded(server, capsys, "--max-concurrency", "32")
    assert (run.level["users"], run.result["sweet_spot"], run.result["at_least"]) == (8, 8, True)
    assert run.level["user_tok_s"] == pytest.approx(run.level["output_throughput"] / 8)
    assert "8 at once, not 32" in run.level["flag_reasons"]["fewer users"]
