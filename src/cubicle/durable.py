"""Writes that are on disk when the call returns: a record is whole or as it was, whatever happens to the power.

Everything that the service answers for goes through here: records, secrets, keys, budgets, uploads. The calls block;
from the event loop they are made in a thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


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
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


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
            file.write(data)
            file.flush()
            os.fsync(fd)
        yield fresh
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
