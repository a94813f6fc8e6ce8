"""Copies of whole files between two mounts, where no link can be made."""

from __future__ import annotations

import os
import stat

from .atomic_write import TEMPORARY
from .identity import As

_CHUNK = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_named(name: str, folder: int, who: As) -> int:
    """What is under a name in an open folder, as the user reads it; neither a link nor a FIFO hangs or leads away."""
    with who:
        return os.open(name, _READ, dir_fd=folder)


def copy_in(source: int, target: str, sync: bool = False) -> None:
    """Copy an open file to a name of the guest's own that is free, with its mode and time."""
    into = os.open(target, _NEW, 0o600)
    try:
        _fill(into, source, sync)
    finally:
        os.close(into)


def copy_out(source: str, folder: int, who: As) -> str:
    """Copy one of the guest's own files into an open folder of the user, on disk; its name there."""
    name = TEMPORARY + os.urandom(8).hex()
    content = os.open(source, _READ)
    try:
        with who:
            into = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            _fill(into, content, sync=True)
        except OSError:
            os.unlink(name, dir_fd=folder)
            raise
        finally:
            os.close(into)
    finally:
        os.close(content)
    return name


def _fill(into: int, source: int, sync: bool) -> None:
    found = os.fstat(source)
    _copy(source, into, found.st_size)
    os.fchmod(into, stat.S_IMODE(found.st_mode) & 0o777)
    os.utime(into, ns=(found.st_atime_ns, found.st_mtime_ns))
    if sync:
        os.fsync(into)


def _copy(source: int, into: int, size: int) -> None:
    """The first `size` bytes: in the kernel, which shares blocks where the file system can; else through memory."""
    done = 0
    try:
        while done < size:
            moved = os.copy_file_range(source, into, min(size - done, 64 * _CHUNK), done, done)
            if not moved:
                break
            done += moved
    except (AttributeError, OSError):
        pass  # not on every kernel, and not between all file systems; what is wrong with the disk is told below
    os.lseek(into, done, os.SEEK_SET)
    while done < size:
        chunk = os.pread(source, min(_CHUNK, size - done), done)
        if not chunk:
            return
        done += len(chunk)
        while chunk:
            chunk = chunk[os.write(into, chunk) :]
