"""Flags, environment and file: what is accepted, what is refused in one clear line, and where keys go."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from llmtop import cli
from llmtop.commands import watch
from llmtop.commands.common import CommandParser, base_settings, named_targets
from llmtop.commands.config import checked_interval, config_path, load_config, resolve_targets
from llmtop.contract.settings import Settings, Target, UsageError, parse_target


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("spark-a", "http://spark-a:8000"),
        ("spark-a:9000", "http://spark-a:9000"),
        ("10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://spark-a", "http://spark-a"),
        ("https://h/prefix/", "https://h/prefix"),
        ("https://h:8443/prefix/metrics", "https://h:8443/prefix"),
        ("http://h:1/v1", "http://h:1"),
        ("http://h:1/metrics?name[]=x#y", "http://h:1"),
        ("http://user:secret@h:1/", "http://h:1"),
    ],
)
def test_servers_as_people_type_them(typed: str, url: str) -> None:
    assert parse_target(typed).url == url


@pytest.mark.parametrize(
    "typed", ["", "ftp://h", "http://", "h:port", "h:99999", "h:0", "a b", "http://[::1", "file:///etc/passwd"]
)
def test_what_is_no_server_is_one_clear_line(typed: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_target(typed)
    assert "\n" not in str(error.value)
    assert "HOST:PORT" in str(error.value)


@pytest.mark.parametrize(
    "typed", ["ftp://user:hunter2@h", "http://user:hunter2@h:port", "http://h:x?key=hunter2", "u:hunter2@"]
)
def test_a_mistyped_server_never_repeats_its_password(typed: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_target(typed)
    assert "hunter2" not in str(error.value)


def test_secrets_are_not_shown_by_a_target() -> None:
    target = parse_target("http://user:hunter2@h:1")
    assert target.login == ("user", "hunter2")
    assert "hunter2" not in repr(target)
    assert "hunter2" not in repr(Target("http://h", key="hunter2"))
    assert "hunter2" not in repr(Settings(targets=(target,)))


# --- the key ----------------------------------------------------------------------------------------------------------


def keys(*targets: Target) -> list[str | None]:
    return [target.key for target in targets]


def test_the_key_of_the_environment_goes_to_the_only_origin() -> None:
    environ = {"VLLM_API_KEY": "k", "OTHER": "o"}
    assert keys(*resolve_targets(["h:1"], {}, environ)) == ["k"]
    assert keys(*resolve_targets(["h:1"], {}, environ, "OTHER")) == ["o"]
    assert keys(*resolve_targets(["http://h:1/a", "http://h:1/b"], {}, environ)) == ["k", "k"]


@pytest.mark.parametrize("other", ["h:2", "g:1", "https://h:1"])
def test_a_key_never_goes_to_two_origins(other: str) -> None:
    assert keys(*resolve_targets(["h:1", other], {}, {"VLLM_API_KEY": "k"})) == [None, None]
    with pytest.raises(UsageError, match="one server"):
        resolve_targets(["h:1", other], {}, {"OTHER": "o"}, "OTHER")


def test_a_named_server_has_its_own_key() -> None:
    config = {"servers": {"a": {"url": "h:1", "api_key_env": "A"}, "b": {"url": "h:2"}}}
    environ = {"A": "for-a", "VLLM_API_KEY": "k"}
    assert keys(*resolve_targets(["a", "b"], config, environ)) == ["for-a", None]
    assert keys(*resolve_targets(["a"], config, environ)) == ["for-a"]


@pytest.mark.parametrize("value", ["", "  ", "two\nlines", "schlüssel"])
def test_a_key_that_cannot_be_sent(value: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve_targets(["h:1"], {}, {"K": value}, "K")
    assert "K" in str(error.value)
    assert value.strip() == "" or value not in str(error.value)


def test_the_same_server_twice_is_one() -> None:
    assert len(resolve_targets(["h:8000", "http://h:8000/", "h"], {}, {})) == 1


# --- the file ---------------------------------------------------------------------------------------------------------

GOOD = """
interval = 2
theme = "textual-light"
watch = ["a"]

