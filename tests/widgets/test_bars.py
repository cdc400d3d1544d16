"""Gauges and stacked bars as text."""

from __future__ import annotations

import random

import pytest

from llmtop_widgets import Span, gauge_line, glyphs, plain, shade, stacked_line
from llmtop_widgets.gauge import thin
from llmtop_widgets.stackedbar import apportion


@pytest.mark.parametrize(
    ("fraction", "drawn"),
    [
        (0.0, "░░░░░░░░░░"),
        (0.0001, "▏░░░░░░░░░"),
        (0.5, "█████░░░░░"),
        (0.612, "██████▏░░░"),
        (0.9999, "█████████▉"),
        (1.0, "██████████"),
        (1.7, "██████████"),
        (-1.0, "░░░░░░░░░░"),
        (None, "╌╌╌╌╌╌╌╌╌╌"),
        (float("nan"), "╌╌╌╌╌╌╌╌╌╌"),
    ],
)
def test_a_gauge_shows_eighths_on_a_fixed_scale(fraction: float | None, drawn: str) -> None:
    assert plain(gauge_line(fraction, 10)) == drawn


def test_a_gauge_takes_the_style_of_the_highest_threshold_reached() -> None:
    thresholds = ((0.9, "critical"), (0.7, "low"))
    styles = [gauge_line(f, 8, "ok", thresholds=thresholds)[0].style for f in (0.69, 0.7, 0.95)]
    assert styles == ["ok", "low", "critical"]


def test_a_gauge_without_room_is_empty() -> None:
    assert gauge_line(0.5, 0) == ()


def test_ascii_gauges_use_whole_cells(ascii_glyphs: None) -> None:
    assert plain(gauge_line(0.55, 10)) == "######...."
    assert plain(gauge_line(None, 4)) == "????"


def test_the_parts_of_a_bar_add_up_to_its_width() -> None:
    bar = stacked_line([(84.0, "series1"), (12.0, "series2")], 120.0, 40)
    assert bar == (Span("█" * 28, "series1"), Span("▒" * 4, "series2"), Span("░" * 8, "track"))


def test_a_small_part_keeps_one_cell() -> None:
    assert plain(stacked_line([(100.0, "a"), (0.1, "b")], 100.1, 10)) == "█████████▒"


def test_parts_beyond_the_total_keep_their_proportions() -> None:
    assert plain(stacked_line([(30.0, "a"), (10.0, "b")], 20.0, 8)) == "██████▒▒"


def test_unknown_and_empty_totals_differ() -> None:
    assert plain(stacked_line([], None, 4)) == "╌╌╌╌"
    assert plain(stacked_line([], 0.0, 4)) == "░░░░"


def test_apportion_always_shares_every_cell() -> None:
    pick = random.Random(2)
    for _ in range(300):
        weights = [pick.choice([0.0, pick.random(), 100 * pick.random()]) for _ in range(5)]
        cells = pick.randrange(1, 30)
        shares = apportion(weights, cells)
        assert sum(shares) == (cells if any(weights) else 0)
        if cells >= sum(weight > 0 for weight in weights):
            assert all(bool(share) == (weight > 0) for share, weight in zip(shares, weights, strict=True))


def test_shades_differ_without_colour() -> None:
    assert len({shade(i) for i in range(5)} | {glyphs.current().shade_free}) == 6


@pytest.mark.parametrize("glyph", [glyphs.UNICODE, glyphs.ASCII])
def test_chart_glyphs_cannot_be_mistaken(glyph: glyphs.Glyphs) -> None:
    assert len({*glyph.blocks, glyph.zero, glyph.mark, glyph.threshold}) == 12


def test_a_thin_gauge_can_be_read_without_its_styles() -> None:
    assert plain(thin(gauge_line(0.5, 8))) == "▄▄▄▄▁▁▁▁"
    assert plain(thin(gauge_line(None, 3))) == "╌╌╌"
