"""Renaming files, and reading the earlier versions that are kept of them."""

from __future__ import annotations

import errno
import os
import stat

from . import operations
from .atomic_write import TEMPORARY
from .connection import OperationRefused
from .file_versions import MAX_VERSIONS, KeptVersion, ReadVersion, Rename, VersionList, Versions
from .files import SendingChannel
from .path_policy import FileChannel
from .wire import ErrorCode

_NO_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK})
"""What a file system says that makes no hard link, or of a file that is another user's."""


class RenameChannel(FileChannel):
    """Both names are taken through open folders, so that no link that is laid in their way leads elsewhere."""

    REQUEST = Rename

    def begin(self, request: Rename) -> None:
        old = self.policy.resolve(request, follow=False)
        target = operations.FileRequest(path=request.to, roots=request.roots, as_root=request.as_root)
        new = self.policy.resolve(target, follow=False)
        roots = request.roots or ()
        if old in roots or new in roots:
            raise OperationRefused(ErrorCode.PERMISSION, "this folder keeps its name")
        name = os.path.basename(new)
        if name in ("", ".", "..") or name.startswith(TEMPORARY) or len(os.fsencode(name)) > 255:
            raise OperationRefused(ErrorCode.BAD_NAME, "this cannot be the name of a file")
        with self.policy.who(request):
            source = self._folder(request, os.path.dirname(old))
            try:
                into = self._folder(target, os.path.dirname(new))
                try:
                    _rename(source, os.path.basename(old), into, name)
                finally:
                    os.close(into)
            finally:
                os.close(source)
        self.end()

    def _folder(self, request: operations.FileRequest, path: str) -> int:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.policy.confirm(request, fd)
        except OperationRefused:
            os.close(fd)
            raise
        return fd


def _rename(source: int, old: str, into: int, new: str) -> None:
    """Nothing that has the new name is replaced."""
    found = os.stat(old, dir_fd=source, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        try:
            os.link(old, new, src_dir_fd=source, dst_dir_fd=into, follow_symlinks=False)
        except FileExistsError:
            raise _taken() from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            os.unlink(old, dir_fd=source)
            return
    try:
        os.stat(new, dir_fd=into, follow_symlinks=False)
    except FileNotFoundError:
        pass
    else:
        raise _taken()
    try:
        os.rename(old, new, src_dir_fd=source, dst_dir_fd=into)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise OperationRefused(ErrorCode.BAD_NAME, "a folder cannot be moved into itself") from None
        raise


def _taken() -> OperationRefused:
    return OperationRefused(ErrorCode.EXISTS, "something has this name already")


class VersionsChannel(FileChannel):
    """Which earlier versions of a file there are."""

    REQUEST = Versions

    def begin(self, request: Versions) -> None:
        path = self.policy.resolve(request)
        found = [KeptVersion(id=id, size=size, order=order) for order, id, size in self.publisher.kept.versions(path)]
        self.end(VersionList(versions=found[:MAX_VERSIONS]))


class ReadVersionChannel(SendingChannel):
    """The file of the guest's own that holds it; nobody but the guest opens that folder."""

    REQUEST = ReadVersion

    def begin(self, request: ReadVersion) -> None:
        path = self.policy.resolve(request)
        kept = self.publisher.kept.find(request.id)
        if kept.path != path or kept.before is None:
            raise OperationRefused(ErrorCode.NOT_KEPT, "nothing of this change is kept")
        try:
            self._fd = os.open(kept.content, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            raise OperationRefused(ErrorCode.NOT_KEPT, "what was kept of this change is gone") from None
        self.send(path, request.offset, request.length)


CHANNELS: list[type[FileChannel]] = [RenameChannel, VersionsChannel, ReadVersionChannel]
