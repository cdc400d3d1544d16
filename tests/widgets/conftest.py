"""Fixtures for widget tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmtop_widgets import glyphs


@pytest.fixture
def ascii_glyphs() -> Iterator[None]:
    """Draw with plain ASCII during a test."""
    glyphs.use(glyphs.ASCII)
    yield
    glyphs.use(glyphs.UNICODE)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the colours of the person who runs the tests out of them."""
    monkeypatch.setenv("COLORTERM", "truecolor")
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS"):
        monkeypatch.delenv(name, raising=False)
