"""A file on its way into a folder: it takes its name when it is whole, and not before."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

TEMPORARY = ".cubicle-tmp-"


class AtomicWrite:
    """A new file under a name that nobody looks for, in a folder that is held open.

    The folder is checked after it was opened, and everything goes through the open folder from then on: whoever swaps
    a part of its path for a link meanwhile changes nothing.
    """

    def __init__(
        self, folder: str, name: str, check: Callable[[int], None], make_room: Callable[[], bool] | None = None
    ) -> None:
        self.name = name
        self._make_room = make_room
        self._own = TEMPORARY + os.urandom(8).hex()
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            check(self._folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._own, flags, 0o600, dir_fd=self._folder)
        except BaseException:
            os.close(self._folder)
            raise

    def write(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if not full or self._make_room is None or not self._make_room():
                    raise

    @property
    def descriptors(self) -> tuple[int, int]:
        return self._fd, self._folder

    def settle(self, mode: int) -> tuple[bool, int]:
        """Whether it is new there, and its mode: a file that was there keeps its own."""
        try:
            return False, stat.S_IMODE(os.stat(self.name, dir_fd=self._folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return True, mode

    def publish(self, mode: int) -> bool:
        """Give it its mode and its name; whether it is new there."""
        created, mode = self.settle(mode)
        self._rename(mode)
        self.close()
        return created

    def publish_on_disk(self, mode: int) -> None:
        """Give it its mode and its name, on disk: its content first, so that the name never has a part of it."""
        os.fsync(self._fd)
        self._rename(mode)
        try:
            names = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:  # a folder that its owner may not read; the file's own record of the change does for most
            os.fsync(self._fd)
            return
        try:
            os.fsync(names)
        finally:
            os.close(names)

    def _rename(self, mode: int) -> None:
        os.fchmod(self._fd, mode & 0o777)
        os.rename(self._own, self.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def discard(self) -> None:
        """Leave nothing of it."""
        try:
            os.unlink(self._own, dir_fd=self._folder)
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._folder)
