"""The ext4 file system of a disk image: what its superblock says, its repair, and how much of the host it may take.

An image is sparse: a block that was never written takes space of the host only when it is. If the host has none, the
kernel sees an I/O error where the sandbox should see "no space left": a failed write of the journal turns the file
system read-only and loses what was not written yet. So the journal has its space from the start (`back_journal`), and
the space that the file system thinks it has is cut down to what the host has (`limit_free`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cubicle.machine.errors import StartFailed

log = logging.getLogger(__name__)

_SUPERBLOCK = 1024
_MAGIC = 0xEF53
_STATE_ERRORS = 2
_EXTENTS = 0xF30A
_LOOP_MAJOR = 7
_UNSHARE = 0x40
_CHECKPOINT = 0x4004662B  # EXT4_IOC_CHECKPOINT
_DEFAULT_SHARE, _DEFAULT_MOST = 50, 4096  # of the blocks; the kernel's own reserve for metadata

_CHECK_SECONDS = 600
_CHECK_MEMORY = 4 * 1024**3
_REPAIRED, _KILLED = 3, 128
_MAX_REPORT = 400

_libc = ctypes.CDLL(None, use_errno=True)


class Damaged(StartFailed):
    """A file system could not be repaired."""


@dataclass(frozen=True, slots=True)
class Superblock:
    """The part of it that counts here."""

    block_size: int
    blocks: int
    errors: bool
    journal: tuple[tuple[int, int], ...]
    """Where the journal lies: offset and length in bytes."""


def superblock(image: Path) -> Superblock | None:
    """None if there is none that can be read."""
    with open(image, "rb") as file:
        raw = os.pread(file.fileno(), 1024, _SUPERBLOCK)
    if len(raw) < 1024 or struct.unpack_from("<H", raw, 0x38)[0] != _MAGIC:
        return None
    log_size = struct.unpack_from("<I", raw, 0x18)[0]
    if log_size > 6:
        return None
    size = 1024 << log_size
    low, high = struct.unpack_from("<I", raw, 0x4)[0], struct.unpack_from("<I", raw, 0x150)[0]
    state = struct.unpack_from("<H", raw, 0x3A)[0]
    backup = raw[0xFD] == 1
    journal = _extents(raw[0x10C : 0x10C + 60], size) if backup else ()
    return Superblock(size, low | high << 32, bool(state & _STATE_ERRORS), journal)


def _extents(inode: bytes, block_size: int) -> tuple[tuple[int, int], ...]:
    """The extents in an inode itself; one of a few MiB never has more of them."""
    magic, entries, _, depth = struct.unpack_from("<4H", inode)
    if magic != _EXTENTS or depth or entries > 4:
        return ()
    found = []
    for entry in range(entries):
        _, count, high, low = struct.unpack_from("<IHHI", inode, 12 + 12 * entry)
        found.append(((low | high << 32) * block_size, min(count, 32768) * block_size))
    return tuple(found)


def back_journal(image: Path, journal: tuple[tuple[int, int], ...]) -> None:
    """Give the journal blocks of the host that no other file shares. Raises OSError if the host has none left."""
    with open(image, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for offset, length in journal:
            if offset + length <= size:
                allocate(file.fileno(), offset, length)


def allocate(fd: int, offset: int, length: int) -> None:
    """Where files can share blocks (XFS) those are copied; else this is a plain allocation."""
    for mode in (_UNSHARE, 0):
        if _libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code))


def repair(device: Path) -> None:
    """Repair the file system on a device that nobody has mounted, whatever that takes. Raises Damaged."""
    if _check(device, "-f", "-y") > _REPAIRED:
        raise Damaged("The disk of this sandbox is damaged and could not be repaired.")


def clear_errors(device: Path) -> None:
    """Repair only one that has no fault but the note that there was one. Raises Damaged, and then changed nothing."""
    if _check(device, "-f", "-n") != 0 or _check(device, "-f", "-p") > _REPAIRED:
        raise Damaged("The disk of this sandbox is damaged. It is repaired when there is space for a copy of it.")


def _check(device: Path, *options: str) -> int:
    """The exit code of e2fsck, whose bits say: 1 all is fixed, 2 all is fixed and wants a reboot, others a failure.

    What it reads was written by a sandbox, if only through the kernel: it has no capabilities, and limits.
    """
    tools = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    limits = ["prlimit", f"--as={_CHECK_MEMORY}", f"--cpu={_CHECK_SECONDS}", "--core=0"]
    checker = shutil.which("e2fsck") or "/usr/sbin/e2fsck"
    with tempfile.TemporaryFile() as report:
        try:
            done = subprocess.run(
                [*tools, *limits, checker, *options, str(device)],
                stdout=report,
                stderr=report,
                stdin=subprocess.DEVNULL,
                timeout=_CHECK_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.error("e2fsck could not be run: %s", error)
            raise Damaged("The disk of this sandbox is damaged, and no repair could be run.") from error
        if 0 <= done.returncode <= _REPAIRED:
            return done.returncode
        report.seek(max(0, report.seek(0, os.SEEK_END) - _MAX_REPORT))
        said = report.read().decode(errors="replace")
        log.error("e2fsck %s failed (%d): %s", " ".join(options), done.returncode, said)
        return done.returncode if done.returncode > 0 else _KILLED


# ---- one that is mounted


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mounted file system of a sandbox."""

    target: Path
    controls: Path
    """Its folder in /sys/fs/ext4."""

    def errors(self) -> bool:
        """Whether the kernel met a fault in it; it is then read-only."""
        return self._read("errors_count") > 0

    def pending(self) -> int:
        """Bytes that were written to it and have no place on the disk yet."""
        return self._read("delayed_allocation_blocks") * os.statvfs(self.target).f_bsize

    def limit_free(self, most: int | None) -> bool:
        """Let it take at most so many more bytes of the host, None: as many as it has; True if that changes anything.

        A write that wants more is refused with "no space left", as on a full disk.
        """
        found = os.statvfs(self.target)
        usual = min(found.f_blocks // _DEFAULT_SHARE, _DEFAULT_MOST)
        wanted = usual if most is None else max(usual, found.f_bfree - most // found.f_bsize)
        if wanted == self._read("reserved_clusters"):
            return False
        (self.controls / "reserved_clusters").write_text(str(wanted))
        return True

    def write_back(self) -> None:
        """Write all that is pending. Raises OSError if something of it could not be written."""
        fd = os.open(self.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        finally:
            os.close(fd)

    def flush(self) -> None:
        """Write all that is pending, and the journal to where it belongs: nothing more has to be written later."""
        self.write_back()
        fd = os.open(self.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a kernel before 5.14
                fcntl.ioctl(fd, _CHECKPOINT, struct.pack("=I", 0))
        finally:
            os.close(fd)

    def _read(self, name: str) -> int:
        try:
            return int((self.controls / name).read_text())
        except (OSError, ValueError):
            return 0


def mounted(target: Path) -> Mounted | None:
    """The file system at this folder, if it is one on a loop device."""
    try:
        device = os.stat(target).st_dev
    except OSError:
        return None
    controls = Path(f"/sys/fs/ext4/loop{os.minor(device)}")
    return Mounted(target, controls) if os.major(device) == _LOOP_MAJOR and controls.is_dir() else None
