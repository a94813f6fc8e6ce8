"""What the file tools replaced, kept by hard link so that it can be put back. Bounded in number and bytes.

A kept file must be on the mount of the file that replaced it: there is one folder beside the home, or in it if the home
is a mount of its own. Of what is on other mounts nothing is kept: a folder there would be in the way of who copies it
or searches it. Only the guest's root opens it. Of each change there is a record, and a file that holds the side of the
change that is not in place; a side without a file is a name that did not exist.

Everything here reads whole files, so it runs in a child process of the guest (synced_files.py).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator

from . import file_changes
from .connection import OperationRefused
from .file_changes import FileChange, Undone
from .identity import As
from .wire import ErrorCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = ".cubicle-kept"
MAX_FILES = 100
MAX_BYTES = 96 * 1024 * 1024
_MAX_RECORD = 64 * 1024
_RECORD, _CONTENT, _MOVING = ".json", ".file", ".moving"
_CHANGED = "the file has changed since"
_GONE = "what was kept of this change is gone"


class Kept:
    """One change that was kept: the folder that has it, the start of its names there, and its record."""

    def __init__(self, folder: str, stem: str, path: str, sides: tuple[str | None, str | None]) -> None:
        self.folder = folder
        self.stem = stem
        self.path = path
        self.before, self.after = sides


class KeptFiles:
    """All that is kept in this sandbox. As root, except where a user's file is opened."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._roots = (os.path.dirname(home), home)

    # ---- keeping

    def keep(self, id: str, path: str, folder: int, name: str, new: int, who: As) -> FileChange:
        """Keep what is under the name in the open folder, before the new file takes its place."""
        facts: dict[str, Any] = {"after": file_changes.sha256(new), "size_after": os.fstat(new).st_size}
        found = None
        try:
            with who:
                old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError:
            return FileChange(reason="what was there could not be read", **facts)
        else:
            try:
                found = os.fstat(old)
                if not stat.S_ISREG(found.st_mode):
                    return FileChange(reason="what was there was no plain file", **facts)
                facts.update(before=file_changes.sha256(old), size_before=found.st_size)
                facts.update(file_changes.compare(old, new))
            finally:
                os.close(old)
        try:
            reason = self._keep(id, path, folder, name, found, facts)
        except OSError as error:
            reason = "it could not be kept: %s" % (error.strerror or error)
        if reason:
            self.forget(id)
        return FileChange(kept=not reason, reason=reason, **facts)

    def _keep(
        self, id: str, path: str, folder: int, name: str, found: os.stat_result | None, facts: dict[str, Any]
    ) -> str:
        """Write the record and link the file; why not."""
        if found is not None and found.st_size > MAX_BYTES:
            return "what was there is too large to be kept"
        content = self._record(id, path, folder, facts.get("before"), facts["after"])
        if found is not None:
            os.link(name, content, src_dir_fd=folder, follow_symlinks=False)
            kept = os.lstat(content)
            if not stat.S_ISREG(kept.st_mode) or (kept.st_size, kept.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
                return "it was changed at the same time"
        self._prune()
        return ""

    def _record(self, id: str, path: str, folder: int, before: str | None, after: str) -> str:
        """Write the record of a change; the name for the file that goes with it."""
        if not _is_id(id):
            raise OSError(errno.EINVAL, "no id that a change can have")
        place = self._place(path, folder)
        numbers = [int(stem.partition(".")[0]) for _, stem in self._stems()]
        base = os.path.join(place, "%012d.%s" % (max(numbers, default=0) + 1, id))
        line = json.dumps({"path": path, "before": before, "after": after}).encode()
        fd = os.open(base + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(base + ".new", base + _RECORD)
        return base + _CONTENT

    def _place(self, path: str, folder: int) -> str:
        """The folder for what is kept of this path: on the same mount, as only there a link can be made."""
        wanted = _mount(folder)
        for root in self._roots:
            if root != self._roots[0] and not path.startswith(root + "/"):
                continue
            try:
                fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                if _mount(fd) != wanted:
                    continue
                try:
                    os.mkdir(FOLDER, 0o700, dir_fd=fd)
                except FileExistsError:
                    pass
                if not _is_own(os.stat(FOLDER, dir_fd=fd, follow_symlinks=False)):
                    continue
                return os.path.join(root, FOLDER)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise
            finally:
                os.close(fd)
        raise OSError(errno.EXDEV, "there is no folder on this disk that replaced files can be kept in")

    # ---- what is there

    def _stems(self) -> Iterator[tuple[str, str]]:
        """Folder and start of the names of each change that is kept."""
        for root in self._roots:
            folder = os.path.join(root, FOLDER)
            try:
                if not _is_own(os.lstat(folder)):
                    continue
                names = os.listdir(folder)
            except OSError:
                continue
            for name in names:
                stem, end = os.path.splitext(name)
                if end == _RECORD and stem.partition(".")[0].isdecimal():
                    yield folder, stem

    def find(self, id: str) -> Kept:
        """The change of this id. Raises OperationRefused."""
        for folder, stem in self._stems():
            if stem.partition(".")[2] == id:
                kept = _read(folder, stem)
                if kept is not None:
                    return kept
        raise OperationRefused(ErrorCode.NOT_KEPT, _GONE)

    def forget(self, id: str) -> None:
        for folder, stem in list(self._stems()):
            if stem.partition(".")[2] == id:
                _drop(folder, stem)

    def rename(self, old: str, new: str) -> None:
        """A change is asked for under another id from now on. The record moves last: until then, it is the old one."""
        for folder, stem in list(self._stems()):
            number, _, id = stem.partition(".")
            for end in (_MOVING, _CONTENT, _RECORD) if id == old and _is_id(new) else ():
                try:
                    os.rename(os.path.join(folder, stem + end), os.path.join(folder, "%s.%s%s" % (number, new, end)))
                except OSError:
                    pass

    def make_room(self) -> bool:
        """Forget everything, for a disk that is full; whether that can have helped."""
        freed = False
        for folder, stem in list(self._stems()):
            freed = _drop(folder, stem) > 0 or freed
        return freed

    def _prune(self) -> None:
        """Forget the oldest changes while there are too many; a folder of which nothing is left goes, too."""
        found = sorted(self._stems(), key=lambda one: one[1], reverse=True)
        size, emptied = 0, set()
        for number, (folder, stem) in enumerate(found):
            size += _size(os.path.join(folder, stem + _CONTENT))
            if number and (number >= MAX_FILES or size > MAX_BYTES):
                _drop(folder, stem)
                emptied.add(folder)
        for folder in emptied:
            try:
                os.rmdir(folder)
            except OSError:
                pass

    # ---- putting back

    def swap(self, kept: Kept, redo: bool, who: As, check: Callable[[int], None]) -> Undone:
        """Put the other side of a change in place, and keep the one that was there. OperationRefused, OSError."""
        here, other = (kept.before, kept.after) if redo else (kept.after, kept.before)
        folder_path, name = os.path.split(kept.path)
        content = os.path.join(kept.folder, kept.stem + _CONTENT)
        _resume(kept)
        try:
            with who:
                folder = os.open(folder_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                if not os.access("/proc/self/fd/%d" % folder, os.W_OK | os.X_OK, effective_ids=True):
                    raise OperationRefused(ErrorCode.PERMISSION, "the folder may not be written")
        except (FileNotFoundError, NotADirectoryError):
            raise OperationRefused(ErrorCode.CHANGED, "its folder is no longer there") from None
        try:
            check(folder)
            seen = _expect(folder, name, here, other, who)
            if other is not None:
                _expect_content(content, other)
            if _identity(folder, name) != seen:
                raise OperationRefused(ErrorCode.CHANGED, _CHANGED)
            if other is None:
                os.rename(name, content, src_dir_fd=folder)
            elif here is None:
                _put_new(content, folder, name)
            else:
                moving = os.path.join(kept.folder, kept.stem + _MOVING)
                os.link(name, moving, src_dir_fd=folder, follow_symlinks=False)
                os.rename(content, name, dst_dir_fd=folder)
                os.rename(moving, content)
            _sync(folder_path, kept.folder)
            size = None if other is None else os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        finally:
            os.close(folder)
        self._prune()
        return Undone(path=kept.path, size=size, hash=other)


def _is_id(id: str) -> bool:
    return 0 < len(id) <= 64 and id.replace("-", "").isalnum() and id.isascii()


def _read(folder: str, stem: str) -> Kept | None:
    try:
        fd = os.open(os.path.join(folder, stem + _RECORD), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            record = json.loads(os.read(fd, _MAX_RECORD))
        finally:
            os.close(fd)
        path, before, after = record["path"], record["before"], record["after"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = all(side is None or isinstance(side, str) for side in (before, after))
    return Kept(folder, stem, path, (before, after)) if isinstance(path, str) and texts else None


def _resume(kept: Kept) -> None:
    """Finish or take back a swap that was broken off: what it moves has either taken the free name or is a copy."""
    moving, content = (os.path.join(kept.folder, kept.stem + end) for end in (_MOVING, _CONTENT))
    if os.path.lexists(moving):
        if os.path.lexists(content):
            os.unlink(moving)
        else:
            os.rename(moving, content)


def _expect(folder: int, name: str, here: str | None, other: str | None, who: As) -> tuple[int, int, int] | None:
    """Check what is under the name by its hash; which file it is."""
    try:
        with who:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        found, seen = None, None
    except OSError:
        raise OperationRefused(ErrorCode.CHANGED, _CHANGED) from None
    else:
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OperationRefused(ErrorCode.CHANGED, _CHANGED)
            found, seen = file_changes.sha256(fd), _facts(status)
        finally:
            os.close(fd)
    if found == here:
        return seen
    if found == other:
        raise OperationRefused(ErrorCode.EXISTS, "the file is like that already")
    raise OperationRefused(ErrorCode.CHANGED, _CHANGED)


def _expect_content(content: str, hash: str) -> None:
    """Check that what was kept is still what it was: a program may have held it open."""
    try:
        fd = os.open(content, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise OperationRefused(ErrorCode.NOT_KEPT, _GONE) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or file_changes.sha256(fd) != hash:
            raise OperationRefused(ErrorCode.NOT_KEPT, "what was kept of this change was changed by a program")
    finally:
        os.close(fd)


def _put_new(content: str, folder: int, name: str) -> None:
    try:
        os.link(content, name, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise OperationRefused(ErrorCode.CHANGED, _CHANGED) from None
    os.unlink(content)


def _identity(folder: int, name: str) -> tuple[int, int, int] | None:
    try:
        return _facts(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return None


def _facts(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _sync(*folders: str) -> None:
    for folder in folders:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _mount(fd: int) -> tuple[str, int]:
    """Which mount an open folder is on; gVisor tells its device only."""
    with open("/proc/self/fdinfo/%d" % fd) as facts:
        for line in facts:
            if line.startswith("mnt_id:"):
                return "mount", int(line[7:])
    return "device", os.fstat(fd).st_dev


def _is_own(status: os.stat_result) -> bool:
    """Whether it is a folder that only the guest can open: a program may have laid something else there."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _drop(folder: str, stem: str) -> int:
    """Remove a change from what is kept; how many bytes that frees, at the most."""
    size = _size(os.path.join(folder, stem + _CONTENT))
    for end in (_RECORD, _CONTENT, _MOVING):
        try:
            os.unlink(os.path.join(folder, stem + end))
        except OSError:
            pass
    return size
