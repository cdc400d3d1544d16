"""Evidence of the out-of-memory killer: a control group's count, the kernel's log, and nothing without either."""

from __future__ import annotations

from pathlib import Path

from llmtop.machine.oom import OomWatch

KILL = (
    "6,2,{at},-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python3,pid=77,uid=0\n"
    "3,3,{at},-;Out of memory: Killed process 77 (VLLM::EngineCor) total-vm:98273408kB, anon-rss:52428800kB, "
    "file-rss:0kB, shmem-rss:1048576kB, UID:0 pgtables:1kB oom_score_adj:0\n"
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Box:
    """A process 42 in a control group of version 2, and a kernel log."""

    def __init__(self, root: Path, cgroup: str = "0::/system.slice/vllm.service\n") -> None:
        self.root = root
        write(root / "proc/42/cgroup", cgroup)
        self.slice = self.count("system.slice/memory.events", 3)
        self.events = self.count("system.slice/vllm.service/memory.events", 0)
        self.log = root / "kmsg"

    def count(self, path: str, kills: int) -> Path:
        return write(self.root / "sys/fs/cgroup" / path, f"low 0\nmax 7\noom 2\noom_kill {kills}\n")

    def watch(self) -> OomWatch:
        return OomWatch(42, self.root / "proc", self.root / "sys", self.log)


def test_nothing_is_said_without_evidence(tmp_path: Path) -> None:
    assert Box(tmp_path).watch().evidence() is None
    assert OomWatch(42, tmp_path / "none", tmp_path / "none", tmp_path / "none").evidence() is None


def test_a_kill_counted_by_the_control_group_is_evidence(tmp_path: Path) -> None:
    box = Box(tmp_path)
    watch = box.watch()
    box.count("system.slice/vllm.service/memory.events", 1)
    assert watch.evidence() == "control group /system.slice/vllm.service counts oom_kill 0 → 1"


def test_kills_before_the_watch_are_no_evidence(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.count("system.slice/vllm.service/memory.events", 5)
    assert box.watch().evidence() is None


def test_a_neighbours_kill_is_none_while_its_own_group_is_there(tmp_path: Path) -> None:
    box = Box(tmp_path)
    watch = box.watch()
    box.count("system.slice/memory.events", 4)
    assert watch.evidence() is None


def test_a_group_that_went_with_its_process_is_counted_by_the_one_around_it(tmp_path: Path) -> None:
    box = Box(tmp_path)
    watch = box.watch()
    box.events.unlink()
    assert watch.evidence() is None
    box.count("system.slice/memory.events", 4)
    assert watch.evidence() == "control group /system.slice counts oom_kill 3 → 4"


def test_version_one_counts_in_another_file(tmp_path: Path) -> None:
    box = Box(tmp_path, "9:name=systemd:/x\n4:memory:/docker/abc\n0::/\n")
    box.count("memory/docker/abc/memory.oom_control", 0)
    watch = box.watch()
    box.count("memory/docker/abc/memory.oom_control", 2)
    assert watch.evidence() == "control group /docker/abc counts oom_kill 0 → 2"


def test_the_kernel_log_names_the_process_and_what_it_held(tmp_path: Path) -> None:
    box = Box(tmp_path)
    watch = box.watch()
    write(box.log, KILL.format(at=10**18))
    assert watch.evidence() is None  # another process
    watch.add([77])
    said = "kernel log: the OOM killer ended process 77 (VLLM::EngineCor), which held 51.0 GiB of host memory"
    assert watch.evidence() == said


def test_an_old_record_of_the_same_number_is_none(tmp_path: Path) -> None:
    box = Box(tmp_path)
    watch = box.watch()
    watch.add([77])
    write(box.log, KILL.format(at=0))
    assert watch.evidence() is None


def test_a_kill_at_the_limit_of_a_container_says_so(tmp_path: Path) -> None:
    box = Box(tmp_path)
    watch = box.watch()
    watch.add([77])
    write(box.log, KILL.format(at=10**18).replace("Out of memory", "Memory cgroup out of memory"))
    assert "at its control group's limit" in (watch.evidence() or "")
