"""Which service works over a DATA_DIR: at most one, known by the file that it holds locked."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cubicle import record
from cubicle.settings import BadSettings

_MAX_PLACE = 300
_LOOK_SECONDS = 0.2


@contextmanager
def only_service_of(data_dir: Path, place: str) -> Iterator[int]:
    """Two services over one folder would each stop what the other uses. The lock ends with the process, and with every
    other one that was given the descriptor."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock(_file(data_dir))
    try:
        if not _taken(lock, fcntl.LOCK_EX):
            time.sleep(_LOOK_SECONDS)  # who only looks (`service_of`) holds it for an instant
            if not _taken(lock, fcntl.LOCK_EX):
                raise BadSettings(f"Another service uses DATA_DIR={data_dir}. Stop it, or set another DATA_DIR.")
        with suppress(OSError):  # the disk is full: the lock counts, the place is for people
            os.ftruncate(lock, 0)
            os.pwrite(lock, place.encode()[:_MAX_PLACE], 0)
        yield lock
    finally:
        os.close(lock)


def open_lock(path: Path) -> int:
    """A file to lock; what is no plain file in its place is kept under another name."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            record.keep_bad(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def service_of(data_dir: Path) -> str | None:
    """Where the service over this folder listens (`host:port`), None if none runs. OSError if one may not look."""
    with suppress(FileNotFoundError):
        lock = os.open(_file(data_dir), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if not _taken(lock, fcntl.LOCK_SH):
                return os.pread(lock, _MAX_PLACE, 0).decode(errors="replace")
        finally:
            os.close(lock)
    return None


@contextmanager
def no_service_of(data_dir: Path) -> Iterator[bool]:
    """Whether no service runs over this folder; then none starts during the block, unless it is a long one."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock(_file(data_dir))
    try:
        yield _taken(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def _file(data_dir: Path) -> Path:
    return data_dir / "serving"


def _taken(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
