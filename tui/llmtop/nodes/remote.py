"""Runs on a node, in the python3 that is there (3.7 or newer): streams what llmtop reads of a machine.

It comes over the connection, is written nowhere, imports the standard library alone and ends with the connection. What
it sends are blocks, `@MARK KIND NAME` on a line and the bytes of the block after it, up to the next line with the mark:

    hello     what runs here, and the size of a page
    file      a file of /proc or /sys, by its path
    dip       the meminfo with the least memory available since the last `end`; its name is how long ago, in seconds
    scan      what follows replaces all processes
    gpu, apps rows of nvidia-smi; the name says which fields they have
    smi       why there are no such rows
    end       all of the blocks before it belong to one reading

A command line leaves this machine without the values of its keys and passwords, and only where its first words look
like a model server's.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time

FAST_S, SLOW_S, SCAN_S, RETRY_S = 0.1, 1.0, 5.0, 15.0
FORGET_S = 30.0  # a process that is older than that will not become another one
SMALL = ("proc/meminfo", "proc/pressure/memory", "proc/uptime")
FIELDS = (
    "index,uuid,name,utilization.gpu,power.draw,enforced.power.limit,temperature.gpu,clocks.sm,"
    "clocks_throttle_reasons.active,memory.total,memory.used,memory.reserved,clocks.max.sm"
)
OLD_FIELDS = (
    "index,uuid,name,utilization.gpu,power.draw,power.limit,temperature.gpu,clocks.sm,"
    "clocks_throttle_reasons.active,memory.total,memory.used,clocks.max.sm"
)
APPS = "gpu_uuid,pid,process_name,used_memory"
AVAILABLE = re.compile(rb"^MemAvailable:\s*(\d+)", re.MULTILINE)
ASSIGNED = re.compile(r"^\w*(key|token|secret|passw(or)?d)\w*=", re.IGNORECASE)
SECRET = re.compile(r"^--?[\w-]*(key|keys|token|secret|passw(or)?d|credentials?)(=.*)?$", re.IGNORECASE)
SETTING = re.compile(r"^\s*(port|host|uds|ssl[-_]certfile|api[-_]prefix|headless|node[-_]rank|max[-_][-\w]*)\s*:")
LISTENS = re.compile(r"^\s*\d+: \S+ \S+ 0A ")


class BlockWriter:
    """Blocks to standard output; one write for each reading."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.parts: list[bytes] = []

    def put(self, kind: str, name: str = "", body: bytes = b"") -> None:
        self.parts += [f"\n@{self.mark} {kind} {name}\n".encode("utf-8", "replace"), body]

    def end(self) -> None:
        self.put("end")
        data, self.parts = memoryview(b"".join(self.parts)), []
        while data:
            data = data[os.write(1, data) :]


class Tree:
    """The files of this machine, or of the folder named by LLMTOP_ROOT."""

    def __init__(self) -> None:
        self.root = os.environ.get("LLMTOP_ROOT", "").rstrip("/") + "/"

    def read(self, path: str) -> bytes | None:
        try:
            with open(self.root + path, "rb") as file:
                return file.read()
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        try:
            return os.listdir(self.root + path)
        except OSError:
            return []

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(self.root + path)
        except OSError:
            return None


def masked(words: list[str]) -> list[str]:
    """A command line without the values of keys and passwords."""
    out, hide = [], False
    for word in words:
        plain = not hide or word.startswith("-")
        found = SECRET.match(word)
        hide = bool(found) if word.startswith("-") else hide
        shown = word if plain else "***"
        if found or ASSIGNED.match(word):
            shown = word.partition("=")[0] + ("=***" if "=" in word else "")
        if " " in shown:  # the command line of a shell
            shown = " ".join(masked(shown.split()))
        out.append(re.sub(r"(?<=://)[^\s/@]+@", "***@", shown))
    return out


