"""Where a request about files may go, and as whom.

Everything is done as the user that commands run as, so that a link laid in its way leads the guest nowhere that a
command could not go; only what the service itself owns (uploads, skills) is written as root, in folders that commands
cannot write.
"""

from __future__ import annotations

import os
import stat

from .connection import Channel, Refused
from .identity import As, Identity
from .synced_files import Publisher

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


class Shelf:
    """The sandbox's folders as the service may touch them."""

    def __init__(self, identity: Identity, aliases: dict[str, str]) -> None:
        self.identity = identity
        self._aliases = aliases

    def who(self, request: dict[str, object]) -> As:
        return self.identity.root() if request.get("as_root") else self.identity.user()

    def resolve(self, request: dict[str, object], follow: bool = True) -> str:
        """The real path that the request names, if it lies in the roots that the request allows."""
        path = request.get("path")
        if not isinstance(path, str) or not path.startswith("/"):
            raise Refused("bad-request", "path is an absolute path")
        if "\0" in path:
            raise Refused("bad-name", "a path cannot hold NUL")
        if follow:
            real = os.path.realpath(path)
        else:
            head, name = os.path.split(path.rstrip("/") or "/")
            real = os.path.join(os.path.realpath(head), name)
        _check(request, real)
        if request.get("as_root"):
            for shown, writable in self._aliases.items():
                if _beneath(real, shown):
                    return writable + real[len(shown) :]
        return real

    def confirm(self, request: dict[str, object], fd: int) -> None:
        """Check once more, by what was opened: a link may have come into the path since it was resolved."""
        if not request.get("as_root"):
            _check(request, os.readlink("/proc/self/fd/%d" % fd))


def _check(request: dict[str, object], real: str) -> None:
    roots = request.get("roots")
    if isinstance(roots, list) and not any(_beneath(real, str(root)) for root in roots):
        raise Refused("outside", "the path is outside the folders that may be used here", resolved=real)


def _beneath(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def describe(path: str, found: os.stat_result) -> dict[str, object]:
    return {
        "path": path,
        "kind": _KINDS.get(stat.S_IFMT(found.st_mode), "other"),
        "size": found.st_size,
        "mtime": found.st_mtime,
        "mode": stat.S_IMODE(found.st_mode),
        "inode": found.st_ino,
        "blocks": found.st_blocks * 512,
    }


def open_regular(path: str) -> int:
    """A descriptor of a plain file; a FIFO or a device neither hangs nor answers."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise Refused("is-directory", "it is a directory")
    raise Refused("not-regular", "it is not a plain file")


class FileChannel(Channel):
    """A channel that has to do with files."""

    shelf: Shelf
    publisher: Publisher


def whole(request: dict[str, object], name: str, default: int) -> int:
    value = request.get(name, default)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused("bad-request", "%s is a whole number" % name)
    return value
