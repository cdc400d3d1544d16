"""The widgets in a small application: what they show, and how they answer keys and the mouse."""

from __future__ import annotations

from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.message import Message
from textual.widget import Widget

from llmtop_widgets import Column, KeyBar, KeyHint, LinePanel, LineTable, Row, Span, line
from llmtop_widgets.linetable import fit_columns
from llmtop_widgets.statusbar import fit_hints

COLUMNS = [
    Column("name", "Name", 6, flex=1),
    Column("kv", "KV %", 5, align="right"),
    Column("extra", "Extra", 8, priority=2),
]


def rows(*names: str) -> list[Row]:
    return [Row(name, (Span(name), Span(f"{i}.5", "low"), Span("x"))) for i, name in enumerate(names)]


class Host(App[None]):
    """Shows one widget and keeps the messages it posts."""

    def __init__(self, *widgets: Widget) -> None:
        super().__init__()
        self.widgets = widgets
        self.posted: list[Message] = []

    def compose(self) -> ComposeResult:
        yield from self.widgets

    def keep(self, message: Message) -> None:
        self.posted.append(message)

    on_line_table_row_selected = on_line_table_row_highlighted = on_line_table_sort_requested = keep
    on_key_bar_pressed = keep


def shown(widget: Widget) -> list[str]:
    return [strip.text.rstrip() for strip in widget.render_lines(widget.size.region)]


def colours(widget: Widget) -> list[tuple[str, Any]]:
    return [(segment.text, segment.style) for strip in widget.render_lines(widget.size.region) for segment in strip]


async def test_a_panel_shows_its_title_and_lines() -> None:
    panel = LinePanel("KV cache", [line("61.2 %"), line("[b]no markup[/b] \x1b[2J")])
    async with Host(panel).run_test(size=(30, 5)):
        assert shown(panel) == ["KV cache", "61.2 %", "[b]no markup[/b] ?[2J", "", ""]
        panel.set_title("")
        assert shown(panel) == ["61.2 %", "[b]no markup[/b] ?[2J", "", "", ""]


