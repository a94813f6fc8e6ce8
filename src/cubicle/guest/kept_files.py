"""What the file tools replaced, kept so that it can be put back. Bounded in number and bytes.

All of it is in one folder beside the guest's other records, which only the guest's root opens and which lies in no
folder of the user's: nobody who copies or searches those meets it. A file on the same mount is kept by hard link, one
on another mount by a copy. Of each change there is a record, and a file that holds the side of the change that is not
in place; a side without a file is a name that did not exist.

Everything here reads whole files, so it runs in a child process of the guest (synced_files.py).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable

from . import file_changes, file_copies
from .connection import OperationRefused
from .file_changes import FileChange, Undone
from .identity import As
from .wire import ErrorCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _Facts = tuple[int, int, int]

MAX_FILES = 100
MAX_BYTES = 96 * 1024 * 1024
_MAX_RECORD = 64 * 1024
_RECORD, _CONTENT, _MOVING = ".json", ".file", ".moving"
_CHANGED = "the file has changed since"
_GONE = "what was kept of this change is gone"


class Kept:
    """One change that was kept: its record, and the names of its files."""

    def __init__(self, base: str, path: str, sides: tuple[str | None, str | None]) -> None:
        self.content = base + _CONTENT
        self.moving = base + _MOVING
        self.path = path
        self.before, self.after = sides


class KeptFiles:
    """All that is kept in this sandbox. As root, except where a user's file is opened."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    # ---- keeping

    def keep(self, id: str, path: str, folder: int, name: str, new: int, who: As) -> FileChange:
        """Keep what is under the name in the open folder, before the new file takes its place."""
        facts: dict[str, Any] = {"after": file_changes.sha256(new), "size_after": os.fstat(new).st_size}
        try:
            old = file_copies.open_named(name, folder, who)
        except FileNotFoundError:
            return self._keep(id, path, folder, name, None, facts)
        except OSError:
            return FileChange(reason="what was there could not be read", **facts)
        try:
            found = os.fstat(old)
            if not stat.S_ISREG(found.st_mode):
                return FileChange(reason="what was there was no plain file", **facts)
            facts.update(before=file_changes.sha256(old), size_before=found.st_size)
            facts.update(file_changes.compare(old, new))
            if found.st_size > MAX_BYTES:
                return FileChange(reason="what was there is too large to be kept", **facts)
            return self._keep(id, path, folder, name, old, facts)
        finally:
            os.close(old)

    def _keep(self, id: str, path: str, folder: int, name: str, old: int | None, facts: dict[str, Any]) -> FileChange:
        """Write the record, and the file that goes with it."""
        reason = ""
        try:
            content = self._record(id, path, facts.get("before"), facts["after"])
            if old is not None and not _take(old, folder, name, content, facts["before"]):
                reason = "it was changed at the same time"
            self._prune()
        except OSError as error:
            reason = "it could not be kept: %s" % (error.strerror or error)
        if reason:
            self.forget(id)
        return FileChange(kept=not reason, reason=reason, **facts)

    def _record(self, id: str, path: str, before: str | None, after: str) -> str:
        """Write the record of a change; the name for the file that goes with it."""
        if not _is_id(id):
            raise OSError(errno.EINVAL, "no id that a change can have")
        os.makedirs(self._folder, 0o700, exist_ok=True)
        if not _is_own(os.lstat(self._folder)):
            raise OSError(errno.EPERM, "the folder for it is not the guest's own")
        numbers = [int(stem.partition(".")[0]) for stem in self._stems()]
        base = self._path("%012d.%s" % (max(numbers, default=0) + 1, id))
        line = json.dumps({"path": path, "before": before, "after": after}).encode()
        fd = os.open(base + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(base + ".new", base + _RECORD)
        return base + _CONTENT

    # ---- what is there

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _stems(self) -> list[str]:
        """The start of the names of each change that is kept: its number and its id."""
        try:
            names = os.listdir(self._folder) if _is_own(os.lstat(self._folder)) else []
        except OSError:
            return []
        parts = [os.path.splitext(name) for name in names]
        return [stem for stem, end in parts if end == _RECORD and stem.partition(".")[0].isdecimal()]

    def find(self, id: str) -> Kept:
        """The change of this id. Raises OperationRefused."""
        for stem in self._stems():
            if stem.partition(".")[2] == id:
                kept = _read(self._path(stem))
                if kept is not None:
                    return kept
        raise OperationRefused(ErrorCode.NOT_KEPT, _GONE)

    def versions(self, path: str) -> list[tuple[int, str, int]]:
        """Number, id and size of what was under this path before each change that is kept, the newest first."""
        found = []
        for stem in sorted(self._stems(), reverse=True):
            kept = _read(self._path(stem))
            if kept is not None and kept.path == path and kept.before is not None:
                number, _, id = stem.partition(".")
                found.append((int(number), id, _size(kept.content)))
        return found

    def forget(self, id: str) -> None:
        for stem in self._stems():
            if stem.partition(".")[2] == id:
                _drop(self._path(stem))

    def rename(self, old: str, new: str) -> None:
        """A change is asked for under another id from now on. The record moves last: until then, it is the old one."""
        for stem in self._stems():
            number, _, id = stem.partition(".")
            for end in (_MOVING, _CONTENT, _RECORD) if id == old and _is_id(new) else ():
                try:
                    os.rename(self._path(stem + end), self._path("%s.%s%s" % (number, new, end)))
                except OSError:
                    pass

    def make_room(self) -> bool:
        """Forget everything, for a disk that is full; whether that can have helped."""
        return sum([_drop(self._path(stem)) for stem in self._stems()]) > 0

    def _prune(self) -> None:
        """Forget the oldest changes while there are too many."""
        size = 0
        for number, stem in enumerate(sorted(self._stems(), reverse=True)):
            size += _size(self._path(stem + _CONTENT))
            if number and (number >= MAX_FILES or size > MAX_BYTES):
                _drop(self._path(stem))

    # ---- putting back

    def swap(self, kept: Kept, redo: bool, who: As, check: Callable[[int], None]) -> Undone:
        """Put the other side of a change in place, and keep the one that was there. OperationRefused, OSError."""
        here, other = (kept.before, kept.after) if redo else (kept.after, kept.before)
        folder_path, name = os.path.split(kept.path)
        try:
            with who:
                folder = os.open(folder_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                if not os.access("/proc/self/fd/%d" % folder, os.W_OK | os.X_OK, effective_ids=True):
                    raise OperationRefused(ErrorCode.PERMISSION, "the folder may not be written")
        except (FileNotFoundError, NotADirectoryError):
            raise OperationRefused(ErrorCode.CHANGED, "its folder is no longer there") from None
        try:
            check(folder)
            found, seen = _look(folder, name, who)
            _resume(kept, found)
            if found != here:
                _refuse(found, other)
            if other is not None:
                _expect_content(kept.content, other)
            if _identity(folder, name) != seen:
                raise OperationRefused(ErrorCode.CHANGED, _CHANGED)
            try:
                _swap_by_link(kept, folder, name, here, other)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _swap_by_copy(kept, folder, name, seen, other, who)
            _sync_folder(folder_path)
            _sync_folder(self._folder)
            size = None if other is None else os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        finally:
            os.close(folder)
        self._prune()
        return Undone(path=kept.path, size=size, hash=other)


def _is_id(id: str) -> bool:
    return 0 < len(id) <= 64 and id.replace("-", "").isalnum() and id.isascii()


def _read(base: str) -> Kept | None:
    try:
        fd = os.open(base + _RECORD, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            record = json.loads(os.read(fd, _MAX_RECORD))
        finally:
            os.close(fd)
        path, before, after = record["path"], record["before"], record["after"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = all(side is None or isinstance(side, str) for side in (before, after))
    return Kept(base, path, (before, after)) if isinstance(path, str) and texts else None


def _take(old: int, folder: int, name: str, content: str, hash: str) -> bool:
    """Keep an open file that has this name and this hash; whether it is still the one that was read."""
    found = os.fstat(old)
    try:
        os.link(name, content, src_dir_fd=folder, follow_symlinks=False)
        now = os.lstat(content)  # on an overlay it may have another inode from now on
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        file_copies.copy_in(old, content)
        now = os.fstat(old)
    if not stat.S_ISREG(now.st_mode):
        return False
    # gVisor tells other times of the same file by each of its names.
    return (now.st_size, now.st_mtime_ns) == (found.st_size, found.st_mtime_ns) or _hash(content) == hash


def _resume(kept: Kept, in_place: str | None) -> None:
    """Finish or take back a swap that was broken off: what is to be kept is the side that is not in place."""
    if not os.path.lexists(kept.moving):
        return
    if os.path.lexists(kept.content) and _hash(kept.content) != in_place:
        os.unlink(kept.moving)
    else:
        os.rename(kept.moving, kept.content)


def _swap_by_link(kept: Kept, folder: int, name: str, here: str | None, other: str | None) -> None:
    if other is None:
        _unlink(kept.content)  # left of a swap that was broken off: no name takes the place of another of its file
        os.rename(name, kept.content, src_dir_fd=folder)
    elif here is None:
        _put_new(kept.content, folder, name)
        os.unlink(kept.content)
    else:
        os.link(name, kept.moving, src_dir_fd=folder, follow_symlinks=False)
        os.rename(kept.content, name, dst_dir_fd=folder)
        os.rename(kept.moving, kept.content)


def _swap_by_copy(kept: Kept, folder: int, name: str, seen: _Facts | None, other: str | None, who: As) -> None:
    """As by link, over two mounts. Each step is on disk before the next: the mounts may be of two file systems."""
    draft = file_copies.copy_out(kept.content, folder, who) if other is not None else ""
    try:
        if seen is None:
            with who:
                _put_new(draft, folder, name, folder)
            os.unlink(kept.content)
            return
        _copy_in_place(kept, folder, name, seen, who)
        if draft:
            with who:
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            draft = ""
            _sync_folder("/proc/self/fd/%d" % folder)
            os.rename(kept.moving, kept.content)
        else:
            os.rename(kept.moving, kept.content)
            _sync_folder(os.path.dirname(kept.content))
            with who:
                os.unlink(name, dir_fd=folder)
    finally:
        if draft:
            with who:
                _unlink(draft, folder)


def _copy_in_place(kept: Kept, folder: int, name: str, seen: _Facts, who: As) -> None:
    """Copy what is in place, on disk; nothing of it is left if it is no longer what was seen there."""
    source = file_copies.open_named(name, folder, who)
    try:
        file_copies.copy_in(source, kept.moving, sync=True)
        if _facts(os.fstat(source)) != seen or _identity(folder, name) != seen:
            raise OperationRefused(ErrorCode.CHANGED, _CHANGED)
    except (OSError, OperationRefused):
        _unlink(kept.moving)
        raise
    finally:
        os.close(source)


def _look(folder: int, name: str, who: As) -> tuple[str | None, _Facts | None]:
    """What is under the name, by its hash, and which file it is. Raises OperationRefused for what cannot be read."""
    try:
        fd = file_copies.open_named(name, folder, who)
    except FileNotFoundError:
        return None, None
    except OSError:
        raise OperationRefused(ErrorCode.CHANGED, _CHANGED) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OperationRefused(ErrorCode.CHANGED, _CHANGED)
        return file_changes.sha256(fd), _facts(status)
    finally:
        os.close(fd)


def _refuse(found: str | None, other: str | None) -> None:
    if found == other:
        raise OperationRefused(ErrorCode.EXISTS, "the file is like that already")
    raise OperationRefused(ErrorCode.CHANGED, _CHANGED)


def _expect_content(content: str, hash: str) -> None:
    """Check that what was kept is still what it was: a program may have held it open."""
    found = _hash(content)
    if found is None:
        raise OperationRefused(ErrorCode.NOT_KEPT, _GONE)
    if found != hash:
        raise OperationRefused(ErrorCode.NOT_KEPT, "what was kept of this change was changed by a program")


def _hash(path: str) -> str | None:
    """Of a plain file of the guest's own, if it is there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return file_changes.sha256(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)


def _put_new(source: str, folder: int, name: str, source_folder: int | None = None) -> None:
    try:
        os.link(source, name, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise OperationRefused(ErrorCode.CHANGED, _CHANGED) from None


def _identity(folder: int, name: str) -> _Facts | None:
    try:
        return _facts(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return None


def _facts(status: os.stat_result) -> _Facts:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_own(status: os.stat_result) -> bool:
    """Whether it is a folder that only the guest can open: a program may have laid something else there."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _drop(base: str) -> int:
    """Remove a change from what is kept; how many bytes that frees, at the most."""
    size = _size(base + _CONTENT)
    for end in (_RECORD, _CONTENT, _MOVING):
        _unlink(base + end)
    return size


def _unlink(path: str, folder: int | None = None) -> None:
    try:
        os.unlink(path, dir_fd=folder)
    except OSError:
        pass
