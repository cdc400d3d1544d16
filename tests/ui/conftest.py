"""Fixtures for tests of the whole screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.truth import TruthServer, truth_server
from llmtop_widgets import glyphs


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the colours of the person who runs the tests out of them."""
    monkeypatch.setenv("COLORTERM", "truecolor")
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS", "LLMTOP_THEME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of load tests go: nothing of a test into the state of the person who runs it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "llmtop" / "runs"


@pytest.fixture(scope="module")
def truth() -> Iterator[TruthServer]:
    """A server of known speed."""
    with truth_server() as server:
        yield server


@pytest.fixture
def ascii_glyphs() -> Iterator[None]:
    """Draw with plain ASCII during a test."""
    glyphs.use(glyphs.ASCII)
    yield
    glyphs.use(glyphs.UNICODE)
