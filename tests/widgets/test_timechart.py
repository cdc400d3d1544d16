"""Time charts, their axis and their scale, as text."""

from __future__ import annotations

import pytest

from llmtop_widgets import ScaleKeeper, Span, chart_lines, glyphs, nice_ceiling, plain, time_axis_line
from llmtop_widgets.timechart import stacked_chart_lines


def draw(values: list[float | None], width: int = 8, height: int = 1, **options: object) -> list[str]:
    return [plain(row) for row in chart_lines(values, width=width, height=height, hi=8, **options)]  # type: ignore[arg-type]


def test_the_newest_sample_is_at_the_right() -> None:
    assert draw([1, 2, 3]) == ["     ▁▂▃"]
    assert draw([8, 8, *range(1, 9)]) == ["▁▂▃▄▅▆▇█"]


def test_gap_zero_small_and_too_large_differ() -> None:
    assert draw([None, 0, 0.001, 99, float("nan"), -1]) == ["   _▁█ _"]


def test_higher_charts_use_every_row() -> None:
    assert draw([0, 1, 4, 5, 8, None], width=6, height=2) == ["   ▂█ ", "_▂███ "]


def test_the_scale_is_the_callers() -> None:
    flat_low, flat_high = [0.4] * 4, [0.95] * 4
    rows = [plain(chart_lines(v, width=4, height=1, hi=1.0)[0]) for v in (flat_low, flat_high)]
    assert rows == ["▃▃▃▃", "████"]
    assert plain(chart_lines([5, 6, 10], width=3, height=1, lo=5, hi=10)[0]) == "_▂█"


def test_marks_fill_only_blank_cells() -> None:
    values: list[float | None] = [8, 4, None, 2]
    rows = chart_lines(values, width=4, height=2, hi=8, marks=[1, 2])
    assert [plain(row) for row in rows] == ["█││ ", "██│▄"]


def test_only_the_newest_mark_has_its_own_style() -> None:
    row = chart_lines([None] * 6, width=6, height=1, hi=8, style="bar", marks=[1, 4])[0]
    assert row == (Span(" │  ", "bar"), Span("│", "mark"), Span(" ", "bar"))


def test_marks_before_the_visible_part_are_left_out() -> None:
    assert draw([None] * 10, width=4, marks=[0, 5, 7]) == [" │  "]


def test_a_threshold_runs_through_blank_cells() -> None:
    assert draw([8, None, 1], width=5, height=2, threshold=6) == ["┄┄█┄┄", "  █ ▂"]
    assert draw([1], width=2, threshold=9) == [" ▁"]


def test_ascii_charts(ascii_glyphs: None) -> None:
    assert draw([0, 1, 2, 3, 4, 5, 6, 8]) == ["_.:-=+*#"]


@pytest.mark.parametrize(
    ("width", "seconds", "axis"),
    [
        (31, 1.0, "       -20s      -10s       now"),
        (30, 5.0, "   -2m         -1m         now"),
        (64, 3.0, "         -150s     -120s      -90s      -60s      -30s       now"),
        (4, 1.0, " now"),
        (2, 1.0, "  "),
    ],
)
def test_the_axis_labels_columns_by_age(width: int, seconds: float, axis: str) -> None:
    assert plain(time_axis_line(width, seconds)) == axis


@pytest.mark.parametrize(
    ("value", "ceiling"),
    [(0, 1), (-3, 1), (0.013, 0.02), (1, 1), (1.01, 2), (3, 5), (94, 100), (100, 100), (2001, 5000)],
)
def test_nice_ceiling(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == pytest.approx(ceiling)


def test_the_scale_grows_at_once_and_shrinks_with_patience() -> None:
    keeper = ScaleKeeper(10, patience=3)
    assert [keeper.update(v) for v in (5, 94, None)] == [10, 100, 100]
    assert [keeper.update(v) for v in (15, 15, 60, 15, 15)] == [100] * 5
    assert keeper.update(15) == 20
    assert keeper.update(0) == 20


@pytest.mark.parametrize(("colours", "upper"), [(True, "█"), (False, "▒")])
def test_without_colours_the_upper_of_two_series_is_shaded(colours: bool, upper: str) -> None:
    glyphs.use(glyphs.UNICODE, colours=colours)
    try:
        drawn = stacked_chart_lines([2, 2], [0, 2], width=2, height=4, hi=4, styles=("series1", "low"))
    finally:
        glyphs.use(glyphs.UNICODE)
    assert [plain(row) for row in drawn] == [f" {upper}", f" {upper}", "██", "██"]
    assert drawn[0][-1].style == "low"
