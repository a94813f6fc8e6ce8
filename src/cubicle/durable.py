"""Writes that are on disk when the call returns: a record is whole or as it was, whatever happens to the power.

Everything that the service answers for goes through here: records, secrets, keys, budgets, uploads. The calls block;
from the event loop they are made in a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import struct
import time
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
FLOCK = struct.Struct("@hhqqi")  # struct flock: type, whence, start, length, process


def write(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file by this content: after a power cut it holds the old bytes or the new ones, never a part."""
    with _fresh(path, data, mode) as fresh:
        os.replace(fresh, path)
    sync_folder(path.parent)


def write_once(path: Path, data: bytes, *, mode: int = 0o600) -> bytes:
    """Make a file that others may be making too; the content that won, which is on disk."""
    with _fresh(path, data, mode) as fresh, contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    sync_folder(path.parent)
    return path.read_bytes()


def link(path: Path, target: str) -> str:
    """Make a symlink if there is none, on disk; what it points to."""
    with contextlib.suppress(FileExistsError):
        os.symlink(target, path)
    sync_folder(path.parent)
    return os.readlink(path)


def relink(path: Path, target: str) -> None:
    """Point a symlink, or a name that is free, to this target: after a power cut to the old or to the new one."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    os.symlink(target, fresh)
    try:
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink()
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def locked(path: Path, seconds: float = 10.0) -> Iterator[None]:
    """Hold the lock of this file, which is made, against other threads and processes. Raises TimeoutError."""
    with _flocked(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), path, seconds):
        yield


@contextlib.contextmanager
def locked_folder(path: Path, seconds: float = 10.0) -> Iterator[None]:
    """The same with the lock of a folder, for which nothing is made: a full disk is no hindrance."""
    with _flocked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path, seconds):
        yield


@contextlib.contextmanager
def _flocked(fd: int, path: Path, seconds: float) -> Iterator[None]:
    try:
        ends = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= ends:
                    raise TimeoutError(f"Another process has held {path.name} for {seconds:g} seconds.") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def make_folder(path: Path, *, mode: int = 0o700) -> None:
    """Make a folder and its parents where they are missing, on disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def move(source: Path, target: Path) -> None:
    """Rename on one file system; the target must not exist as a folder with content."""
    os.rename(source, target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def remove(path: Path) -> None:
    """Remove a file or symlink, if it is there, for good."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Put the content of a file on disk; its name is the folder's."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(path: Path) -> None:
    """Put everything on disk that was written to the file system of a folder: for trees of many files."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)


def reserve(fd: int, size: int) -> None:
    """Take the place on the disk that the first bytes of a file will need; its size stays. Raises OSError."""
    if _libc.fallocate(ctypes.c_int(fd), ctypes.c_int(_KEEP_SIZE), ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def sync_folder(path: Path) -> None:
    """Put the names in a folder on disk: what was made, renamed or removed in it stays so."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _fresh(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A synced file beside `path` with this content; gone at the end, unless it was renamed."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)  # whatever the umask says
            file.write(data)
            file.flush()
            os.fsync(fd)
        yield fresh
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
