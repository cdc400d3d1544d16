"""What every command has in common: flags are not abbreviated, words that are none are said to be none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop import cli
from llmtop.commands.common import THEMES, CommandParser, base_settings, health, named_targets
from llmtop.commands.text import table
from llmtop.commands.warmup import add_arguments as warmup_arguments
from llmtop.contract.settings import parse_target
from llmtop.contract.snapshot import ServerView, Snapshot, State
from llmtop.ui.themes import OWN

ABBREVIATED = {
    "": ["--prometheus", "x"],
    "demo": ["--no-tr"],
    "load": ["--dry"],
    "proxy": [":0", "x", "--serv"],
    "warmup": ["--rep", "x"],
    "replay": ["--rerea", "x"],
    "export": ["x", "--csv", "--rerea"],
    "monitoring": ["rules", "--hel"],
    "web": ["--allow-l"],
    "schema": ["--hel"],
}


def test_no_command_takes_an_abbreviated_flag() -> None:
    """All of them in one process that imports neither a screen nor the commands' work."""
    assert ABBREVIATED.keys() == {"", *cli.COMMANDS}
    argvs = [[*name.split(), *words] for name, words in ABBREVIATED.items()]
    code = f"from llmtop import cli\nprint([cli.run(argv) for argv in {argvs!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [2] * len(argvs)
    assert done.stderr.count("unrecognized arguments") == len(argvs)
    assert len(done.stderr.splitlines()) == len(argvs)


@pytest.mark.parametrize("more", [[], ["--once"], ["--once", "--json"]])
def test_a_word_that_is_no_host_is_said_before_anything_is_watched(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["demos", *more]) == 2
    assert capsys.readouterr().err == "llmtop: there is no command and no host 'demos'; did you mean llmtop demo?\n"
    assert cli.run(["no-such-host-anywhere", *more]) == 2
    assert "write HOST:PORT" in capsys.readouterr().err


def test_a_theme_is_checked_without_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--once", "--theme", "pink", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.startswith("llmtop: there is no theme 'pink'; there are ")


def test_the_themes_are_those_of_the_toolkit() -> None:
    from textual.app import App

    assert list(THEMES) == sorted([*App[None]().available_themes, *(theme.name for theme in OWN)])


def test_a_failing_health_beside_a_good_page_is_not_healthy() -> None:
    well, ill = (ServerView("http://h:1", State.SERVING, health=words) for words in (None, "/health says 500"))
    assert [health(Snapshot(0.0, servers=servers)) for servers in ((well,), (well, ill), ())] == [0, 1, 1]


def test_where_nothing_was_found_the_table_says_what_to_type() -> None:
    shown = table(Snapshot(0.0))
    assert all(command in shown for command in ("llmtop demo", "llmtop HOST:8000", "llmtop warmup -- vllm serve"))


@pytest.mark.parametrize(
    ("typed", "model"),
    [("h:1", None), ("http://h:1/v1?model=org/m-7b&key=s", "org/m-7b"), ("h:1?model=", None), ("h:1?key=s", None)],
)
def test_the_model_of_a_url_is_kept_and_the_rest_of_its_query_dropped(typed: str, model: str | None) -> None:
    target = parse_target(typed)
    assert (target.url, target.model) == ("http://h:1", model)


def test_warmup_takes_its_settings_from_flags_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--reserve and --procfs of the command line, theme and ascii of the file, key and certificate of the server."""
    (tmp_path / "llmtop").mkdir()
    content = 'ascii = true\ntheme = "nord"\n[servers.a]\nurl = "https://a:1/spark"\ninsecure = true\n'
    (tmp_path / "llmtop" / "config.toml").write_text(content)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    parser = CommandParser(prog="llmtop warmup")
    warmup_arguments(parser)
    args = parser.parse_args(["--log", "F", "--reserve", "60", "--procfs", str(tmp_path), "--url", "a"])
    settings = base_settings(args, targets=named_targets(args, [args.url]))
    assert (settings.reserve_gib, settings.procfs, settings.ascii, settings.theme) == (60.0, tmp_path, True, "nord")
    assert [(target.url, target.insecure) for target in settings.targets] == [("https://a:1/spark", True)]
