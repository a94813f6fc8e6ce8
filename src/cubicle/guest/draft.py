"""A file on its way into a folder: it takes its name when it is whole, and not before."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

TEMPORARY = ".cubicle-tmp-"


class Draft:
    """A new file under a name that nobody looks for, in a folder that is held open.

    The folder is checked after it was opened, and everything goes through the open folder from then on: whoever swaps
    a part of its path for a link meanwhile changes nothing.
    """

    def __init__(self, folder: str, name: str, check: Callable[[int], None]) -> None:
        self._name = name
        self._own = TEMPORARY + os.urandom(8).hex()
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            check(self._folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._own, flags, 0o600, dir_fd=self._folder)
        except BaseException:
            os.close(self._folder)
            raise

    def write(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(self._fd, view) :]

    def publish(self, mode: int) -> bool:
        """Give it its mode and its name; whether it is new there. A file that was there keeps its mode."""
        try:
            mode = stat.S_IMODE(os.stat(self._name, dir_fd=self._folder, follow_symlinks=False).st_mode)
            created = False
        except FileNotFoundError:
            created = True
        os.fchmod(self._fd, mode & 0o777)
        os.rename(self._own, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._close()
        return created

    def discard(self) -> None:
        """Leave nothing of it."""
        try:
            os.unlink(self._own, dir_fd=self._folder)
        except OSError:
            pass
        self._close()

    def _close(self) -> None:
        os.close(self._fd)
        os.close(self._folder)
