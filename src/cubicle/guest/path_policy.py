"""Where a request about files may go, and as whom.

Everything is done as the user that commands run as, so that a link laid in its way leads the guest nowhere that a
command could not go; only what the service itself owns (uploads, skills) is written as root, in folders that commands
cannot write.
"""

from __future__ import annotations

import os
import stat

from .connection import GuestChannel, OperationRefused
from .identity import As, Identity
from .operations import FailureDetails, FileRequest
from .synced_files import Keeping, Publisher
from .wire import ErrorCode


class PathPolicy:
    """The sandbox's folders as the service may touch them."""

    def __init__(self, identity: Identity, aliases: dict[str, str]) -> None:
        self.identity = identity
        self._aliases = aliases

    def who(self, request: FileRequest) -> As:
        return self.identity.root() if request.as_root else self.identity.user()

    def resolve(self, request: FileRequest, follow: bool = True) -> str:
        """The real path that the request names, if it lies in the roots that the request allows."""
        path = request.path
        if not path.startswith("/"):
            raise OperationRefused(ErrorCode.BAD_REQUEST, "path is an absolute path")
        if "\0" in path:
            raise OperationRefused(ErrorCode.BAD_NAME, "a path cannot hold NUL")
        if follow:
            real = os.path.realpath(path)
        else:
            head, name = os.path.split(path.rstrip("/") or "/")
            real = os.path.join(os.path.realpath(head), name)
        _check(request, real)
        if request.as_root:
            for shown, writable in self._aliases.items():
                if _beneath(real, shown):
                    return writable + real[len(shown) :]
        return real

    def confirm(self, request: FileRequest, fd: int) -> None:
        """Check once more, by what was opened: a link may have come into the path since it was resolved."""
        if not request.as_root:
            _check(request, os.readlink("/proc/self/fd/%d" % fd))


def _check(request: FileRequest, real: str) -> None:
    if request.roots is not None and not any(_beneath(real, root) for root in request.roots):
        why = FailureDetails(resolved=real)
        raise OperationRefused(ErrorCode.OUTSIDE, "the path is outside the folders that may be used here", why)


def _beneath(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def open_regular(path: str) -> int:
    """A descriptor of a plain file; a FIFO or a device neither hangs nor answers."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise OperationRefused(ErrorCode.IS_DIRECTORY, "it is a directory")
    raise OperationRefused(ErrorCode.NOT_REGULAR, "it is not a plain file")


class FileChannel(GuestChannel):
    """A channel that has to do with files."""

    policy: PathPolicy
    publisher: Publisher

    def keeping(self, id: str, path: str) -> Keeping | None:
        """How to keep what a change replaces, if the host wants that."""
        return Keeping(self.publisher.kept, id, path) if id else None