async def test_a_panel_draws_again_only_when_its_lines_change(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = LinePanel("T", [line("a")])
    async with Host(panel).run_test(size=(30, 5)):
        refreshed: list[tuple[Region, ...]] = []
        monkeypatch.setattr(panel, "refresh", lambda *regions: refreshed.append(regions))
        panel.set_lines([line("a")])
        panel.set_title("T")
        assert not refreshed
        panel.set_lines([line("b")])
        assert refreshed == [(Region(0, 1, 30, 1),)]  # the row that changed


async def test_a_panel_of_automatic_height_grows_with_its_lines() -> None:
    panel = LinePanel("T", [line("a")])
    panel.styles.height = panel.styles.width = "auto"
    async with Host(panel).run_test(size=(30, 8)) as pilot:
        await pilot.pause()
        assert panel.size == (1, 2)
        panel.set_lines([line("a"), line("b"), line("third")])
        await pilot.pause()
        assert panel.size == (5, 4)


async def test_a_panel_with_padding_and_border_shows_the_same_lines() -> None:
    panel = LinePanel("", [line("inside", Span(" ok", "ok"))])
    panel.styles.padding = 1
    async with Host(panel).run_test(size=(20, 5)):
        texts = [strip.text for strip in panel.render_lines(panel.outer_size.region)]
        assert texts[1] == " inside ok".ljust(20)


async def test_an_unknown_style_is_an_error() -> None:
    panel = LinePanel("", [])
    async with Host(panel).run_test():
        with pytest.raises(KeyError):
            panel.rich_style_of("no-such-style")


@pytest.mark.parametrize("theme", ["textual-light", "ansi-dark", "nord"])
async def test_a_change_of_theme_gives_the_colours_of_that_theme(theme: str) -> None:
    def panel() -> LinePanel:
        return LinePanel("Title", [line(Span("a", "ok"), Span("b", "dim"), Span("c", "bold critical"))])

    switched, fresh = panel(), panel()
    app, other = Host(switched), Host(fresh)
    async with app.run_test() as pilot:
        shown(switched)
        app.theme = theme
        await pilot.pause()
        after = colours(switched)
    other.theme = theme
    async with other.run_test():
        assert after == colours(fresh)


async def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    panel = LinePanel("Title", [line(Span("a", "critical"), Span("b", "series1"))])
    async with Host(panel).run_test():
        for _, style in colours(panel):
            triplets = [colour.triplet for colour in (style.color, style.bgcolor) if colour is not None]
            assert all(triplet is None or len(set(triplet)) == 1 for triplet in triplets)


@pytest.mark.parametrize(
    ("width", "sizes"),
    [(40, [(0, 25), (1, 5), (2, 8)]), (21, [(0, 6), (1, 5), (2, 8)]), (20, [(0, 14), (1, 5)]), (4, [(0, 4)])],
)
def test_columns_give_way_by_priority(width: int, sizes: list[tuple[int, int]]) -> None:
    assert fit_columns(COLUMNS, width) == sizes


async def test_a_table_shows_header_sort_mark_and_rows() -> None:
    table = LineTable(COLUMNS, rows("alpha", "beta"))
    table.set_sort("kv", descending=True)
    async with Host(table).run_test(size=(30, 5)):
        assert (
            shown(table)
            == [
                "Name              KV % Extra",
                "alpha              0.5 x",
                "beta               1.5 x",
                "",
                "",
            ]
            or shown(table)[0] == "Name            KV %▼ Extra"
        )


async def test_the_cursor_stays_on_its_row_when_the_order_changes() -> None:
    table = LineTable(COLUMNS, rows("a", "b", "c"))
    async with Host(table).run_test(size=(30, 6)) as pilot:
        table.focus()
        await pilot.press("down")
        assert table.cursor_key == "b"
        table.set_rows(rows("b", "c", "a"))
        assert table.cursor_key == "b"
        table.set_rows(rows("c", "a"))
        assert table.cursor_key == "c"
        table.set_rows([])
        assert table.cursor_key is None
        await pilot.press("enter", "down", "end")


async def test_keys_move_the_cursor_and_scroll() -> None:
    names = [f"row{i}" for i in range(20)]
    table = LineTable(COLUMNS, rows(*names))
    app = Host(table)
    async with app.run_test(size=(40, 6)) as pilot:
        table.focus()
        visited = []
        for key in ("down", "pagedown", "end", "up", "pageup", "home", "up"):
            await pilot.press(key)
            visited.append(table.cursor_key)
        assert visited == ["row1", "row6", "row19", "row18", "row13", "row0", "row0"]
        assert shown(table)[1].startswith("row0")
        await pilot.press("end", "enter")
        assert [row.split()[0] for row in shown(table)[1:]] == names[15:]
        assert shown(table)[0].startswith("Name  16-20/20  ")
        last = app.posted[-1]
        assert isinstance(last, LineTable.RowSelected)
        assert (last.key, last.control) == ("row19", table)


async def test_the_mouse_selects_rows_and_asks_for_an_order() -> None:
    table = LineTable(COLUMNS, rows("a", "b", "c"))
    app = Host(table)
    async with app.run_test(size=(40, 6)) as pilot:
        await pilot.click(table, offset=(2, 3))
        assert table.cursor_key == "c"
        await pilot.click(table, offset=(2, 2), times=2)
        await pilot.click(table, offset=(28, 0))
        await pilot.pause()
        assert [(type(m).__name__, m.key) for m in app.posted] == [  # type: ignore[attr-defined]
            ("RowHighlighted", "c"),
            ("RowHighlighted", "b"),
            ("RowSelected", "b"),
            ("SortRequested", "kv"),
        ]


async def test_a_table_without_rows_says_so() -> None:
    table = LineTable(COLUMNS, empty="no servers")
    async with Host(table).run_test(size=(30, 4)):
        assert shown(table)[1] == "no servers"


async def test_a_table_survives_any_size() -> None:
    table = LineTable(COLUMNS, rows(*"abcdef"))
    async with Host(table).run_test(size=(40, 12)) as pilot:
        table.focus()
        await pilot.press("end")
        for size in ((3, 2), (1, 1), (200, 50), (40, 3)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert all(len(text) <= size[0] for text in shown(table))
        assert shown(table)[-1].startswith("f")


HINTS = [KeyHint("l", "Load"), KeyHint("w", "Warm-up", 2), KeyHint("g", "GPUs", 1), KeyHint("q", "Quit")]


@pytest.mark.parametrize(("width", "keys"), [(80, "lwgq"), (26, "lgq"), (15, "lq"), (8, "l"), (3, "")])
def test_hints_give_way_by_priority(width: int, keys: str) -> None:
    assert "".join(hint.key for hint in fit_hints(HINTS, width)) == keys


async def test_the_key_bar_shows_hints_and_answers_clicks() -> None:
    bar = KeyBar(HINTS)
    app = Host(bar)
    async with app.run_test(size=(40, 3)) as pilot:
        assert shown(bar) == [" l Load  w Warm-up  g GPUs  q Quit"]
        await pilot.click(bar, offset=(12, 0))
        await pilot.click(bar, offset=(39, 0))
        bar.set_hints(HINTS[:1])
        assert shown(bar) == [" l Load"]
        assert [m.key for m in app.posted if isinstance(m, KeyBar.Pressed)] == ["w"]