class Processes:
    """Command lines of what may be a model server, and what tells on which ports it listens."""

    def __init__(self, tree: Tree, hint: str) -> None:
        self.tree, self.hint = tree, re.compile(hint, re.IGNORECASE)
        self.lines: dict[int, tuple[float, bytes]] = {}  # by pid: when it was first seen, and its command line
        self.on_gpus: set[int] = set()

    def put(self, out: BlockWriter) -> None:
        pids = [int(name) for name in self.tree.names("proc") if name.isdigit()]
        now = time.monotonic()
        self.lines = {pid: self.line(pid, now) for pid in pids}
        out.put("scan")
        servers = {pid: line for pid, (_, line) in self.lines.items() if line}
        self.on_gpus.intersection_update(pids)
        if not servers and not self.on_gpus:
            return
        parents = {pid: self.parent(pid) for pid in pids}
        for pid in self.on_gpus:
            out.put("file", f"proc/{pid}/stat", f"{pid} (-) S {parents[pid]}".encode())
            out.put("file", f"proc/{pid}/cgroup", self.tree.read(f"proc/{pid}/cgroup") or b"")
        wanted = set(servers)
        for pid in pids:
            above = pid
            for _ in range(64):
                above = parents.get(above, 0)
                if above in servers:
                    wanted.add(pid)
                if above <= 1:
                    break
        for pid in sorted(wanted):
            out.put("file", f"proc/{pid}/stat", f"{pid} (-) S {parents[pid]}".encode())
            out.put("file", f"proc/{pid}/cmdline", servers.get(pid) or b"-\0")
            self.put_network(out, pid)
        if servers:
            self.put_network(out, "self")

    def line(self, pid: int, now: float) -> tuple[float, bytes]:
        first, line = self.lines.get(pid, (now, b""))
        if pid in self.lines and now - first > FORGET_S:
            return first, line
        words = (self.tree.read(f"proc/{pid}/cmdline") or b"").decode("utf-8", "replace").rstrip("\0").split("\0")
        looks = any(self.hint.search(word[-200:]) for word in words[:8])
        return first, "\0".join(masked(words)).encode("utf-8", "replace") + b"\0" if looks else b""

    def parent(self, pid: int) -> int:
        text = (self.tree.read(f"proc/{pid}/stat") or b"").decode("utf-8", "replace")
        fields = text.rpartition(")")[2].split()
        return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0

    def put_network(self, out: BlockWriter, pid: int | str) -> None:
        folder = f"proc/{pid}/"
        for kind in ("net", "pid"):
            link = self.tree.link(folder + "ns/" + kind)
            if link:
                out.put("link", folder + "ns/" + kind, link.encode())
        for table in ("tcp", "tcp6"):
            text = (self.tree.read(folder + "net/" + table) or b"").decode("ascii", "replace")
            lines = text.splitlines(True)
            listening = lines[:1] + [line for line in lines[1:] if LISTENS.match(line)]
            out.put("file", folder + "net/" + table, "".join(listening).encode())
        if pid == "self" or self.tree.link(folder + "ns/net") != self.tree.link("proc/self/ns/net"):
            out.put("file", folder + "net/fib_trie", self.tree.read(folder + "net/fib_trie") or b"")
        if isinstance(pid, int):
            self.put_files(out, pid, folder)

    def put_files(self, out: BlockWriter, pid: int, folder: str) -> None:
        try:
            open_files = os.listdir(self.tree.root + folder + "fd")
        except OSError:
            open_files = []  # another user's: its sockets are told by its network alone
        else:
            out.put("folder", folder + "fd")
        for number in open_files:
            link = self.tree.link(folder + "fd/" + number) or ""
            if link.startswith("socket:["):
                out.put("link", folder + "fd/" + number, link.encode())
        words = self.lines.get(pid, (0, b""))[1].decode("utf-8", "replace").split("\0")
        for place, word in enumerate(words[:-1]):
            if word == "--config" or word.startswith("--config="):
                self.put_settings(out, folder, word.partition("=")[2] or words[place + 1])

    def put_settings(self, out: BlockWriter, folder: str, path: str) -> None:
        place = folder + ("root/" + path.lstrip("/") if path.startswith("/") else "cwd/" + path)
        if os.path.isfile(self.tree.root + place) and os.path.getsize(self.tree.root + place) < 65536:
            lines = (self.tree.read(place) or b"").decode("utf-8", "replace").splitlines(True)
            out.put("file", place, "".join(line for line in lines if SETTING.match(line)).encode())


