"""The fast parser against the official one, on pages as they should not be."""

from __future__ import annotations

import json
import random
import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from crank import FIXTURES, Crank, captured
from llmtop.contract.codec import plain
from llmtop.engines.exposition import CACHE_CHARS, Exposition, Parsed


def readings(parsed: Parsed) -> dict[str, float]:
    return {slot.source.metric: value for slot, value in parsed.values.items()}


def test_the_second_page_is_read_from_the_cache_and_equals_a_fresh_reading() -> None:
    exposition = Exposition()
    for _, body, _ in captured("0.30.0"):
        again, fresh = exposition.parse(body), Exposition().parse(body)
        assert sorted(again.values.values()) == sorted(fresh.values.values())
        assert readings(again) == readings(fresh)


@pytest.mark.parametrize(
    "text",
    [
        'vllm:num_requests_running{engine="0",model_name="m"} 3',
        'vllm:num_requests_running{ engine = "0" , model_name="m" } 3',
        'vllm:num_requests_running{engine="0",model_name="m"}\t3',
        'vllm:num_requests_running{engine="0",model_name="m"} 3 1712345678901',
        'vllm:num_requests_running{model_name="m",engine="0",} 3.0',
        'vllm:num_requests_running{engine="0",model_name="m"} 3e0',
        'vllm:num_requests_running{engine="0",model_name="m"} 3\r',
    ],
)
def test_spellings_of_one_sample(text: str) -> None:
    exposition = Exposition()
    for _ in range(2):
        assert readings(exposition.parse(text.encode() + b"\n")) == {"vllm:num_requests_running": 3.0}


@pytest.mark.parametrize(
    "line", ["!!!", "{} 1", 'x{y="z} 1', "vllm:num_requests_running", "a b c d e", "\x00\xff 1", " "]
)
def test_a_bad_line_costs_that_line_alone(line: str) -> None:
    body = f"{line}\nvllm:num_requests_waiting 4\n{line}\n".encode()
    exposition = Exposition()
    for _ in range(2):
        assert readings(exposition.parse(body)) == {"vllm:num_requests_waiting": 4.0}


def test_a_value_that_became_no_number_is_a_bad_line() -> None:
    exposition = Exposition()
    exposition.parse(b"vllm:num_requests_waiting 4\n")
    parsed = exposition.parse(b"vllm:num_requests_waiting four\n")
    assert (readings(parsed), parsed.bad_lines) == ({}, 1)


def test_what_follows_the_last_newline_is_dropped() -> None:
    parsed = Exposition().parse(b"vllm:num_requests_waiting 4\nvllm:num_requests_running 12")
    assert (readings(parsed), parsed.partial) == ({"vllm:num_requests_waiting": 4.0}, True)
    whole = Exposition().parse(b"vllm:num_requests_waiting 4\n# EOF")
    assert (whole.partial, whole.openmetrics) == (False, True)


def test_line_separators_inside_labels_do_not_split_lines() -> None:
    body = 'vllm:num_requests_running{model_name="x\u2028y\u0085z"} 7\n'.encode()
    assert readings(Exposition().parse(body)) == {"vllm:num_requests_running": 7.0}


def test_labels_in_another_order_are_the_same_series() -> None:
    exposition = Exposition()
    first = 'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
    second = 'vllm:num_requests_running{model_name="m",engine="0"} 2\n'
    assert list(exposition.parse((first + second).encode()).values.values()) == [2.0]


def test_lines_that_change_with_every_page_do_not_fill_the_memory() -> None:
    exposition = Exposition()
    label = "x" * 50_000
    for page in range(60):
        body = "".join(f"# HELP {page} {n} {label} \n" for n in range(20))
        exposition.parse(body.encode())
        assert sum(map(len, exposition._known)) <= CACHE_CHARS + len(body)


def test_a_known_page_is_much_faster_than_the_official_parser() -> None:
    body = next(body for _, body, row in captured("0.32.0") if row["phase"] == "c64")
    exposition = Exposition()
    exposition.parse(body)

    def best(work: object) -> float:
        assert callable(work)
        times = []
        for _ in range(7):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return min(times)

    ours = best(lambda: exposition.parse(body))
    official = best(lambda: list(text_string_to_metric_families(body.decode())))
    assert official > 10 * ours  # the budget of 20 is checked on a quiet machine


ODD = ["NaN", "+Inf", "-Inf", "1e308", "-1e308", "-1", "", "0x10", "1e-320", "None", "9" * 400, "-0", "1_0"]
RATES = ("generation_tok_s", "prompt_tok_s", "prompt_computed_tok_s", "prompt_cached_tok_s", "requests_s")


def spoilt(page: bytes, chance: random.Random) -> bytes:
    """A page with some values, labels and lines replaced by nonsense, and perhaps its end cut off."""
    lines = page.split(b"\n")
    if chance.random() < 0.5:
        lines = chance.sample(lines, min(len(lines), 40))
    for _ in range(chance.randint(0, 60)):
        place, odd = chance.randrange(len(lines)), chance.choice(ODD).encode()
        dice = chance.random()
        if dice < 0.6:
            lines[place] = lines[place].rpartition(b" ")[0] + b" " + odd
        elif dice < 0.8:
            lines[place] = re.sub(rb'"[^"]*"', b'"' + odd + b'"', lines[place])
        else:
            lines[place] = chance.randbytes(30)
    body = b"\n".join(lines)
    return body[: chance.randrange(len(body) + 1)] if chance.random() < 0.3 else body


@pytest.mark.parametrize("seed", range(8))
def test_no_page_breaks_the_reader_or_gives_a_negative_rate(seed: int) -> None:
    chance = random.Random(seed)
    pages = [body for version in ("0.32.0", "0.8.5", "0.32.0-dp2") for _, body, _ in list(captured(version))[-3:]]
    pages += [path.read_bytes() for path in sorted((FIXTURES / "metrics").glob("*/*.txt"))]
    for _ in range(40):
        crank, page = Crank(), chance.choice(pages)
        for poll in range(3):
            view = crank.feed(spoilt(page, chance), float(poll)).view()
            json.dumps(plain(view), allow_nan=False)
            for name in RATES:
                rate = getattr(view.rates, name)
                assert rate is None or rate >= 0