[servers.a]
url = "http://h:1"
api_key_env = "A"
max_num_seqs = 32
insecure = true
"""


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "llmtop" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_good_file(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, GOOD))
    assert (config["interval"], config["watch"]) == (2, ["a"])
    (target,) = resolve_targets(["a"], config, {"A": "k"})
    assert (target.name, target.url, target.key) == ("a", "http://h:1", "k")
    assert (target.max_num_seqs, target.insecure) == (32, True)


def test_no_file_is_no_mistake(tmp_path: Path) -> None:
    assert load_config(tmp_path / "none") == {}
    assert load_config(written(tmp_path, "") / "below") == {}


def test_where_the_file_is() -> None:
    assert config_path({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == Path("/x/llmtop/config.toml")
    assert config_path({"XDG_CONFIG_HOME": "", "HOME": "/h"}) == Path("/h/.config/llmtop/config.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("interval = ", "Invalid value"),
        ("watch = [3]", "watch"),
        ("intervall = 1", "intervall"),
        ('interval = "1"', "interval"),
        ("interval = true", "interval"),
        ("ascii = 1", "ascii"),
        ("watch = 'a'", "watch"),
        ("servers = 3", "servers"),
        ("[servers]\na = 3", "servers.a"),
        ("[servers.a]\nport = 1", "url"),
        ("[servers.a]\nurl = 5", "url"),
        ("[servers.a]\nurl = 'h:1'\nkey = 'hunter2'", "key"),
        ("[servers.a]\nurl = 'h:1'\nmax_num_seqs = 'x'", "max_num_seqs"),
        ("[servers.a]\nurl = 'h:1'\nmax_num_seqs = -1", "max_num_seqs"),
        (b"\xff\xfe", "config.toml"),
    ],
)
def test_a_mistake_in_the_file_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str | bytes, words: str
) -> None:
    path = written(tmp_path, text)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cli.run(["--once", "--json", "127.0.0.1:1"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert str(path) in err
    assert "hunter2" not in err


def test_a_folder_instead_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="directory"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("flag", "file", "told"), [(None, None, 1.0), (None, 2, 2.0), (5.0, 2, 5.0), (0.2, None, 0.2), (60.0, None, 60.0)]
)
def test_flags_beat_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: float | None, file: int | None, told: float
) -> None:
    written(tmp_path, "" if file is None else f"interval = {file}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert base_settings(parsed(*([] if flag is None else ["-d", str(flag)]))).interval_s == told


def parsed(*argv: str) -> argparse.Namespace:
    """What `llmtop` reads of its words."""
    parser = CommandParser(prog="llmtop")
    watch.add_arguments(parser)
    return parser.parse_args(argv)


@pytest.mark.parametrize("seconds", [0.19, 61.0, -1.0, 0.0, float("nan"), float("inf")])
def test_intervals_out_of_range(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"0\.2 to 60"):
        checked_interval(seconds)


USAGE: list[list[str]] = [
    ["--no-such-flag"],
    ["-d", "x", "h:1"],
    ["-d", "0.1", "h:1"],
    ["ftp://h"],
    ["--memory", "none", "h:1"],
    ["--api-key-env", "LLMTOP_NOT_SET", "h:1"],
    ["--ca", "/no/such/file", "https://h:1"],
    ["schema", "extra"],
]


@pytest.mark.parametrize("argv", USAGE, ids=" ".join)
def test_wrong_usage_is_one_line_and_exit_code_2(
    argv: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.run([*argv, "--once", "--json"] if argv[0] != "schema" else argv) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("llmtop: ")
    assert err.count("\n") == 1


def test_watch_of_the_file_is_what_no_argument_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, GOOD)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("A", "k")
    assert [target.name for target in named_targets(parsed(), [])] == ["a"]