class Smi:
    """One nvidia-smi that goes on; asked once first, which tells what it knows and whether memory is its own."""

    def __init__(self, option: str, fields: str, period: int, kind: str) -> None:
        self.option, self.fields, self.period, self.kind = option, fields, period, kind
        self.path = shutil.which("nvidia-smi", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/lib/wsl/lib")
        self.process: subprocess.Popen[bytes] | None = None
        self.next, self.rest, self.rows, self.proved = 0.0, b"", 0, False
        self.pids: set[int] = set()  # of processes, in rows that have them
        self.reason = None if self.path else "no nvidia-smi"

    def step(self, now: float) -> None:
        if self.path and self.process is None and now >= self.next:
            loop = ["-lms", str(self.period)] if self.proved else []
            command = [self.path, self.option + "=" + self.fields, "--format=csv,noheader,nounits", *loop]
            self.rest, self.rows = b"", 0
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
            except OSError as error:
                self.failed(f"nvidia-smi: {error.strerror}", now)

    def failed(self, reason: str, now: float) -> None:
        self.reason, self.proved, self.next = reason, False, now + RETRY_S

    def read(self, out: BlockWriter, process: subprocess.Popen[bytes], stream: int, now: float) -> None:
        data = os.read(stream, 65536)
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop() if data else b""
        good = [line for line in lines if line.count(b", ") >= self.fields.count(",")]
        if good:
            self.rows, self.reason = self.rows + len(good), None
            if self.kind == "gpu" and not self.proved and any(b"[N/A]" in line.split(b", ")[9] for line in good):
                self.period = 1000  # memory is the host's, and read from there
            out.put(self.kind, self.fields, b"\n".join(good))
            if self.kind == "apps":
                pids = (line.split(b", ")[1] for line in good)
                self.pids.update(int(pid) for pid in pids if pid.isdigit())
        if not data:
            self.ended(process, lines, now)
        elif not good and b"".join(lines).strip():
            self.reason = lines[0].decode("utf-8", "replace")

    def ended(self, process: subprocess.Popen[bytes], lines: list[bytes], now: float) -> None:
        code, words = process.wait(), b" ".join(lines).decode("utf-8", "replace").strip()
        if process.stdout:
            process.stdout.close()
        self.process = None
        if "not a valid field" in (self.reason or words) and self.fields == FIELDS:
            self.fields, self.reason = OLD_FIELDS, None
        elif code == 0 and (self.rows or self.kind == "apps") and not self.proved:
            self.proved = True
        else:
            self.failed(self.reason or words or f"nvidia-smi ended with {code}", now)


class NodeReader:
    """Looks at memory ten times a second, sends a reading once a second and processes every five."""

    def __init__(self, mark: str, hint: str) -> None:
        self.out, self.tree = BlockWriter(mark), Tree()
        self.processes = Processes(self.tree, hint)
        self.gpus = Smi("--query-gpu", FIELDS, 500, "gpu")
        self.apps = Smi("--query-compute-apps", APPS, 5000, "apps")
        self.least: tuple[int, float, bytes] | None = None  # MemAvailable, when, and the whole
        self.told: dict[str, bool] = {}
        self.boards: list[str] | None = None

    def hello(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        python = f"python {sys.version_info[0]}.{sys.version_info[1]}"
        self.out.put("hello", "", json.dumps({"reader": python, "page_size": page}).encode())
        for path in ("proc/sys/kernel/hostname", "proc/sys/kernel/pid_max", "proc/driver/nvidia/params"):
            self.put_file(path)
        mounts = (self.tree.read("proc/self/mountinfo") or b"").splitlines(True)
        self.out.put("file", "proc/self/mountinfo", b"".join(line for line in mounts if b" /proc/meminfo " in line))

    def put_file(self, path: str) -> None:
        text = self.tree.read(path)
        if text is not None:
            self.out.put("file", path, text)

    def put_board(self) -> None:
        """Power of the whole machine, where its driver is loaded; looked for as often as processes."""
        if self.boards is None:
            names = (f"sys/class/hwmon/{name}" for name in self.tree.names("sys/class/hwmon"))
            self.boards = [name for name in names if (self.tree.read(name + "/name") or b"").startswith(b"spbm")]
        for folder in self.boards:
            for name in self.tree.names(folder):
                if re.match(r"(name|prochot|power\d+_(label|input))$", name):
                    self.put_file(f"{folder}/{name}")

    def look(self, now: float) -> None:
        text = self.tree.read("proc/meminfo") or b""
        found = AVAILABLE.search(text)
        if found and (self.least is None or int(found.group(1)) < self.least[0]):
            self.least = int(found.group(1)), now, text

    def report(self, now: float) -> None:
        for path in SMALL:
            self.put_file(path)
        self.out.put("file", "proc/stat", (self.tree.read("proc/stat") or b"").partition(b"\n")[0] + b"\n")
        swapped = re.search(rb"^pswpout .*\n", self.tree.read("proc/vmstat") or b"", re.MULTILINE)
        self.out.put("file", "proc/vmstat", swapped.group() if swapped else b"")
        folder = "sys/devices/system/node"
        for name in self.tree.names(folder):
            if re.match(r"node\d+$", name):
                self.put_file(f"{folder}/{name}/meminfo")
                self.put_file(f"{folder}/{name}/cpulist")
        self.put_board()
        if self.least is not None:
            self.out.put("dip", f"{now - self.least[1]:.3f}", self.least[2])
            self.least = None
        for smi in (self.gpus, self.apps):
            if smi.reason is not None or self.told.get(smi.kind):
                self.out.put("smi", smi.kind, (smi.reason or "").encode("utf-8", "replace"))
            self.told[smi.kind] = smi.reason is not None
        self.out.end()

    def run(self) -> None:
        self.hello()
        fast = slow = scan = time.monotonic()
        while True:
            now = time.monotonic()
            for smi in (self.gpus, self.apps):
                smi.step(now)
            if now >= fast:
                self.look(now)
                fast = max(fast + FAST_S, now + FAST_S / 2)
            if now >= scan:
                self.processes.on_gpus = self.apps.pids
                self.processes.put(self.out)
                self.boards = None
                scan = now + SCAN_S
            if now >= slow:
                self.report(now)
                slow = max(slow + SLOW_S, now + SLOW_S / 2)
            self.wait(max(0.0, min(fast, slow) - time.monotonic()))

    def wait(self, seconds: float) -> None:
        running = {}
        for smi in (self.gpus, self.apps):
            if smi.process and smi.process.stdout:
                running[smi.process.stdout.fileno()] = smi, smi.process
        ready = select.select([0, *running], [], [], seconds)[0]
        if 0 in ready and not os.read(0, 65536):
            raise SystemExit(0)  # the connection is gone
        for stream in ready:
            if stream in running:
                smi, process = running[stream]
                smi.read(self.out, process, stream, time.monotonic())

    def close(self) -> None:
        for smi in (self.gpus, self.apps):
            if smi.process:
                smi.process.kill()


def main(mark: str, hint: str) -> None:
    reader = NodeReader(mark, hint)
    try:
        reader.run()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise
    finally:
        reader.close()
