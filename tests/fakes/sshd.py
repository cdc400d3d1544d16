"""A node to log in to: Debian's sshd on a loopback port, with keys, a /proc and an nvidia-smi of its own.

The user's keys, agent and configuration have no part in it: `ssh` on the PATH is the real one with a configuration
of its own.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
MISSING = "no sshd (Debian: openssh-server)" if SSHD is None or shutil.which("ssh-keygen") is None else None
PATIENCE_S = 20.0
_PRIVSEP = Path("/run/sshd")
_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PidFile {folder}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
LogLevel VERBOSE
SetEnv LLMTOP_ROOT={root} PATH={path} HOME={folder}
"""
_CLIENT = """\
Host {name}
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/user
Host *
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


class Sshd:
    """`ssh NAME` reaches it with `env` in the environment of the one who calls."""

    def __init__(self, folder: Path, name: str = "spark-b", root: Path | None = None, *, python: bool = True) -> None:
        self.folder, self.name = folder, name
        self.root = root or Path("/")
        self.tools = folder / "tools"
        folder.mkdir(parents=True, exist_ok=True)
        self._fill_path(python)
        self._key("host")
        self._key("user")
        shutil.copy(folder / "user.pub", folder / "authorized")
        self.port = _free_port()
        self._config()
        self._process = self._start()

    def _fill_path(self, python: bool) -> None:
        """All programs of the machine, but for those that a test puts there or takes away."""
        self.tools.mkdir()
        if not python:
            (self.folder / "system").mkdir()
            for place in ("/usr/bin", "/bin"):
                for program in Path(place).iterdir():
                    link = self.folder / "system" / program.name
                    if not program.name.startswith("python") and not link.is_symlink():
                        link.symlink_to(program)
        else:
            self.tool("python3", f'exec {sys.executable} "$@"\n')
        system = str(self.folder / "system") if not python else "/usr/local/bin:/usr/bin:/bin"
        self._path = f"{self.tools}:{system}"

    def _key(self, name: str) -> None:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def _config(self, more: str = "") -> None:
        values = {"folder": self.folder, "port": self.port, "root": self.root, "path": self._path, "name": self.name}
        (self.folder / "sshd_config").write_text(_CONFIG.format_map(values) + more)
        (self.folder / "config").write_text(_CLIENT.format_map(values))
        self.know()
        client = self.folder / "bin"
        client.mkdir(exist_ok=True)
        wrapper = client / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/config "$@"\n')
        wrapper.chmod(0o755)

    def know(self) -> None:
        """Write the host key down as known."""
        key = (self.folder / "host.pub").read_text()
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {key}")

    def _start(self) -> subprocess.Popen[bytes]:
        assert SSHD is not None
        if os.geteuid() == 0:
            _PRIVSEP.mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            command = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while not _listens(self.port):
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline, "sshd does not listen"
            time.sleep(0.02)
        return process

    @property
    def env(self) -> Mapping[str, str]:
        """What makes `ssh NAME` reach it."""
        return {"PATH": f"{self.folder / 'bin'}:{os.environ.get('PATH', '')}"}

    @property
    def url(self) -> str:
        """As it is typed."""
        return f"ssh://{getpass.getuser()}@{self.name}"

    def log(self) -> str:
        """What sshd wrote."""
        return (self.folder / "log").read_text("utf-8", "replace")

    def tool(self, name: str, script: str) -> None:
        """A program on its PATH."""
        path = self.tools / name
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)

    def new_host_key(self) -> None:
        """Another host key, which nobody knows."""
        for name in ("host", "host.pub"):
            (self.folder / name).unlink()
        self._key("host")
        self.restart()

    def configure(self, more: str) -> None:
        """Start it again with another line in its configuration."""
        self._config(more + "\n")
        self.restart()

    def restart(self) -> None:
        """Stop it with all its connections, and start it again."""
        self.stop()
        self._process = self._start()

    def sessions(self) -> list[int]:
        """The processes of its connections."""
        import psutil

        return [child.pid for child in psutil.Process(self._process.pid).children(recursive=True)]

    def wait_for_the_end(self) -> None:
        """Wait until it has no connection and no program of one any more."""
        deadline = time.monotonic() + PATIENCE_S
        while left := self.sessions():
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.05)

    def signal(self, number: signal.Signals, *, listener: bool = True) -> None:
        """Send a signal to its connections, and to the process that takes new ones."""
        pids = self.sessions()
        for pid in [self._process.pid, *pids] if listener else pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def stop(self) -> None:
        """End it with all its connections."""
        if self._process.poll() is not None:
            return
        self.signal(signal.SIGKILL, listener=False)
        self._process.kill()
        self._process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
