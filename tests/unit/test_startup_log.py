"""Reading logs: files that rotate, pipes, commands, and lines that are not as they should be."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmtop.warmup.log_line import MAX_LINE
from llmtop.warmup.log_source import (
    Line,
    LineSource,
    LogError,
    Splitter,
    container,
    file_lines,
    follow_file,
    journal,
    read_descriptor,
)

TIMEOUT_S = 10.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def take(source: LineSource, count: int) -> list[Line]:
    """The next `count` lines, as soon as they are there."""
    lines: list[Line] = []

    def enough() -> bool:
        lines.extend(source.take())
        return len(lines) >= count or source.ended

    wait_for(enough)
    return lines


def drain(source: LineSource) -> list[str]:
    lines: list[Line] = []

    def over() -> bool:
        lines.extend(source.take())
        return source.ended

    wait_for(over)
    return [line.text for line in lines]


def test_progress_bars_and_line_ends() -> None:
    splitter = Splitter()
    assert splitter.feed(b"a\r\nb\rc 50%\rc 1") == ["a", "b", "c 50%"]
    assert splitter.feed(b"00%\n\n") == ["c 100%"]
    assert splitter.feed(b"no end") == []
    assert splitter.flush() == ["no end"]


def test_bytes_that_are_no_text_do_not_stop_it() -> None:
    assert Splitter().feed(b"ok \xff\xfe\nnext\n") == ["ok \ufffd\ufffd", "next"]


def test_characters_cut_by_a_chunk_are_whole_again() -> None:
    splitter = Splitter()
    data = "█ 50%\n".encode()
    assert splitter.feed(data[:2]) == []
    assert splitter.feed(data[2:]) == ["█ 50%"]


def test_long_lines_are_cut_and_the_next_line_is_right() -> None:
    splitter = Splitter()
    lines: list[str] = []
    for _ in range(5):
        lines += splitter.feed(b"x" * 50_000)
    lines += splitter.feed(b"tail\nnext\n")
    assert [len(line) for line in lines] == [MAX_LINE, 4]
    assert lines[-1] == "next"


def test_finished_file(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo")
    assert list(file_lines(path)) == ["one", "two"]
    with pytest.raises(LogError, match="No such file"):
        list(file_lines(tmp_path / "none.log"))


def test_file_that_is_written_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("before\n")
    source = follow_file(path)
    source.start()
    assert take(source, 1) == [Line("before", None)]
    with path.open("a") as file:
        file.write("after\n")
    (line,) = take(source, 1)
    assert line.text == "after"
    assert line.at is not None
    assert abs(line.at - time.time()) < TIMEOUT_S
    source.stop()


def test_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    source = follow_file(path)
    source.start()
    path.write_text("first\n")
    (line,) = take(source, 1)
    assert (line.text, line.at is not None) == ("first", True)
    source.stop()


def test_rotation_reads_the_end_of_the_old_and_the_start_of_the_new(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("old 1\n")
    source = follow_file(path)
    source.start()
    take(source, 1)
    with path.open("a") as file:
        file.write("old 2\n")
    path.rename(path.with_suffix(".1"))
    path.write_text("new 1\n")
    assert [line.text for line in take(source, 2)] == ["old 2", "new 1"]
    source.stop()


def test_truncation_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("a long first line\n")
    source = follow_file(path)
    source.start()
    take(source, 1)
    path.write_text("short\n")
    assert [line.text for line in take(source, 1)] == ["short"]
    source.stop()


def test_pipe_ends_with_its_writer() -> None:
    read, write = os.pipe()
    source = read_descriptor(read)
    source.start()
    os.write(write, b"one\ntwo")
    os.close(write)
    assert drain(source) == ["one", "two"]
    os.close(read)


def test_more_lines_than_the_queue_holds_are_all_delivered() -> None:
    read, write = os.pipe()
    source = read_descriptor(read)
    source.start()

    def fill() -> None:
        with os.fdopen(write, "wb") as pipe:
            pipe.writelines(b"%d\n" % i for i in range(20_000))

    writer = threading.Thread(target=fill)
    writer.start()
    assert drain(source) == [str(i) for i in range(20_000)]
    writer.join()
    os.close(read)


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


DOCKER = """
case "$*" in
  "container inspect vllm") exit {known} ;;
  "container inspect --format"*) echo "false 137" ;;
  "logs --tail 50000 --follow vllm") echo "out from {name}"; echo "err" >&2 ;;
  "logs --tail 50000 vllm") echo "all of {name}" ;;
  *) echo "unexpected: $*" >&2; exit 64 ;;
esac
"""


def test_container_by_whichever_tool_knows_it(tools: Path) -> None:
    tool(tools, "docker", DOCKER.format(name="docker", known=1))
    tool(tools, "podman", DOCKER.format(name="podman", known=0))
    source = container("vllm")
    source.start()
    assert sorted(drain(source)) == ["err", "out from podman"]
    assert source.exit_code == 137
    once = container("vllm", follow=False)
    once.start()
    assert drain(once) == ["all of podman"]


def test_container_nobody_knows(tools: Path) -> None:
    tool(tools, "docker", DOCKER.format(name="docker", known=1))
    tool(tools, "podman", DOCKER.format(name="podman", known=1))
    with pytest.raises(LogError, match="no container named vllm"):
        container("vllm")


@pytest.mark.parametrize("name", ["--privileged", "-f", "a b", "$(x)", "", "a;b"])
def test_names_are_never_options_or_shell(name: str) -> None:
    with pytest.raises(LogError, match="not a container name"):
        container(name)
    with pytest.raises(LogError, match="not a unit name"):
        journal(name)


def test_journal_of_a_unit(tools: Path) -> None:
    tool(tools, "journalctl", 'echo "$*"')
    source = journal("vllm.service")
    source.start()
    assert drain(source) == ["--unit=vllm.service --output=cat --no-pager --lines=50000 --follow"]


def test_who_may_not_read_the_journal_is_told_so(tools: Path) -> None:
    tool(tools, "journalctl", "echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1")
    with pytest.raises(LogError, match="not allowed to read the journal"):
        journal("vllm.service")


def test_stopping_frees_a_reader_of_a_silent_command(tools: Path) -> None:
    tool(tools, "journalctl", "exec sleep 60")
    source = journal("vllm.service")
    source.start()
    source.stop()
    wait_for(lambda: source.ended)
