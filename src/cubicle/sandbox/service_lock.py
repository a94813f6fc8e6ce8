"""Which service works over a DATA_DIR: at most one, known by the file that it holds locked; or several replicas, which
hold a second file locked in common. They start one after the other, each with the first file to itself for a moment."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cubicle import record
from cubicle.durable import FLOCK
from cubicle.settings import BadSettings

_MAX_PLACE = 300
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.2
_START_SECONDS = 5.0


@contextmanager
def only_service_of(data_dir: Path, place: str) -> Iterator[int]:
    """Two services over one folder would each stop what the other uses. The lock ends with the process, and with every
    other one that was given the descriptor."""
    with _alone(data_dir, place, _LOOK_SECONDS) as lock:
        if _has_replicas(data_dir):
            raise _used(data_dir)
        yield lock


@contextmanager
def replica_of(data_dir: Path, place: str) -> Iterator[None]:
    """One of several services that divide the chats among them; no other one runs over the folder beside them."""
    with _alone(data_dir, place, _START_SECONDS):
        held = open_lock(_replicas_file(data_dir))
        fcntl.fcntl(held, fcntl.F_OFD_SETLK, _lock_of(fcntl.F_RDLCK))  # nobody ever has another kind
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def _alone(data_dir: Path, place: str, seconds: float) -> Iterator[int]:
    """For the block. Who only looks (`service_of`), and a replica that starts, hold the lock for an instant."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock(_file(data_dir))
    try:
        deadline = time.monotonic() + seconds
        while not _taken(lock, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise _used(data_dir)
            time.sleep(_POLL_SECONDS)
        with suppress(OSError):  # the disk is full: the lock counts, the place is for people
            os.ftruncate(lock, 0)
            os.pwrite(lock, place.encode()[:_MAX_PLACE], 0)
        yield lock
    finally:
        os.close(lock)


def _used(data_dir: Path) -> BadSettings:
    return BadSettings(f"Another service uses DATA_DIR={data_dir}. Stop it, or set another DATA_DIR.")


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
            if not _taken(lock, fcntl.LOCK_SH) or _has_replicas(data_dir):
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
        yield _taken(lock, fcntl.LOCK_SH) and not _has_replicas(data_dir)
    finally:
        os.close(lock)


def _file(data_dir: Path) -> Path:
    return data_dir / "serving"


def _replicas_file(data_dir: Path) -> Path:
    return data_dir / "serving-replicas"


def _has_replicas(data_dir: Path) -> bool:
    """Asked of the kernel, without a lock that another one who asks would meet."""
    try:
        held = os.open(_replicas_file(data_dir), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # there is none, or what is in its place is no file: nobody holds it
        return False
    try:
        found = fcntl.fcntl(held, fcntl.F_OFD_GETLK, _lock_of(fcntl.F_WRLCK))
        return bool(FLOCK.unpack(found)[0] != fcntl.F_UNLCK)
    finally:
        os.close(held)


def _lock_of(kind: int) -> bytes:
    return FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


def _taken(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
