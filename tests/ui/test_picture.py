"""Pictures of the screen: they stand alone, say what the screen says, and put every block where it belongs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from rich.segment import Segment
from rich.style import Style

from cranked_app import session
from fakes.snapshots import ALL, busy
from llmtop.ui.picture import picture, svg

NAMESPACE = "{http://www.w3.org/2000/svg}"
GREEN = Style.parse("#00ff00 on #101010")


def paths(drawn: str) -> dict[str, str]:
    """The shapes of a picture by their colour."""
    return {path.get("fill") or "": path.get("d") or "" for path in ET.fromstring(drawn).iter(f"{NAMESPACE}path")}


def words(drawn: str) -> list[str]:
    """The texts of a picture."""
    return [text.text or "" for text in ET.fromstring(drawn).iter(f"{NAMESPACE}text")]


async def test_a_picture_of_the_dashboard_says_what_the_dashboard_says() -> None:
    async with session((100, 30)) as s:
        await s.run(busy(), 20)
        drawn = picture(s.app, "llmtop: test")
        root = ET.fromstring(drawn)
        assert root.get("viewBox") == "0 0 1020 620"
        assert root.findtext(f"{NAMESPACE}title") == "llmtop: test"
        said = " ".join(words(drawn))
        for row in s.rows:
            for word in re.findall(r"[A-Za-z][A-Za-z0-9.]+", row):
                assert word in said


async def test_a_picture_needs_nothing_from_elsewhere() -> None:
    async with session((100, 30)) as s:
        await s.push(ALL["hostile"]())
        drawn = picture(s.app, "a <title> & more")
        ET.fromstring(drawn)
        assert "@import" not in drawn
        assert "@font-face" not in drawn
        assert "url(" not in drawn
        assert "<script" not in drawn
        assert set(re.findall(r"[a-z]+://[^\s\"'<]+", drawn)) <= {"http://www.w3.org/2000/svg"}
        assert "\x1b" not in drawn


def test_words_are_where_their_cells_are() -> None:
    drawn = svg([[Segment("ab", GREEN), Segment("模 cd  ef", GREEN)]], 12, "t", "#101010")
    places = [(t.text, t.get("x"), t.get("textLength")) for t in ET.fromstring(drawn).iter(f"{NAMESPACE}text")]
    assert places == [("ab", "0", "20"), ("模 cd", "20", "50"), ("ef", "90", "20")]


def test_blocks_are_shapes() -> None:
    drawn = svg([[Segment("██▄ ▎▎", GREEN)], [Segment("▓", GREEN)]], 6, "t", "#101010")
    assert words(drawn) == []
    assert paths(drawn)["#00ff00"] == (
        "M0 0h20v20h-20z"  # two full blocks are one shape
        "M20 10h10v10h-10z"
        "M40 0h2.5v20h-2.5z"
        "M50 0h2.5v20h-2.5z"
    )
    (shade,) = set(paths(drawn)) - {"#00ff00"}
    assert paths(drawn)[shade] == "M0 20h10v20h-10z"


def test_a_background_that_is_not_the_screens_is_a_shape() -> None:
    row = [Segment("a", Style.parse("#ffffff on #ff0000")), Segment("b", GREEN), Segment("c", Style(reverse=True))]
    drawn = svg([row], 3, "t", "#101010")
    assert paths(drawn)["#ff0000"] == "M0 0h10v20h-10z"
    assert len(paths(drawn)) == 2  # and the one in reverse video
