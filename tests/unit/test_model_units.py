"""Numbers as text of steady width, and foreign text made harmless."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmtop.contract.units import UNKNOWN, bytes_text, clean, count, duration, gib, percent, rate, seconds, si


@pytest.mark.parametrize(
    ("words", "value", "text"),
    [
        (gib, 23.3 * 2**30, "23.3"),
        (gib, 0, "0.0"),
        (bytes_text, 999, "999 B"),
        (bytes_text, 1536, "1.5 KiB"),
        (bytes_text, 119.6 * 2**30, "120 GiB"),
        (bytes_text, -5 * 2**20, "-5.0 MiB"),
        (percent, 0.612, "61.2 %"),
        (percent, 0.0, "0.0 %"),
        (count, 520164, "520,164"),
        (rate, 0.0, "0.0"),
        (rate, 99.94, "99.9"),
        (rate, 99.96, "100"),
        (rate, 1620.4, "1,620"),
        (si, 999, "999"),
        (si, 1200, "1.2k"),
        (si, 12_000, "12k"),
        (si, 999_600, "1.0M"),
        (seconds, 0.0041, "4.1 ms"),
        (seconds, 0.0099, "9.9 ms"),
        (seconds, 0.412, "412 ms"),
        (seconds, 1.94, "1.9 s"),
        (seconds, 120.0, "120 s"),
        (duration, 41, "41s"),
        (duration, 192, "3m12s"),
        (duration, 3 * 3600 + 720, "3h12m"),
        (duration, 2 * 86400 + 4 * 3600, "2d04h"),
    ],
)
def test_numbers(words: Callable[[float], str], value: float, text: str) -> None:
    assert words(value) == text


@pytest.mark.parametrize("words", [gib, bytes_text, percent, count, rate, si, seconds, duration])
def test_unknown_is_a_dash_and_zero_is_not(words: Callable[[float | None], str]) -> None:
    assert words(None) == UNKNOWN == "–"
    assert words(0) != UNKNOWN


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_times_that_are_no_numbers_are_unknown(odd: float) -> None:
    assert (seconds(odd), duration(odd)) == (UNKNOWN, UNKNOWN)
    assert duration(-1) == UNKNOWN


def test_foreign_text_loses_what_a_terminal_would_obey() -> None:
    assert clean("\x1b[31mred\x1b[0m\x07\r\n\u2028\u202e\x9b0m") == "[31mred[0m0m"
    assert clean("模型/é [bold]") == "模型/é [bold]"
    assert clean("x" * 500) == "x" * 159 + "…"
    assert len(clean("\x00" * 10_000 + "y")) <= 160
