"""Mounting and unmounting by the system calls themselves: a subprocess for each would double the time of a start."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path

NOSUID, NODEV, NOEXEC = 2, 4, 8
BIND = 4096
_DETACH = 2
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""Numbers of system calls that libc may not know; the same on every architecture."""
_CLONE_TREE, _CLOSE_ON_EXEC, _EMPTY_PATH, _MOVE_EMPTY_PATH = 1, os.O_CLOEXEC, 0x1000, 4
_IDMAP = 0x00100000
_NEW_MOUNTS = 0x00020000
_RECURSIVE, _SLAVE = 0x4000, 0x80000
_HERE = -100
_LAYERS = ("lowerdir", "upperdir", "workdir")
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


def remove_points(folder: Path) -> None:
    """Remove a folder of mount points, with the plain files in it. What is mounted there all the same stays whole, as
    does whatever is in a folder: it can be a disk with somebody's files."""
    for entry in list(os.scandir(folder)):
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)
    with suppress(OSError):
        os.rmdir(folder)


def overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Mount a writable view of `lower` at `target`; what is written lands in `upper`.

    The folders are named by descriptors: whoever can see the mount also reads its options, and no path of the host is
    to be read there.
    """
    with ExitStack() as stack:
        folders: list[int] = []
        for path in (lower, upper, work):
            folders.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            stack.callback(os.close, folders[-1])
        names = (f"{key}=/proc/self/fd/{fd}" for key, fd in zip(_LAYERS, folders, strict=True))
        mount("overlay", target, "overlay", NOSUID | NODEV, ",".join(names))


def attach_idmapped(source: Path, target: Path, namespace: int) -> None:
    """Show a folder a second time at `target`, with the ids of its files as a user namespace maps them.

    Raises OSError where the kernel or the file system cannot do that.
    """
    tree = _call(_OPEN_TREE, _HERE, os.fsencode(source), _CLONE_TREE | _CLOSE_ON_EXEC)
    try:
        attributes = struct.pack("=4Q", _IDMAP, 0, 0, namespace)
        _call(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH, attributes, len(attributes))
        _call(_MOVE_MOUNT, tree, b"", _HERE, os.fsencode(target), _MOVE_EMPTY_PATH)
    finally:
        os.close(tree)


def attach_namespace(namespace: int, target: Path) -> None:
    """Give a namespace a name: it lives for as long as something is mounted there."""
    target.touch(mode=0o600)
    mount(f"/proc/self/fd/{namespace}", target, "none", BIND)


def _call(number: int, *args: int | bytes) -> int:
    result = int(_libc.syscall(number, *args))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mounting with other ids: {os.strerror(code)}")
    return result


def run_without(folder: Path, work: Callable[[], int]) -> Future[int]:
    """Do something, such as starting a program, in a mount namespace in which a folder is empty. Nobody else sees it.

    In a thread that ends there: it never comes back from that namespace.
    """
    done: Future[int] = Future()

    def run() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            _enter_own()
            mount("none", folder, "tmpfs", NOSUID | NODEV | NOEXEC, "mode=700,size=1m")
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 — whoever waits for it is told
            done.set_exception(error)

    try:
        threading.Thread(target=run, name="mount namespace", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from None
    return done


def _enter_own() -> None:
    """A mount namespace for this thread alone, of whose mounts no other hears. What is unmounted elsewhere is unmounted
    here, too: a disk would not be written to its end before. Raises OSError."""
    if _libc.unshare(_NEW_MOUNTS) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"a mount namespace: {os.strerror(code)}")
    mount("none", Path("/"), "none", _RECURSIVE | _SLAVE)


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
