"""The cell-diff writer alone, on frames in Textual's format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llmtop.ui.terminal.celldiff import SYNC_END, SYNC_START, CellDiff
from pyte_terminal import Terminal

SIZE = (40, 5)


def frame(row: int, column: int, *parts: str) -> str:
    return f"\x1b[{row};{column}H" + "".join(parts) + "\x1b[1;1H"


def red(text: str) -> str:
    return f"\x1b[31m{text}\x1b[0m"


@contextmanager
def known(*rows: str) -> Iterator[tuple[CellDiff, Terminal]]:
    """A writer and its terminal after a first frame with these rows."""
    diff, terminal = CellDiff(), Terminal(*SIZE)
    padded = [*rows, *[""] * (SIZE[1] - len(rows))]
    terminal.feed(diff.feed("\n".join(f"\x1b[{y + 1};1H{row:40}" for y, row in enumerate(padded)), SIZE))
    yield diff, terminal


def test_only_changed_cells_are_sent() -> None:
    with known("count 123 of 456") as (diff, terminal):
        sent = diff.feed(frame(1, 1, "count 124 of 456"), SIZE)
        terminal.feed(sent)
        assert sent == "\x1b[;9H4"
        assert terminal.text()[0] == "count 124 of 456"


def test_an_unchanged_frame_sends_nothing_not_even_the_sync_marks() -> None:
    with known("same") as (diff, _):
        sent = [diff.feed(data, SIZE) for data in (SYNC_START, frame(1, 1, "same"), SYNC_END)]
        assert sent == ["", "", ""]


def test_sync_marks_enclose_a_changed_frame() -> None:
    with known("same") as (diff, _):
        sent = "".join(diff.feed(data, SIZE) for data in (SYNC_START, frame(1, 1, "sane"), SYNC_END))
        assert sent == f"{SYNC_START}\x1b[;3Hn{SYNC_END}"


def test_a_scrolled_chart_row_is_moved_by_the_terminal() -> None:
    old, new = "left ▁▂▃▄▅▆▇█▁▂▃▄ right", "left ▂▃▄▅▆▇█▁▂▃▄▅ right"
    with known(old) as (diff, terminal):
        sent = diff.feed(frame(1, 1, new), SIZE)
        terminal.feed(sent)
        assert sent == "\x1b[;6H\x1b[P\x1b[11C\x1b[@▅"
        assert terminal.text()[0] == new


def test_shifts_can_be_switched_off() -> None:
    diff = CellDiff(shifts=False)
    diff.feed(frame(1, 1, f"{'▁▂▃▄▅▆▇█▁▂▃▄':40}"), SIZE)
    assert "\x1b[P" not in diff.feed(frame(1, 1, f"{'▂▃▄▅▆▇█▁▂▃▄▅':40}"), SIZE)


def test_a_wide_character_is_never_cut() -> None:
    with known("漢字漢字") as (diff, terminal):
        terminal.feed(diff.feed(frame(1, 2, "ab漢"), SIZE))
        assert [cell[0] for cell in terminal.cells()[0][:8]] == [" ", "a", "b", "漢", "", " ", "字", ""]


def test_a_row_with_wide_characters_is_not_moved() -> None:
    with known("漢 ▁▂▃▄▅▆▇█▁▂▃▄") as (diff, terminal):
        sent = diff.feed(frame(1, 1, "漢 ▂▃▄▅▆▇█▁▂▃▄▅"), SIZE)
        terminal.feed(sent)
        assert sent == "\x1b[;4H▂▃▄▅▆▇█▁▂▃▄▅"


def test_an_unchanged_wide_text_is_not_sent_again() -> None:
    with known("漢字 e\u0301 one") as (diff, _):
        assert diff.feed(frame(1, 1, "漢字 e\u0301 two"), SIZE) == "\x1b[;8Htwo"
        assert diff.feed(frame(1, 8, "two"), SIZE) == ""


def test_the_text_of_an_emoji_sequence_is_drawn_again_each_time() -> None:
    family = "👩\u200d👩\u200d👧"
    with known() as (diff, _):
        assert family in diff.feed(frame(1, 1, family), SIZE)
        assert family in diff.feed(frame(1, 1, family), SIZE)
        assert diff.feed(frame(2, 1, "   "), SIZE) == ""


def test_a_frame_with_unknown_codes_passes_unchanged_and_makes_the_screen_unknown() -> None:
    with known("abc") as (diff, _):
        odd = frame(1, 1, "\x1b[5Xabc")
        assert diff.feed(odd, SIZE) == odd
        assert "abc" in diff.feed(frame(1, 1, "abc"), SIZE)


@pytest.mark.parametrize("data", ["\x1b[?1000h", "\x1b[?2048$p", "\x07", "\x1b]52;c;QUJD\x07", "\x1b[>25u"])
def test_harmless_writes_pass_and_keep_the_screen_known(data: str) -> None:
    with known("abc") as (diff, _):
        assert diff.feed(data, SIZE) == data
        assert diff.feed(frame(1, 1, "abc"), SIZE) == ""


def test_a_frame_that_passes_unchanged_starts_from_default_colours() -> None:
    with known() as (diff, _):
        diff.feed(frame(1, 1, red("abc")), SIZE)
        odd = frame(2, 1, "\x1b[5Xplain")
        assert diff.feed(odd, SIZE) == "\x1b[m" + odd


def test_a_frame_that_does_not_place_its_text_passes_unchanged() -> None:
    with known("abc") as (diff, _):
        odd = "\x1b[1;1Hab\ncd"
        assert diff.feed(odd, SIZE) == odd


@pytest.mark.parametrize("data", ["\x1b[?1049h", "\x1b[2J", "plain text", "\x1b[?1000h\x1b[?1049l"])
def test_other_writes_make_the_screen_unknown(data: str) -> None:
    with known("abc") as (diff, _):
        assert diff.feed(data, SIZE) == data
        assert "abc" in diff.feed(frame(1, 1, "abc"), SIZE)


def test_leaving_the_screen_resets_the_colours() -> None:
    with known() as (diff, _):
        diff.feed(frame(1, 1, red("abc")), SIZE)
        assert diff.feed("\x1b[?1049l", SIZE) == "\x1b[m\x1b[?1049l"


def test_a_new_size_makes_the_screen_unknown() -> None:
    with known("abc") as (diff, _):
        assert "abc" in diff.feed(frame(1, 1, "abc"), (40, 6))


def test_after_an_unknown_screen_no_colour_is_taken_for_set() -> None:
    with known() as (diff, _):
        diff.feed(frame(1, 1, red("abc")), SIZE)
        diff.mark_unknown()
        assert "\x1b[;31m" in diff.feed(frame(1, 1, red("abc")), SIZE)


def test_a_frame_larger_than_the_terminal_is_clipped() -> None:
    diff, terminal = CellDiff(), Terminal(4, 1)
    terminal.feed(diff.feed("\x1b[1;1Habcdef\n\x1b[2;1Hghi\x1b[1;1H", (4, 1)))
    assert terminal.text() == ["abcd"]


def test_cells_of_one_style_are_sent_together() -> None:
    with known() as (diff, terminal):
        sent = diff.feed(frame(1, 1, red("a"), "b", red("c"), "d", "\x1b[2;1H", red("e")), SIZE)
        terminal.feed(sent)
        assert sent.count("31") == 1
        assert terminal.text()[:2] == ["abcd", "e"]
