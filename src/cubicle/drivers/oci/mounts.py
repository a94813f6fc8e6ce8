"""Mounting and unmounting by the system calls themselves: a subprocess for each would double the time of a start."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path

NOSUID, NODEV, NOEXEC = 2, 4, 8
_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount(source: str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount, or raise OSError."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(options) or None
    )
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mounting {kind}: {os.strerror(code)}", str(target))


def unmount(target: Path) -> None:
    """Unmount everything at the target, if there is anything. What is busy goes away when it is free."""
    while True:
        if _libc.umount2(os.fsencode(target), 0) != 0:
            code = ctypes.get_errno()
            if code in (errno.EINVAL, errno.ENOENT):
                return
            if code != errno.EBUSY or _libc.umount2(os.fsencode(target), _DETACH) != 0:
                raise OSError(code, f"unmounting: {os.strerror(code)}", str(target))


def overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Mount a writable view of `lower` at `target`; what is written lands in `upper`."""
    options = f"lowerdir={_escaped(lower, ':')},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    mount("overlay", target, "overlay", NOSUID | NODEV, options)


def below(folder: Path) -> list[Path]:
    """Every mount point under a folder, the innermost first."""
    prefix = str(folder) + "/"
    found = []
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            target = _OCTAL.sub(lambda m: chr(int(m.group(1), 8)), line.split(" ")[1])
            if target.startswith(prefix):
                found.append(Path(target))
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def kind(folder: Path) -> str:
    """The type of the file system that a folder lies on; empty if the table of mounts does not have it."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            if line.split(" ")[2] == wanted:
                return line.partition(" - ")[2].split(" ")[0]
    return ""


def _escaped(path: Path, also: str = "") -> str:
    return "".join("\\" + c if c in "\\," + also else c for c in str(path))
