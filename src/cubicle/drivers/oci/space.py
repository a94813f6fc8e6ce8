"""Keeps a full host from damaging disks of sandboxes: what runs gets "no space left" before the host has none."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from cubicle.drivers.oci import ext4, mounts
from cubicle.sandbox.free_space import DiskUsage, FreeSpace

log = logging.getLogger(__name__)

_MIB = 1024**2
_RESERVE = 256 * _MIB
_RESERVE_SHARE = 33
"""The reserve is at most this part (one in …) of the file system."""
_LOW = 8 * _MIB
"""Free space that the reserve provides for what the journals, inode tables and records still have to write."""
_ROOT_ONLY = 4096
"""Blocks that ext4 counts as free and gives to nobody."""
_MAX_SPEED = 4 * 1024**3
"""Bytes a second at which free space can go: the speed of memory."""
_MIN_SECONDS, _MAX_SECONDS = 0.05, 1.0


@dataclass(slots=True)
class Reserve:
    """A file that only takes up space: given back when the host is full, so that what is pending can be written."""

    path: Path

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def fill(self, usage: DiskUsage) -> None:
        """Have it whole, if there is plenty."""
        wanted = min(_RESERVE, usage.total // _RESERVE_SHARE)
        if self.size >= wanted or usage.above_floor < 2 * wanted or not usage.floor:
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            ext4.allocate(fd, 0, wanted)
        except OSError as error:
            os.ftruncate(fd, 0)
            if error.errno != errno.ENOSPC:
                log.warning("no disk space can be kept in reserve: %s", error.strerror)
        finally:
            os.close(fd)

    def release(self, count: int) -> None:
        """Give so many bytes back to the host, as far as there are any."""
        with contextlib.suppress(OSError):
            os.truncate(self.path, max(0, self.size - count))


@dataclass(slots=True)
class SpaceWatch:
    """Looks at the host's free space and acts on the disks of the sandboxes that are up. Blocking; one thread."""

    root: Path
    stage: Path
    space: FreeSpace
    largest_disk: int
    interval: float = _MIN_SECONDS
    """Seconds until the next look."""
    _limited: bool = True  # by a service before, perhaps
    _tight: bool = False
    _has_reserve: bool = field(init=False)
    _reserve: Reserve = field(init=False)

    def __post_init__(self) -> None:
        self._reserve = _reserve_of(self.root)
        # In a file system in memory a reserve costs memory, and sandboxes there do not outlive a full one anyway.
        self._has_reserve = mounts.kind(self.root) not in ("tmpfs", "ramfs")

    def look(self) -> None:
        """Cut what sandboxes may still write down to what the host has; below the floor, write what is pending."""
        usage = self.space.measure()
        near = usage.above_floor < self.largest_disk + _memory()
        disks = self._mounted() if near or self._limited else []
        pending = self._pending(disks) if near else 0
        self.space.expect(pending)
        self._use_reserve(usage, pending)
        usage = self.space.measure()
        for disk in disks:
            with contextlib.suppress(OSError):  # it was unmounted meanwhile, or /sys is read-only
                disk.limit_free(usage.above_floor if near else None)
        if usage.above_floor == 0 or (self.space.tight and not self._tight):
            for disk in disks:
                with contextlib.suppress(OSError):
                    disk.flush()
        self._limited, self._tight = near, self.space.tight
        self.interval = min(_MAX_SECONDS, max(_MIN_SECONDS, usage.above_floor / _MAX_SPEED))

    def damaged(self) -> list[str]:
        """Names of sandboxes that are up on a disk in which the kernel met a fault."""
        return [disk.target.parent.name for disk in self._mounted() if disk.errors()]

    def _use_reserve(self, usage: DiskUsage, pending: int) -> None:
        found = os.statvfs(self.root)
        # What is written to images is written as root, who may use more than others.
        usable = max(found.f_bavail, found.f_bfree - _ROOT_ONLY) * found.f_frsize
        lacking = pending + _LOW - usable
        if lacking > 0:
            self._reserve.release(lacking)
        elif self._has_reserve and self.space.short_since is None:
            self._reserve.fill(usage)

    def _mounted(self) -> list[ext4.Mounted]:
        try:
            names = os.listdir(self.stage)
        except OSError:
            return []
        return [disk for name in names if (disk := ext4.mounted(self.stage / name / "disk")) is not None]

    def _pending(self, disks: list[ext4.Mounted]) -> int:
        total = 0
        for disk in disks:
            with contextlib.suppress(OSError):
                total += disk.pending()
        return total


def give_back(root: Path) -> None:
    """Give the reserve back: nobody watches any more."""
    _reserve_of(root).path.unlink(missing_ok=True)


def _reserve_of(root: Path) -> Reserve:
    return Reserve(root / "reserve")


def _memory() -> int:
    """All of the host's: no more than that can wait to be written."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
