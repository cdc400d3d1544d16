"""Style changes, checked by a small terminal that knows nothing but SGR and links."""

from __future__ import annotations

import random
import re

import pytest

from llmtop.ui.terminal.sgr import Style, StyleTable, change, parse

ATTRIBUTES = ["1", "2", "3", "4", "5", "7", "8", "9", "21", "51", "53"]
FOREGROUNDS = ["", "31", "97", "38;5;123", "38;2;1;2;3"]
BACKGROUNDS = ["", "44", "100", "48;5;7", "48;2;0;0;0"]
CLEARED_BY = {
    "22": {"1", "2"},
    "23": {"3"},
    "24": {"4", "21"},
    "25": {"5", "6"},
    "27": {"7"},
    "28": {"8"},
    "29": {"9"},
    "54": {"51", "52"},
    "55": {"53"},
}


def apply(style: Style, sequence: str) -> Style:
    """Return the style a terminal has after a sequence, following ECMA-48."""
    attributes, colours, link = set(style.attributes), [style.foreground, style.background], style.link
    for parameters, new_link in re.findall(r"\x1b\[([\d;]*)m|\x1b\]8;([^\x1b]*)\x1b\\", sequence):
        if new_link:
            link = "" if new_link == ";" else new_link
            continue
        for code in re.findall(r"[34]8;2;\d+;\d+;\d+|[34]8;5;\d+|\d+|(?<=^)(?=;|$)", parameters):
            if code in ("", "0"):
                attributes, colours = set(), ["", ""]
            elif code in CLEARED_BY:
                attributes -= CLEARED_BY[code]
            elif code in ATTRIBUTES:
                attributes.add(code)
            else:
                colours[code[:2] in ("48", "49", "44", "10")] = "" if code in ("39", "49") else code
    return Style(frozenset(attributes), colours[0], colours[1], link)


def random_style(pick: random.Random) -> Style:
    return Style(
        frozenset(pick.sample(ATTRIBUTES, pick.randrange(4))),
        pick.choice(FOREGROUNDS),
        pick.choice(BACKGROUNDS),
        pick.choice(["", "", "id=1;https://example.org"]),
    )


def test_every_change_leads_to_the_style_wanted() -> None:
    pick = random.Random(1)
    for _ in range(3000):
        old, new = random_style(pick), random_style(pick)
        assert apply(old, change(old, new)) == new, (old, new)
        assert apply(old, change(None, new)) == new


@pytest.mark.parametrize(
    ("old", "new", "sequence"),
    [
        (Style(foreground="31"), Style(foreground="32"), "\x1b[32m"),
        (Style(frozenset("1"), "31"), Style(frozenset("1"), "31"), ""),
        (Style(frozenset("12")), Style(frozenset("1")), "\x1b[;1m"),
        (Style(frozenset("13"), "38;2;1;2;3"), Style(), "\x1b[m"),
        (Style(frozenset("1"), "38;2;1;2;3"), Style(frozenset(), "38;2;1;2;3"), "\x1b[22m"),
    ],
)
def test_the_shortest_change_is_chosen(old: Style, new: Style, sequence: str) -> None:
    assert change(old, new) == sequence


@pytest.mark.parametrize(
    ("parameters", "style"),
    [
        ("", Style()),
        ("0", Style()),
        ("1;38;2;10;20;30;48;5;7", Style(frozenset("1"), "38;2;10;20;30", "48;5;7")),
        ("39;49", Style()),
        ("97;104", Style(foreground="97", background="104")),
        ("31;0;4", Style(frozenset("4"))),
        ("38;2;1;2", None),
        ("38", None),
        ("99", None),
        ("22", None),
    ],
)
def test_parameters_are_read_or_refused(parameters: str, style: Style | None) -> None:
    assert parse(parameters, "") == style


def test_a_blank_joins_a_plain_style_of_the_same_background_only() -> None:
    table = StyleTable()
    text, other = (table.number(Style(foreground="31", background=b)) for b in ("44", "45"))
    underlined = table.number(Style(frozenset("4"), "31", "44"))
    blank = table.number(table.styles[text].of_space())
    assert table.joined(text, blank) == table.joined(blank, text) == text
    assert table.joined(other, blank) is None
    assert table.joined(underlined, blank) is None
    assert table.joined(text, other) is None
