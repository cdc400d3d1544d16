"""Fixtures for tests of the whole screen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmtop_widgets import glyphs


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the colours of the person who runs the tests out of them."""
    monkeypatch.setenv("COLORTERM", "truecolor")
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS", "LLMTOP_THEME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ascii_glyphs() -> Iterator[None]:
    """Draw with plain ASCII during a test."""
    glyphs.use(glyphs.ASCII)
    yield
    glyphs.use(glyphs.UNICODE)
