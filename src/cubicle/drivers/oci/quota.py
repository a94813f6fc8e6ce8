"""Project quotas (XFS, ext4, f2fs): a limit on everything under one folder, kept by the file system itself."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import struct
import tempfile
from pathlib import Path

_GETXATTR, _SETXATTR = 0x801C581F, 0x401C5820
_XATTR = struct.Struct("=IIIII8s")  # flags, extent size, extents, project, cow extent size, padding
_INHERIT = 0x200
_QUOTACTL_FD = 443
_GET, _SET, _PROJECT = 0x800007, 0x800008, 2
_DQBLK = struct.Struct("=8QI4x")  # hard and soft blocks (KiB), bytes, hard and soft inodes, inodes, 2 times, valid
_LIMITS = 0b101
_BYTES_PER_INODE = 16 * 1024
_libc = ctypes.CDLL(None, use_errno=True)


def works(folder: Path) -> bool:
    """Whether the file system counts what is written into a limited folder here: seen by writing into one."""
    with tempfile.TemporaryDirectory(prefix=".quota-", dir=folder) as trial:
        try:
            limit(Path(trial), 1024 * 1024, trial)
            with open(Path(trial, "filler"), "wb", buffering=0) as file:
                file.write(bytes(64 * 1024))
                os.fsync(file.fileno())
            # The usage tells, not a refusal: root with CAP_SYS_RESOURCE passes quotas, a sandbox never has it.
            return usage(Path(trial)) >= 64 * 1024
        except OSError:
            return False


def limit(folder: Path, size: int, name: str) -> None:
    """Give an empty folder a project of its own, limited to so many bytes. Raises OSError where quotas do not work."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        project = _free_project(fd, name)
        flags, extent, extents, _, cow, padding = _XATTR.unpack(fcntl.ioctl(fd, _GETXATTR, bytes(_XATTR.size)))
        fcntl.ioctl(fd, _SETXATTR, _XATTR.pack(flags | _INHERIT, extent, extents, project, cow, padding))
        inodes = max(1024, size // _BYTES_PER_INODE)
        _call(fd, _SET, project, bytearray(_DQBLK.pack(size // 1024, 0, 0, inodes, 0, 0, 0, 0, _LIMITS)))
    finally:
        os.close(fd)


def usage(folder: Path) -> int:
    """Bytes used by the folder's project."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        project = _XATTR.unpack(fcntl.ioctl(fd, _GETXATTR, bytes(_XATTR.size)))[3]
        return _get(fd, project)[2]
    finally:
        os.close(fd)


def _free_project(fd: int, name: str) -> int:
    for attempt in range(64):
        digest = hashlib.sha256(f"{name}\0{attempt}".encode()).digest()
        project = 0x40000000 | (int.from_bytes(digest[:4], "big") & 0x3FFFFFFF)
        try:
            used = _get(fd, project)[2]
        except OSError as error:
            if error.errno != errno.ENOENT:  # XFS says so for a project that was never used
                raise
            used = 0
        if not used:
            return project
    raise OSError(errno.EUSERS, "no free project id")


def _get(fd: int, project: int) -> tuple[int, ...]:
    block = bytearray(_DQBLK.size)
    _call(fd, _GET, project, block)
    return _DQBLK.unpack(block)


def _call(fd: int, command: int, project: int, block: bytearray) -> None:
    address = (ctypes.c_char * len(block)).from_buffer(block)
    command = (command << 8) | _PROJECT
    if _libc.syscall(_QUOTACTL_FD, fd, ctypes.c_uint(command), project, ctypes.byref(address)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
