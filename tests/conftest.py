"""What holds for every test: nothing of the user's configuration, keys or proxies, and Ctrl+C means the end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # what a shell starts in the background ignores SIGINT, and so would every program that the tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _nothing_of_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(_no_config(tmp_path_factory)))
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name in ("VLLM_API_KEY", "LLMTOP_THEME", "NO_COLOR"):
            monkeypatch.delenv(name)


def _no_config(factory: pytest.TempPathFactory) -> Path:
    """An empty folder, the same for all tests of a run."""
    return factory.getbasetemp() / "no-config"
