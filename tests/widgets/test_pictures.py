"""The curve plot and the big digits, as text."""

from __future__ import annotations

import pytest

from llmtop_widgets import Limit, Point, half_lines, plain, scatter_lines, stroke_lines, stroke_width, width
from llmtop_widgets.curve import short_number


def test_a_curve_has_axes_points_labels_and_limits() -> None:
    points = [Point(60, 100, "c1"), Point(40, 700, "c8"), Point(10, 1000, "c32", glyph="★")]
    rows = scatter_lines(
        points, 40, 12, x_label="per user", y_label="total tok/s", marks=[Limit("y", 400, "limit")], connect=False
    )
    assert [plain(row) for row in rows] == [
        "total tok/s                             ",
        "    1k┤     ★ c32                       ",
        "      │                                 ",
        "      │                     ● c8        ",
        "      │                                 ",
        "   500┤ limit                           ",
        "      │┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄",
        "      │                                 ",
        "      │                             c1 ●",
        "     0┤                                 ",
        "      └─────────────────────────────────",
        "       0           per user           60",
    ]


def test_a_curve_joins_its_points_in_order() -> None:
    rows = scatter_lines([Point(0, 0), Point(10, 10)], 20, 9)
    assert sum(plain(row).count("·") for row in rows) == 11


def test_labels_never_cover_points() -> None:
    points = [Point(x, 5, f"label{x}") for x in range(10)]
    text = "".join(plain(row) for row in scatter_lines(points, 24, 8, connect=False))
    assert text.count("●") == 10


@pytest.mark.parametrize("size", [(8, 12), (40, 3), (0, 0), (30, 8), (200, 50)])
def test_a_curve_always_has_the_size_asked_for(size: tuple[int, int]) -> None:
    rows = scatter_lines([Point(1, 1, "one")], *size, x_label="x" * 50)
    assert [width(row) for row in rows] == [size[0]] * size[1]


def test_an_empty_curve_has_axes() -> None:
    assert "1┤" in plain(scatter_lines([], 20, 8)[1])


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.25"), (999, "999"), (1234, "1.23k"), (5e6, "5M"), (2e9, "2G")]
)
def test_short_number(value: float, text: str) -> None:
    assert short_number(value) == text


def test_digits_of_a_headline() -> None:
    assert [plain(row) for row in half_lines("4.2k")] == ["█ █   ▀▀█ █ ▄", "▀▀█   █▀▀ █▀▄", "  ▀ ▀ ▀▀▀ ▀ ▀"]


def test_without_half_blocks_a_headline_is_text(ascii_glyphs: None) -> None:
    assert [plain(row) for row in half_lines("94")] == ["", "94", ""]


def test_large_digits_have_round_strokes() -> None:
    assert [plain(row) for row in stroke_lines("1.8", 5)] == [
        " ▗▄▄▖       ▟████▙",
        "▐███▌       ██  ██",
        "  ▐█▌       ██████",
        "  ▐█▌       ██  ██",
        "  ▐█▌   ██  ▀████▀",
    ]


@pytest.mark.parametrize("rows", [3, 4, 7, 12, 25])
def test_large_digits_fill_their_place(rows: int) -> None:
    text = "12.8% <–k ?"
    drawn = stroke_lines(text, rows)
    assert len(drawn) == rows
    assert {width(row) for row in drawn} == {stroke_width(text, rows)}
    assert len({tuple(map(plain, stroke_lines(digit, rows))) for digit in "0123456789"}) == 10


def test_large_digits_in_ascii(ascii_glyphs: None) -> None:
    assert set("".join(map(plain, stroke_lines("24%", 6)))) == {"#", " "}
