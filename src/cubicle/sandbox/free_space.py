"""The free-space floor of the host: below it nothing new is started, and what runs goes on."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from cubicle.machine.errors import NoSpace

log = logging.getLogger(__name__)

_MIB = 1024**2
_MAX_SHARE = 20
"""The floor is at most this part (one in …) of the file system: a small disk is not all floor."""
_MIN_FREE_INODES = 64
"""A new sandbox makes about a dozen files on the host."""
_TIGHT = 4 * 1024**3
"""Above the floor there is less than this: it can be gone before the next look."""
_MARGIN = 8
"""The floor is passed upwards only with this part of it (one in …) to spare, so that the state does not flicker."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """What the file system of DATA_DIR has left."""

    total: int
    free: int
    floor: int
    inodes_left: bool

    @property
    def enough(self) -> bool:
        return self.inodes_left and self.free >= self.floor

    @property
    def above_floor(self) -> int:
        """Bytes that may still be used."""
        return max(0, self.free - self.floor) if self.inodes_left else 0


class FreeSpace:
    """Watches the file system of a folder. One log line when it gets short, one when it no longer is."""

    def __init__(self, folder: Path, floor: int) -> None:
        self._folder = folder
        self._floor = floor
        self._lock = threading.Lock()
        self._short_since: float | None = None
        self._pending = 0
        self.tight = False
        """Whether there is so little that what is acknowledged has to be on the disk first."""

    @property
    def short_since(self) -> float | None:
        """Time of day since which there is too little; None while there is enough."""
        return self._short_since

    def expect(self, pending: int) -> None:
        """Bytes that sandboxes have written and that are not on the host's disk yet: they are no longer free."""
        self._pending = pending

    def usage(self) -> DiskUsage:
        """How it stands now."""
        found = os.statvfs(_existing(self._folder))
        total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        inodes_left = not found.f_files or found.f_favail >= _MIN_FREE_INODES or not self._floor
        return DiskUsage(total, max(0, free - self._pending), min(self._floor, total // _MAX_SHARE), inodes_left)

    def measure(self) -> DiskUsage:
        """How it stands now; also notices that the floor was passed, in either direction."""
        usage = self.usage()
        self.tight = bool(self._floor) and usage.above_floor < _TIGHT
        with self._lock:
            self._note(usage)
        return usage

    def require(self) -> None:
        """Raises NoSpace while there is too little to start anything."""
        usage = self.measure()
        if self._short_since is not None:
            raise NoSpace(
                f"The host is short of disk space ({_size(usage.free)} free, {_size(usage.floor)} are kept free), so "
                "no sandbox is started now. Nothing is lost. Try again later, or tell the operator."
            )

    def _note(self, usage: DiskUsage) -> None:
        if self._short_since is None:
            if not usage.enough:
                self._short_since = time.time()
                log.error(
                    "the disk of DATA_DIR is nearly full: no sandbox is started until there is more space",
                    extra={"free": _size(usage.free), "floor": _size(usage.floor), "inodes_left": usage.inodes_left},
                )
        elif usage.inodes_left and usage.free >= usage.floor + usage.floor // _MARGIN:
            self._short_since = None
            log.warning("the disk of DATA_DIR has space again: sandboxes start", extra={"free": _size(usage.free)})


def _size(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 else f"{count // _MIB} MiB"


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
