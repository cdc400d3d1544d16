"""Commands that start a container in the background: they print its id and end, while the server goes on."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import PurePath

from llmtop.warmup.log_source import LogError, refused

_TOOLS = ("docker", "podman", "nerdctl")
_SHORT = re.compile(r"-[ditPq]*d[ditPq]*")  # short flags without a value may stand together
_DETACH = ("--detach", "--detach=true", "-d=true")
# flags without a value: what follows any other one is its value, and the first word that is neither is the image
_BARE = re.compile(
    r"-[ditPq]+|-\S*=\S*|--(?:rm|init|interactive|tty|detach|privileged|read-only|quiet|publish-all|replace|no-hosts|"
    r"no-healthcheck|oom-kill-disable|rmi|disable-content-trust|use-api-socket)"
)
_ID = re.compile(r"[0-9a-f]{12,64}")
_KEPT = 4096
_PIPE = subprocess.PIPE


def detached_tool(words: Sequence[str]) -> str | None:
    """The container tool, when a command is its `run` in the background; else None."""
    place = next((i for i, word in enumerate(words[:6]) if PurePath(word).name in _TOOLS), None)
    if place is None or "run" not in words[place + 1 : place + 6]:
        return None
    flags = _flags(words[words.index("run", place) + 1 :])
    behind = any(_SHORT.fullmatch(word) or word in _DETACH for word in flags)
    return PurePath(words[place]).name if behind else None


def _flags(words: Sequence[str]) -> list[str]:
    """The flags before the image: what stands behind it is of the command in the container."""
    flags: list[str] = []
    value = False
    for word in words:
        if not value and not word.startswith("-"):
            break
        if not value:
            flags.append(word)
        value = not value and _BARE.fullmatch(word) is None
    return flags


def published_port(words: Sequence[str], port: int) -> int:
    """The port of this machine at which a container's `port` is reached: `-p 8001:8000`; else the same one."""
    for place, word in enumerate(words):
        value = words[place + 1] if word in ("-p", "--publish") and place + 1 < len(words) else word.partition("=")[2]
        outer, _, inner = value.removesuffix("/tcp").rpartition(":")
        told = outer.rpartition(":")[2]
        if word.startswith(("-p", "--publish")) and inner == str(port) and told.isdecimal():
            return int(told)
    return port


def start_container(words: Sequence[str]) -> str:
    """Run the command, show what it says, and give the id it printed; raises LogError in words."""
    try:
        process = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise LogError(f"{words[0]}: {error.strerror}") from error
    said = bytearray()
    echo = threading.Thread(target=_echo, args=(process, said), daemon=True)
    echo.start()
    assert process.stdout is not None
    printed = process.stdout.read().decode("utf-8", "replace").split()
    code = process.wait()
    echo.join(1.0)
    tool = detached_tool(words) or words[0]
    if code:
        reason = refused(tool, bytes(said)) or f"{tool} run ended with exit code {code}"
        raise LogError(reason)
    if not printed or not _ID.fullmatch(printed[-1]):
        raise LogError(f"{tool} run printed no container id")
    return printed[-1]


def _echo(process: subprocess.Popen[bytes], said: bytearray) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        said += line
        del said[:-_KEPT]
        sys.stderr.write(line.decode("utf-8", "replace"))
        sys.stderr.flush()
