"""Lines of text: widths, cutting, and nothing that a terminal could obey."""

from __future__ import annotations

import random

import pytest
from rich.cells import cell_len

from llmtop_widgets import Span, beside, fit, fit_text, flow, join, line, plain, spread, width
from llmtop_widgets.text import Align, clean, crop


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain [b]not markup[/b]", "plain [b]not markup[/b]"),
        ("bell\x07 escape\x1b[2J", "bell? escape?[2J"),
        ("tab\tand\nnewline\u00a0end", "tab and newline end"),
        ("c1 \x9b31m delete \x7f", "c1 ?31m delete ?"),
        ("left\u202eto right, zero\u200bwidth", "leftto right, zerowidth"),
        ("漢字 é ▁", "漢字 é ▁"),
        ("\ud800", "?"),
    ],
)
def test_clean_leaves_only_what_can_be_printed(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@pytest.mark.parametrize(
    ("text", "cells", "align", "fitted"),
    [
        ("abc", 5, "left", "abc  "),
        ("abc", 5, "right", "  abc"),
        ("abc", 6, "center", " abc  "),
        ("abcdef", 4, "left", "abc…"),
        ("漢字", 3, "left", "漢…"),
        ("漢字", 2, "left", "… "),
        ("漢字", 5, "right", " 漢字"),
        ("abc", 0, "left", ""),
        ("", 2, "left", "  "),
    ],
)
def test_fit_text_takes_exactly_the_cells(text: str, cells: int, align: Align, fitted: str) -> None:
    assert fit_text(text, cells, align) == fitted


def test_any_line_fits_any_width_exactly() -> None:
    pick = random.Random(1)
    alphabet = "ab 漢é\u0301\x1b🚀–"
    for _ in range(500):
        spans = [Span("".join(pick.choices(alphabet, k=pick.randrange(5))), str(i)) for i in range(4)]
        cells = pick.randrange(12)
        shown = "".join(map(clean, [span.text for span in fit(tuple(spans), cells)]))
        assert cell_len(shown) == cells, spans


def test_fit_keeps_the_styles_of_what_is_left() -> None:
    content = line(Span("KV ", "label"), Span("61.2 %", "bold ok"))
    assert fit(content, 12) == (Span("KV ", "label"), Span("61.2 %", "bold ok"), Span("   "))
    assert fit(content, 6) == (Span("KV ", "label"), Span("61…", "bold ok"))
    assert fit(content, 3) == (Span("KV…", "label"),)


def test_cutting_only_blanks_leaves_no_ellipsis() -> None:
    assert plain(crop(line("abc", "    "), 4)) == "abc "


def test_spread_keeps_the_right_end_and_cuts_the_left() -> None:
    left, right = line("a long title"), line("1.0s")
    assert plain(spread(left, right, 20)) == "a long title    1.0s"
    assert plain(spread(left, right, 12)) == "a long… 1.0s"
    assert plain(spread(left, right, 3)) == "1.…"


def test_join_and_beside_make_columns() -> None:
    assert plain(join([(line("ab"), 4, "left"), (line("7"), 3, "right")])) == "ab     7"
    rows = beside([([line("a"), line("b")], 3), ([line("right")], 5)], gap=2)
    assert [plain(row) for row in rows] == ["a    right", "b         "]


def test_flow_leaves_out_what_does_not_fit() -> None:
    items = [line("running 8"), line("a very long item"), line("waiting 3")]
    assert plain(flow(items, 20)) == "running 8  waiting 3"
    assert width(flow(items, 20)) == 20
