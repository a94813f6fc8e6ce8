"""What of /proc and /sys a sandbox sees: what programs need, by name. Everything else is hidden.

Both are of the host: `/sys/block` and `/proc/diskstats` show the disks of all sandboxes, and kernels add new files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_SHOWN_PROC = """
    cgroups cpuinfo devices filesystems loadavg meminfo misc mounts net self stat sys sysrq-trigger sysvipc thread-self
    tty uptime version vmstat
"""
SHOWN_PROC = frozenset(_SHOWN_PROC.split())
"""What programs read, and what is the sandbox's own. `sys` and `sysrq-trigger` are read-only."""

SHOWN_SYS = ("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/kernel/mm/transparent_hugepage")
"""What libc, language runtimes and allocators look for: processors, memory nodes, the size of pages."""
_CGROUPS = "/sys/fs/cgroup"

_PROC = """
    acpi asound buddyinfo bus cmdline config.gz consoles crypto diskstats dma driver dynamic_debug execdomains fb fs
    interrupts iomem ioports irq kallsyms kcore key-users keys kmsg kpagecgroup kpagecount kpageflags latency_stats
    locks mdstat modules mtrr pagetypeinfo partitions pressure sched_debug schedstat scsi slabinfo softirqs swaps
    timer_list timer_stats vmallocinfo zoneinfo
"""
_SYS = """
    block bus class dev firmware hypervisor kernel module power devices/platform devices/pci0000:00 devices/virtual
    devices/software devices/pnp0 devices/breakpoint devices/cpu devices/system/memory devices/system/clocksource
    fs/bcachefs fs/bpf fs/btrfs fs/erofs fs/ext4 fs/f2fs fs/fuse fs/nfs fs/pstore fs/resctrl fs/selinux fs/smackfs
    fs/tmpfs fs/virtiofs fs/xfs
"""
USUAL = (*(f"/proc/{name}" for name in _PROC.split()), *(f"/sys/{name}" for name in _SYS.split()))
"""What is to be hidden on a host that cannot be looked at."""


def hidden(root: Path = Path("/")) -> tuple[str, ...]:
    """What this host has in /proc and /sys beyond what is shown."""
    names = (name for name in _entries(root / "proc") if name not in SHOWN_PROC and not name.isdigit())
    return tuple(sorted((*(f"/proc/{name}" for name in names), *_beside(root, "/sys"))))


def open_to_all(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that only the host's root could read need not be hidden from one who is nobody there."""
    return tuple(path for path in paths if _is_open(path))


def _is_open(path: str) -> bool:
    try:
        return bool(os.lstat(path).st_mode & 0o007)
    except OSError:
        return False


def _beside(root: Path, folder: str) -> Iterator[str]:
    """What lies in a folder, and is neither shown nor on the way to it."""
    for name in _entries(root / folder.lstrip("/")):
        path = f"{folder}/{name}"
        if path in (*SHOWN_SYS, _CGROUPS):
            continue
        if any(shown.startswith(f"{path}/") for shown in (*SHOWN_SYS, _CGROUPS)):
            yield from _beside(root, path)
        else:
            yield path


def _entries(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []
