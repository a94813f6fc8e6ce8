"""Which processes are there, and which command started each.

Every command carries a mark that its descendants inherit and that neither a new session, a new process group, a double
fork nor an empty environment takes off: the hard limit of RLIMIT_RSS, which kernels keep but do not use (Linux since
2.4, and gVisor, which lets few limits be set at all). A limit can only be lowered, so the marks count down. A process
can lower its own and hide from its command's end; it stays inside the sandbox and its limits all the same.
"""

from __future__ import annotations

import os
import resource

from . import operations

_TOP = 1 << 60
CGROUPS = "/sys/fs/cgroup"


class ProcessTable:
    """Hands out a new mark for every command, and finds who wears it."""

    def __init__(self, apart: bool) -> None:
        self._apart = apart
        """Whether commands run as another user than the guest."""
        hard = resource.getrlimit(resource.RLIMIT_RSS)[1]
        self._last = min(hard, _TOP) if hard != resource.RLIM_INFINITY else _TOP

    def next(self) -> int:
        """A new mark, for one command."""
        self._last -= 1
        return self._last

    def worn(self, mark: int) -> list[int]:
        """Every living process that wears this mark."""
        return [pid for pid in processes() if _mark(pid) == mark and self._counts(pid)]

    def children(self, mark: int) -> list[int]:
        """The guest's own children that wear this mark, and those of them that are dead and not fetched."""
        return [pid for pid in processes() if _mark(pid) == mark and _parent(pid) == os.getpid()]

    def others(self, kept: set[int]) -> list[int]:
        """Every living process that wears none of these marks."""
        return [pid for pid in processes() if _mark(pid) not in kept and self._counts(pid)]

    def strike(self, mark: int, number: int, group: int = 0) -> int:
        """Signal a command's group and everything that wears its mark; how many there were."""
        if group:
            try:
                os.killpg(group, number)
            except OSError:
                pass
        found = self.worn(mark)
        signal_all(found, number)
        return len(found)

    def _counts(self, pid: int) -> bool:
        """Not the guest, its helper or a relay to it: they may wear marks, and are nobody's command."""
        if pid == os.getpid() or _zombie(pid):
            return False
        try:
            return not self._apart or os.stat("/proc/%d" % pid).st_uid != 0
        except OSError:
            return False


def wear(mark: int) -> None:
    """Put a mark on whatever this process starts from now on."""
    resource.setrlimit(resource.RLIMIT_RSS, (mark, mark))


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def text(path: str) -> str:
    """A small file of /proc; empty if the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def _mark(pid: int) -> int:
    for line in text("/proc/%d/limits" % pid).splitlines():
        if line.startswith("Max resident set"):
            fields = line.split()
            return int(fields[4]) if fields[4].isdigit() else -1
    return -1


def _zombie(pid: int) -> bool:
    return _stat(pid)[:1] in (["Z"], ["X"], [])


def _parent(pid: int) -> int:
    return int((_stat(pid)[1:2] or ["0"])[0])


def _stat(pid: int) -> list[str]:
    """State, parent and so on: what comes after the name, which may hold anything."""
    return text("/proc/%d/stat" % pid).rpartition(")")[2].split()


class MemoryKills:
    """How often the kernel killed for want of memory in this sandbox, as far as it tells.

    Asked before every command, so the file stays open.
    """

    def __init__(self) -> None:
        self._fd = -1
        for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
            try:
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return
            except OSError:
                continue

    def count(self) -> int:
        try:
            told = os.pread(self._fd, 4096, 0) if self._fd >= 0 else b""
        except OSError:
            return 0
        _, found, rest = told.partition(b"oom_kill ")
        return int(rest.split(None, 1)[0]) if found else 0


def _number(*paths: str) -> int | None:
    for path in paths:
        value = text(path).strip()
        if value.isdigit():
            return int(value)
    return None


def usage(home: str, kills: MemoryKills, uptime: float, links: int) -> operations.Usage:
    """What the sandbox uses now."""
    disk = os.statvfs(home)
    cpu = _number(CGROUPS + "/cpuacct/cpuacct.usage")
    if cpu is None:
        _, _, usage = text(CGROUPS + "/cpu.stat").partition("usage_usec ")
        number = usage.partition("\n")[0]
        cpu = int(number) * 1000 if number.isdigit() else None
    return operations.Usage(
        memory=_number(CGROUPS + "/memory/memory.usage_in_bytes", CGROUPS + "/memory.current"),
        memory_limit=_number(CGROUPS + "/memory/memory.limit_in_bytes", CGROUPS + "/memory.max"),
        cpu_seconds=None if cpu is None else cpu / 1e9,
        processes=len(processes()),
        disk_total=disk.f_blocks * disk.f_frsize,
        disk_free=disk.f_bavail * disk.f_frsize,
        memory_kills=kills.count(),
        uptime=uptime,
        links=links,
    )
