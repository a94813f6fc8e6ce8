"""Loop devices: a file as a block device, let go by the kernel itself when its last mount is gone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from cubicle import record
from cubicle.record import BadRecord

CONTROL = Path("/dev/loop-control")
_MAJOR = 7
_GET_FREE = 0x4C82
_GET_STATUS = 0x4C05
_CONFIGURE = 0x4C0A
_AUTOCLEAR = 4
_ATTEMPTS = 200
_MAX_DEVICES = 1 << 20

# struct loop_info64: device, inode, rdevice, offset, sizelimit, number, encrypt_type, key_size, flags, then names and
# keys. struct loop_config: fd, block_size, loop_info64, 8 reserved words.
_INFO = struct.Struct("=QQQQQIIII64s64s32s2Q")
_CONFIG_HEAD = struct.Struct("=II")


@contextlib.contextmanager
def attached(image: Path, memory: Path) -> Iterator[int]:
    """The number of a loop device over the image, held until the block ends; a mount made meanwhile keeps it.

    `memory` is a file with the number that it had last time. A namespace that is still being torn down can hold the
    image's file system for a moment after its unmount, and a second device over the same file would corrupt it: so
    that one is used again.
    """
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        candidates = _candidates(memory)
        device = next((found for number in candidates if (found := _again(fd, number)) is not None), None)
        number, held = device or _fresh(fd)
        try:
            if candidates != [number]:
                _remember(memory, number)
            yield number
        finally:
            os.close(held)
    finally:
        os.close(fd)


def node(number: int) -> Path:
    """The device node, made where nothing makes it (a container without devtmpfs)."""
    path = Path(f"/dev/loop{number}")
    with contextlib.suppress(FileExistsError):
        os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(_MAJOR, number))
    return path


def _candidates(memory: Path) -> list[int]:
    """Which devices may have the image: the one that is written down, none, or any if that cannot be read."""
    try:
        text = record.read_text(memory, 64).strip()
    except FileNotFoundError:
        return []
    except BadRecord:
        text = ""
    if text.isascii() and text.isdigit() and int(text) < _MAX_DEVICES:
        return [int(text)]
    return sorted(int(path.name[4:]) for path in Path("/sys/block").glob("loop[0-9]*") if (path / "loop").is_dir())


def _remember(memory: Path, number: int) -> None:
    """Write the number down, whole or not at all; it need not outlive the power, as no loop device does. On a full disk
    there is no room for a new file, only in the one that is there."""
    fresh = memory.with_name(".loop.new")
    try:
        record.clear_folder(memory)
        fresh.unlink(missing_ok=True)
        fresh.write_text(str(number))
        os.replace(fresh, memory)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        memory.write_text(str(number))


def _fresh(fd: int) -> tuple[int, int]:
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            number = fcntl.ioctl(control, _GET_FREE)
            held = os.open(node(number), os.O_RDWR | os.O_CLOEXEC)
            info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, b"", b"", b"", 0, 0)
            try:
                fcntl.ioctl(held, _CONFIGURE, _CONFIG_HEAD.pack(fd, 4096) + info + bytes(64))
            except OSError as error:
                os.close(held)
                if error.errno not in (errno.EBUSY, errno.ENXIO):
                    raise
                continue  # another start took it between the two calls
            return number, held
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device could be had")


def _again(fd: int, number: int) -> tuple[int, int] | None:
    try:
        held = os.open(node(number), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = _INFO.unpack(fcntl.ioctl(held, _GET_STATUS, bytes(_INFO.size)))
    except OSError:
        os.close(held)
        return None
    image = os.fstat(fd)
    if fields[1] == image.st_ino and fields[0] == image.st_dev:
        return number, held
    os.close(held)
    return None
