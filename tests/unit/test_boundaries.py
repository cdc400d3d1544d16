"""Who may import what: the screen's toolkit only on the screen, the model without input and output."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = sorted(
    ".".join(path.relative_to(ROOT / "tui").with_suffix("").parts)
    for folder in ("contract", "engines", "machine", "net", "nodes", "fleet", "session", "warmup", "demo", "proxy")
    for path in (ROOT / "tui" / "llmtop" / folder).rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)
PURE_MODULES = (
    *(f"contract/{name}" for name in ("snapshot", "settings", "units", "secrets", "codec")),
    *(f"engines/{name}" for name in ("tracker", "rates", "kv", "figures", "limits", "quantiles", "page_record")),
    *(f"machine/{name}" for name in ("headroom", "sample")),
    *(f"session/{name}" for name in ("assemble", "findings", "history", "notices", "energy")),
    *(f"warmup/{name}" for name in ("startup", "tracker", "log_line", "log_fields", "phrases", "failure", "timeline")),
    *(f"warmup/{name}" for name in ("evidence", "ledger", "advice", "preflight")),
)
HEADLESS = [*PURE, "llmtop.cli", "llmtop.commands.text"]


def loaded_after(code: str) -> set[str]:
    """The top-level modules of a fresh interpreter after `code`."""
    tail = "\nimport sys; sys.stderr.write('LOADED ' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.rpartition("LOADED ")[2].split())


def test_headless_modules_never_import_the_screen() -> None:
    loaded = loaded_after("import importlib\nfor name in " + repr(HEADLESS) + ": importlib.import_module(name)")
    assert "llmtop" in loaded
    assert not loaded & {"textual", "rich", "llmtop_widgets"}


@pytest.mark.parametrize(
    "argv", [["--version"], ["--help"], ["schema"], ["--once", "127.0.0.1:1"], ["--once", "--json", "127.0.0.1:1"]]
)
def test_commands_without_a_screen_never_import_it(argv: list[str], tmp_path: Path) -> None:
    roots = ["--procfs", str(tmp_path), "--sysfs", str(tmp_path)] if argv[0] == "--once" else []
    loaded = loaded_after(f"from llmtop import cli\ncli.run({argv + roots!r})")
    assert not loaded & {"textual", "rich", "llmtop_widgets"}


def test_version_needs_next_to_nothing() -> None:
    assert not loaded_after("from llmtop import cli\ncli.run(['--version'])") & {"httpx", "psutil", "pynvml", "asyncio"}


def test_importing_the_program_starts_nothing() -> None:
    code = "import threading\nfrom llmtop import cli\nassert threading.active_count() == 1"
    assert "llmtop" in loaded_after(code)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_the_model_does_no_input_and_output() -> None:
    banned = {"socket", "threading", "asyncio", "subprocess", "httpx", "psutil", "pynvml", "requests", "time", "os"}
    for name in PURE_MODULES:
        path = ROOT / "tui" / "llmtop" / f"{name}.py"
        assert not {name.partition(".")[0] for name in imports(path)} & banned, path.name


ROOMS = (
    "contract",
    "net",
    "machine",
    "engines",
    "nodes",
    "fleet",
    "proxy",
    "demo",
    "session",
    "warmup",
    "load",
    "recording",
    "ui",
    "web",
    "commands",
    "cli",
)
LATER = {("session/poller.py", "recording")}  # what a session writes; the writer knows no session


def test_a_room_imports_only_rooms_that_stand_before_it() -> None:
    package = ROOT / "tui" / "llmtop"
    for path in package.rglob("*.py"):
        place = path.relative_to(package)
        room = place.parts[0].removesuffix(".py")
        others = {name.split(".")[1] for name in imports(path) if name.startswith("llmtop.")} & set(ROOMS)
        for other in others if room in ROOMS else ():
            before = ROOMS.index(other) <= ROOMS.index(room)
            assert before or (str(place), other) in LATER, f"{place} imports {other}"


def test_widgets_know_nothing_of_the_program() -> None:
    for path in (ROOT / "widgets" / "llmtop_widgets").glob("*.py"):
        assert not any(name.partition(".")[0] == "llmtop" for name in imports(path)), path.name


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("tui/llmtop/engines/x.py", "import textual"),
        ("tui/llmtop/cli.py", "from textual.app import App"),
        ("tui/llmtop/net/x.py", "import tui.llmtop.cli"),
    ],
)
def test_the_linter_refuses_what_is_banned(file: str, line: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--stdin-filename", str(ROOT / file), "-"]
    done = subprocess.run(command, input=line + "\n", capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 1
    assert "TID251" in done.stdout
